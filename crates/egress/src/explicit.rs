//! The proxy that programs are told of: `CONNECT`, and plain requests in absolute form.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use sandbox::{Denial, Host};
use tokio::net::TcpStream;

use crate::door::{Doorway, Way};
use crate::forward;
use crate::inspect::{Body, Unreached};

/// For the head of a request, from its first byte or from the end of the one before.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);

const MOST_HEAD_BYTES: usize = 64 * 1024;

/// What HTTP keeps of one connection on each side: a head must fit, and a peer that does not read makes it full. The usual
/// 400 KiB, times a thousand connections, would be all that a small host has.
pub(crate) const MOST_BUFFERED: usize = MOST_HEAD_BYTES;

const MOST_HEADERS: usize = 128;

/// A connection that stops being HTTP once its answer was sent.
struct Tunnel {
    upgrade: OnUpgrade,
    host: Host,
    port: u16,
    way: Way,
}

pub(crate) async fn serve(door: Arc<Doorway>, client: TcpStream) {
    let tunnel = Mutex::new(None);
    let service = service_fn(|request| async {
        let answered = match *request.method() {
            Method::CONNECT => connect(&door, request, &tunnel).await,
            _ => forward::forward(&door, request).await,
        };
        Ok::<_, Infallible>(answered.unwrap_or_else(Rejection::into_response))
    });
    let connection = bounded(HEAD_PATIENCE).serve_connection(TokioIo::new(client), service).with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the proxy ended early");
    }
    let tunnel = tunnel.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(tunnel) = tunnel {
        carry(&door, tunnel).await;
    }
}

/// HTTP as it is spoken with programs in a sandbox: nothing that they send or leave unread takes more than its share.
pub(crate) fn bounded(head_patience: Duration) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(head_patience)
        .max_buf_size(MOST_BUFFERED)
        .max_header_size(MOST_HEAD_BYTES)
        .max_headers(MOST_HEADERS)
        .preserve_header_case(true)
        .half_close(true);
    builder
}

async fn carry(door: &Doorway, tunnel: Tunnel) {
    let Tunnel { upgrade, host, port, way } = tunnel;
    let Ok(upgraded) = upgrade.await else { return };
    match way {
        way @ Way::Through(..) => {
            // The stream itself, without HTTP around it, so that its bytes can go through a pipe.
            if let Ok(parts) = upgraded.downcast::<TokioIo<TcpStream>>() {
                door.carry(parts.io.into_inner(), parts.read_buf, &host, port, way).await;
            }
        }
        Way::Inspected(meter, inspector) => {
            door.hand_over(TokioIo::new(upgraded), &host, port, meter, inspector).await;
        }
    }
}

async fn connect(
    door: &Doorway,
    mut request: Request<Incoming>,
    tunnel: &Mutex<Option<Tunnel>>,
) -> Result<Response<Body>, Rejection> {
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
    let (host, port) = destination(&authority).ok_or(Rejection::NoDestination)?;
    let upgrade = hyper::upgrade::on(&mut request);
    let way = door.open(&host, port).await.map_err(|reason| Rejection::unreached(&host, port, reason))?;
    *tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some(Tunnel { upgrade, host, port, way });
    Ok(Response::new(text("")))
}

/// `HOST:PORT`, where an IPv6 address stands in brackets.
pub(crate) fn destination(authority: &str) -> Option<(Host, u16)> {
    let (host, port) = authority.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0 && !authority.ends_with(&format!(":+{port}")))?;
    if host.contains(':') && !host.starts_with('[') {
        return None;
    }
    Some((host.parse().ok()?, port))
}

/// What a program is told that gets no connection.
#[derive(Debug)]
pub(crate) enum Rejection {
    Refused(Host, u16, Denial),
    Unreached(Host, u16, Unreached),
    NoDestination,
    /// A request for the proxy itself, as if it were a web server.
    NotAProxyRequest,
    /// TLS must go through `CONNECT`: what is sent here can be read on the way.
    NotPlain,
}

