//! Answers that go on: they end when whoever asked for them is not let in any more.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use hyper::body::{Frame, SizeHint};

use super::doorkeeper::{Doorkeeper, Standing};

/// How long a token that was revoked is still good for what has begun.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// The answer itself, unless it is a stream of events: only those outlast their question.
pub fn watched(response: Response, doorkeeper: Arc<Doorkeeper>, standing: Standing) -> Response {
    let is_stream =
        response.headers().get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
    if !is_stream {
        return response;
    }
    let refused = async move {
        while doorkeeper.still(&standing, SystemTime::now()) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    response.map(|body| Body::new(Watched { body, refused: Box::pin(refused) }))
}

struct Watched {
    body: Body,
    refused: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl hyper::body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.refused.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
