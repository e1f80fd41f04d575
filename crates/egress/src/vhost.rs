//! Plain HTTP on a connection that could have been copied: each request must name a host that the sandbox may reach.
//!
//! Where many names share an address, the `Host` header decides which of them answers, in each request anew. So the
//! requests are read here, one by one, and what goes on is what was read.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use sandbox::{Denial, Host};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::explicit::{Rejection, bounded};
use crate::forward::{client, host_header, origin_form, strip};
use crate::inspect::{Body, Unreached};
use crate::meter::{Meter, Metered};
use crate::screen::Screen;
use crate::secrets::Replayed;

/// How long a connection may wait for its next request.
const HEAD_PATIENCE: Duration = Duration::from_secs(5 * 60);

/// A connection to the host and the task that drives it.
struct Line {
    sender: SendRequest<Body>,
    _driver: JoinSet<()>,
}

/// Both ends of a connection that has become a WebSocket.
struct Tunnel {
    client: OnUpgrade,
    host: OnUpgrade,
}

struct Requests {
    screen: Screen,
    meter: Meter,
    line: tokio::sync::Mutex<Option<Line>>,
    tunnel: Mutex<Option<Tunnel>>,
}

/// Serve a connection to its end. `sent` is what was read from it already, `host` a connection on which nothing was sent.
pub(crate) async fn serve(client: TcpStream, sent: Bytes, host: Option<TcpStream>, meter: &Meter, screen: Screen) {
    let stream = Metered::new(Replayed::new(sent, client), meter.clone());
    let line = match host {
        Some(host) => Line::over(host).await.ok(),
        None => None,
    };
    let requests = Arc::new(Requests {
        screen,
        meter: meter.clone(),
        line: tokio::sync::Mutex::new(line),
        tunnel: Mutex::default(),
    });
    let shared = Arc::clone(&requests);
    let service = service_fn(move |request| {
        let requests = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(requests.pass_on(request).await.unwrap_or_else(Rejection::into_response)) }
    });
    let connection = bounded(HEAD_PATIENCE).serve_connection(TokioIo::new(stream), service).with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(connection = ?meter.record, %error, "a connection ended early");
    }
    let tunnel = requests.tunnel.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(Tunnel { client, host }) = tunnel
        && let (Ok(client), Ok(host)) = (client.await, host.await)
    {
        // However it ends, both sides see the end.
        let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(host)).await;
    }
}

impl Requests {
    async fn pass_on(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Rejection> {
        if request.method() == Method::CONNECT {
            return Err(Rejection::NoDestination);
        }
        self.check(&request)?;
        let failed = |reason| Rejection::unreached(&self.screen.host, self.screen.port, reason);
        let upgrade = is_websocket(request.headers()).then(|| hyper::upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        strip(&mut parts.headers);
        if upgrade.is_some() {
            mark_websocket(&mut parts.headers);
        }
        if !parts.headers.contains_key(header::HOST) {
            parts.headers.insert(header::HOST, host_header(&self.screen.host, self.screen.port).map_err(failed)?);
        }
        parts.uri = origin_form(&parts.uri);
        parts.version = http::Version::HTTP_11;
        let request = Request::from_parts(parts, body.map_err(Into::into).boxed_unsync());
        let mut response = self.send(request).await.map_err(failed)?;
        strip(response.headers_mut());
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let host = hyper::upgrade::on(&mut response);
            // Nobody asked for it, so nobody knows what would be spoken.
            let Some(client) = upgrade else {
                return Err(failed(Unreached::Connect(std::io::ErrorKind::Other.into())));
            };
            *self.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some(Tunnel { client, host });
            mark_websocket(response.headers_mut());
        }
        Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
    }

    /// Every name that a server could go by.
    fn check(&self, request: &Request<Incoming>) -> Result<(), Rejection> {
        let mut headers = request.headers().get_all(header::HOST).iter();
        let (header, second) = (headers.next(), headers.next());
        if second.is_some() {
            return Err(Rejection::NoDestination);
        }
        let header = header.map(|value| Authority::try_from(value.as_bytes()).map_err(|_| Rejection::NoDestination));
        for authority in header.transpose()?.iter().chain(request.uri().authority()) {
            if authority.as_str().contains('@') {
                return Err(Rejection::NoDestination);
            }
            let named: Host = authority.host().parse().map_err(|_| Rejection::NoDestination)?;
            if !self.screen.may_be_named(&named) {
                self.meter.record.refuse_host(&named, Denial::HostNotAllowed);
                return Err(Rejection::Refused(named, self.screen.port, Denial::HostNotAllowed));
            }
        }
        Ok(())
    }

    /// Over the connection that is open, or over a new one. Of a request that comes back nothing was sent.
    async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>, Unreached> {
        let broken = |error: hyper::Error| Unreached::Connect(std::io::Error::other(error));
        let mut line = self.line.lock().await;
        if let Some(mut open) = line.take()
            && open.sender.ready().await.is_ok()
        {
            match open.sender.try_send_request(request).await {
                Ok(response) => {
                    *line = Some(open);
                    return Ok(response);
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(broken(error.into_error())),
                },
            }
        }
        let host = self.screen.dialer.connect(&self.screen.host, self.screen.port).await?;
        let mut open = Line::over(host).await.map_err(broken)?;
        let response = open.sender.send_request(request).await.map_err(broken)?;
        *line = Some(open);
        Ok(response)
    }
}

impl Line {
    async fn over(host: TcpStream) -> hyper::Result<Self> {
        let (sender, connection) = client().handshake(TokioIo::new(host)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async {
            // Whoever waits for the answer is told of its end.
            let _ = connection.with_upgrades().await;
        });
        Ok(Self { sender, _driver: driver })
    }
}

/// The one other protocol that is let through: in it nobody can ask for another name.
fn is_websocket(headers: &HeaderMap) -> bool {
    headers.get(header::UPGRADE).is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

fn mark_websocket(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
}
