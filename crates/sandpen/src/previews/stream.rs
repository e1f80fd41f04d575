//! Bodies and upgraded connections on their way, for as long as their preview is there.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::http::drain::Drain;

/// Between two pieces of what a client sends.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between the two answers that agree on another protocol and the connections that speak it.
const SWITCHING: Duration = Duration::from_secs(10);

/// What a client sends. One that stops in the middle is given up.
pub struct Sent {
    body: Body,
    patience: Pin<Box<Sleep>>,
}

impl Sent {
    pub fn wrap(body: Body) -> Body {
        if body.is_end_stream() { body } else { Body::new(Self { body, patience: Box::pin(sleep(PATIENCE)) }) }
    }
}

impl hyper::body::Body for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(frame) => {
                self.patience.as_mut().reset(Instant::now() + PATIENCE);
                Poll::Ready(frame)
            }
            Poll::Pending => match self.patience.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Some(Err(axum::Error::new(io::Error::from(io::ErrorKind::TimedOut))))),
                Poll::Pending => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What the server inside answers. It is broken off when the preview is over.
pub struct Answered {
    body: Incoming,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: OwnedSemaphorePermit,
}

impl Answered {
    pub fn wrap(body: Incoming, over: CancellationToken, place: OwnedSemaphorePermit) -> Body {
        Body::new(Self { body, over: Box::pin(over.cancelled_owned()), _place: place })
    }
}

impl hyper::body::Body for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.over.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new(io::Error::from(io::ErrorKind::ConnectionAborted)))));
        }
        Pin::new(&mut self.body).poll_frame(context).map_err(axum::Error::new)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Both sides have agreed on another protocol: from here on bytes are bytes.
pub async fn carry(
    client: OnUpgrade,
    server: OnUpgrade,
    over: CancellationToken,
    drain: Drain,
    _place: OwnedSemaphorePermit,
) {
    let switched = tokio::time::timeout(SWITCHING, async { tokio::try_join!(client, server) }).await;
    let Ok(Ok((client, server))) = switched else { return };
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    tokio::select! {
        // One side that breaks off ends both.
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        () = over.cancelled() => {}
        () = drain.begun() => {}
    }
}
