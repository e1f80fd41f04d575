//! Answers that carry no protocol: refusals, and the few words of the health routes.

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::access::Refusal;

pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

pub fn json(status: StatusCode, value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// What went wrong, in the words of our errors.
pub fn error(status: StatusCode, kind: &str, message: &str) -> Response {
    json(status, &json!({ "error": { "kind": kind, "message": message } }))
}

pub fn not_found() -> Response {
    error(StatusCode::NOT_FOUND, "not_found", "there is nothing here")
}

pub fn method_not_allowed() -> Response {
    error(StatusCode::METHOD_NOT_ALLOWED, "unsupported", "this method is not for this address")
}

/// A request came upon a fault of ours.
pub fn fault() -> Response {
    error(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the server came upon a fault of its own")
}

pub fn refused(refusal: Refusal) -> Response {
    let (status, message) = match refusal {
        Refusal::UnclearHost => (StatusCode::BAD_REQUEST, "the request does not say for which host it is"),
        Refusal::ForeignHost => {
            (StatusCode::FORBIDDEN, "this host name is not allowed; the operator can add it with --allowed-hosts")
        }
        Refusal::ForeignOrigin => {
            (StatusCode::FORBIDDEN, "this origin is not allowed; the operator can add it with --allowed-origins")
        }
        Refusal::CrossSite => (StatusCode::FORBIDDEN, "pages of other sites may not ask here"),
    };
    error(status, "denied", message)
}

/// Too much at once; later may help.
pub fn retry_soon(mut response: Response) -> Response {
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
