//! What a page carries for us: readable, not to be changed, good for a while and once.
//!
//! So nothing is kept for pages that are opened and left, and no cookie is needed.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::hmac;
use sandbox::Result;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::auth::token::{moment, seconds_of};
use crate::random;

/// Long enough to find a password.
pub const LIFE: Duration = Duration::from_secs(600);

const MOST_CHARACTERS: usize = 16 << 10;

/// With a key that ends with the process.
pub struct Sealer {
    key: hmac::Key,
    used: Mutex<HashMap<String, SystemTime>>,
}

/// What is carried, with its name and its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sealed<T> {
    pub id: String,
    until: u64,
    pub content: T,
}

impl Sealer {
    pub fn new() -> Result<Self> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &random::bytes::<32>()?);
        Ok(Self { key, used: Mutex::default() })
    }

    pub fn seal<T: Serialize>(&self, content: T, now: SystemTime) -> Result<String> {
        let until = seconds_of(now + LIFE).unwrap_or(0);
        let sealed = Sealed { id: random::digits()?, until, content };
        let text = serde_json::to_vec(&sealed).unwrap_or_default();
        let tag = hmac::sign(&self.key, &text);
        Ok(format!("{}.{}", BASE64_URL_SAFE_NO_PAD.encode(&text), BASE64_URL_SAFE_NO_PAD.encode(tag)))
    }

    /// What was sealed here and is not over or used up.
    pub fn open<T: DeserializeOwned>(&self, text: &str, now: SystemTime) -> Option<Sealed<T>> {
        if text.len() > MOST_CHARACTERS {
            return None;
        }
        let (content, tag) = text.split_once('.')?;
        let content = BASE64_URL_SAFE_NO_PAD.decode(content).ok()?;
        let tag = BASE64_URL_SAFE_NO_PAD.decode(tag).ok()?;
        hmac::verify(&self.key, &content, &tag).ok()?;
        let sealed: Sealed<T> = serde_json::from_slice(&content).ok()?;
        let is_used = self.used.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&sealed.id);
        (moment(sealed.until) > now && !is_used).then_some(sealed)
    }

    /// Never again; `false` when somebody else was first.
    pub fn use_up<T>(&self, sealed: &Sealed<T>, now: SystemTime) -> bool {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|_, until| *until > now);
        used.insert(sealed.id.clone(), moment(sealed.until)).is_none()
    }

    /// A secret that belongs to what was sealed, and is not in it.
    pub fn derived(&self, id: &str, purpose: &str) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(&self.key, format!("{purpose}:{id}").as_bytes()))
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_is_opened_once_in_time_and_unchanged() {
        let (sealer, other) = (Sealer::new().unwrap(), Sealer::new().unwrap());
        let now = SystemTime::now();
        let text = sealer.seal("content".to_owned(), now).unwrap();
        let sealed = sealer.open::<String>(&text, now).unwrap();
        assert_eq!(sealed.content, "content");
        assert!(other.open::<String>(&text, now).is_none());
        assert!(sealer.open::<String>(&text, now + LIFE + Duration::from_secs(1)).is_none());
        let changed = format!("{}{}", if text.starts_with('a') { "b" } else { "a" }, &text[1..]);
        for wrong in [&changed, &format!("{text}A"), &text[..text.len() - 1], "", "."] {
            assert!(sealer.open::<String>(wrong, now).is_none(), "{wrong:.40}");
        }
        assert!(sealer.use_up(&sealed, now));
        assert!(!sealer.use_up(&sealed, now));
        assert!(sealer.open::<String>(&text, now).is_none());
    }
}
