//! Signing in at an identity provider: away with a question that only we can answer, and back with who somebody is.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::{HeaderMap, StatusCode};
use sandbox::{PrivateFile, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::Shared;
use super::authorize::{Stage, Transaction};
use super::page;
use super::records::Who;
use super::request::Parameters;
use crate::auth::oauth::fetch::{Fetcher, Form};
use crate::auth::oauth::issuer::Issuer;
use crate::auth::oauth::jwt;
use crate::auth::scope::Scope;
use crate::config::OAuthConfig;
use crate::config::oauth::Admitted;

const CALLBACK: &str = "/oauth/callback";

pub struct Provider {
    issuer: Issuer,
    fetcher: Fetcher,
    client: String,
    secret: String,
    admission: RwLock<Admission>,
}

/// Whom the operator lets in, which may change while a server runs.
struct Admission {
    admitted: Vec<Admitted>,
    scope: Scope,
}

impl Admission {
    fn new(settings: &OAuthConfig) -> Self {
        Self { admitted: settings.oidc_admitted.clone(), scope: settings.oidc_scope }
    }
}

/// Of all that a provider says of somebody.
#[derive(Deserialize)]
struct Identity {
    sub: String,
    nonce: Option<String>,
    azp: Option<String>,
    email: Option<String>,
    #[serde(default)]
    email_verified: Truth,
}

/// Some write it as text.
#[derive(Default, Deserialize)]
#[serde(untagged)]
enum Truth {
    #[default]
    Unsaid,
    Said(bool),
    Written(String),
}

impl Truth {
    fn is_true(&self) -> bool {
        match self {
            Self::Unsaid => false,
            Self::Said(truth) => *truth,
            Self::Written(word) => word == "true",
        }
    }
}

#[derive(Deserialize)]
struct Tokens {
    id_token: String,
}

/// Why nobody came back; for the log.
#[derive(Debug)]
struct Lost(String);

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("issuer", &self.issuer.url()).finish_non_exhaustive()
    }
}

impl Provider {
    pub fn open(settings: &OAuthConfig, fetcher: &Fetcher) -> Result<Option<Self>> {
        let Some(oidc) = settings.oidc()? else { return Ok(None) };
        let secret = PrivateFile::new(oidc.secret_file).read()?.trim().to_owned();
        Ok(Some(Self {
            issuer: Issuer::new(oidc.issuer.clone(), fetcher.clone()),
            fetcher: fetcher.clone(),
            client: oidc.client_id.to_owned(),
            secret,
            admission: RwLock::new(Admission::new(settings)),
        }))
    }

    /// Whoever is not among these any more is out from now on.
    pub fn follow(&self, settings: &OAuthConfig) {
        *self.admission.write().unwrap_or_else(PoisonError::into_inner) = Admission::new(settings);
    }

    pub fn name(&self) -> &str {
        self.issuer.url().host()
    }

    /// What somebody may do here whom this provider knows; nothing, if they are not let in, or not any more.
    pub fn allows(&self, who: &Who) -> Option<Scope> {
        let Who::Elsewhere { issuer, email, .. } = who else { return None };
        let admission = self.admission.read().unwrap_or_else(PoisonError::into_inner);
        let is_admitted = admission.admitted.iter().any(|admitted| admitted.is(email.as_deref()));
        (issuer == self.issuer.url().as_str() && is_admitted).then_some(admission.scope)
    }

