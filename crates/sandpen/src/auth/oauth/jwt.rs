//! A token that somebody else has signed: whether it is for us, now, and by whom; and what follows from it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Validation, decode, decode_header};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::issuer::{Issuer, Key, NoKey};
use super::{jose, subject};
use crate::auth::Principal;
use crate::auth::scope::{Scope, Scopes};

/// How far clocks may be apart.
const LEEWAY_SECONDS: u64 = 30;

const MOST_CHARACTERS: usize = 16 << 10;

/// Why a token lets nobody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Wrong,
    /// It may be right; the issuer cannot be asked for its keys.
    Unavailable,
}

impl From<NoKey> for Refused {
    fn from(why: NoKey) -> Self {
        match why {
            NoKey::Unknown => Self::Wrong,
            NoKey::Unavailable => Self::Unavailable,
        }
    }
}

/// Whoever a token is for, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vouched {
    pub principal: Principal,
    pub until: SystemTime,
}

/// All whose tokens are believed.
#[derive(Debug)]
pub struct Issuers {
    issuers: Vec<Arc<Issuer>>,
    /// Whom tokens must be for.
    audiences: HashSet<String>,
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    exp: f64,
    scope: Option<Words>,
    scp: Option<Words>,
}

/// Issuers do not agree on how to write several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    Text(String),
    List(Vec<String>),
}

impl Words {
    fn scopes(&self) -> Vec<Scope> {
        match self {
            Self::Text(text) => text.split(' ').filter_map(Scope::from_claim).collect(),
            Self::List(words) => words.iter().filter_map(|word| Scope::from_claim(word)).collect(),
        }
    }
}

impl Issuers {
    pub fn new(issuers: Vec<Arc<Issuer>>, audiences: impl IntoIterator<Item = String>) -> Self {
        jose::install();
        Self { issuers, audiences: audiences.into_iter().collect() }
    }

    pub async fn admit(&self, token: &str) -> Result<Vouched, Refused> {
        let said = issuer_of(token).ok_or(Refused::Wrong)?;
        let issuer = self.issuers.iter().find(|issuer| issuer.url().as_str() == said).ok_or(Refused::Wrong)?;
        let claims: Claims = verify(token, issuer, &self.audiences).await?;
        if claims.iss != issuer.url().as_str() || claims.sub.is_empty() {
            return Err(Refused::Wrong);
        }
        let scopes: Scopes = [&claims.scope, &claims.scp].into_iter().flatten().flat_map(Words::scopes).collect();
        let owner = subject::owner(issuer.url(), &claims.sub);
        // Checked to be a time that is not over.
        let until = Duration::try_from_secs_f64(claims.exp).unwrap_or_default();
        let until = SystemTime::UNIX_EPOCH.checked_add(until).ok_or(Refused::Wrong)?;
        Ok(Vouched { principal: Principal { owner, scopes }, until })
    }
}

/// Whether a token is one of this kind, and not one of ours.
pub fn is_one(token: &str) -> bool {
    token.bytes().filter(|byte| *byte == b'.').count() == 2
}

/// The claims of a token that its issuer signed for one of the audiences, and that counts now.
pub async fn verify<T: DeserializeOwned>(
    token: &str,
    issuer: &Issuer,
    audiences: &HashSet<String>,
) -> Result<T, Refused> {
    if token.len() > MOST_CHARACTERS {
        return Err(Refused::Wrong);
    }
    // This is where `none` ends: it is no algorithm that is known.
    let header = decode_header(token).map_err(|_| Refused::Wrong)?;
    let is_plain = header.jku.is_none() && header.x5u.is_none() && header.jwk.is_none() && header.crit.is_none();
    let is_token = header.typ.as_deref().is_none_or(|typ| {
        let typ = typ.to_ascii_lowercase();
        matches!(typ.strip_prefix("application/").unwrap_or(&typ), "jwt" | "at+jwt")
    });
    // A token that brings its own key, or a place to fetch it from, is one that somebody made up.
    if !is_plain || !is_token || !jose::ALGORITHMS.contains(&header.alg) {
        return Err(Refused::Wrong);
    }
    let key: Key = issuer.key(header.kid.as_deref()).await?;
    if !key.is_for(header.alg) {
        return Err(Refused::Wrong);
    }
    let mut validation = Validation::new(header.alg);
    validation.leeway = LEEWAY_SECONDS;
    validation.validate_nbf = true;
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    validation.set_issuer(&[issuer.url().as_str()]);
    validation.aud = Some(audiences.clone());
    let decoded = decode::<T>(token, &key.key, &validation).map_err(|error| {
        tracing::debug!(%error, issuer = %issuer.url(), "a token is refused");
        Refused::Wrong
    })?;
    Ok(decoded.claims)
}

/// Who a token says has made it. Not to be believed, only to know whose keys to try.
fn issuer_of(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Said {
        iss: String,
    }
    if token.len() > MOST_CHARACTERS {
        return None;
    }
    let payload = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice::<Said>(&payload).ok().map(|said| said.iss)
}

#[cfg(test)]
#[path = "jwt_tests.rs"]
mod tests;
