//! Why a request about files was not done, and how that is said.

use axum::response::Response;
use http::header::CONTENT_RANGE;
use http::{HeaderValue, StatusCode};
use sandbox::{Error, ErrorKind};
use serde_json::json;

use crate::auth::{Insufficient, insufficient_scope};
use crate::http::answer;

#[derive(Debug)]
pub enum Failure {
    /// As the service said it.
    Service(Error),
    /// The principal may not.
    Scope(Insufficient),
    /// The operator has left the tool out that does the same.
    NotOffered,
    MethodNotAllowed,
    /// There is nothing here, or nothing that is told.
    Nothing,
    /// More than an upload may have.
    TooLarge,
    /// More than one request may bring.
    TooMany(&'static str),
    /// It cannot fit into the sandbox.
    NoRoom,
    TooSlow,
    /// The client went away, or sends what makes no sense.
    Broken,
    /// A condition of the request does not hold.
    Precondition(&'static str),
    /// The file has no such part.
    Beyond {
        length: u64,
    },
    /// The body is of another kind than what is taken here.
    MediaType(&'static str),
    /// An upload is somewhere else than its sender thinks.
    Conflict(&'static str),
    /// Others are at it; later may help.
    Busy(&'static str),
}

pub type Answer = Result<Response, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Service(error)
    }
}

impl Failure {
    pub fn into_response(self) -> Response {
        let plain = |status, kind: ErrorKind, message: &str| answer::error(status, kind.as_str(), message);
        match self {
            Self::Service(error) => of_service(&error),
            Self::Scope(insufficient) => insufficient_scope(insufficient),
            Self::NotOffered => plain(
                StatusCode::FORBIDDEN,
                ErrorKind::Denied,
                "the operator of this server has left out the tool that does this",
            ),
            Self::MethodNotAllowed => answer::method_not_allowed(),
            Self::Nothing => answer::not_found(),
            Self::TooLarge => plain(
                StatusCode::PAYLOAD_TOO_LARGE,
                ErrorKind::LimitExceeded,
                "the upload is larger than this server takes; the operator can raise --max-upload",
            ),
            Self::TooMany(message) => plain(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::LimitExceeded, message),
            Self::NoRoom => plain(
                StatusCode::INSUFFICIENT_STORAGE,
                ErrorKind::LimitExceeded,
                "there is not so much room left in the sandbox",
            ),
            Self::TooSlow => plain(StatusCode::REQUEST_TIMEOUT, ErrorKind::TimedOut, "the body came too slowly"),
            Self::Broken => {
                plain(StatusCode::BAD_REQUEST, ErrorKind::InvalidInput, "the body ended early or is broken")
            }
            Self::Precondition(message) => plain(StatusCode::PRECONDITION_FAILED, ErrorKind::WrongState, message),
            Self::Beyond { length } => {
                let mut response =
                    plain(StatusCode::RANGE_NOT_SATISFIABLE, ErrorKind::InvalidInput, "the file has no such part");
                if let Ok(range) = HeaderValue::try_from(format!("bytes */{length}")) {
                    response.headers_mut().insert(CONTENT_RANGE, range);
                }
                response
            }
            Self::MediaType(message) => plain(StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorKind::InvalidInput, message),
            Self::Conflict(message) => plain(StatusCode::CONFLICT, ErrorKind::WrongState, message),
            Self::Busy(message) => {
                answer::retry_soon(plain(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Unavailable, message))
            }
        }
    }
}

fn of_service(error: &Error) -> Response {
    let status = match error.kind() {
        ErrorKind::InvalidInput => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::AlreadyExists | ErrorKind::WrongState => StatusCode::CONFLICT,
        // Disk, memory or processes of the sandbox are used up: what was sent has no place.
        ErrorKind::LimitExceeded => StatusCode::INSUFFICIENT_STORAGE,
        ErrorKind::Denied => StatusCode::FORBIDDEN,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    };
    // A sandbox that is full is its owner's to know.
    if status.is_server_error() && error.kind() != ErrorKind::LimitExceeded {
        tracing::warn!(?error, "a request about files was not done");
    }
    let mut told = json!({ "kind": error.kind().as_str(), "message": error.message() });
    if let Some(hint) = error.hint() {
        told["hint"] = hint.into();
    }
    answer::json(status, &json!({ "error": told }))
}
