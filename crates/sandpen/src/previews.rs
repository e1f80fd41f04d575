//! Previews: what a program in a sandbox serves over HTTP, for whoever has its address.
//!
//! Pages that come from there are made by untrusted code, so they have nothing in common with ours: another listener, on which
//! no route, token or cookie of ours lives, and a host name for each preview, which makes each an origin of its own to a browser.
//! The name is 130 random bits that mean something to this process alone. That is all that lets anybody in: what is
//! forgotten here is over everywhere, and there is nothing to forge.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use egress::Gateway;
use sandbox::{Error, ErrorKind, GuestPort, Owner, Result, SandboxId, SandboxService};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tools::Preview;

use self::base::Base;
use self::table::Table;
use crate::http::drain::Drain;
use crate::http::listener::{self, Part};
use crate::http::tls::Tls;
use crate::http::{self, Entrance};

pub mod base;
mod headers;
mod page;
mod proxy;
mod stream;
mod table;
mod upstream;

/// An address that got into the wrong hands is of no use for ever.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// When nobody says.
const USUAL: Duration = Duration::from_secs(3600);

/// Where previews are.
#[derive(Clone, Debug)]
pub enum Place {
    /// On this machine, at a port that is free when the first one is opened.
    Here,
    /// At an address of the operator's, which others may reach by these names.
    At { listen: SocketAddr, base: Option<Base>, tls: Option<Arc<Tls>> },
    /// Others use this server, and nobody has said by which names they would reach previews.
    Nowhere,
}

/// Opens previews, and serves them once there is one.
pub struct Previews {
    service: SandboxService,
    gateway: Arc<Gateway>,
    place: Place,
    drain: Drain,
    listening: OnceCell<Arc<Table>>,
}

impl Previews {
    pub fn new(service: SandboxService, gateway: Arc<Gateway>, place: Place, drain: Drain) -> Self {
        Self { service, gateway, place, drain, listening: OnceCell::new() }
    }

    /// An address that the operator has named is taken at once: that it cannot be is to be known before anybody needs it.
    pub async fn prepare(&self) -> Result<()> {
        match self.place {
            Place::At { .. } => self.table().await.map(drop),
            Place::Here | Place::Nowhere => Ok(()),
        }
    }

    async fn table(&self) -> Result<&Arc<Table>> {
        self.listening.get_or_try_init(|| self.listen()).await
    }

    async fn listen(&self) -> Result<Arc<Table>> {
        let (address, base, tls) = match &self.place {
            Place::Here => ((Ipv4Addr::LOCALHOST, 0).into(), None, None),
            Place::At { listen, base, tls } => (*listen, base.clone(), tls.clone()),
            Place::Nowhere => {
                return Err(Error::unsupported("previews have no address here that you could open")
                    .with_hint("the operator of this server can name one with --preview-url"));
            }
        };
        if base.is_none() && !address.ip().is_loopback() {
            return Err(Error::invalid_input(format!("previews at {address} have no name that others could open"))
                .with_hint("say by which names they are reached with --preview-url, or listen on 127.0.0.1"));
        }
        // Whoever comes has to know a name that nobody guesses.
        let listener: TcpListener = http::bind(address, Entrance::Token).await?;
        let address = listener.local_addr().unwrap_or(address);
        self.gateway.protect(address);
        let base = base.unwrap_or_else(|| Base::here(address.port()));
        let table = Arc::new(Table::new(self.service.clone(), base));
        let routes = proxy::routes(Arc::clone(&table), self.drain.clone());
        tokio::spawn(serve(listener, tls, routes, self.drain.clone()));
        Ok(table)
    }
}

async fn serve(listener: TcpListener, tls: Option<Arc<Tls>>, routes: Router, drain: Drain) {
    // What they lead to needs as many again.
    listener::serve(listener, tls, routes, &drain, Part(8)).await;
}

#[async_trait]
impl tools::Previews for Previews {
    async fn open(
        &self,
        owner: &Owner,
        sandbox: &SandboxId,
        port: GuestPort,
        lifetime: Option<Duration>,
    ) -> Result<Preview> {
        let lifetime = lifetime.unwrap_or(USUAL);
        if lifetime < Duration::from_secs(1) || lifetime > LONGEST {
            return Err(Error::invalid_input(format!("a preview is there for 1 to {} seconds", LONGEST.as_secs())));
        }
        let is_listening = match self.service.connect(owner, sandbox, port, Duration::ZERO).await {
            Ok(_) => true,
            // It may be about to; who opens the address is told.
            Err(error) if matches!(error.kind(), ErrorKind::WrongState | ErrorKind::TimedOut) => false,
            Err(error) => return Err(error),
        };
        let (url, expires_at) = self.table().await?.open(owner, sandbox, port, lifetime).await?;
        Ok(Preview { url, expires_at, is_listening })
    }

    fn close(&self, owner: &Owner, sandbox: &SandboxId, port: GuestPort) -> bool {
        self.listening.get().is_some_and(|table| table.close(owner, sandbox, port))
    }
}

impl fmt::Debug for Previews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Previews").field("place", &self.place).finish_non_exhaustive()
    }
}
