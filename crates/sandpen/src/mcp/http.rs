//! Streamable HTTP: one address for all revisions since 2025-03-26, with sessions before 2026-07-28 and without since.
//!
//! The library does the protocol. Around it stands what it leaves open: bodies, batches, statuses, and the shape of
//! refusals.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream, SelectAll};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt, Full};
use rmcp::ServerHandler;
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorCode, ErrorData, GetExtensions, JsonRpcMessage, ProtocolVersion,
    RequestId, ServerJsonRpcMessage,
};
use rmcp::transport::streamable_http_server::{
    SessionId, SessionManager, StreamableHttpServerConfig, StreamableHttpService,
};

use super::events;
use super::refusal::{self, refusal};
use super::rights::Rights;
use super::sessions::{self, SessionFailure, Sessions};
use super::wire::{self, Incoming, Message};
use crate::auth::{Principal, insufficient_scope};
use crate::http::answer;
use crate::http::body::{Bodies, Unread};
use crate::http::drain::Drain;
use crate::http::places::Share;

const SESSION_ID: &str = "mcp-session-id";

/// The routes of a server; `handler` makes one for each session and each request that stands by itself.
pub fn routes<F, H>(alias: Alias, handler: F, rights: Rights, bodies: Bodies, share: Share, drain: &Drain) -> Router
where
    F: Fn() -> H + Send + Sync + 'static,
    H: ServerHandler,
{
    let sessions = Arc::new(Sessions::new(share));
    // Hosts and origins are checked for all routes alike, before any of them is asked; bodies come here as a whole.
    let mut config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_sse_keep_alive(Some(events::KEEP_ALIVE))
        .with_cancellation_token(drain.over().clone());
    config.max_request_body_bytes = usize::MAX;
    let service = StreamableHttpService::new(move || Ok(handler()), sessions.clone(), config);
    let endpoint = Endpoint { service, sessions, rights, bodies, drain: drain.clone(), alias };
    let mut router = Router::new().route("/mcp", post(accept::<H>).get(listen::<H>).delete(end::<H>));
    if alias == Alias::Sse {
        router = router.route("/sse", post(accept::<H>));
    }
    router.layer(middleware::from_fn_with_state(endpoint.sessions.clone(), of_their_own)).with_state(endpoint)
}

/// Where else messages are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alias {
    None,
    /// As one older server did when it had no streams of the first transport any more.
    Sse,
}

struct Endpoint<H> {
    service: StreamableHttpService<H, Sessions>,
    sessions: Arc<Sessions>,
    rights: Rights,
    bodies: Bodies,
    drain: Drain,
    alias: Alias,
}

impl<H> Clone for Endpoint<H> {
    fn clone(&self) -> Self {
        Self {
            service: self.service.clone(),
            sessions: self.sessions.clone(),
            rights: self.rights.clone(),
            bodies: self.bodies.clone(),
            drain: self.drain.clone(),
            alias: self.alias,
        }
    }
}

/// A session is its owner's: to everybody else it is not there.
async fn of_their_own(State(sessions): State<Arc<Sessions>>, request: Request, next: Next) -> Response {
    let Some(owner) = request.extensions().get::<Principal>().map(|principal| principal.owner.clone()) else {
        return refusal::internal();
    };
    if session_id(request.headers()).is_some_and(|id| sessions.has(id) && !sessions.is_of(id, &owner)) {
        return refusal::no_session();
    }
    sessions::for_owner(owner, next.run(request)).await
}

