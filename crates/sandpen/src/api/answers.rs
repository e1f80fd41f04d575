//! Answers and failures as statuses and JSON.

use axum::response::Response;
use http::StatusCode;
use sandbox::{Error, ErrorKind};
use serde::Serialize;
use serde_json::{Value, json};

use crate::auth::scope::Scope;
use crate::auth::{Insufficient, Principal, insufficient_scope};
use crate::http::answer;
use crate::http::places::NoPlace;

/// What a handler says when it does not get to its answer.
pub type Answered = std::result::Result<Response, Refused>;

/// Boxed, because a response is large and a refusal is rare.
#[derive(Debug)]
pub struct Refused(Box<Response>);

impl From<Response> for Refused {
    fn from(response: Response) -> Self {
        Self(Box::new(response))
    }
}

impl From<NoPlace> for Refused {
    fn from(no_place: NoPlace) -> Self {
        Error::from(no_place).into()
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        failed(&error).into()
    }
}

impl axum::response::IntoResponse for Refused {
    fn into_response(self) -> Response {
        *self.0
    }
}

pub fn ok(value: &impl Serialize) -> Answered {
    with(StatusCode::OK, value)
}

pub fn with(status: StatusCode, value: &impl Serialize) -> Answered {
    let value = serde_json::to_value(value)
        .map_err(|cause| Error::internal("the answer could not be written down").with_cause(cause))?;
    Ok(answer::json(status, &value))
}

/// Only for those who may.
pub fn need(principal: &Principal, scope: Scope) -> std::result::Result<(), Refused> {
    if principal.scopes.allow(scope) {
        return Ok(());
    }
    Err(insufficient_scope(Insufficient(scope)).into())
}

fn failed(error: &Error) -> Response {
    let status = match error.kind() {
        ErrorKind::InvalidInput => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::AlreadyExists | ErrorKind::WrongState => StatusCode::CONFLICT,
        ErrorKind::LimitExceeded => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Denied => StatusCode::FORBIDDEN,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    };
    if status.is_server_error() {
        tracing::warn!(?error, "a request of the dashboard failed");
    }
    let response = answer::json(status, &json!({ "error": told(error) }));
    match error.kind() {
        ErrorKind::LimitExceeded | ErrorKind::Unavailable => answer::retry_soon(response),
        ErrorKind::InvalidInput
        | ErrorKind::NotFound
        | ErrorKind::AlreadyExists
        | ErrorKind::WrongState
        | ErrorKind::Denied
        | ErrorKind::Unsupported
        | ErrorKind::TimedOut
        | ErrorKind::Internal => response,
    }
}

/// The part of an error that a caller may see.
pub fn told(error: &Error) -> Value {
    json!({ "kind": error.kind().as_str(), "message": error.message(), "hint": error.hint() })
}
