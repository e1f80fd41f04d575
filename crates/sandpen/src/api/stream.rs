//! Streams of events. A page reads them with `fetch`, so that it can show its token.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use http::HeaderValue;
use serde_json::Value;

/// Before the shortest time-out of the usual proxies, and soon enough to notice a page that was closed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// One event: its name, and its data.
pub type Told = (&'static str, Value);

/// The events, until the server ends.
pub fn response(
    events: impl Stream<Item = Told> + Send + 'static,
    over: impl Future<Output = ()> + Send + 'static,
) -> Response {
    let events = events
        .map(|(name, data)| Ok::<_, Infallible>(Event::default().event(name).data(data.to_string())))
        .take_until(over);
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // A proxy that collects the answer first would show nothing until the end.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
