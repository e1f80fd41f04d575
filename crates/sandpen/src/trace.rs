//! Traces: from a client's request to the program that it ran, sent to a collector of OpenTelemetry when there is one.
//!
//! Names and times, never what was asked or answered.

use std::pin::Pin;
use std::task::{Context as Task, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{self, Next};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use sandbox::{Result, SPANS};
use tokio::sync::mpsc;
use tracing::field::Empty;
use tracing::{Instrument, Span, info_span};

pub use self::context::Context;
pub use self::layer::Spans;
use self::otlp::Exporter;
use self::settings::Settings;

pub mod context;
mod layer;
mod otlp;
pub mod settings;

/// Fields of spans that are no attributes: how a span is called and what kind it is, where it stands, and what went wrong.
const NAME: &str = "otel.name";
const KIND: &str = "otel.kind";
const PARENT: &str = "otel.parent";
const LINK: &str = "otel.link";
const ERROR: &str = "otel.error";

/// What is to be sent, before anybody can send it.
#[derive(Debug)]
pub struct Prepared {
    settings: Settings,
    ended: mpsc::Receiver<layer::Span>,
}

/// Where the traces of this process go, as its variables say. `None`: nowhere.
pub fn prepare() -> Result<Option<(Spans, Prepared)>> {
    let Some(settings) = Settings::read(|name| std::env::var(name).ok())? else { return Ok(None) };
    let (sender, ended) = mpsc::channel(otlp::QUEUE);
    Ok(Some((Spans { sampler: settings.sampler, ended: sender }, Prepared { settings, ended })))
}

/// Sends what there is, if anybody wants it.
#[derive(Debug)]
pub struct Traces(Option<Exporter>);

impl Traces {
    /// In the runtime that goes on until the end.
    pub fn start(prepared: Option<Prepared>) -> Self {
        Self(prepared.map(|Prepared { settings, ended }| Exporter::start(settings, ended)))
    }

    pub async fn finish(self) {
        if let Some(exporter) = self.0 {
            exporter.finish().await;
        }
    }
}

/// Where the span of a request stands: among the extensions of the request.
#[derive(Clone, Copy, Debug)]
pub struct OfRequest(pub Context);

/// Of a call of a tool. A client may say where its own trace goes on in the request itself, which is not bound to the way by
/// which it came: then that is what the call belongs to, and the way is only named.
pub fn of_call(tool: &str, told: Option<&str>, request: Option<&OfRequest>) -> Span {
    let request = request.map(|OfRequest(context)| *context);
    let (parent, link) = match (told.and_then(Context::read), request) {
        (Some(told), Some(request)) if told.trace != request.trace => (Some(told), Some(request)),
        (_, Some(request)) => (Some(request), None),
        (told, None) => (told, None),
    };
    info_span!(
        target: SPANS,
        "call",
        "otel.name" = format!("tools/call {tool}"),
        "otel.parent" = parent.map(|parent| parent.to_string()),
        "otel.link" = link.map(|link| link.to_string()),
        "otel.error" = Empty,
        "mcp.method.name" = "tools/call",
        "gen_ai.tool.name" = tool,
        "sandpen.outcome" = Empty,
    )
}

/// Around all routes.
pub fn traced(routes: Router) -> Router {
    routes.layer(middleware::from_fn(trace))
}

async fn trace(mut request: Request, next: Next) -> Response {
    // Whether anybody wants it is known without making one.
    if !tracing::enabled!(target: SPANS, tracing::Level::INFO) {
        return next.run(request).await;
    }
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let told = request.headers().get("traceparent").and_then(|value| value.to_str().ok()).and_then(Context::read);
    let span = info_span!(
        target: SPANS,
        "request",
        "otel.name" = format!("{} {route}", request.method()),
        "otel.kind" = "server",
        "otel.parent" = told.map(|told| told.to_string()),
        "otel.error" = Empty,
        "http.request.method" = request.method().as_str(),
        "http.route" = route,
        "http.response.status_code" = Empty,
    );
    if let Some(context) = layer::context_of(&span) {
        request.extensions_mut().insert(OfRequest(context));
    }
    let response = next.run(request).instrument(span.clone()).await;
    span.record("http.response.status_code", response.status().as_u16());
    if response.status().is_server_error() {
        span.record("otel.error", response.status().as_str());
    }
    response.map(|body| Body::new(Spanned { body, _span: span }))
}

/// The span of a request ends with the answer.
struct Spanned {
    body: Body,
    _span: Span,
}

impl hyper::body::Body for Spanned {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Task<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(task)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
