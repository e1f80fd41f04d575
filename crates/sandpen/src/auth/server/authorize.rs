//! From a client's request over signing in to a person's decision. Every step carries all that the next one needs.

use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::extract::{RawQuery, Request, State};
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use sandbox::Result;
use serde::{Deserialize, Serialize};

use super::clients::DASHBOARD;
use super::codes::Pending;
use super::grants::Agreed;
use super::page::{self, Asking, Ways};
use super::records::Who;
use super::request::{Asked, Parameters, Problem};
use super::throttle::{Counted, Throttle};
use super::{AuthorizationServer, Shared, redirect};
use crate::audit::Deed;
use crate::auth::scope::Scope;
use crate::http::listener::Peer;

const MOST_FORM: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(10);

const STALE: &str = "This page is too old, or was used already. Go back to the program and begin again.";

/// What a page carries.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Transaction {
    pub stage: Stage,
    pub asked: Asked,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stage {
    SignIn,
    /// Away at an identity provider.
    Elsewhere,
    Consent(Who),
}

/// A form as a whole; `None` for what is none.
pub(super) async fn form(request: Request) -> Option<Parameters> {
    let (parts, body) = request.into_parts();
    if media_type(&parts.headers).as_deref() != Some("application/x-www-form-urlencoded") {
        return None;
    }
    Parameters::read(&whole(body).await?)
}

/// Without its parameters.
pub(super) fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next()?.trim().to_ascii_lowercase())
}

pub(super) async fn whole(body: Body) -> Option<bytes::Bytes> {
    tokio::time::timeout(PATIENCE, axum::body::to_bytes(body, MOST_FORM)).await.ok()?.ok()
}

pub(super) fn source_of(request: &Request) -> Option<IpAddr> {
    request.extensions().get::<Peer>().map(|peer| peer.0.ip())
}

pub(super) async fn begin(State(server): State<Shared>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let Some(parameters) = Parameters::read(query.unwrap_or_default().as_bytes()) else {
        return page::trouble(StatusCode::BAD_REQUEST, "The program said something twice.");
    };
    let client = match parameters.get("client_id") {
        Some(id) => server.clients.find(id).await,
        None => None,
    };
    let Some(client) = client else {
        let text =
            "The program that sent you here is not known. If it was before, let it forget this server and begin again.";
        return page::trouble(StatusCode::BAD_REQUEST, text);
    };
    match Asked::read(&parameters, &client, &server.site) {
        Ok(asked) => server.ask_to_sign_in(asked, "", None),
        Err(Problem::Here(text)) => page::trouble(StatusCode::BAD_REQUEST, text),
        Err(Problem::There { redirect_uri, state, error, description }) => {
            let issuer = server.site.base(&headers);
            let pairs = [("error", error), ("error_description", description)];
            answer(&redirect_uri, state.as_deref(), issuer, &pairs)
        }
    }
}

pub(super) async fn sign_in(State(server): State<Shared>, request: Request) -> Response {
    let source = source_of(&request);
    let Some(parameters) = form(request).await else { return stale() };
    let now = SystemTime::now();
    let opened = parameters.get("transaction").and_then(|text| server.sealer.open::<Transaction>(text, now));
    let Some(opened) = opened.filter(|opened| opened.content.stage == Stage::SignIn) else { return stale() };
    let name = parameters.get("name").unwrap_or_default().trim().to_ascii_lowercase();
    let password = parameters.get("password").unwrap_or_default().to_owned();
    let asked = opened.content.asked.clone();
    // Before it is looked at: while that goes on, any number of others may come.
    let Some(tried) = server.count_try(source, &name) else {
        let mut response =
            server.ask_to_sign_in(asked, &name, Some("Too many wrong passwords. Try again in some minutes."));
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        return crate::http::answer::retry_soon(response);
    };
    let Some(who) = server.verify(name.clone(), password).await else {
        server.tried_in_vain(source);
        return server.ask_to_sign_in(asked, &name, Some("There is no such account, or the password is another one."));
    };
    server.take_back(&tried);
    if !server.sealer.use_up(&opened, now) {
        return stale();
    }
    server.ask_to_agree(asked, who)
}

pub(super) async fn decide(State(server): State<Shared>, request: Request) -> Response {
    let headers = request.headers().clone();
    let Some(parameters) = form(request).await else { return stale() };
    let now = SystemTime::now();
    let opened = parameters.get("transaction").and_then(|text| server.sealer.open::<Transaction>(text, now));
    let Some(opened) = opened else { return stale() };
    let Stage::Consent(who) = opened.content.stage.clone() else { return stale() };
    let allows = match parameters.get("decision") {
        Some("allow") => true,
        Some("deny") => false,
        Some(_) | None => return stale(),
    };
    if !server.sealer.use_up(&opened, now) {
        return stale();
    }
    let asked = opened.content.asked;
    let issuer = server.site.base(&headers);
    let state = asked.state.as_deref();
    if !allows {
        return answer(&asked.redirect_uri, state, issuer, &[("error", "access_denied")]);
    }
    match server.issue_code(&asked, who, now) {
        Ok(code) => answer(&asked.redirect_uri, state, issuer, &[("code", &code)]),
        Err(error) => {
            tracing::error!(?error, "no code can be given out");
            answer(&asked.redirect_uri, state, issuer, &[("error", "temporarily_unavailable")])
        }
    }
}

