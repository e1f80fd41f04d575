//! One issuer: its keys, fetched when they are needed, kept for a while, and fetched again when it signs with a new one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use jsonwebtoken::{AlgorithmFamily, DecodingKey};
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use super::address::{IssuerUrl, is_protected};
use super::fetch::{Fetcher, Named, Unfetched};

/// How long keys are believed without looking again: a key that its issuer took back is good for no longer.
const FRESH: Duration = Duration::from_secs(300);

/// How long they are believed while the issuer cannot be asked.
const BELIEVED: Duration = Duration::from_secs(3600);

/// Between two questions, whatever callers show: unknown keys cost nothing to make up.
const BETWEEN: Duration = Duration::from_secs(5);

const MOST_KEYS: usize = 64;

/// Why there is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoKey {
    /// The issuer has none by that name.
    Unknown,
    /// The issuer cannot be asked, and what is known is too old or nothing.
    Unavailable,
}

#[derive(Debug)]
pub struct Issuer {
    url: IssuerUrl,
    fetcher: Fetcher,
    known: Mutex<Known>,
    /// Held by who asks the issuer, so that nobody else does.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    keys: Option<(Arc<Keys>, Instant)>,
    asked: Option<Instant>,
}

/// What an issuer says of itself.
#[derive(Clone, Debug, Deserialize)]
pub struct About {
    issuer: String,
    jwks_uri: Url,
    pub authorization_endpoint: Option<Url>,
    pub token_endpoint: Option<Url>,
}

/// Those of a set that can be used here.
#[derive(Debug)]
struct Keys(Vec<Key>);

#[derive(Clone, Debug)]
pub struct Key {
    id: Option<String>,
    /// The one algorithm that it is for, where the issuer says so.
    algorithm: Option<String>,
    pub key: Arc<DecodingKey>,
}

impl Key {
    pub fn is_for(&self, algorithm: jsonwebtoken::Algorithm) -> bool {
        let name = format!("{algorithm:?}");
        self.key.family() == algorithm.family() && self.algorithm.as_ref().is_none_or(|known| *known == name)
    }

    fn read(jwk: &Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(jwk.clone()).ok()?;
        if jwk.common.public_key_use.as_ref().is_some_and(|used| *used != PublicKeyUse::Signature) {
            return None;
        }
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        // A key that both sides know would let whoever checks tokens make them.
        if key.family() == AlgorithmFamily::Hmac {
            return None;
        }
        let algorithm = jwk.common.key_algorithm.map(|algorithm| format!("{algorithm:?}"));
        Some(Self { id: jwk.common.key_id, algorithm, key: Arc::new(key) })
    }
}

impl Keys {
    fn find(&self, id: Option<&str>) -> Option<Key> {
        match (id, self.0.as_slice()) {
            (Some(id), keys) => keys.iter().find(|key| key.id.as_deref() == Some(id)).cloned(),
            // A token that names none can only be meant for the only one.
            (None, [only]) => Some(only.clone()),
            (None, _) => None,
        }
    }
}

/// What to do about a key, decided by what is known.
#[derive(Debug)]
enum Step {
    Use(Key),
    Ask,
    Refuse(NoKey),
}

impl Known {
    fn step(&self, id: Option<&str>, now: Instant) -> Step {
        let may_ask = self.asked.is_none_or(|asked| now.duration_since(asked) >= BETWEEN);
        let Some((keys, since)) = &self.keys else {
            return if may_ask { Step::Ask } else { Step::Refuse(NoKey::Unavailable) };
        };
        let age = now.duration_since(*since);
        match keys.find(id) {
            Some(key) if age < FRESH => Step::Use(key),
            _ if may_ask => Step::Ask,
            Some(key) if age < BELIEVED => Step::Use(key),
            Some(_) => Step::Refuse(NoKey::Unavailable),
            None => Step::Refuse(NoKey::Unknown),
        }
    }
}

impl Issuer {
    pub fn new(url: IssuerUrl, fetcher: Fetcher) -> Self {
        Self { url, fetcher, known: Mutex::default(), asking: tokio::sync::Mutex::default() }
    }

    pub fn url(&self) -> &IssuerUrl {
        &self.url
    }

