//! How often owners may ask over HTTP, and how much at once: whoever asks for more is told to come back.
//!
//! What they may hold and run is the service's to say.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use sandbox::{Owner, Paces, PerMinute, TooSoon};

use crate::auth::Principal;
use crate::config::Config;
use crate::http::answer;
use crate::http::drain::Lasting;
use crate::http::places::{NoPlace, Places, Table};

/// Copies mean the same one.
#[derive(Clone, Debug)]
pub struct Turnstile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rates: RwLock<Rates>,
    paces: Mutex<Paces>,
    /// Each answer holds a connection until its end, and of those there are so many for all owners together.
    answers: Table,
}

#[derive(Debug)]
struct Rates {
    usual: Option<PerMinute>,
    of: BTreeMap<Owner, Option<PerMinute>>,
}

impl Rates {
    fn new(config: &Config) -> Self {
        let of = config.limits_of_owners().into_iter().map(|(owner, limits)| (owner, limits.requests)).collect();
        Self { usual: config.usual_limits().requests, of }
    }
}

impl Turnstile {
    pub fn new(config: &Config, answers: Places) -> Self {
        let answers = Table::new(answers);
        Self(Arc::new(Inner { rates: RwLock::new(Rates::new(config)), paces: Mutex::default(), answers }))
    }

    /// What the settings say now.
    pub fn set(&self, config: &Config) {
        *self.0.rates.write().unwrap_or_else(PoisonError::into_inner) = Rates::new(config);
    }

    fn admit(&self, owner: &Owner) -> Result<(), TooSoon> {
        let rates = self.0.rates.read().unwrap_or_else(PoisonError::into_inner);
        let Some(rate) = rates.of.get(owner).copied().unwrap_or(rates.usual) else { return Ok(()) };
        drop(rates);
        self.0.paces.lock().unwrap_or_else(PoisonError::into_inner).take(owner, rate, Instant::now())
    }
}

/// Behind whatever finds out who asks.
pub fn guard(routes: Router, turnstile: Turnstile) -> Router {
    routes.layer(middleware::from_fn_with_state(turnstile, check))
}

async fn check(State(turnstile): State<Turnstile>, request: Request, next: Next) -> Response {
    // Who is not known is let in by nobody behind this.
    let Some(principal) = request.extensions().get::<Principal>() else { return next.run(request).await };
    if let Err(too_soon) = turnstile.admit(&principal.owner) {
        return refused(too_soon);
    }
    match turnstile.0.answers.take(&principal.owner) {
        Ok(place) => next.run(request).await.map(|body| Lasting::wrap(body, place)),
        Err(no_place) => crowded(no_place),
    }
}

fn crowded(no_place: NoPlace) -> Response {
    let message = match no_place {
        NoPlace::Full => "the server answers as many requests as it can; come back later",
        NoPlace::Own(_) => "you wait for as many answers as one user may; end a stream or come back later",
    };
    answer::retry_soon(answer::error(StatusCode::TOO_MANY_REQUESTS, "limit_exceeded", message))
}

fn refused(too_soon: TooSoon) -> Response {
    let message = "you ask more often than you may; come back later";
    let mut response = answer::error(StatusCode::TOO_MANY_REQUESTS, "limit_exceeded", message);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(too_soon.seconds()));
    response
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::get;
    use bytes::Bytes;
    use futures_util::stream;
    use tower_service::Service;

    use super::*;
    use crate::auth::scope::Scopes;
    use crate::http::places::Share;

    async fn ask(routes: &mut Router, owner: &str) -> Response {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(Principal { owner: owner.parse().unwrap(), scopes: Scopes::all() });
        routes.call(request).await.unwrap()
    }

    #[tokio::test]
    async fn answers_that_do_not_end_are_bounded_for_each_owner_so_that_others_are_answered() {
        let turnstile = Turnstile::new(&Config::default(), Places::shared(8, Share::Quarter));
        let endless = || async { Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>()) };
        let mut routes = guard(Router::new().route("/", get(endless)), turnstile);
        let first = ask(&mut routes, "alice").await;
        let second = ask(&mut routes, "alice").await;
        assert_eq!((first.status(), second.status()), (StatusCode::OK, StatusCode::OK));
        let third = ask(&mut routes, "alice").await;
        assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(third.headers().contains_key(RETRY_AFTER));
        assert_eq!(ask(&mut routes, "bob").await.status(), StatusCode::OK);
        drop(first);
        assert_eq!(ask(&mut routes, "alice").await.status(), StatusCode::OK);
    }
}
