//! What somebody is told who may not.

use axum::response::Response;
use http::header::WWW_AUTHENTICATE;
use http::{HeaderValue, StatusCode};

use super::scope::Scope;
use crate::http::answer;

/// Why nobody is known by a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// It says nothing of who asks.
    Silent,
    /// It says so twice, or in no way that is understood.
    Malformed,
    /// It says so, and it is not true, or not any more.
    Wrong,
}

impl Unknown {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "no_token",
            Self::Malformed => "malformed",
            Self::Wrong => "wrong_token",
        }
    }
}

/// A right that somebody lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insufficient(pub Scope);

pub fn unknown(unknown: Unknown) -> Response {
    let (challenge, message) = match unknown {
        Unknown::Silent => ("Bearer realm=\"sandpen\"", "this server asks for a token: Authorization: Bearer TOKEN"),
        Unknown::Malformed => (
            "Bearer realm=\"sandpen\", error=\"invalid_request\"",
            "the request does not say in one way who asks: Authorization: Bearer TOKEN",
        ),
        Unknown::Wrong => (
            "Bearer realm=\"sandpen\", error=\"invalid_token\"",
            "the token is not known here, was revoked, or is over",
        ),
    };
    let mut response = answer::error(StatusCode::UNAUTHORIZED, "denied", message);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    response
}

/// Too many wrong ones came from there.
pub fn throttled() -> Response {
    let message = "too many tokens from there were wrong; come back later";
    answer::retry_soon(answer::error(StatusCode::TOO_MANY_REQUESTS, "limit_exceeded", message))
}

pub fn insufficient_scope(Insufficient(scope): Insufficient) -> Response {
    let message = format!("the token is not good for this: it lacks the scope {scope}");
    let mut response = answer::error(StatusCode::FORBIDDEN, "denied", &message);
    let challenge = format!("Bearer realm=\"sandpen\", error=\"insufficient_scope\", scope=\"{scope}\"");
    if let Ok(challenge) = HeaderValue::try_from(challenge) {
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}
