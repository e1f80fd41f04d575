//! The check before every route that does something for somebody.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::{OriginalUri, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, StatusCode};

use super::Principal;
use super::challenge::{self, Unknown};
use super::doorkeeper::{Doorkeeper, Standing};
use super::watched::watched;
use crate::audit::{Deed, Recorder};
use crate::http::listener::Peer;

/// How those who ask are known.
#[derive(Clone, Debug)]
pub enum Authentication {
    /// Whoever gets here is the person at the keyboard.
    Nobody,
    Tokens(Arc<Doorkeeper>),
}

/// Only for those who are known; what is behind it finds a [`Principal`] in the request.
pub fn guard(routes: Router, authentication: Authentication, recorder: Recorder) -> Router {
    let door = Door { authentication, recorder, wrong: Arc::default() };
    routes.layer(middleware::from_fn_with_state(door, check))
}

#[derive(Clone, Debug)]
struct Door {
    authentication: Authentication,
    recorder: Recorder,
    wrong: Arc<Mutex<WrongOnes>>,
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
            let source = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
            let is_wrong = !matches!(unknown, Unknown::Silent | Unknown::Unsure);
            let is_flood = is_wrong && source.is_some_and(|source| door.is_flood(source));
            tracing::warn!(?unknown, source = source.map(tracing::field::display), "a request was not let in");
            door.recorder.record(Deed::TurnedAway { source, why: unknown.as_str() });
            if is_flood { challenge::throttled() } else { challenge::unknown(unknown, metadata.as_deref()) }
        }
    }
}

impl Door {
    fn is_flood(&self, source: IpAddr) -> bool {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).count(source, Instant::now())
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

/// Wrong tokens by where they came from. Right ones are never counted, so whoever has one is not kept out by a neighbour.
#[derive(Debug, Default)]
struct WrongOnes {
    sources: HashMap<IpAddr, (Instant, u32)>,
}

impl WrongOnes {
    const WINDOW: Duration = Duration::from_secs(60);
    const MOST: u32 = 60;
    /// Beyond these all are forgotten; they had to be wrong once each to be remembered.
    const MOST_SOURCES: usize = 4096;

    /// Whether one more is too many.
    fn count(&mut self, source: IpAddr, now: Instant) -> bool {
        if self.sources.len() >= Self::MOST_SOURCES {
            self.sources.retain(|_, (since, _)| now.duration_since(*since) < Self::WINDOW);
            if self.sources.len() >= Self::MOST_SOURCES {
                self.sources.clear();
            }
        }
        let (since, count) = self.sources.entry(source).or_insert((now, 0));
        if now.duration_since(*since) >= Self::WINDOW {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count > Self::MOST
    }
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

    #[test]
    fn a_flood_of_wrong_ones_is_slowed_down_and_forgotten() {
        let mut wrong = WrongOnes::default();
        let (one, other) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let now = Instant::now();
        assert!((0..WrongOnes::MOST).all(|_| !wrong.count(one, now)));
        assert!(wrong.count(one, now));
        assert!(!wrong.count(other, now));
        assert!(!wrong.count(one, now + WrongOnes::WINDOW));
        for number in 0..2 * WrongOnes::MOST_SOURCES as u32 {
            wrong.count(IpAddr::from(number.to_be_bytes()), now);
        }
        assert!(wrong.sources.len() <= WrongOnes::MOST_SOURCES);
    }
}
