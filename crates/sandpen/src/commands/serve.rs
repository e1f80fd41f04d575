//! `sandpen serve`: tools for MCP clients, over HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use clap::Args;
use sandbox::{Error, Result};
use serde::Serialize;
use tokio::net::TcpListener;
use tools::{Links, ProfileName, Selection};

use crate::api::session::{self, SignIn};
use crate::audit::{Audit, Recorder};
use crate::auth::account::AccountFile;
use crate::auth::keyring::Keyring;
use crate::auth::setup::{self, Setup};
use crate::auth::strangers::Strangers;
use crate::auth::token::TokenFile;
use crate::auth::{self, Authentication};
use crate::cli::examples;
use crate::config::code_runner::{BaseUrl, FileSecret};
use crate::config::flags::{HttpFlags, ServingFlags};
use crate::config::oauth::OAuthFlags;
use crate::config::{Config, Written};
use crate::exit::Exit;
use crate::files::artifacts::ArtifactLinks;
use crate::files::link::KeyFile;
use crate::files::{FileServer, Offers, Reached};
use crate::http::access::{Access, AllowedHost};
use crate::http::body::Bodies;
use crate::http::drain::Drain;
use crate::http::listener::{self, Part};
use crate::http::places::{Places, Share};
use crate::http::tls::Tls;
use crate::http::{self, Entrance, bearer};
use crate::limits::{self, Turnstile};
use crate::mcp;
use crate::mcp::adapter::{Adapter, Callers};
use crate::mcp::http::Alias;
use crate::mcp::rights::Rights;
use crate::mcp::setup::{Server, Shows};
use crate::mcp::sse::Inbox;
use crate::mcp::stdio::Ending;
use crate::metrics::{self, Metrics};
use crate::output::{self, Audience};
use crate::previews::Place;
use crate::previews::base::Base;
use crate::profiles::code_runner::{self, Store};
use crate::service_manager::{self, Condition};
use crate::signals::Signals;
use crate::trace::{self, Traces};
use crate::wiring::Outlet;
use crate::{api, dashboard, log, outcome, wiring};

use self::reload::Reload;

mod reload;

/// Serve MCP clients over HTTP
///
/// The address is /mcp, for clients since 2025, and /sse for older ones. Callers show a token, which `sandpen token create`
/// makes; with --no-auth everybody on this machine gets in, and no other machine. Web pages are refused unless
/// --allowed-origins names them. The first Ctrl-C or SIGTERM finishes what goes on, within 10 s; the second ends at once.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen token create --name laptop", "make a token, which is shown once"),
    ("sandpen serve", "at http://127.0.0.1:8228/mcp, for whoever has one"),
    ("sandpen serve --oauth", "clients open a page on which people sign in; see sandpen account"),
    ("sandpen serve --no-auth", "the same for everybody on this machine"),
    ("sandpen serve --listen 127.0.0.1:0 --json", "at a free port, which the first line of output names"),
]))]
pub struct Arguments {
    #[command(flatten)]
    http: HttpFlags,

    // Elsewhere in memory, so that this command is about as large as the others.
    #[command(flatten)]
    oauth: Box<OAuthFlags>,

    #[command(flatten)]
    serving: ServingFlags,
}

impl Arguments {
    pub fn write_to(&self, written: &mut Written) {
        self.http.write_to(written);
        self.oauth.write_to(written);
        self.serving.write_to(written);
    }
}

/// Half of the descriptors are for sandboxes.
const LISTENER: Part = Part(2);

/// Beside the usual port of the server.
const PREVIEW_PORT: u16 = 8229;

#[derive(Serialize)]
struct Listening {
    url: String,
    sse_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics_url: Option<String>,
}

pub fn run(_arguments: Arguments, config: Config) -> Result<Exit> {
    serve(config.serving()?, Inbox::below(""))
}

