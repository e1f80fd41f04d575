//! `sandpen serve`: tools for MCP clients, over HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use clap::Args;
use sandbox::{Owner, Result, Signal};
use serde::Serialize;
use tokio::time::timeout;
use tools::{ProfileName, Selection};

use crate::audit::Audit;
use crate::cli::examples;
use crate::config::code_runner::BaseUrl;
use crate::config::flags::{HttpFlags, ServingFlags};
use crate::config::{Config, Written};
use crate::exit::Exit;
use crate::http::access::{Access, AllowedHost};
use crate::http::body::Bodies;
use crate::http::drain::{Drain, GRACE};
use crate::http::{self, Entrance, bearer, listener};
use crate::mcp;
use crate::mcp::adapter::{Adapter, Callers};
use crate::mcp::http::Alias;
use crate::mcp::setup::Server;
use crate::mcp::sse::Inbox;
use crate::mcp::stdio::Ending;
use crate::output::{self, Audience};
use crate::profiles::code_runner::{self, Store};
use crate::signals::{Heard, Signals};
use crate::wiring::Outlet;
use crate::{log, outcome, wiring};

/// Serve MCP clients over HTTP, on this machine
///
/// The address is /mcp, for clients since 2025, and /sse for older ones. Nobody is asked who they are, so only this
/// machine can be served; --profile code-runner with its token can serve others. Web pages are refused unless
/// --allowed-origins names them. The first Ctrl-C or SIGTERM finishes what goes on, within 10 s; the second ends at once.
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
    serve(config.serving()?, Inbox::below(""))
}

/// Until somebody ends it; `inbox` is that of /sse.
pub fn serve(mut config: Config, inbox: Inbox) -> Result<Exit> {
    log::start(config.server.log);
    outcome::name_passed_through(&config.sandbox);
    wiring::block_on(async {
        let mut signals = Signals::listen()?;
        // Before the engine: an address that is taken must not cost one.
        let listener = http::bind(config.http.listen, entrance(&config)).await?;
        let address = listener.local_addr().unwrap_or(config.http.listen);
        config.code_runner.base.get_or_insert_with(|| BaseUrl::of(address, ""));
        if config.server.profile == Some(ProfileName::CodeRunner) {
            Store::new(&config.code_runner, config.state_dir()?).prepare()?;
        }
        let outlet = Outlet::new(&config)?;
        outlet.gateway.protect(address);
        let audit = Audit::start(&outlet.events);
        let (mut server, adapter) = Server::start(&config, &outlet, Callers::OfRequest).await?;
        let drain = Drain::default();
        let endpoints = Endpoints { config: &config, bodies: Bodies::new(config.http.max_body), drain: &drain };
        let mut protocol = endpoints.of(&config, adapter.clone(), inbox);
        let mut links = downloads(&config)?;
        // One that was chosen is all that there is, under its own address too.
        match config.server.profile {
            Some(profile) => {
                protocol = protocol.nest(base(profile), endpoints.of(&config, adapter, Inbox::below(base(profile))));
                if profile == ProfileName::CodeRunner {
                    links = links.clone().nest(base(profile), links);
                }
            }
            // Who chose among our tools did not mean that others do the same under another name.
            None if config.server.selection != Selection::default() => {}
            None => {
                for &profile in ProfileName::ALL {
                    let mut config = config.as_profile(profile)?;
                    config.code_runner.base = Some(BaseUrl::of(address, base(profile)));
                    let endpoint = endpoints.of(&config, server.speak_as(&config)?, Inbox::below(base(profile)));
                    protocol = protocol.nest(base(profile), endpoint);
                    if profile == ProfileName::CodeRunner {
                        links = links.nest(base(profile), downloads(&config)?);
                    }
                }
            }
        }
        let named = config.code_runner.base.as_ref().and_then(BaseUrl::host);
        let hosts: Vec<AllowedHost> = config.http.allowed_hosts.iter().chain(named).cloned().collect();
        let access = Access::new(address, entrance(&config), &hosts, &config.http.allowed_origins);
        let routes = http::routes(protocol, links, access, Owner::local(), &drain);
        announce(&config, address);
        remark(&config);
        let ((), ending) = tokio::join!(listener::serve(listener, routes, &drain), end(&mut signals, &drain));
        match ending {
            // The launcher sees our end and clears everything away.
            Ending::Forced(signal) => Ok(Exit::signal(signal)),
            Ending::Orderly => {
                let ended = server.shut_down().await;
                audit.finish().await;
                ended.map(|()| Exit::SUCCESS)
            }
        }
    })
}

/// The addresses of all who speak here.
struct Endpoints<'a> {
    config: &'a Config,
    bodies: Bodies,
    drain: &'a Drain,
}

impl Endpoints<'_> {
    /// Those of one of them, which speaks as `config` says; `inbox` says below what they are put.
    fn of(&self, config: &Config, adapter: Adapter, inbox: Inbox) -> Router {
        let sessions = mcp::sessions(adapter);
        let bodies = || self.bodies.clone();
        let mut protocol = match config.server.profile {
            Some(ProfileName::CodeRunner) => mcp::plain::routes(sessions.clone(), bodies(), self.drain),
            Some(ProfileName::Cloudflare) => mcp::http::routes(Alias::Sse, sessions.clone(), bodies(), self.drain),
            Some(ProfileName::SandboxServer | ProfileName::Automata | ProfileName::Philschmid) | None => {
                mcp::http::routes(Alias::None, sessions.clone(), bodies(), self.drain)
            }
        };
        if self.config.http.legacy_sse {
            protocol = protocol.merge(mcp::sse::routes(inbox, sessions, bodies(), self.drain));
        }
        match &config.code_runner.token {
            Some(token) => bearer::guard(protocol, token.clone()),
            None => protocol,
        }
    }
}

/// Who gets in. A token is asked for by one of the older servers alone, and lets other machines in where there is no other.
fn entrance(config: &Config) -> Entrance {
    match (config.server.profile, &config.code_runner.token) {
        (Some(ProfileName::CodeRunner), Some(_)) => Entrance::Token,
        (Some(_) | None, _) => Entrance::Open,
    }
}

/// The files that one of the older servers gives out addresses of.
fn downloads(config: &Config) -> Result<Router> {
    if config.server.profile != Some(ProfileName::CodeRunner) {
        return Ok(Router::new());
    }
    let store = Store::new(&config.code_runner, config.state_dir()?);
    Ok(code_runner::downloads::routes(Arc::new(store)))
}

/// What an operator of an older server may not expect.
fn remark(config: &Config) {
    if config.server.profile != Some(ProfileName::CodeRunner) || config.json {
        return;
    }
    if config.code_runner.token.is_none() {
        output::note("without MCP_API_TOKEN everybody on this machine gets in, and nobody else", None);
    }
    if config.code_runner.has_host_path {
        output::note("SANDBOX_HOST_PATH is not needed any more: files are copied, and nothing is mounted", None);
    }
}

/// Where an older server is spoken for.
fn base(profile: ProfileName) -> &'static str {
    match profile {
        ProfileName::Cloudflare => "/profiles/cloudflare",
        ProfileName::SandboxServer => "/profiles/sandbox-server",
        ProfileName::CodeRunner => "/profiles/code-runner",
        ProfileName::Automata => "/profiles/automata",
        ProfileName::Philschmid => "/profiles/philschmid",
    }
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
