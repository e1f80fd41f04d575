//! The check before every route that does something for somebody.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::extract::{OriginalUri, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, StatusCode};

use super::Principal;
use super::challenge::{self, Unknown};
use super::doorkeeper::{Doorkeeper, Standing};
use super::strangers::Strangers;
use super::watched::watched;

/// How those who ask are known.
#[derive(Clone, Debug)]
pub enum Authentication {
    /// Whoever gets here is the person at the keyboard.
    Nobody,
    Tokens(Arc<Doorkeeper>),
}

/// Only for those who are known; what is behind it finds a [`Principal`] in the request.
pub fn guard(routes: Router, authentication: Authentication, strangers: Strangers) -> Router {
    let door = Door { authentication, strangers };
    routes.layer(middleware::from_fn_with_state(door, check))
}

#[derive(Clone, Debug)]
struct Door {
    authentication: Authentication,
    strangers: Strangers,
}

async fn check(State(door): State<Door>, mut request: Request, next: Next) -> Response {
    let doorkeeper = match &door.authentication {
        Authentication::Nobody => {
            request.extensions_mut().insert(Principal::local());
            return next.run(request).await;
        }
        Authentication::Tokens(doorkeeper) => doorkeeper.clone(),
    };
    let metadata = doorkeeper.oauth.as_ref().map(|oauth| {
        let whole = request.extensions().get::<OriginalUri>().map_or(request.uri(), |OriginalUri(uri)| uri);
        oauth.site.metadata(request.headers(), whole.path())
    });
    let known = match bearer(request.headers()) {
        Ok(token) => doorkeeper.admit(token, SystemTime::now()).await,
        Err(unknown) => Err(unknown),
    };
    match known {
        Ok((principal, standing)) => {
            request.extensions_mut().insert(principal);
            // What was asked for in time is answered to its end.
            let lasts = request.method() == Method::POST && matches!(standing, Standing::Until(_));
            let mut response = next.run(request).await;
            if let Some(metadata) = metadata.filter(|_| response.status() == StatusCode::FORBIDDEN) {
                challenge::point_to(&metadata, &mut response);
            }
            if lasts { response } else { watched(response, doorkeeper, standing) }
        }
        Err(unknown) => {
            let is_flood = door.strangers.turn_away(&request, unknown);
            if is_flood { challenge::throttled() } else { challenge::unknown(unknown, metadata.as_deref()) }
        }
    }
}

/// The one token of a request. One in a query or a cookie is none: those are in logs, and are sent without being asked.
fn bearer(headers: &HeaderMap) -> Result<&str, Unknown> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(Unknown::Silent)?;
    // A second one would mean something else to another reader.
    if values.next().is_some() {
        return Err(Unknown::Malformed);
    }
    let (scheme, token) = value.to_str().ok().and_then(|value| value.split_once(' ')).ok_or(Unknown::Malformed)?;
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(Unknown::Malformed);
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn asked(values: &[&'static str]) -> Result<String, Unknown> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_static(value));
        }
        bearer(&headers).map(str::to_owned)
    }

    #[test]
    fn one_token_in_one_header_is_understood() {
        assert_eq!(asked(&["Bearer abc"]).unwrap(), "abc");
        assert_eq!(asked(&["bearer abc"]).unwrap(), "abc", "schemes have no case");
        assert_eq!(asked(&[]), Err(Unknown::Silent));
        for malformed in [&["abc"][..], &["Basic abc"], &["Bearer"], &["Bearer "], &[""], &["Bearer a", "Bearer a"]] {
            assert_eq!(asked(malformed), Err(Unknown::Malformed), "{malformed:?}");
        }
    }
}
