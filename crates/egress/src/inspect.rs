//! The seam between a door, which decides where a connection may go, and whoever has to look into one.
//!
//! The door does the counting, the limits and the dialling on both sides of it, so that an inspector cannot forget them.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use sandbox::{Denial, Host};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::record::Record;

pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub(crate) type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Looks into the connections of one sandbox.
pub(crate) trait Inspect: fmt::Debug + Send + Sync {
    /// Whether connections to this host are handed over instead of being copied. Asked after the sandbox's network has
    /// said yes.
    fn wants(&self, host: &Host, port: u16) -> bool;

    /// Serve a connection to its end. A refusal that is returned is recorded and told by the door.
    fn serve(&self, flow: Flow) -> Later<'_, Result<(), Unreached>>;

    /// Answer one request that came to the proxy in absolute form, so over plain HTTP.
    fn exchange(&self, exchange: Exchange) -> Later<'_, Result<Response<Body>, Unreached>>;
}

/// A connection that a sandbox made to a host, as it comes: nothing was read from it yet.
pub(crate) struct Flow {
    pub host: Host,
    pub port: u16,
    /// Its bytes are counted and held to the sandbox's allowance.
    pub stream: Box<dyn Stream>,
    pub dialer: Arc<dyn Dial>,
    pub record: Arc<Record>,
}

/// A request, its hop-by-hop headers taken off, its target in absolute form, its `Host` header matching.
pub(crate) struct Exchange {
    pub host: Host,
    pub port: u16,
    pub request: Request<Body>,
    pub dialer: Arc<dyn Dial>,
    pub record: Arc<Record>,
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Reaches hosts as one sandbox may: names, ports and every address are checked at each call.
pub(crate) trait Dial: Send + Sync {
    fn dial<'a>(&'a self, host: &'a Host, port: u16) -> Later<'a, Result<TcpStream, Unreached>>;
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum Unreached {
    Refused(Denial),
    NoSuchName,
    /// The host's name servers gave no answer that can be trusted.
    NameServers,
    Connect(io::Error),
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(denial) => f.write_str(denial.description()),
            Self::NoSuchName => f.write_str("there is no such host"),
            Self::NameServers => f.write_str("the name servers of this machine do not answer"),
            Self::Connect(error) => write!(f, "the host does not answer: {}", error.kind()),
        }
    }
}

impl std::error::Error for Unreached {}