/// Until somebody ends it; `inbox` is that of /sse.
pub fn serve(config: Config, inbox: Inbox) -> Result<Exit> {
    if config.server.profile == Some(ProfileName::CodeRunner) {
        config.code_runner.check()?;
    }
    let prepared = log::start(&config.server)?;
    outcome::name_passed_through(&config.sandbox);
    wiring::block_on(async {
        let mut signals = Signals::listen()?;
        let traces = Traces::start(prepared);
        let keyring = keyring(&config)?;
        let tls = config.http.tls()?.map(Tls::load).transpose()?.map(Arc::new);
        // Before the engine: an address that is taken must not cost one.
        let listener = http::listen(config.http.listen, entrance(&config)).await?;
        let address = listener.local_addr().unwrap_or(config.http.listen);
        let scheme = config.http.scheme();
        if config.server.profile == Some(ProfileName::CodeRunner) {
            Store::new(&config.code_runner, config.state_dir()?).prepare()?;
        }
        let outlet = Outlet::new(&config)?;
        outlet.gateway.protect(address);
        let metrics = Metrics::default();
        metrics.listen(&outlet.events);
        let audit = Audit::start(&outlet.events, config.server.audit_log.as_deref(), &metrics)?;
        let Setup { authentication, routes: for_strangers, provider } =
            setup::set_up(&config, keyring, address, audit.recorder())?;
        let links = artifact_links(&config, address)?;
        let drain = Drain::default();
        let shows = Shows { place: preview_place(&config, address, tls.clone()), drain: drain.clone() };
        let (mut server, adapter) =
            Server::start(&config, &outlet, Callers::OfRequest, audit.recorder(), links, shows).await?;
        let bodies = Bodies::new(config.http.max_body);
        let connections = listener::connections(LISTENER);
        let turnstile = Turnstile::new(&config, Places::shared(connections, share(&config)));
        let strangers = Strangers::new(audit.recorder());
        let endpoints = Endpoints {
            config: &config,
            authentication,
            strangers,
            turnstile: turnstile.clone(),
            bodies,
            drain: &drain,
        };
        let mut protocol = endpoints.of(&config, adapter.clone(), inbox);
        let desk = server.desk(&config, sign_in(&config), endpoints.bodies.clone())?;
        protocol = protocol.merge(session::announced(endpoints.guarded(&config, api::routes(desk)), sign_in(&config)));
        let mut links = downloads(&config)?;
        if config.server.profile.is_none() {
            let files = file_server(&config, &server, audit.recorder())?;
            protocol = protocol.merge(endpoints.guarded(&config, files.routes()));
            links = links.merge(files.links());
        }
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
                    config.code_runner.base = Some(BaseUrl::of(scheme, address, base(profile)));
                    let endpoint = endpoints.of(&config, server.speak_as(&config)?, Inbox::below(base(profile)));
                    protocol = protocol.nest(base(profile), endpoint);
                    if profile == ProfileName::CodeRunner {
                        links = links.nest(base(profile), downloads(&config)?);
                    }
                }
            }
        }
        let page = metrics::routes(metrics.clone(), server.service().clone());
        protocol = protocol.merge(endpoints.guarded(&config, page.clone()));
        let named = config.code_runner.base.as_ref().and_then(BaseUrl::host);
        let hosts: Vec<AllowedHost> = config.http.allowed_hosts.iter().chain(named).cloned().collect();
        // Pages of our own come from there too.
        let public = config.oauth.public_url.iter().map(|url| url.as_str().parse()).collect::<Result<Vec<_>>>()?;
        let origins = [config.http.allowed_origins.clone(), public].concat();
        let access = Access::new(scheme, address, entrance(&config), &hosts, &origins);
        let routes = http::routes(protocol, links.merge(for_strangers).merge(dashboard::routes()), access, &drain);
        let routes = trace::traced(metrics::counted(routes, metrics));
        let numbers = Numbers::open(&config, page, &outlet, &drain).await?;
        announce(&config, address, numbers.as_ref().map(|numbers| numbers.address));
        remark(&config);
        let reload = Reload { config: config.clone().into(), server: &server, outlet: &outlet, turnstile, provider };
        service_manager::tell(Condition::Ready);
        let ((), (), ending) = tokio::join!(
            listener::serve(listener, tls, routes, &drain, LISTENER),
            Numbers::serve(numbers, &drain),
            reload.end(&mut signals, &drain),
        );
        match ending {
            // The launcher sees our end and clears everything away.
            Ending::Forced(signal) => Ok(Exit::signal(signal)),
            Ending::Orderly => {
                let ended = server.shut_down().await;
                audit.finish().await;
                traces.finish().await;
                ended.map(|()| Exit::SUCCESS)
            }
        }
    })
}

