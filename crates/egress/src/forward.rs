//! Plain HTTP through the proxy: one request in absolute form, sent on, its answer streamed back.

use std::io;
use std::sync::Arc;

use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use sandbox::Host;
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinHandle};

use crate::activity::Direction;
use crate::door::{Doorway, Way};
use crate::explicit::{MOST_BUFFERED, Rejection};
use crate::inspect::{Body, Exchange, Unreached};
use crate::meter::{Meter, MeteredBody};
use crate::relay;

/// Headers that speak of one connection and not of the message (RFC 9110, 7.6.1), and those that were for us.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

pub(crate) async fn forward(door: &Doorway, request: Request<Incoming>) -> Result<Response<Body>, Rejection> {
    let (host, port) = destination(request.uri())?;
    let way = door.open(&host, port).await.map_err(|reason| Rejection::unreached(&host, port, reason))?;
    let meter = match &way {
        Way::Through(meter, _) | Way::Inspected(meter, _) => meter.clone(),
    };
    let failed = |reason| Rejection::unreached(&host, port, reason);
    let (mut parts, body) = request.into_parts();
    strip(&mut parts.headers);
    // The target decides, not a header that says something else.
    parts.headers.insert(header::HOST, host_header(&host, port).map_err(failed)?);
    meter.charge(Direction::Out, head_bytes(&parts.headers)).await.map_err(Unreached::Connect).map_err(failed)?;
    let body = MeteredBody::new(body, Direction::Out, meter.clone(), ()).boxed_unsync();
    let mut response = match way {
        Way::Through(_, upstream) => {
            parts.uri = origin_form(&parts.uri);
            send(upstream, Request::from_parts(parts, body), &meter).await.map_err(failed)?
        }
        Way::Inspected(_, inspector) => {
            let exchange = Exchange {
                host: host.clone(),
                port,
                request: Request::from_parts(parts, body),
                dialer: Arc::new(door.dialer.clone()),
                record: Arc::clone(&meter.record),
            };
            let response = inspector.exchange(exchange).await.inspect_err(|reason| {
                if let Unreached::Refused(denial) = reason {
                    meter.record.refuse(*denial);
                }
            });
            response
                .map_err(failed)?
                .map(|body| MeteredBody::new(body, Direction::In, meter.clone(), ()).boxed_unsync())
        }
    };
    strip(response.headers_mut());
    meter.charge(Direction::In, head_bytes(response.headers())).await.map_err(Unreached::Connect).map_err(failed)?;
    Ok(response)
}

async fn send(upstream: TcpStream, request: Request<Body>, meter: &Meter) -> Result<Response<Body>, Unreached> {
    let broken = |error: hyper::Error| Unreached::Connect(io::Error::other(error));
    let (mut sender, connection) = client().handshake(TokioIo::new(upstream)).await.map_err(broken)?;
    let record = Arc::clone(&meter.record);
    let driver = Driver::of(tokio::spawn(async move {
        tokio::select! {
            ended = connection => {
                if let Err(error) = ended {
                    tracing::debug!(connection = ?record, %error, "a host ended a connection early");
                }
            }
            () = record.idle(relay::IDLE) => {}
        }
    }));
    let response = sender.send_request(request).await.map_err(broken)?;
    Ok(response.map(|body| MeteredBody::new(body, Direction::In, meter.clone(), driver).boxed_unsync()))
}

/// How hosts are spoken to.
pub(crate) fn client() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.preserve_header_case(true).max_buf_size(MOST_BUFFERED);
    builder
}

/// The task that drives a connection to a host. Ends with the answer that came over it, however that ends.
struct Driver(AbortHandle);

impl Driver {
    fn of(task: JoinHandle<()>) -> Self {
        Self(task.abort_handle())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn destination(uri: &Uri) -> Result<(Host, u16), Rejection> {
    let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
        return Err(Rejection::NotAProxyRequest);
    };
    if *scheme != Scheme::HTTP {
        return Err(Rejection::NotPlain);
    }
    let port = match authority.as_str().rsplit_once(':') {
        Some((_, port)) if !port.ends_with(']') => authority.port_u16().filter(|port| *port != 0),
        Some(_) | None => Some(80),
    };
    let host = if authority.as_str().contains('@') { None } else { authority.host().parse().ok() };
    host.zip(port).ok_or(Rejection::NoDestination)
}

pub(crate) fn host_header(host: &Host, port: u16) -> Result<HeaderValue, Unreached> {
    let text = if port == 80 { host.to_string() } else { format!("{host}:{port}") };
    HeaderValue::try_from(text).map_err(|error| Unreached::Connect(io::Error::other(error)))
}

pub(crate) fn origin_form(uri: &Uri) -> Uri {
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    Uri::from(path)
}

pub(crate) fn strip(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    // A length beside chunks is a lie that the next server might believe.
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    for name in HOP_BY_HOP.iter().chain(&listed) {
        headers.remove(name);
    }
}

fn head_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}
