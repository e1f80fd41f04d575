//! Messages on their way out, in order. Nobody waits to put one in; whoever reads requests waits while it is full.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

/// While more than this waits to be written, no further request is read.
const FULL: usize = 32 << 20;

/// Whoever takes nothing of a full outbox for so long does not read at all.
const STUCK: Duration = Duration::from_secs(1);

/// The end where messages go in.
#[derive(Clone, Debug)]
pub struct Outbox {
    messages: mpsc::UnboundedSender<Vec<u8>>,
    backlog: watch::Sender<usize>,
    gone: CancellationToken,
}

/// The end where they come out, one by one. Dropping it means that nobody reads any more.
#[derive(Debug)]
pub struct Outlet {
    messages: mpsc::UnboundedReceiver<Vec<u8>>,
    backlog: watch::Sender<usize>,
    _gone: DropGuard,
}

/// Nobody reads any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderGone;

pub fn outbox() -> (Outbox, Outlet) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let (backlog, _) = watch::channel(0);
    let gone = CancellationToken::new();
    let outlet = Outlet { messages: receiver, backlog: backlog.clone(), _gone: gone.clone().drop_guard() };
    (Outbox { messages: sender, backlog, gone }, outlet)
}

impl Outbox {
    pub fn put(&self, message: Vec<u8>) {
        let bytes = message.len();
        self.backlog.send_modify(|backlog| *backlog += bytes);
        if self.messages.send(message).is_err() {
            self.backlog.send_modify(|backlog| *backlog -= bytes);
        }
    }

    /// Until it is no longer full.
    pub async fn room(&self) -> Result<(), ReaderGone> {
        self.until(|backlog| backlog < FULL).await
    }

    /// Until it was full for a while.
    pub async fn stuck(&self) {
        let mut backlog = self.backlog.subscribe();
        loop {
            let _ = backlog.wait_for(|backlog| *backlog >= FULL).await;
            if timeout(STUCK, self.room()).await.is_err() {
                return;
            }
        }
    }

    /// Until everything was written.
    pub async fn empty(&self) -> Result<(), ReaderGone> {
        self.until(|backlog| backlog == 0).await
    }

    /// Somebody saw it before a message could not be written.
    pub fn give_up(&self) {
        self.gone.cancel();
    }

    pub async fn reader_gone(&self) {
        self.gone.cancelled().await;
    }

    async fn until(&self, reached: impl Fn(usize) -> bool) -> Result<(), ReaderGone> {
        let mut backlog = self.backlog.subscribe();
        tokio::select! {
            _ = backlog.wait_for(|backlog| reached(*backlog)) => Ok(()),
            () = self.reader_gone() => Err(ReaderGone),
        }
    }
}

impl Outlet {
    /// The next message, for a thread of its own. It counts as waiting until `written`.
    pub fn next_blocking(&mut self) -> Option<Vec<u8>> {
        self.messages.blocking_recv()
    }

    /// The next message, for a task.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.messages.recv().await
    }

    pub fn written(&self, message: &[u8]) {
        self.backlog.send_modify(|backlog| *backlog = backlog.saturating_sub(message.len()));
    }
}

impl std::fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody reads the answers")
    }
}

impl std::error::Error for ReaderGone {}
