//! What is said where a preview has nothing to show: plain text, on an origin that is not ours.

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};
use sandbox::{Error, ErrorKind};

pub fn plain(status: StatusCode, text: &str) -> Response {
    let mut response = Response::new(Body::from(format!("{text}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The same for a name that never was, one whose time is over, and a host that is none of ours.
pub fn unknown() -> Response {
    plain(StatusCode::NOT_FOUND, "There is no preview at this address: it has expired, was stopped, or never was.")
}

pub fn foreign() -> Response {
    plain(StatusCode::FORBIDDEN, "Pages of other sites may not ask here.")
}

pub fn busy() -> Response {
    plain(StatusCode::SERVICE_UNAVAILABLE, "This preview does as much as it may at the same time. Try again soon.")
}

pub fn late() -> Response {
    plain(StatusCode::GATEWAY_TIMEOUT, "The server in the sandbox has not answered in time.")
}

pub fn broken() -> Response {
    plain(StatusCode::BAD_GATEWAY, "The server in the sandbox broke off, or gave an answer that is none.")
}

/// Why the server inside is not reached.
pub fn unreachable(error: &Error) -> Response {
    let status = match error.kind() {
        ErrorKind::LimitExceeded | ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::InvalidInput
        | ErrorKind::NotFound
        | ErrorKind::AlreadyExists
        | ErrorKind::WrongState
        | ErrorKind::Denied
        | ErrorKind::Unsupported
        | ErrorKind::Internal => StatusCode::BAD_GATEWAY,
    };
    match error.hint() {
        Some(hint) => plain(status, &format!("{}\n{hint}", error.message())),
        None => plain(status, error.message()),
    }
}
