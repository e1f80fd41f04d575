//! `sandpen mcp`: tools for one MCP client, over standard input and output.

use std::io::IsTerminal;

use clap::Args;
use clap::builder::PossibleValuesParser;
use sandbox::{Error, ErrorKind, Result};
use tools::ProfileName;

use crate::audit::Audit;
use crate::cli::examples;
use crate::commands::{install, serve};
use crate::config::flags::ServingFlags;
use crate::config::{Config, Key, Written};
use crate::exit::Exit;
use crate::http::drain::Drain;
use crate::install::client::Client;
use crate::install::older::Older;
use crate::mcp::adapter::Callers;
use crate::mcp::setup::{Server, Shows};
use crate::mcp::sse::Inbox;
use crate::mcp::stdio::{self, Ending, Stdio};
use crate::metrics::Metrics;
use crate::previews::Place;
use crate::trace::Traces;
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
    ("sandpen mcp --profile automata", "in place of an older server, whose clients stay as they are"),
]))]
pub struct Arguments {
    #[command(flatten)]
    older: OlderFlags,

    #[command(flatten)]
    serving: ServingFlags,
}

impl Arguments {
    pub fn write_to(&self, written: &mut Written) {
        self.older.write_to(written);
        self.serving.write_to(written);
    }
}

/// The flags of the older server that `automata` speaks for, so that its command lines stay good.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "With --profile automata")]
struct OlderFlags {
    /// Set up Claude Desktop to start this with the profile, as sandpen install does, and exit
    #[arg(long)]
    install: bool,

    /// Has no effect: this program never updates itself
    #[arg(long)]
    no_update: bool,

    /// Serve over stdio, or by sse: HTTP on this machine, at /sse, /message and /mcp [default: stdio]
    #[arg(long, value_name = "TRANSPORT", value_parser = PossibleValuesParser::new(["stdio", "sse"]), hide_possible_values = true)]
    transport: Option<String>,

    /// Where --transport sse listens [default: 9520]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
}

/// What the older server called itself in a client's configuration.
const OLDER_NAME: &str = "code-sandbox-mcp";

/// What the older server listened on.
const OLDER_PORT: u16 = 9520;

/// Where its clients post to.
const OLDER_INBOX: Inbox = Inbox { base: "", path: "/message" };

impl OlderFlags {
    fn write_to(&self, written: &mut Written) {
        if self.is_sse() {
            written.push(Key::Listen, self.port.unwrap_or(OLDER_PORT).to_string());
            // As it did, and on this machine only.
            written.push(Key::NoAuth, "true");
        }
    }

    fn is_sse(&self) -> bool {
        self.transport.as_deref() == Some("sse")
    }

    /// They mean nothing to anybody else.
    fn check(&self, profile: Option<ProfileName>) -> Result<()> {
        let given = [
            ("--install", self.install),
            ("--no-update", self.no_update),
            ("--transport", self.transport.is_some()),
            ("--port", self.port.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) if profile != Some(ProfileName::Automata) => {
                Err(Error::invalid_input(format!("{flag} goes with --profile automata only"))
                    .with_hint("without it, sandpen mcp serves over stdio and sandpen serve over HTTP"))
            }
            Some(_) if self.install && (self.is_sse() || self.port.is_some()) => Err(Error::invalid_input(
                "--transport sse and --port say nothing to Claude Desktop, which speaks over stdio",
            )
            .with_hint("leave them out with --install")),
            Some(_) | None => Ok(()),
        }
    }
}

/// The older server's own entry is what is to be replaced. Any other of its name is the person's.
fn set_up(config: Config) -> Result<Exit> {
    let entry = install::Arguments::of_older(Client::ClaudeDesktop, ProfileName::Automata, OLDER_NAME, Older::Automata);
    match install::run(entry, config) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Error::new(error.kind(), error.message())
            .with_hint("take it out, or change its command to sandpen and its args to mcp --profile automata")),
        done => done,
    }
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let mut config = config.serving()?;
    let older = arguments.older;
    older.check(config.server.profile)?;
    if older.install {
        return set_up(config);
    }
    if older.is_sse() {
        // It is what was asked for, whatever is said of it for others.
        config.http.legacy_sse = true;
        return serve::serve(config, OLDER_INBOX);
    }
    let prepared = log::start(&config.server)?;
    if std::io::stdin().is_terminal() {
        output::note("this is for MCP clients, which speak JSON-RPC by lines", Some("Ctrl-C ends it"));
    }
    outcome::name_passed_through(&config.sandbox);
    let stdio = Stdio::take()?;
    wiring::block_on(async {
        let traces = Traces::start(prepared);
        let outlet = Outlet::new(&config)?;
        let audit = Audit::start(&outlet.events, config.server.audit_log.as_deref(), &Metrics::default())?;
        let shows = Shows { place: Place::Here, drain: Drain::default() };
        let (server, adapter) = Server::start(&config, &outlet, Callers::Local, audit.recorder(), None, shows).await?;
        let served = stdio::serve(adapter, stdio).await;
        match served {
            // The launcher sees our end and clears everything away.
            Ok(Ending::Forced(signal)) => Ok(Exit::signal(signal)),
            Ok(Ending::Orderly) => {
                let ended = server.shut_down().await;
                audit.finish().await;
                traces.finish().await;
                ended.map(|()| Exit::SUCCESS)
            }
            Err(error) => server.shut_down().await.and(Err(error)),
        }
    })
}
