//! `sandpen mcp`: tools for one MCP client, over standard input and output.

use std::io::IsTerminal;

use clap::Args;
use sandbox::Result;

use crate::audit::Audit;
use crate::cli::examples;
use crate::config::flags::ServingFlags;
use crate::config::{Config, Written};
use crate::exit::Exit;
use crate::mcp::adapter::Callers;
use crate::mcp::setup;
use crate::mcp::stdio::{self, Ending, Stdio};
use crate::wiring::Outlet;
use crate::{log, outcome, output, wiring};

/// Serve an MCP client over standard input and output
///
/// For the configuration of an MCP client: it starts this command and speaks with it. Sandboxes end with the client.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("claude mcp add sandpen -- sandpen mcp", "add it to Claude Code"),
    ("sandpen mcp --memory 2G --timeout 5m", "with more room for each sandbox"),
    ("sandpen mcp --max-network internet", "where the model may ask for hosts"),
    ("sandpen mcp --read-only", "with the tools that change nothing"),
]))]
pub struct Arguments {
    #[command(flatten)]
    serving: ServingFlags,
}

impl Arguments {
    pub fn write_to(&self, written: &mut Written) {
        self.serving.write_to(written);
    }
}

pub fn run(_arguments: Arguments, config: Config) -> Result<Exit> {
    log::start(config.server.log);
    if std::io::stdin().is_terminal() {
        output::note("this is for MCP clients, which speak JSON-RPC by lines", Some("Ctrl-C ends it"));
    }
    outcome::name_passed_through(&config.sandbox);
    let stdio = Stdio::take()?;
    wiring::block_on(async {
        let outlet = Outlet::new(&config)?;
        let audit = Audit::start(&outlet.events);
        let adapter = setup::adapter(&config, &outlet, Callers::Local).await?;
        let served = stdio::serve(adapter.clone(), stdio).await;
        match served {
            // The launcher sees our end and clears everything away.
            Ok(Ending::Forced(signal)) => Ok(Exit::signal(signal)),
            Ok(Ending::Orderly) => {
                let ended = adapter.shut_down().await;
                audit.finish().await;
                ended.map(|()| Exit::SUCCESS)
            }
            Err(error) => adapter.shut_down().await.and(Err(error)),
        }
    })
}
