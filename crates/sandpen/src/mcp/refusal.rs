//! Errors of the protocol as whole HTTP answers, for requests that never become one.

use axum::response::Response;
use http::StatusCode;
use rmcp::model::{ErrorCode, ErrorData, RequestId};
use serde_json::json;

use super::wire::{self, Incoming, Message};
use crate::http::answer;
use crate::http::body::Unread;
use crate::http::places::NoPlace;

/// What SDKs use for a session that is over; the specification gives it only a status.
const SESSION_NOT_FOUND: ErrorCode = ErrorCode(-32001);

/// The id is left out, as the protocol wants it, when it is not known.
pub fn refusal(status: StatusCode, id: Option<&RequestId>, code: ErrorCode, message: &str) -> Response {
    let mut error = json!({ "jsonrpc": "2.0", "error": { "code": code.0, "message": message } });
    if let Some(id) = id {
        error["id"] = json!(id);
    }
    answer::json(status, &error)
}

pub fn invalid_request(message: &str) -> Response {
    refusal(StatusCode::BAD_REQUEST, None, ErrorCode::INVALID_REQUEST, message)
}

pub fn no_session() -> Response {
    let message = "there is no such session; begin a new one";
    refusal(StatusCode::NOT_FOUND, None, SESSION_NOT_FOUND, message)
}

fn too_many_sessions() -> Response {
    let message = "there are too many sessions; end one or come back later";
    let status = StatusCode::SERVICE_UNAVAILABLE;
    answer::retry_soon(refusal(status, None, ErrorCode::INTERNAL_ERROR, message))
}

/// There may be places for others.
fn too_many_of_yours() -> Response {
    let message = "you have as many sessions as one user may; end one or come back later";
    let status = StatusCode::TOO_MANY_REQUESTS;
    answer::retry_soon(refusal(status, None, ErrorCode::INTERNAL_ERROR, message))
}

pub fn no_place(no_place: NoPlace) -> Response {
    match no_place {
        NoPlace::Full => too_many_sessions(),
        NoPlace::Own(_) => too_many_of_yours(),
    }
}

/// The session takes nothing more for now.
pub fn busy() -> Response {
    let message = "the session has too much to do; come back later";
    let status = StatusCode::SERVICE_UNAVAILABLE;
    answer::retry_soon(refusal(status, None, ErrorCode::INTERNAL_ERROR, message))
}

pub fn internal() -> Response {
    refusal(StatusCode::INTERNAL_SERVER_ERROR, None, ErrorCode::INTERNAL_ERROR, "the server made a mistake")
}

pub fn wrong_content_type() -> Response {
    let message = "the content type must be application/json";
    refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, None, ErrorCode::INVALID_REQUEST, message)
}

pub fn unread(unread: Unread) -> Response {
    let (status, message) = match unread {
        Unread::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "the request is too large"),
        Unread::NoRoom => (StatusCode::SERVICE_UNAVAILABLE, "too many large requests at once; come back later"),
        Unread::TooSlow => (StatusCode::REQUEST_TIMEOUT, "the request took too long to arrive"),
        Unread::Broken => (StatusCode::BAD_REQUEST, "the request did not arrive as a whole"),
    };
    let response = refusal(status, None, ErrorCode::INVALID_REQUEST, message);
    match unread {
        Unread::NoRoom => answer::retry_soon(response),
        Unread::TooLarge | Unread::TooSlow | Unread::Broken => response,
    }
}

/// In the words of the library of the older server that took messages at two addresses.
pub fn too_large_as_it_was() -> Response {
    let error = json!({ "code": -32000, "message": "the request is too large" });
    answer::json(StatusCode::PAYLOAD_TOO_LARGE, &json!({ "jsonrpc": "2.0", "id": null, "error": error }))
}

/// Why the library could not read a message.
pub fn unreadable(bytes: &[u8]) -> Response {
    match wire::read(bytes) {
        Incoming::One(Message::Broken { id, error }) => bad_request(id.as_ref(), &error),
        Incoming::One(_) | Incoming::Many(_) => invalid_request("the message is not as it must be"),
    }
}

pub fn bad_request(id: Option<&RequestId>, error: &ErrorData) -> Response {
    refusal(StatusCode::BAD_REQUEST, id, error.code, &error.message)
}
