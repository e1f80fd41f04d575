//! What somebody is told who may not.

use axum::response::Response;
use http::header::WWW_AUTHENTICATE;
use http::{HeaderValue, StatusCode};

use super::scope::{Scope, Scopes};
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
    /// It says so, and whoever could tell whether it is true does not answer.
    Unsure,
}

impl Unknown {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Silent => "no_token",
            Self::Malformed => "malformed",
            Self::Wrong => "wrong_token",
            Self::Unsure => "issuer_unavailable",
        }
    }
}

/// A right that somebody lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insufficient(pub Scope);

/// `metadata`: where it is said who gives out tokens, if anybody does.
pub fn unknown(unknown: Unknown, metadata: Option<&str>) -> Response {
    let message = match unknown {
        Unknown::Silent => "this server asks for a token: Authorization: Bearer TOKEN",
        Unknown::Malformed => "the request does not say in one way who asks: Authorization: Bearer TOKEN",
        Unknown::Wrong => "the token is not known here, was revoked, is over, or is for another server",
        // The token may be good, and a client must not throw it away.
        Unknown::Unsure => {
            let message = "who gave out the token cannot be asked for its keys; come back later";
            return answer::retry_soon(answer::error(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message));
        }
    };
    let mut response = answer::error(StatusCode::UNAUTHORIZED, "denied", message);
    let mut said = challenge(unknown);
    if metadata.is_some() {
        said += &format!(", scope=\"{}\"", Scope::Run.claim());
    }
    set_challenge(&mut response, said);
    if let Some(metadata) = metadata {
        point_to(metadata, &mut response);
    }
    response
}

/// What somebody who is not known may show, and what was wrong with what they did.
pub fn challenge(unknown: Unknown) -> String {
    let error = match unknown {
        Unknown::Silent | Unknown::Unsure => "",
        Unknown::Malformed => ", error=\"invalid_request\"",
        Unknown::Wrong => ", error=\"invalid_token\"",
    };
    format!("Bearer realm=\"sandpen\"{error}")
}

/// Says in a challenge where more is said.
pub fn point_to(metadata: &str, response: &mut Response) {
    let challenge = response.headers().get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok());
    if let Some(challenge) = challenge.map(|challenge| format!("{challenge}, resource_metadata=\"{metadata}\"")) {
        set_challenge(response, challenge);
    }
}

fn set_challenge(response: &mut Response, challenge: String) {
    if let Ok(challenge) = HeaderValue::try_from(challenge) {
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
}

/// Too many wrong ones came from there.
pub fn throttled() -> Response {
    let message = "too many tokens from there were wrong; come back later";
    answer::retry_soon(answer::error(StatusCode::TOO_MANY_REQUESTS, "limit_exceeded", message))
}

pub fn insufficient_scope(Insufficient(scope): Insufficient) -> Response {
    let message = format!("the token is not good for this: it lacks the scope {scope}");
    let mut response = answer::error(StatusCode::FORBIDDEN, "denied", &message);
    let scopes: Scopes = [scope].into_iter().collect();
    let challenge = format!("Bearer realm=\"sandpen\", error=\"insufficient_scope\", scope=\"{}\"", scopes.claims());
    set_challenge(&mut response, challenge);
    response
}
