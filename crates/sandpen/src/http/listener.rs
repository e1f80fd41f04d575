//! Connections: how many, how long, and how they end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::drain::Drain;
use super::patience::Patient;

/// For a request's head, and for a connection that is kept open between two.
const HEAD: Duration = Duration::from_secs(10);

/// For a client that takes nothing of its answer.
const STALLED: Duration = Duration::from_secs(60);

const HEAD_BYTES: usize = 32 << 10;
const HEADERS: usize = 64;
const CONNECTIONS: usize = 1024;

/// Between the end of the last stream and that of the connections.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Serve until the drain has begun and what goes on is finished, or the drain is over.
pub async fn serve(listener: TcpListener, routes: Router, drain: &Drain) {
    let places = Arc::new(Semaphore::new(connections()));
    let mut open = JoinSet::new();
    loop {
        // Whoever comes when all places are taken waits in the kernel's queue, which is bounded too.
        let place = tokio::select! {
            () = drain.begun() => break,
            place = places.clone().acquire_owned() => place.expect("nobody closes this"),
        };
        let stream = tokio::select! {
            () = drain.begun() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // One that was given up before it was taken says nothing; a lack of descriptors passes.
                    tracing::debug!(%error, "a connection could not be taken");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            },
        };
        let (routes, drain) = (routes.clone(), drain.clone());
        open.spawn(async move {
            let _place = place;
            connection(stream, routes, &drain).await;
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

async fn connection(stream: TcpStream, routes: Router, drain: &Drain) {
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_headers(HEADERS)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(2 * HEAD_BYTES)
        .serve_connection(TokioIo::new(Patient::new(stream, STALLED)), TowerToHyperService::new(routes));
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

/// Half of the descriptors that this process may have, after asking for all that it can get: each sandbox needs some
/// too.
fn connections() -> usize {
    let descriptors = sandbox::system::allow_descriptors();
    CONNECTIONS.min(usize::try_from(descriptors / 2).unwrap_or(usize::MAX)).max(1)
}