impl Rejection {
    pub fn unreached(host: &Host, port: u16, reason: Unreached) -> Self {
        match reason {
            Unreached::Refused(denial) => Self::Refused(host.clone(), port, denial),
            other @ (Unreached::NoSuchName | Unreached::NameServers | Unreached::Connect(_)) => {
                Self::Unreached(host.clone(), port, other)
            }
        }
    }

    pub fn into_response(self) -> Response<Body> {
        let (status, phrase, body) = match &self {
            // Many programs show the phrase and nothing else.
            Self::Refused(host, port, denial) => (
                StatusCode::FORBIDDEN,
                Some(format!("Refused by the sandbox network: {} {host}:{port}", denial.as_str())),
                format!(
                    "The sandbox may not reach {host}:{port}: {} ({}).\n{}\n",
                    denial.description(),
                    denial.as_str(),
                    advice(host, *port, *denial)
                ),
            ),
            Self::Unreached(host, port, reason) => {
                let status = match reason {
                    Unreached::Connect(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                        StatusCode::GATEWAY_TIMEOUT
                    }
                    Unreached::Connect(_) | Unreached::NoSuchName | Unreached::NameServers | Unreached::Refused(_) => {
                        StatusCode::BAD_GATEWAY
                    }
                };
                (status, None, format!("{host}:{port} cannot be reached: {reason}.\n"))
            }
            Self::NoDestination => {
                let body = "This is not a host and a port. Write CONNECT api.example.com:443.\n";
                (StatusCode::BAD_REQUEST, None, body.to_owned())
            }
            Self::NotAProxyRequest => {
                let body = "This is a proxy. Write GET http://api.example.com/ or CONNECT api.example.com:443.\n";
                (StatusCode::BAD_REQUEST, None, body.to_owned())
            }
            Self::NotPlain => {
                let body = "This proxy forwards http:// only. For https:// use CONNECT.\n";
                (StatusCode::BAD_REQUEST, None, body.to_owned())
            }
        };
        let mut response = Response::new(text(body));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if let Some(phrase) = phrase.and_then(|phrase| ReasonPhrase::try_from(phrase).ok()) {
            response.extensions_mut().insert(phrase);
        }
        response
    }
}

fn advice(host: &Host, port: u16, denial: Denial) -> String {
    match denial {
        Denial::NoNetwork | Denial::HostNotAllowed | Denial::PortNotAllowed => {
            format!("Whoever made the sandbox can allow it: ask for a network that names {host}:{port}.")
        }
        Denial::PrivateAddress => "Only the operator of this server can allow a private host, by its name.".to_owned(),
        Denial::MetadataAddress | Denial::SpecialAddress | Denial::ServerItself => "Nobody can allow it.".to_owned(),
        Denial::TooManyConnections => "Close some, then try again.".to_owned(),
        Denial::BytesUsedUp => "A new sandbox, or the operator, can help.".to_owned(),
        Denial::NotHttp | Denial::Malformed => "Speak HTTP or HTTPS to it.".to_owned(),
    }
}

pub(crate) fn text(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_have_one_spelling() {
        for (text, host, port) in [
            ("api.example.com:443", "api.example.com", 443),
            ("API.example.com.:443", "api.example.com", 443),
            ("192.0.2.7:80", "192.0.2.7", 80),
            ("[2001:db8::7]:65535", "[2001:db8::7]", 65535),
            ("[::ffff:10.0.0.1]:80", "10.0.0.1", 80),
        ] {
            let (found, at) = destination(text).unwrap();
            assert_eq!((found.to_string().as_str(), at), (host, port), "{text}");
        }
        for text in [
            "",
            "a.example",
            "a.example:",
            "a.example:0",
            "a.example:+80",
            "a.example:65536",
            "user@a.example:80",
            "::1:80",
            "127.1:80",
            "0x7f000001:80",
            "a b:80",
            ":80",
        ] {
            assert!(destination(text).is_none(), "{text:?} was taken");
        }
    }
}
