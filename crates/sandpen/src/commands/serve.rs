//! `sandpen serve`: tools for MCP clients, over HTTP.

use std::net::SocketAddr;

use clap::Args;
use sandbox::{Owner, Result, Signal};
use serde::Serialize;
use tokio::time::timeout;

use crate::audit::Audit;
use crate::cli::examples;
use crate::config::flags::{HttpFlags, ServingFlags};
use crate::config::{Config, Written};
use crate::exit::Exit;
use crate::http::access::Access;
use crate::http::body::Bodies;
use crate::http::drain::{Drain, GRACE};
use crate::http::{self, listener};
use crate::mcp::adapter::Callers;
use crate::mcp::stdio::Ending;
use crate::mcp::{self, setup};
use crate::output::{self, Audience};
use crate::signals::{Heard, Signals};
use crate::wiring::Outlet;
use crate::{log, outcome, wiring};

/// Serve MCP clients over HTTP, on this machine
///
/// The address is /mcp, for clients since 2025, and /sse for older ones. Nobody is asked who they are, so only this
/// machine can be served; web pages are refused unless --allowed-origins names them. The first Ctrl-C or SIGTERM
/// finishes what goes on, within 10 s; the second ends at once.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen serve", "at http://127.0.0.1:8228/mcp"),
    ("claude mcp add --transport http sandpen http://127.0.0.1:8228/mcp", "connect Claude Code to it"),
    ("sandpen serve --listen 127.0.0.1:0 --json", "at a free port, which the first line of output names"),
]))]
pub struct Arguments {
    #[command(flatten)]
    http: HttpFlags,

    #[command(flatten)]
    serving: ServingFlags,
}

impl Arguments {
    pub fn write_to(&self, written: &mut Written) {
        self.http.write_to(written);
        self.serving.write_to(written);
    }
}

#[derive(Serialize)]
struct Listening {
    url: String,
    sse_url: Option<String>,
}

pub fn run(_arguments: Arguments, config: Config) -> Result<Exit> {
    log::start(config.server.log);
    outcome::name_passed_through(&config.sandbox);
    wiring::block_on(async {
        let mut signals = Signals::listen()?;
        // Before the engine: an address that is taken must not cost one.
        let listener = http::bind(config.http.listen).await?;
        let address = listener.local_addr().unwrap_or(config.http.listen);
        let outlet = Outlet::new(&config)?;
        outlet.gateway.protect(address);
        let audit = Audit::start(&outlet.events);
        let adapter = setup::adapter(&config, &outlet, Callers::OfRequest).await?;
        let drain = Drain::default();
        let bodies = Bodies::new(config.http.max_body);
        let sessions = mcp::sessions(adapter.clone());
        let mut protocol = mcp::http::routes(sessions.clone(), bodies.clone(), &drain);
        if config.http.legacy_sse {
            protocol = protocol.merge(mcp::sse::routes(sessions, bodies, &drain));
        }
        let access = Access::new(address, &config.http.allowed_hosts, &config.http.allowed_origins);
        let routes = http::routes(protocol, access, Owner::local(), &drain);
        announce(&config, address);
        let ((), ending) = tokio::join!(listener::serve(listener, routes, &drain), end(&mut signals, &drain));
        match ending {
            // The launcher sees our end and clears everything away.
            Ending::Forced(signal) => Ok(Exit::signal(signal)),
            Ending::Orderly => {
                let ended = adapter.shut_down().await;
                audit.finish().await;
                ended.map(|()| Exit::SUCCESS)
            }
        }
    })
}

/// From the first signal on: finish what goes on, unless it takes too long or somebody insists.
async fn end(signals: &mut Signals, drain: &Drain) -> Ending {
    ending(signals).await;
    drain.begin();
    let ending = tokio::select! {
        _ = timeout(GRACE, drain.idle()) => Ending::Orderly,
        signal = ending(signals) => Ending::Forced(signal),
    };
    drain.finish();
    ending
}

async fn ending(signals: &mut Signals) -> Signal {
    loop {
        match signals.next().await {
            Heard::End(signal) => return signal,
            Heard::Resized => {}
        }
    }
}

fn announce(config: &Config, address: SocketAddr) {
    let url = format!("http://{address}/mcp");
    let sse_url = config.http.legacy_sse.then(|| format!("http://{address}/sse"));
    match Audience::new(config.json) {
        Audience::Program => output::object(&Listening { url, sse_url }),
        Audience::Person => {
            let hint = format!("connect a client, for example: claude mcp add --transport http sandpen {url}");
            output::note(&format!("listening on {url}"), Some(&hint));
        }
    }
}
