//! Streamable HTTP for clients of an older server that spoke JSON by POST and knew little else: no session, no header that
//! must be there, every request by itself, and a stream on which nothing is ever said.
//!
//! Clients of today get along with it too, because it is one of the ways in which their revisions let a server speak.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, StatusCode};
use http_body_util::Full;
use rmcp::ServerHandler;
use rmcp::model::ErrorCode;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};

use super::http::in_our_shape;
use super::rights::Rights;
use super::{events, refusal};
use crate::auth::{Principal, insufficient_scope};
use crate::http::answer;
use crate::http::body::Bodies;
use crate::http::drain::Drain;
use crate::http::places::{Places, Share, Table};

/// Who listen at once. Each holds a connection, of which there are not many more.
const LISTENERS: usize = 256;

/// The routes of a server; `handler` makes one for each request.
pub fn routes<F, H>(handler: F, rights: Rights, bodies: Bodies, share: Share, drain: &Drain) -> Router
where
    F: Fn() -> H + Send + Sync + 'static,
    H: ServerHandler,
{
    // Hosts and origins are checked for all routes alike, before any of them is asked; bodies come here as a whole.
    let mut config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_cancellation_token(drain.over().clone());
    config.max_request_body_bytes = usize::MAX;
    let sessions = Arc::new(NeverSessionManager::default());
    let service = StreamableHttpService::new(move || Ok(handler()), sessions, config);
    // Said here, so that whoever may not ask at all is told that first.
    let other_methods = async || answer::method_not_allowed();
    let listeners = Table::new(Places::shared(LISTENERS, share));
    let endpoint = Endpoint { service, rights, bodies, drain: drain.clone(), listeners };
    let methods = post(accept::<H>).get(listen::<H>).fallback(other_methods);
    Router::new().route("/mcp", methods).with_state(endpoint)
}

struct Endpoint<H> {
    service: StreamableHttpService<H, NeverSessionManager>,
    rights: Rights,
    bodies: Bodies,
    drain: Drain,
    listeners: Table,
}

impl<H> Clone for Endpoint<H> {
    fn clone(&self) -> Self {
        Self {
            service: self.service.clone(),
            rights: self.rights.clone(),
            bodies: self.bodies.clone(),
            drain: self.drain.clone(),
            listeners: self.listeners.clone(),
        }
    }
}

/// One comment, and then nothing that means anything: nobody is told news here. It ends with its client or the server.
async fn listen<H: ServerHandler>(
    State(endpoint): State<Endpoint<H>>,
    Extension(principal): Extension<Principal>,
    method: Method,
) -> Response {
    // A route for one is a route for the other too, and there is nothing to tell of a stream but the stream.
    if method == Method::HEAD {
        return answer::method_not_allowed();
    }
    let place = match endpoint.listeners.take(&principal.owner) {
        Ok(place) => place,
        Err(no_place) => return refusal::no_place(no_place),
    };
    let silence = stream::once(async move {
        let _place = place;
        std::future::pending().await
    });
    let events = stream::iter([Event::default().comment("connected")]).chain(silence);
    events::response(events, endpoint.drain.over().clone())
}

async fn accept<H: ServerHandler>(
    State(endpoint): State<Endpoint<H>>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let body = match endpoint.bodies.read(body).await {
        Ok(body) => body,
        Err(unread) => return refusal::unread(unread),
    };
    if let Some(lacking) = endpoint.rights.lacking(principal.scopes, &body.bytes) {
        return insufficient_scope(lacking);
    }
    let message = match understand(&body.bytes) {
        Ok(message) => message,
        Err(refused) => return answer::json(StatusCode::OK, &refused),
    };
    parts.headers.insert(CONTENT_TYPE, answer::JSON);
    parts.headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    let response = endpoint.service.handle(Request::from_parts(parts, Full::new(message.clone()))).await;
    match response.status() {
        // The content type is right: this is how the library says that it cannot read the message.
        StatusCode::UNSUPPORTED_MEDIA_TYPE => refusal::unreadable(&message),
        _ => in_our_shape(response.into_response()).await,
    }
}

/// One message, which asks for no news: these could not be told but by a stream. What is none is answered as it was.
fn understand(bytes: &Bytes) -> Result<Bytes, Value> {
    let refused = |id: Value, code: ErrorCode, message: &str| json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code.0, "message": message } });
    let Ok(Value::Object(mut message)) = serde_json::from_slice(bytes) else {
        return Err(refused(Value::Null, ErrorCode::PARSE_ERROR, "Parse error"));
    };
    if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        let id = message.remove("id").unwrap_or_default();
        return Err(refused(id, ErrorCode::INVALID_REQUEST, "Invalid JSON-RPC version"));
    }
    let meta = message.get_mut("params").and_then(|params| params.get_mut("_meta")).and_then(Value::as_object_mut);
    match meta.and_then(|meta| meta.remove("progressToken")) {
        Some(_) => Ok(Value::Object(message).to_string().into()),
        None => Ok(bytes.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn understood(text: &str) -> Result<String, Value> {
        understand(&Bytes::from(text.to_owned())).map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[test]
    fn what_is_no_message_is_answered_as_it_was() {
        for text in ["", "{", "[]", "[{\"jsonrpc\":\"2.0\"}]", "7", "\u{0}"] {
            let refused = understood(text).unwrap_err();
            assert_eq!(refused["error"], json!({ "code": -32700, "message": "Parse error" }), "{text:?}");
            assert_eq!(refused["id"], Value::Null);
        }
        let refused = understood("{\"jsonrpc\":\"1.0\",\"id\":7,\"method\":\"x\"}").unwrap_err();
        assert_eq!(refused["error"], json!({ "code": -32600, "message": "Invalid JSON-RPC version" }));
        assert_eq!(refused["id"], 7);
    }

    #[test]
    fn nobody_asks_for_news() {
        let asked = r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"progressToken":1,"a":2}}}"#;
        let read: Value = serde_json::from_str(&understood(asked).unwrap()).unwrap();
        assert_eq!(read["params"]["_meta"], json!({ "a": 2 }));
        let plain = r#"{ "jsonrpc":"2.0", "id":1, "method":"ping" }"#;
        assert_eq!(understood(plain).unwrap(), plain);
    }
}
