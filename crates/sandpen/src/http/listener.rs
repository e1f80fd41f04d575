//! Connections: how many, how long, and how they end.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures_util::FutureExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::answer;
use super::drain::Drain;
use super::framing::{Clear, Switch};
use super::patience::Patient;
use super::tls::Tls;

/// For a request's head, for the agreement on encryption before the first, and for a connection that is kept open between two.
const HEAD: Duration = Duration::from_secs(10);

/// For a client that takes nothing of its answer.
const STALLED: Duration = Duration::from_secs(60);

const HEAD_BYTES: usize = 32 << 10;
const HEADERS: usize = 64;
const CONNECTIONS: usize = 1024;

/// Who is at the other end of a connection: among the extensions of each of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Between the end of the last stream and that of the connections.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Of the descriptors of this process, which its sandboxes need too, a listener may have one in so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part(pub u64);

/// Serve until the drain has begun and what goes on is finished, or the drain is over. Without `tls` nothing is encrypted.
pub async fn serve(listener: TcpListener, tls: Option<Arc<Tls>>, routes: Router, drain: &Drain, part: Part) {
    let places = Arc::new(Semaphore::new(connections(part)));
    let mut open = JoinSet::new();
    loop {
        // Whoever comes when all places are taken waits in the kernel's queue, which is bounded too.
        let place = tokio::select! {
            () = drain.begun() => break,
            place = places.clone().acquire_owned() => place.expect("nobody closes this"),
        };
        let (stream, peer) = tokio::select! {
            () = drain.begun() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // One that was given up before it was taken says nothing; a lack of descriptors passes.
                    tracing::debug!(%error, "a connection could not be taken");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            },
        };
        let (tls, routes, drain) = (tls.clone(), routes.clone(), drain.clone());
        open.spawn(async move {
            let _place = place;
            let _ = stream.set_nodelay(true);
            let Some(tls) = tls else { return connection(stream, Peer(peer), routes, &drain).await };
            match timeout(HEAD, tls.acceptor().accept(stream)).await {
                Ok(Ok(stream)) => connection(stream, Peer(peer), routes, &drain).await,
                Ok(Err(error)) => tracing::debug!(%error, "a connection was not encrypted as it must be"),
                Err(_) => tracing::debug!("a connection took too long to be encrypted"),
            }
        });
        while open.try_join_next().is_some() {}
    }
    drop(listener);
    tokio::select! {
        () = async { while open.join_next().await.is_some() {} } => {}
        () = drain.over().cancelled() => {
            let _ = timeout(LAST_WORDS, async { while open.join_next().await.is_some() {} }).await;
        }
    }
    open.shutdown().await;
}

async fn connection<S>(stream: S, peer: Peer, routes: Router, drain: &Drain)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let switch = Switch::default();
    let clear = Clear::new(Patient::new(stream, STALLED), switch.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(switch.clone());
        let served = TowerToHyperService::new(routes.clone()).call(request);
        async move {
            // A fault of ours is an answer and no end, whichever route came upon it. What it was has been told before.
            AssertUnwindSafe(served).catch_unwind().await.unwrap_or_else(|_| Ok(answer::fault()))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_headers(HEADERS)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(2 * HEAD_BYTES)
        .serve_connection(TokioIo::new(clear), service)
        .with_upgrades();
    tokio::pin!(connection);
    let ended: Result<(), hyper::Error> = tokio::select! {
        ended = &mut connection => ended,
        () = drain.begun() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended badly");
    }
}

/// After asking for all descriptors that this process can get.
/// How many there may be at once.
pub fn connections(Part(part): Part) -> usize {
    let descriptors = sandbox::system::allow_descriptors();
    CONNECTIONS.min(usize::try_from(descriptors / part).unwrap_or(usize::MAX)).max(1)
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn fault() -> &'static str {
        panic!("words of {}", std::hint::black_box("a fault"))
    }

    async fn well() -> &'static str {
        "well"
    }

    #[tokio::test]
    async fn a_fault_is_answered_without_its_words_and_the_next_request_is_served() {
        let routes = Router::new().route("/fault", get(fault)).route("/", get(well));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let drain = Drain::default();
        let serving = tokio::spawn({
            let drain = drain.clone();
            async move { serve(listener, None, routes, &drain, Part(2)).await }
        });
        let mut stream = TcpStream::connect(address).await.unwrap();
        let asked = "GET /fault HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        stream.write_all(asked.as_bytes()).await.unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).await.unwrap();
        assert!(said.starts_with("HTTP/1.1 500 ") && said.contains("a fault of its own"), "{said}");
        assert!(said.contains("HTTP/1.1 200 ") && said.ends_with("well"), "{said}");
        assert!(!said.contains("words of"), "{said}");
        drain.finish();
        serving.await.unwrap();
    }
}