fn stale() -> Response {
    page::trouble(StatusCode::BAD_REQUEST, STALE)
}

/// To the client, with its own state, and with who we are, so that it cannot take us for another.
fn answer(redirect_uri: &str, state: Option<&str>, issuer: &str, pairs: &[(&str, &str)]) -> Response {
    let state = state.map(|state| ("state", state));
    let pairs: Vec<_> = pairs.iter().copied().chain(state).chain([("iss", issuer)]).collect();
    match redirect::with(redirect_uri, &pairs) {
        Some(address) => page::go_to(&address),
        None => stale(),
    }
}

impl AuthorizationServer {
    fn ask_to_sign_in(&self, asked: Asked, name: &str, trouble: Option<&str>) -> Response {
        let transaction = Transaction { stage: Stage::SignIn, asked };
        let Ok(sealed) = self.sealer.seal(&transaction, SystemTime::now()) else { return stale() };
        let elsewhere = self.provider.as_ref().map(|provider| {
            let pairs = [("transaction", sealed.as_str())];
            let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
            (provider.name(), format!("/oauth/elsewhere?{query}"))
        });
        let ways = Ways { accounts: elsewhere.is_none() || !self.accounts.current().is_empty(), elsewhere };
        page::sign_in(&asking(&transaction.asked), &ways, &sealed, name, trouble)
    }

    pub(super) fn ask_to_agree(&self, mut asked: Asked, who: Who) -> Response {
        let granted = self.grants.rights(&who).map(|rights| asked.scopes().within(rights));
        let Some(scopes) = granted.filter(|scopes| scopes.highest().is_some()) else {
            return page::trouble(StatusCode::FORBIDDEN, "You may not use this server.");
        };
        asked.scope = scopes.claims();
        let held: Vec<Scope> = Scope::ALL.iter().copied().filter(|scope| scopes.allow(*scope)).collect();
        let shown = who.shown().to_owned();
        let transaction = Transaction { stage: Stage::Consent(who), asked };
        match self.sealer.seal(&transaction, SystemTime::now()) {
            Ok(sealed) => page::consent(&asking(&transaction.asked), &shown, &held, &sealed),
            Err(_) => stale(),
        }
    }

    fn issue_code(&self, asked: &Asked, who: Who, now: SystemTime) -> Result<String> {
        if let Some(owner) = self.grants.owner(&who) {
            let client = asked.client_name.clone().unwrap_or_else(|| asked.client.clone());
            let (who, scope) = (who.shown().to_owned(), asked.scope.clone());
            self.recorder.record(Deed::Granted { owner, who, client, scope });
        }
        let agreed = Agreed { client: asked.client.clone(), who, scope: asked.scope.clone() };
        let (redirect_uri, challenge) = (asked.redirect_uri.clone(), asked.challenge.clone());
        self.codes.issue(Pending { agreed, redirect_uri, challenge }, now)
    }

    /// In a place of its own: it takes memory and time on purpose, and is open to everybody.
    async fn verify(&self, name: String, password: String) -> Option<Who> {
        let _place = self.verifying.acquire().await.ok()?;
        let accounts = self.accounts.clone();
        let verified = tokio::task::spawn_blocking(move || {
            let name = accounts.verify(&name, &password)?;
            let revision = accounts.current().get(&name)?.revision.clone();
            Some(Who::Account { name: name.to_string(), revision })
        });
        verified.await.ok().flatten()
    }

    /// Nothing when there were too many. One that is given up halfway stays counted.
    fn count_try(&self, source: Option<IpAddr>, name: &str) -> Option<Tried> {
        let now = Instant::now();
        let from = source.map(|source| source.to_string()).unwrap_or_default();
        // No account has a longer one, and what is counted is kept.
        let name = format!("{name:.64}");
        let pair = format!("{from} {name}");
        let mut tried = Tried::default();
        for (kind, what) in [(Kind::Source, from), (Kind::Pair, pair), (Kind::Name, name)] {
            let Some(counted) = self.throttle(kind).take(&what, now) else {
                self.take_back(&tried);
                return None;
            };
            tried.0.push((kind, what, counted));
        }
        Some(tried)
    }

    fn take_back(&self, tried: &Tried) {
        for (kind, what, counted) in &tried.0 {
            self.throttle(*kind).give_back(what, *counted);
        }
    }

    fn throttle(&self, kind: Kind) -> &Throttle {
        match kind {
            Kind::Source => &self.by_source,
            Kind::Pair => &self.by_pair,
            Kind::Name => &self.by_name,
        }
    }

    fn tried_in_vain(&self, source: Option<IpAddr>) {
        tracing::warn!(source = source.map(tracing::field::display), "somebody did not sign in");
        self.recorder.record(Deed::TurnedAway { source, why: "wrong_password" });
    }
}

/// A password on its way to be looked at, by all that it was counted under.
#[derive(Debug, Default)]
struct Tried(Vec<(Kind, String, Counted)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Source,
    Pair,
    Name,
}

fn asking(asked: &Asked) -> Asking<'_> {
    let ours = (asked.client == DASHBOARD).then_some("this server");
    Asking {
        name: asked.client_name.as_deref(),
        host: ours.or(asked.client_host.as_deref()),
        redirect_uri: &asked.redirect_uri,
    }
}