/// The addresses of all who speak here.
struct Endpoints<'a> {
    config: &'a Config,
    authentication: Authentication,
    strangers: Strangers,
    turnstile: Turnstile,
    bodies: Bodies,
    drain: &'a Drain,
}

impl Endpoints<'_> {
    /// Those of one of them, which speaks as `config` says; `inbox` says below what they are put.
    fn of(&self, config: &Config, adapter: Adapter, inbox: Inbox) -> Router {
        let rights = Rights::of(&adapter);
        let sessions = mcp::sessions(adapter);
        let (bodies, drain) = (|| self.bodies.clone(), self.drain);
        let share = share(config);
        let mut protocol = match config.server.profile {
            Some(ProfileName::CodeRunner) => {
                mcp::plain::routes(sessions.clone(), rights.clone(), bodies(), share, drain)
            }
            Some(ProfileName::Cloudflare) => {
                mcp::http::routes(Alias::Sse, sessions.clone(), rights.clone(), bodies(), share, drain)
            }
            Some(ProfileName::SandboxServer | ProfileName::Automata | ProfileName::Philschmid) | None => {
                mcp::http::routes(Alias::None, sessions.clone(), rights.clone(), bodies(), share, drain)
            }
        };
        if self.config.http.legacy_sse {
            protocol = protocol.merge(mcp::sse::routes(inbox, sessions, rights, bodies(), share, drain));
        }
        self.guarded(config, protocol)
    }

    /// For those alone who show who they are, as often as they may.
    fn guarded(&self, config: &Config, routes: Router) -> Router {
        let routes = limits::guard(routes, self.turnstile.clone());
        match &config.code_runner.token {
            Some(token) => bearer::guard(routes, token.clone(), self.strangers.clone()),
            None => auth::guard(routes, self.authentication.clone(), self.strangers.clone()),
        }
    }
}

/// An address for the numbers alone, which asks nobody who they are: it is for this machine.
struct Numbers {
    listener: TcpListener,
    address: SocketAddr,
    routes: Router,
}

impl Numbers {
    async fn open(config: &Config, page: Router, outlet: &Outlet, drain: &Drain) -> Result<Option<Self>> {
        let Some(asked) = config.http.metrics_listen else { return Ok(None) };
        let listener = http::bind(asked, Entrance::Open).await?;
        let address = listener.local_addr().unwrap_or(asked);
        outlet.gateway.protect(address);
        let access = Access::new("http", address, Entrance::Open, &config.http.allowed_hosts, &[]);
        Ok(Some(Self { listener, address, routes: http::routes(page, Router::new(), access, drain) }))
    }

    async fn serve(numbers: Option<Self>, drain: &Drain) {
        if let Some(Self { listener, routes, .. }) = numbers {
            listener::serve(listener, None, routes, drain, Part(16)).await;
        }
    }
}

/// The tokens that callers may show; none where nobody is asked for one.
fn keyring(config: &Config) -> Result<Option<Keyring>> {
    config.oauth.check()?;
    if config.http.no_auth && config.oauth.is_used() {
        return Err(Error::invalid_input("--no-auth asks nobody who they are, and OAuth is for asking")
            .with_hint("leave out one of them"));
    }
    if config.http.no_auth {
        return Ok(None);
    }
    let keyring = Keyring::open(TokenFile::of_state_directory(config.state_dir()?))?;
    let accounts = AccountFile::of_state_directory(config.state_dir()?)?;
    let nobody_signs_in = accounts.current().is_empty() && config.oauth.oidc()?.is_none();
    if config.oauth.own_server && nobody_signs_in && keyring.is_empty() && config.oauth.issuers.is_empty() {
        return Err(Error::invalid_input("people are to sign in, and there is nobody who could").with_hint(
            "make an account with `sandpen account create NAME`, or name an identity provider with --oidc-issuer",
        ));
    }
    if keyring.is_empty() && !has_older_token(config) && !config.oauth.is_used() {
        return Err(Error::invalid_input("this server asks its callers for a token, and there is none that it knows")
            .with_hint("make one with `sandpen token create`, or let everybody on this machine in with --no-auth"));
    }
    Ok(Some(keyring))
}

/// How people in a browser become known. The one place where the dashboard learns of it.
fn sign_in(config: &Config) -> SignIn {
    match entrance(config) {
        Entrance::Open => SignIn::Nobody,
        Entrance::Token if config.oauth.own_server && !has_older_token(config) => SignIn::OAuth,
        Entrance::Token => SignIn::Token,
    }
}

