//! Connections to the server inside, kept for a moment for whoever asks next: a page is made of many requests.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use sandbox::Error;
use tokio::time::{Instant, timeout};

use super::table::{Shown, Table};

/// Shorter than servers wait for another request, and than a sandbox is idle: one that is kept counts as use.
const KEPT_FOR: Duration = Duration::from_secs(3);
const MOST_KEPT: usize = 16;

/// Of what a server says ahead of a client that takes its time; a head must fit into it.
const MOST_BUFFERED: usize = 64 << 10;

/// Servers may think for long before they say anything.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug, Default)]
pub struct Upstream {
    kept: Mutex<Vec<(SendRequest<Body>, Instant)>>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    Unreachable(Error),
    Late,
    Broken(hyper::Error),
}

impl Upstream {
    fn kept(&self) -> MutexGuard<'_, Vec<(SendRequest<Body>, Instant)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<SendRequest<Body>> {
        let mut kept = self.kept();
        kept.retain(|(sender, until)| sender.is_ready() && *until > Instant::now());
        kept.pop().map(|(sender, _)| sender)
    }

    fn keep(&self, sender: SendRequest<Body>) {
        let mut kept = self.kept();
        if kept.len() < MOST_KEPT {
            kept.push((sender, Instant::now() + KEPT_FOR));
        }
    }

    fn forget_old(&self) {
        self.kept().retain(|(_, until)| *until > Instant::now());
    }
}

/// Ask the server inside. What it says after the head comes by the answer's body.
pub async fn ask(
    table: &Table,
    shown: &std::sync::Arc<Shown>,
    mut request: Request<Body>,
) -> Result<Response<Incoming>, Failure> {
    loop {
        let kept = shown.upstream.take();
        let was_kept = kept.is_some();
        let mut sender = match kept {
            Some(sender) => sender,
            None => connect(table, shown).await?,
        };
        match timeout(PATIENCE, sender.try_send_request(request)).await {
            Err(_) => return Err(Failure::Late),
            Ok(Ok(response)) => {
                let shown = std::sync::Arc::clone(shown);
                tokio::spawn(keep_when_done(shown, sender));
                return Ok(response);
            }
            // A server may close a connection in the moment in which it is used again; then nothing of the request was sent.
            Ok(Err(mut error)) => match error.take_message().filter(|_| was_kept) {
                Some(unsent) => request = unsent,
                None => return Err(Failure::Broken(error.into_error())),
            },
        }
    }
}

async fn connect(table: &Table, shown: &std::sync::Arc<Shown>) -> Result<SendRequest<Body>, Failure> {
    let Shown { owner, sandbox, port, over, .. } = &**shown;
    let stream = table.service.connect(owner, sandbox, *port, shown.left()).await.map_err(Failure::Unreachable)?;
    let handshake = Builder::new().max_buf_size(MOST_BUFFERED).handshake(TokioIo::new(stream));
    let (sender, connection) = handshake.await.map_err(Failure::Broken)?;
    let over = over.clone();
    tokio::spawn(async move {
        // How it ended is told to whoever waits for an answer.
        let _ = over.run_until_cancelled(connection.with_upgrades()).await;
    });
    Ok(sender)
}

/// It is free when the whole answer was taken.
async fn keep_when_done(shown: std::sync::Arc<Shown>, mut sender: SendRequest<Body>) {
    let is_free = shown.over.run_until_cancelled(sender.ready()).await;
    if matches!(is_free, Some(Ok(()))) {
        shown.upstream.keep(sender);
        tokio::time::sleep(KEPT_FOR).await;
        shown.upstream.forget_old();
    }
}
