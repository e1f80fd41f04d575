//! How often owners may ask over HTTP: whoever asks more often is told when to come back.
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

/// Copies mean the same one.
#[derive(Clone, Debug)]
pub struct Turnstile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rates: RwLock<Rates>,
    paces: Mutex<Paces>,
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
    pub fn new(config: &Config) -> Self {
        Self(Arc::new(Inner { rates: RwLock::new(Rates::new(config)), paces: Mutex::default() }))
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
    let admitted = request.extensions().get::<Principal>().map(|principal| turnstile.admit(&principal.owner));
    match admitted {
        Some(Err(too_soon)) => refused(too_soon),
        // Who is not known is let in by nobody behind this.
        Some(Ok(())) | None => next.run(request).await,
    }
}

fn refused(too_soon: TooSoon) -> Response {
    let message = "you ask more often than you may; come back later";
    let mut response = answer::error(StatusCode::TOO_MANY_REQUESTS, "limit_exceeded", message);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(too_soon.seconds()));
    response
}