    async fn way_out(
        &self,
        state: &str,
        nonce: &str,
        verifier: &str,
        callback: &str,
    ) -> std::result::Result<String, Lost> {
        let about = self.issuer.about().await.map_err(|error| Lost(error.to_string()))?;
        let mut url =
            about.authorization_endpoint.ok_or_else(|| Lost("it has no authorization_endpoint".to_owned()))?;
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
        url.query_pairs_mut().extend_pairs([
            ("response_type", "code"),
            ("client_id", &self.client),
            ("redirect_uri", callback),
            ("scope", "openid email"),
            ("state", state),
            ("nonce", nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        Ok(url.into())
    }

    async fn identify(
        &self,
        code: &str,
        nonce: &str,
        verifier: &str,
        callback: &str,
    ) -> std::result::Result<Who, Lost> {
        let about = self.issuer.about().await.map_err(|error| Lost(error.to_string()))?;
        let endpoint = about.token_endpoint.ok_or_else(|| Lost("it has no token_endpoint".to_owned()))?;
        let body = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs([
                ("grant_type", "authorization_code"),
                ("code", code),
                ("redirect_uri", callback),
                ("code_verifier", verifier),
            ])
            .finish();
        let form = Form { body, client: &self.client, secret: &self.secret };
        let tokens: Tokens = self.fetcher.post(&endpoint, form).await.map_err(|error| Lost(error.to_string()))?;
        let audience = HashSet::from([self.client.clone()]);
        let identity: Identity = jwt::verify(&tokens.id_token, &self.issuer, &audience)
            .await
            .map_err(|why| Lost(format!("its id_token is refused: {why:?}")))?;
        if identity.nonce.as_deref() != Some(nonce) || identity.azp.is_some_and(|azp| azp != self.client) {
            return Err(Lost("its id_token is for another question".to_owned()));
        }
        let email =
            identity.email.filter(|_| identity.email_verified.is_true()).map(|email| email.to_ascii_lowercase());
        Ok(Who::Elsewhere { issuer: self.issuer.url().to_string(), subject: identity.sub, email })
    }
}

/// Off to the provider, with what is needed to come back to the same question.
pub(super) async fn leave(State(server): State<Shared>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let Some((provider, parameters)) = arrived(&server, query) else { return lost() };
    let now = SystemTime::now();
    let opened = parameters.get("transaction").and_then(|text| server.sealer.open::<Transaction>(text, now));
    let Some(opened) = opened.filter(|opened| opened.content.stage == Stage::SignIn) else { return lost() };
    let transaction = Transaction { stage: Stage::Elsewhere, asked: opened.content.asked };
    let Ok(state) = server.sealer.seal(&transaction, now) else { return lost() };
    let Some(sealed) = server.sealer.open::<Transaction>(&state, now) else { return lost() };
    let (nonce, verifier) = secrets(&server, &sealed.id);
    let callback = format!("{}{CALLBACK}", server.site.base(&headers));
    match provider.way_out(&state, &nonce, &verifier, &callback).await {
        Ok(address) => page::go_to(&address),
        Err(Lost(why)) => {
            tracing::warn!(why, "the identity provider cannot be used");
            page::trouble(StatusCode::BAD_GATEWAY, "The identity provider does not answer. Try again later.")
        }
    }
}

pub(super) async fn come_back(State(server): State<Shared>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    let Some((provider, parameters)) = arrived(&server, query) else { return lost() };
    let now = SystemTime::now();
    let opened = parameters.get("state").and_then(|text| server.sealer.open::<Transaction>(text, now));
    let Some(opened) = opened.filter(|opened| opened.content.stage == Stage::Elsewhere) else { return lost() };
    // Once, whatever comes of it.
    if !server.sealer.use_up(&opened, now) {
        return lost();
    }
    if parameters.get("iss").is_some_and(|issuer| issuer != provider.issuer.url().as_str()) {
        return lost();
    }
    let Some(code) = parameters.get("code") else {
        return page::trouble(StatusCode::FORBIDDEN, "The identity provider did not let you in.");
    };
    let (nonce, verifier) = secrets(&server, &opened.id);
    let callback = format!("{}{CALLBACK}", server.site.base(&headers));
    match provider.identify(code, &nonce, &verifier, &callback).await {
        Ok(who) if provider.allows(&who).is_some() => server.ask_to_agree(opened.content.asked, who),
        Ok(who) => {
            tracing::warn!(who = who.shown(), "somebody is known elsewhere and not let in here");
            page::trouble(StatusCode::FORBIDDEN, "You may not use this server. Its operator can let you in.")
        }
        Err(Lost(why)) => {
            tracing::warn!(why, "the identity provider's answer is not usable");
            page::trouble(StatusCode::BAD_GATEWAY, "The identity provider's answer is not usable. Begin again.")
        }
    }
}

fn arrived(server: &Shared, query: Option<String>) -> Option<(Arc<Provider>, Parameters)> {
    server.provider.clone().zip(Parameters::read(query?.as_bytes()))
}

/// Neither is in what travels, and both belong to it.
fn secrets(server: &Shared, id: &str) -> (String, String) {
    (server.sealer.derived(id, "nonce"), server.sealer.derived(id, "verifier"))
}

fn lost() -> Response {
    page::trouble(StatusCode::BAD_REQUEST, "This page is too old, or was used already. Begin again.")
}
