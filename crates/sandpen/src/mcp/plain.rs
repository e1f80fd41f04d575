//! Streamable HTTP for clients of an older server that spoke JSON by POST and knew nothing else: no session, no stream, no
//! header that must be there, every request by itself.
//!
//! Clients of today get along with it too, because it is one of the ways in which their revisions let a server speak.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use http_body_util::Full;
use rmcp::ServerHandler;
use rmcp::model::ErrorCode;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};

use super::http::in_our_shape;
use super::refusal;
use crate::http::answer;
use crate::http::body::Bodies;
use crate::http::drain::Drain;

/// The routes of a server; `handler` makes one for each request.
pub fn routes<F, H>(handler: F, bodies: Bodies, drain: &Drain) -> Router
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
    Router::new().route("/mcp", post(accept::<H>).fallback(other_methods)).with_state(Endpoint { service, bodies })
}

struct Endpoint<H> {
    service: StreamableHttpService<H, NeverSessionManager>,
    bodies: Bodies,
}

impl<H> Clone for Endpoint<H> {
    fn clone(&self) -> Self {
        Self { service: self.service.clone(), bodies: self.bodies.clone() }
    }
}

async fn accept<H: ServerHandler>(State(endpoint): State<Endpoint<H>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let body = match endpoint.bodies.read(body).await {
        Ok(body) => body,
        Err(unread) => return refusal::unread(unread),
    };
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
