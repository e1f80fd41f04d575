//! How a server ends: first nothing new, then what goes on is finished, then everything.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// What goes on when the server is told to end has so long to finish.
pub const GRACE: Duration = Duration::from_secs(10);

/// A handle on the end, and on what it waits for.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    begun: CancellationToken,
    over: CancellationToken,
    calls: TaskTracker,
}

/// Something that should be finished before the server ends.
#[derive(Debug)]
pub struct Going(#[expect(dead_code, reason = "held for its end")] TaskTrackerToken);

impl Drain {
    pub fn begin(&self) {
        self.begun.cancel();
    }

    /// Nothing is waited for any longer.
    pub fn finish(&self) {
        self.begun.cancel();
        self.over.cancel();
    }

    pub fn has_begun(&self) -> bool {
        self.begun.is_cancelled()
    }

    pub async fn begun(&self) {
        self.begun.cancelled().await;
    }

    /// For streams that never end by themselves.
    pub fn over(&self) -> &CancellationToken {
        &self.over
    }

    pub fn going(&self) -> Going {
        Going(self.calls.token())
    }

    /// Until nothing goes on any longer.
    pub async fn idle(&self) {
        self.calls.close();
        self.calls.wait().await;
    }
}

/// A body during which something goes on, or is held.
#[derive(Debug)]
pub struct Lasting<T> {
    body: Body,
    _held: T,
}

impl<T: Send + Unpin + 'static> Lasting<T> {
    pub fn wrap(body: Body, held: T) -> Body {
        Body::new(Self { body, _held: held })
    }
}

impl<T: Unpin> hyper::body::Body for Lasting<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
