//! Messages as server-sent events, for the streams that the library does not write itself.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use http::HeaderValue;
use rmcp::model::ServerJsonRpcMessage;
use tokio_util::sync::CancellationToken;

/// Before the shortest time-out of the usual proxies, and soon enough to notice a client that is gone.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// `None` for a message that JSON cannot hold, which no message of ours is.
pub fn message(message: &ServerJsonRpcMessage) -> Option<Event> {
    Some(Event::default().event("message").data(serde_json::to_string(message).ok()?))
}

/// The events until the server ends.
pub fn response(events: impl Stream<Item = Event> + Send + 'static, over: CancellationToken) -> Response {
    let events = events.map(Ok::<_, Infallible>).take_until(over.cancelled_owned());
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // A proxy that collects the answer first would show nothing until the end.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
