//! Servers of every place: HTTP that tells what it was asked, the same over TLS, and one that speaks first.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::server::Acceptor;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::LazyConfigAcceptor;

use super::authority::Authority;
use super::echo;
use super::places;
use super::visits::{VisitKind, Visits};

#[derive(Clone)]
pub struct Web {
    pub visits: Visits,
    pub authority: Arc<Authority>,
    /// Served below `/files/`, for clients that fetch more than one thing.
    pub files: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    Http,
    Https,
    /// A greeting before it has read anything, then everything back.
    First,
}

impl Web {
    pub fn serve(&self, listener: TcpListener, speaks: Speaks) {
        let web = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let web = web.clone();
                tokio::spawn(async move { web.welcome(stream, speaks).await });
            }
        });
    }

    async fn welcome(self, stream: TcpStream, speaks: Speaks) {
        let Ok(local) = stream.local_addr() else { return };
        let local = SocketAddr::new(local.ip().to_canonical(), local.port());
        self.visits.add(local, VisitKind::Connection, "");
        match speaks {
            Speaks::Http => self.converse(stream, local).await,
            Speaks::Https => {
                let Some(config) = self.authority.configs.get(places::at(local.ip())) else { return };
                let Ok(greeted) = LazyConfigAcceptor::new(Acceptor::default(), stream).await else { return };
                let said = greeted.client_hello().server_name().unwrap_or_default().to_owned();
                self.visits.add(local, VisitKind::Greeting, said);
                if let Ok(stream) = greeted.into_stream(config.clone()).await {
                    self.converse(stream, local).await;
                }
            }
            Speaks::First => {
                let (mut reader, mut writer) = stream.into_split();
                let greeting = format!("220 {} speaks first\r\n", places::at(local.ip()));
                if writer.write_all(greeting.as_bytes()).await.is_ok() {
                    let _ = tokio::io::copy(&mut reader, &mut writer).await;
                }
            }
        }
    }

    async fn converse(&self, stream: impl AsyncRead + AsyncWrite + Unpin, local: SocketAddr) {
        let service = service_fn(|request| async move { Ok::<_, Infallible>(self.answer(request, local).await) });
        let connection = hyper::server::conn::http1::Builder::new();
        let _ = connection.serve_connection(TokioIo::new(stream), service).await;
    }

    async fn answer(&self, request: Request<Incoming>, local: SocketAddr) -> Response<BoxBody<Bytes, Infallible>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let body = String::from_utf8_lossy(&body).into_owned();
        let target = head.uri.to_string();
        let mut text = format!("{} {target}\n", head.method);
        for (name, value) in &head.headers {
            text += &format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()));
        }
        text += &format!("\n{body}");
        self.visits.add(local, VisitKind::Request, &text);
        let path = head.uri.path();
        if let Some(count) = path.strip_prefix("/bytes/").and_then(|count| count.parse().ok()) {
            return reply(StatusCode::OK, zeroes(count));
        }
        if let Some(name) = path.strip_prefix("/files/") {
            return match self.file(name) {
                Some(contents) => reply(StatusCode::OK, full(contents)),
                None => reply(StatusCode::NOT_FOUND, full("no such file")),
            };
        }
        if let Some(how) = path.strip_prefix("/echo/") {
            return echo::answer(how, &head.headers);
        }
        if let Some(location) = path.strip_prefix("/redirect/") {
            let mut redirect = reply(StatusCode::FOUND, full("elsewhere"));
            if let Ok(location) = format!("http://{location}").parse() {
                redirect.headers_mut().insert(hyper::header::LOCATION, location);
            }
            return redirect;
        }
        let told = json!({"place": places::at(local.ip()), "address": local.ip().to_string(), "asked": text});
        reply(StatusCode::OK, full(told.to_string()))
    }

    fn file(&self, name: &str) -> Option<Vec<u8>> {
        let name = Path::new(name);
        let inside = name.components().all(|part| matches!(part, Component::Normal(_)));
        if inside { std::fs::read(self.files.join(name)).ok() } else { None }
    }
}

pub fn reply(status: StatusCode, body: BoxBody<Bytes, Infallible>) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

pub fn full(contents: impl Into<Bytes>) -> BoxBody<Bytes, Infallible> {
    Full::new(contents.into()).boxed()
}

/// So many bytes, without having them.
fn zeroes(count: u64) -> BoxBody<Bytes, Infallible> {
    const PIECE: u64 = 64 << 10;
    let piece = Bytes::from(vec![0; PIECE as usize]);
    let pieces = stream::unfold(count, move |left| {
        let size = left.min(PIECE);
        let frame = Frame::data(piece.slice(..size as usize));
        async move { (left > 0).then_some((Ok(frame), left - size)) }
    });
    BodyExt::boxed(StreamBody::new(pieces))
}