async fn accept<H: ServerHandler>(
    State(endpoint): State<Endpoint<H>>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Response {
    if !is_json(request.headers()) {
        return refusal::wrong_content_type();
    }
    let (parts, body) = request.into_parts();
    let body = match endpoint.bodies.read(body).await {
        Ok(body) => body,
        Err(Unread::TooLarge) if endpoint.alias == Alias::Sse => return refusal::too_large_as_it_was(),
        Err(unread) => return refusal::unread(unread),
    };
    if let Some(lacking) = endpoint.rights.lacking(principal.scopes, &body.bytes) {
        return insufficient_scope(lacking);
    }
    if body.bytes.trim_ascii_start().starts_with(b"[") {
        return endpoint.batch(parts, &body.bytes).await;
    }
    let request = Request::from_parts(parts, Full::new(body.bytes.clone()));
    let response = endpoint.service.handle(request).await;
    match response.status() {
        // The content type was right: this is how the library says that it cannot read the message.
        StatusCode::UNSUPPORTED_MEDIA_TYPE => refusal::unreadable(&body.bytes),
        StatusCode::INTERNAL_SERVER_ERROR => match endpoint.sessions.why_full(&principal.owner) {
            Some(no_place) => refusal::no_place(no_place),
            None => in_our_shape(response.into_response()).await,
        },
        _ => in_our_shape(response.into_response()).await,
    }
}

async fn listen<H: ServerHandler>(State(endpoint): State<Endpoint<H>>, request: Request) -> Response {
    in_our_shape(endpoint.service.handle(request).await.into_response()).await
}

async fn end<H: ServerHandler>(State(endpoint): State<Endpoint<H>>, request: Request) -> Response {
    let known = session_id(request.headers()).is_none_or(|id| endpoint.sessions.has(id));
    let mut response = endpoint.service.handle(request).await.into_response();
    match response.status() {
        StatusCode::ACCEPTED if !known => refusal::no_session(),
        StatusCode::ACCEPTED => {
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        _ => in_our_shape(response).await,
    }
}

impl<H: ServerHandler> Endpoint<H> {
    /// Everything that asks for an answer gets it on one stream, each as soon as it is there.
    async fn batch(&self, parts: Parts, body: &[u8]) -> Response {
        let Some(id) = session_id(&parts.headers) else {
            return refusal::invalid_request("a batch needs a session of revision 2025-03-26");
        };
        if !self.sessions.has(id) {
            return refusal::no_session();
        }
        if self.sessions.version(id) != Some(ProtocolVersion::V_2025_03_26) {
            return refusal::invalid_request("this session's revision of the protocol has no batches");
        }
        let messages = match wire::read(body) {
            Incoming::Many(messages) => messages,
            Incoming::One(Message::Broken { id, error }) => return refusal::bad_request(id.as_ref(), &error),
            Incoming::One(_) => return refusal::invalid_request("a batch is an array"),
        };
        let id: SessionId = id.into();
        let mut seen = HashSet::new();
        let mut answers = SelectAll::new();
        for message in messages {
            let message = match message {
                Message::Request { id, request } => match admit(&id, &request, &mut seen) {
                    Ok(()) => ClientJsonRpcMessage::request(*request, id),
                    Err(problem) => {
                        answers.push(refused(Some(id), ErrorData::invalid_request(problem, None)));
                        continue;
                    }
                },
                Message::Notification(notification) => ClientJsonRpcMessage::notification(*notification),
                Message::Broken { id, error } => {
                    answers.push(refused(id, error));
                    continue;
                }
                Message::Ignored => continue,
            };
            match self.deliver(&id, &parts, message).await {
                Ok(Some(answer)) => answers.push(answer),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "a message of a batch did not reach its session");
                    return refusal::internal();
                }
            }
        }
        if answers.is_empty() {
            return StatusCode::ACCEPTED.into_response();
        }
        events::response(answers, self.drain.over().clone())
    }

    async fn deliver(
        &self,
        id: &SessionId,
        parts: &Parts,
        mut message: ClientJsonRpcMessage,
    ) -> Result<Option<BoxStream<'static, Event>>, SessionFailure> {
        // As the library does with single messages, so that the handler knows who asks.
        match &mut message {
            JsonRpcMessage::Request(request) => {
                request.request.extensions_mut().insert(parts.clone());
            }
            JsonRpcMessage::Notification(_) | JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {
                self.sessions.accept_message(id, message).await?;
                return Ok(None);
            }
        }
        let answers = self.sessions.create_stream(id, message).await?;
        // Without the ids of events: they would let a client resume a part of the stream and lose the rest.
        let answers = answers.filter_map(async |event| event.message.as_deref().and_then(events::message));
        Ok(Some(answers.boxed()))
    }
}

/// One answer belongs to one request, and a batch to a session that has begun.
fn admit(id: &RequestId, request: &ClientRequest, seen: &mut HashSet<RequestId>) -> Result<(), &'static str> {
    match request {
        ClientRequest::InitializeRequest(_) => Err("initialize cannot be part of a batch"),
        _ if !seen.insert(id.clone()) => Err("another request of this batch has the same id"),
        _ => Ok(()),
    }
}

fn refused(id: Option<RequestId>, error: ErrorData) -> BoxStream<'static, Event> {
    stream::iter(events::message(&ServerJsonRpcMessage::error(error, id))).boxed()
}

/// Parameters may follow.
pub fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = value.split(';').next().unwrap_or_default().trim();
    media_type.eq_ignore_ascii_case("application/json")
}

fn session_id(headers: &HeaderMap) -> Option<&str> {
    headers.get(SESSION_ID).and_then(|value| value.to_str().ok())
}

/// The library's refusals are plain text, and those of its own mistakes say what it was doing.
pub(super) async fn in_our_shape(response: Response) -> Response {
    let status = response.status();
    let is_text = response.headers().get(CONTENT_TYPE).is_none_or(|value| value.as_bytes().starts_with(b"text/plain"));
    if !(status.is_client_error() || status.is_server_error()) || !is_text {
        return response;
    }
    let (parts, body) = response.into_parts();
    let text = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut shaped = match status {
        StatusCode::INTERNAL_SERVER_ERROR => {
            tracing::warn!(%text, "the protocol library failed");
            refusal::internal()
        }
        StatusCode::NOT_FOUND => refusal::no_session(),
        StatusCode::METHOD_NOT_ALLOWED => answer::method_not_allowed(),
        _ => refusal(status, None, ErrorCode::INVALID_REQUEST, &text),
    };
    *shaped.status_mut() = status;
    for (name, value) in &parts.headers {
        if !shaped.headers().contains_key(name) {
            shaped.headers_mut().insert(name, value.clone());
        }
    }
    shaped
}
