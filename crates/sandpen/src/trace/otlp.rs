//! Spans on their way to a collector: OTLP over HTTP, in its JSON.
//!
//! A collector that does not answer costs spans and nothing else: nobody waits for it, and what waits for it is bounded.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::context::hexadecimal;
use super::layer::Span;
use super::settings::{Hidden, Settings};

/// Spans that wait, at most.
pub const QUEUE: usize = 4096;

/// Spans that are sent at once, at most.
const BATCH: usize = 512;

/// How long a span may wait for others to be sent with it.
const DELAY: Duration = Duration::from_secs(1);

/// Answers say little.
const ANSWER: usize = 64 << 10;

/// Sends until it is told to finish.
#[derive(Debug)]
pub struct Exporter {
    over: CancellationToken,
    task: JoinHandle<()>,
}

impl Exporter {
    pub fn start(settings: Settings, spans: mpsc::Receiver<Span>) -> Self {
        let over = CancellationToken::new();
        let task = tokio::spawn(run(settings, spans, over.clone()));
        Self { over, task }
    }

    /// Returns when what has ended is sent, or cannot be.
    pub async fn finish(self) {
        self.over.cancel();
        let _ = self.task.await;
    }
}

async fn run(settings: Settings, mut spans: mpsc::Receiver<Span>, over: CancellationToken) {
    let tls = (settings.endpoint.scheme_str() == Some("https")).then(connector);
    let mut is_failing = false;
    loop {
        let first = tokio::select! {
            first = spans.recv() => first,
            () = over.cancelled() => spans.try_recv().ok(),
        };
        let Some(first) = first else { return };
        let mut batch = vec![first];
        let until = Instant::now() + DELAY;
        while batch.len() < BATCH {
            let next = tokio::select! {
                next = timeout_at(until, spans.recv()) => next.ok().flatten(),
                () = over.cancelled() => spans.try_recv().ok(),
            };
            match next {
                Some(span) => batch.push(span),
                None => break,
            }
        }
        let count = batch.len();
        let sent = timeout(settings.timeout, send(&settings, tls.as_ref(), body(&settings, &batch))).await;
        match sent.unwrap_or_else(|_| Err("it took too long".into())) {
            Ok(()) => is_failing = false,
            // Once for each time that it stops working: a collector may be away for hours.
            Err(error) if !is_failing => {
                tracing::warn!(%error, count, "spans did not reach the collector");
                is_failing = true;
            }
            Err(error) => tracing::debug!(%error, count, "spans did not reach the collector"),
        }
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn send(settings: &Settings, tls: Option<&TlsConnector>, body: Bytes) -> Result<(), Failure> {
    let host = settings.endpoint.host().unwrap_or_default().trim_matches(['[', ']']);
    let port = settings.endpoint.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    match tls {
        Some(tls) => {
            let name = ServerName::try_from(host.to_owned())?;
            post(settings, tls.connect(name, stream).await?, body).await
        }
        None => post(settings, stream, body).await,
    }
}

async fn post<S>(settings: &Settings, stream: S, body: Bytes) -> Result<(), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let sending = async {
        let Settings { endpoint, headers, .. } = settings;
        let mut request = Request::builder().method(Method::POST).uri(path(endpoint));
        request = request.header(HOST, endpoint.authority().map_or("", |authority| authority.as_str()));
        request = request.header(CONTENT_TYPE, "application/json").header(CONTENT_LENGTH, body.len());
        for (name, Hidden(value)) in headers {
            request = request.header(name, value);
        }
        let answer = sender.send_request(request.body(Full::new(body))?).await?;
        let status = answer.status();
        let _ = Limited::new(answer.into_body(), ANSWER).collect().await;
        if status.is_success() { Ok(()) } else { Err(Failure::from(format!("it answered {status}"))) }
    };
    let sent = sending.await;
    connection.abort();
    sent
}

fn path(endpoint: &Uri) -> String {
    endpoint.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string)
}

/// By the certificates that this machine trusts.
fn connector() -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the versions that it comes with")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

fn body(settings: &Settings, spans: &[Span]) -> Bytes {
    let resource: Vec<Value> = settings
        .resource
        .iter()
        .map(|(name, value)| json!({ "key": name, "value": { "stringValue": value } }))
        .collect();
    let scope = json!({ "name": "sandpen", "version": env!("CARGO_PKG_VERSION") });
    let spans: Vec<Value> = spans.iter().map(span).collect();
    let scoped = json!([{ "scope": scope, "spans": spans }]);
    let whole = json!({ "resourceSpans": [{ "resource": { "attributes": resource }, "scopeSpans": scoped }] });
    whole.to_string().into()
}

fn span(span: &Span) -> Value {
    let attribute = |(name, value): &(&str, Value)| json!({ "key": name, "value": value });
    let mut written = json!({
        "traceId": hexadecimal(&span.context.trace),
        "spanId": hexadecimal(&span.context.span),
        "name": span.name,
        "kind": span.kind as u8,
        "startTimeUnixNano": nanoseconds(span.started),
        "endTimeUnixNano": nanoseconds(span.ended),
        "attributes": span.attributes.iter().map(attribute).collect::<Vec<_>>(),
    });
    if let Some(parent) = &span.parent {
        written["parentSpanId"] = hexadecimal(parent).into();
    }
    if let Some(link) = &span.link {
        written["links"] = json!([{ "traceId": hexadecimal(&link.trace), "spanId": hexadecimal(&link.span) }]);
    }
    if let Some(error) = &span.error {
        written["status"] = json!({ "code": 2, "message": error });
    }
    written
}

/// As text: they are more than JSON's numbers hold.
fn nanoseconds(time: SystemTime) -> String {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos()).to_string()
}