    pub async fn key(&self, id: Option<&str>) -> Result<Key, NoKey> {
        if let Step::Use(key) = self.known().step(id, Instant::now()) {
            return Ok(key);
        }
        let _turn = self.asking.lock().await;
        // Somebody may have asked meanwhile.
        match self.known().step(id, Instant::now()) {
            Step::Use(key) => return Ok(key),
            Step::Refuse(why) => return Err(why),
            Step::Ask => {}
        }
        let fetched = self.fetch().await;
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.asked = Some(now);
        match fetched {
            Ok(keys) => known.keys = Some((Arc::new(keys), now)),
            Err(error) => tracing::warn!(%error, issuer = %self.url, "the keys of an issuer cannot be fetched"),
        }
        match known.step(id, now) {
            Step::Use(key) => Ok(key),
            Step::Refuse(why) => Err(why),
            Step::Ask => Err(NoKey::Unavailable),
        }
    }

    /// What it says of itself; believed only where it says that it is who was asked.
    pub async fn about(&self) -> Result<About, Unfetched> {
        let mut last = None;
        for place in self.url.discovery() {
            match self.fetcher.get::<About>(&place, Named::ByOperator).await {
                Ok(about) if about.issuer == self.url.as_str() && is_protected(&about.jwks_uri) => return Ok(about),
                Ok(about) => tracing::warn!(issuer = %self.url, says = about.issuer, %place, "an issuer is another"),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Unfetched::new(format!("{} does not say that it is an issuer", self.url))))
    }

    async fn fetch(&self) -> Result<Keys, Unfetched> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let about = self.about().await?;
        let set: Set = self.fetcher.get(&about.jwks_uri, Named::ByOperator).await?;
        // One that is not understood does not spoil the others.
        Ok(Keys(set.keys.iter().take(MOST_KEYS).filter_map(Key::read).collect()))
    }

    fn known(&self) -> Known {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One whose keys are known, and never asked for.
    #[cfg(test)]
    pub fn with_keys(url: IssuerUrl, keys: &[Value]) -> Self {
        let keys = keys.iter().filter_map(Key::read).collect();
        let issuer = Self::new(url, Fetcher::default());
        let now = Instant::now();
        *issuer.known.lock().unwrap() = Known { keys: Some((Arc::new(Keys(keys)), now)), asked: Some(now) };
        issuer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(ids: &[&str]) -> Arc<Keys> {
        let key = |id: &&str| Key {
            id: Some((*id).to_owned()),
            algorithm: None,
            key: Arc::new(DecodingKey::from_ed_der(&[0; 32])),
        };
        Arc::new(Keys(ids.iter().map(key).collect()))
    }

    #[test]
    fn an_issuer_is_asked_when_it_helps_and_not_more_often() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut known = Known::default();
        assert!(matches!(known.step(Some("a"), start), Step::Ask));
        known.asked = Some(start);
        assert!(matches!(known.step(Some("a"), at(1)), Step::Refuse(NoKey::Unavailable)), "it was asked just now");
        assert!(matches!(known.step(Some("a"), at(5)), Step::Ask));
        known = Known { keys: Some((keys(&["a"]), at(10))), asked: Some(at(10)) };
        assert!(matches!(known.step(Some("a"), at(11)), Step::Use(_)));
        assert!(matches!(known.step(Some("b"), at(11)), Step::Refuse(NoKey::Unknown)));
        assert!(matches!(known.step(Some("b"), at(15)), Step::Ask), "it may have a new key");
        assert!(matches!(known.step(Some("a"), at(310)), Step::Ask), "it may have taken one back");
        known.asked = Some(at(310));
        assert!(matches!(known.step(Some("a"), at(311)), Step::Use(_)), "it does not answer, and did a while ago");
        known.asked = Some(at(3610));
        assert!(matches!(known.step(Some("a"), at(3611)), Step::Refuse(NoKey::Unavailable)));
        assert!(matches!(known.step(Some("b"), at(3611)), Step::Refuse(NoKey::Unknown)));
    }

    #[test]
    fn a_token_without_the_name_of_a_key_means_the_only_one() {
        assert!(keys(&["a"]).find(None).is_some());
        assert!(keys(&["a", "b"]).find(None).is_none());
        assert!(keys(&["a", "b"]).find(Some("b")).is_some());
        assert!(keys(&[]).find(Some("b")).is_none());
    }

    #[test]
    fn keys_for_something_else_are_no_keys() {
        let okp = |more: &str| {
            let text = format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{}"{more}}}"#, "A".repeat(43));
            Key::read(&serde_json::from_str(&text).unwrap())
        };
        assert!(okp("").is_some());
        assert!(okp(r#","use":"sig","alg":"EdDSA""#).unwrap().is_for(jsonwebtoken::Algorithm::EdDSA));
        assert!(okp(r#","use":"enc""#).is_none());
        let secret = serde_json::json!({ "kty": "oct", "k": "AAAA", "kid": "a" });
        assert!(Key::read(&secret).is_none());
    }
}