fn entrance(config: &Config) -> Entrance {
    if config.http.no_auth && !has_older_token(config) { Entrance::Open } else { Entrance::Token }
}

/// How much of what callers have together is for one of them: where nobody is asked who they are, all are one.
fn share(config: &Config) -> Share {
    if config.http.no_auth || has_older_token(config) { Share::Whole } else { Share::Quarter }
}

/// Whether all that is served asks for the token that an older server asked for.
fn has_older_token(config: &Config) -> bool {
    config.server.profile == Some(ProfileName::CodeRunner) && config.code_runner.token.is_some()
}

/// Links to the files of runs, where files have addresses.
fn artifact_links(config: &Config, address: SocketAddr) -> Result<Option<Arc<dyn Links>>> {
    if config.server.profile.is_some() {
        return Ok(None);
    }
    let key = KeyFile::of_state_directory(config.state_dir()?);
    let links = ArtifactLinks::new(key, config.oauth.public_url.as_ref(), config.http.scheme(), address);
    Ok(links.map(|links| Arc::new(links) as _))
}

/// Where previews are. On this machine they need no settings; whoever uses the server from elsewhere does not reach that.
fn preview_place(config: &Config, address: SocketAddr, tls: Option<Arc<Tls>>) -> Place {
    let (listen, base) = (config.http.preview_listen, config.http.preview_url.clone());
    let tls = tls.filter(|_| base.as_ref().is_some_and(Base::is_encrypted));
    match (listen, base) {
        (None, None) if !address.ip().is_loopback() || config.oauth.public_url.is_some() => Place::Nowhere,
        (None, None) => Place::Here,
        (listen, base) => {
            let listen = listen.unwrap_or(SocketAddr::new(address.ip(), PREVIEW_PORT));
            Place::At { listen, base, tls }
        }
    }
}

/// The files of sandboxes, as far as tools are offered that do the same.
fn file_server(config: &Config, server: &Server, recorder: Recorder) -> Result<Arc<FileServer>> {
    let catalog = mcp::setup::catalog(config, &wiring::policy(config)?)?;
    let key = KeyFile::of_state_directory(config.state_dir()?);
    let reached = match &config.oauth.public_url {
        Some(url) => Reached::At(url.clone()),
        None => Reached::AsAsked { scheme: config.http.scheme() },
    };
    let (service, offers) = (server.service().clone(), Offers::of(&catalog));
    Ok(FileServer::new(service, key, config.http.max_upload, offers, recorder, reached))
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
    if config.server.profile != Some(ProfileName::CodeRunner) {
        return;
    }
    if config.code_runner.secret.as_ref().is_some_and(FileSecret::is_weak) {
        tracing::warn!(
            "FILE_SECRET has fewer than 32 characters: whoever guesses it has the address of every file, and nothing else \
             guards files"
        );
    }
    if !config.json && config.code_runner.has_host_path {
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

fn announce(config: &Config, address: SocketAddr, numbers: Option<SocketAddr>) {
    let scheme = config.http.scheme();
    let url = format!("{scheme}://{address}/mcp");
    let sse_url = config.http.legacy_sse.then(|| format!("{scheme}://{address}/sse"));
    let metrics_url = numbers.map(|address| format!("http://{address}/metrics"));
    match Audience::new(config.json) {
        Audience::Program => output::object(&Listening { url, sse_url, metrics_url }),
        Audience::Person => {
            let header = match entrance(config) {
                Entrance::Open => "",
                // Clients find out by themselves where to get one.
                Entrance::Token if config.oauth.is_used() => "",
                Entrance::Token => " --header 'Authorization: Bearer TOKEN'",
            };
            let hint = format!("connect a client, for example: claude mcp add --transport http sandpen {url}{header}");
            output::note(&format!("listening on {url}"), Some(&hint));
            output::note(&format!("the dashboard is at {scheme}://{address}/"), None);
            if let Some(url) = metrics_url {
                output::note(&format!("numbers are at {url}"), None);
            }
            if !address.ip().is_loopback() && config.http.tls_cert.is_none() {
                let hint = "name certificates with --tls-cert and --tls-key, or put a proxy with TLS in front";
                output::note("tokens and what is run pass the network in the clear", Some(hint));
            }
        }
    }
}
