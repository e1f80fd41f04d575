//! The token that an older server asked its clients for.

use std::ffi::OsStr;
use std::fmt;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::json;

use super::answer;
use crate::auth::strangers::Strangers;
use crate::auth::token::TokenDigest;
use crate::auth::{self, Principal, Unknown};

#[derive(Clone, PartialEq, Eq)]
pub struct ApiToken(TokenDigest);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    Missing,
    Malformed,
    Wrong,
}

impl ApiToken {
    pub fn new(token: &OsStr) -> Self {
        Self(TokenDigest::of(token.as_encoded_bytes()))
    }

    fn admit(&self, headers: &HeaderMap) -> Result<(), Refused> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let value = values.next().ok_or(Refused::Missing)?;
        // A second one would mean something else to another reader.
        if values.next().is_some() {
            return Err(Refused::Malformed);
        }
        let token = value.as_bytes().strip_prefix(b"Bearer ").ok_or(Refused::Malformed)?;
        if self.0.is(&TokenDigest::of(token)) { Ok(()) } else { Err(Refused::Wrong) }
    }
}

impl fmt::Debug for ApiToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiToken")
    }
}

impl Refused {
    fn unknown(self) -> Unknown {
        match self {
            Self::Missing => Unknown::Silent,
            Self::Malformed => Unknown::Malformed,
            Self::Wrong => Unknown::Wrong,
        }
    }

    /// In the words of the older server.
    fn message(self) -> &'static str {
        match self {
            Self::Missing => "Missing Authorization header",
            Self::Malformed => "Invalid Authorization header format",
            Self::Wrong => "Invalid API token",
        }
    }
}

/// Only for those who have the token.
pub fn guard(routes: Router, token: ApiToken, strangers: Strangers) -> Router {
    routes.layer(middleware::from_fn_with_state((token, strangers), check))
}

async fn check(State((token, strangers)): State<(ApiToken, Strangers)>, mut request: Request, next: Next) -> Response {
    let refused = match token.admit(request.headers()) {
        Ok(()) => {
            request.extensions_mut().insert(Principal::local());
            return next.run(request).await;
        }
        Err(refused) => refused,
    };
    // The older server let everybody guess for ever, so it had no words for this.
    if strangers.turn_away(&request, refused.unknown()) {
        let message = "Too many invalid API tokens; come back later";
        return answer::retry_soon(answer::json(StatusCode::TOO_MANY_REQUESTS, &json!({ "error": message })));
    }
    let mut response = answer::json(StatusCode::UNAUTHORIZED, &json!({ "error": refused.message() }));
    if let Ok(challenge) = HeaderValue::try_from(auth::challenge(refused.unknown())) {
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn admit(values: &[&'static str]) -> Result<(), Refused> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_static(value));
        }
        ApiToken::new(OsStr::new("s3cret")).admit(&headers)
    }

    #[test]
    fn only_the_token_itself_is_let_in() {
        assert_eq!(admit(&["Bearer s3cret"]), Ok(()));
        assert_eq!(admit(&[]), Err(Refused::Missing));
        for malformed in [&["s3cret"][..], &["Basic s3cret"], &["bearer s3cret"], &["Bearer"], &["Bearer s3cret"; 2]] {
            assert_eq!(admit(malformed), Err(Refused::Malformed), "{malformed:?}");
        }
        for wrong in ["Bearer ", "Bearer s3cre", "Bearer s3cret ", "Bearer  s3cret", "Bearer S3CRET"] {
            assert_eq!(admit(&[wrong]), Err(Refused::Wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_token_does_not_print_itself() {
        let shown = format!("{:?}", ApiToken::new(OsStr::new("s3cret")));
        assert_eq!(shown, "ApiToken");
    }
}
