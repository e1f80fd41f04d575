//! Codes: between the page that a person agrees on and the client that fetches its tokens. In memory, for a minute, once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sandbox::{Error, Result};
use sha2::{Digest, Sha256};

use super::grants::Agreed;
use crate::random;

const LIFE: Duration = Duration::from_secs(60);

/// Each took a person who agreed.
const MOST: usize = 4096;

/// What a code stands for.
#[derive(Clone, Debug)]
pub struct Pending {
    pub agreed: Agreed,
    pub redirect_uri: String,
    pub challenge: String,
}

#[derive(Debug)]
enum Code {
    Waiting(Pending),
    /// Fetched; with the grant that came of it, when that is known.
    Spent(Option<String>),
}

#[derive(Debug, Default)]
pub struct Codes(Mutex<HashMap<[u8; 32], (SystemTime, Code)>>);

/// What a code is good for.
#[derive(Debug)]
pub enum Redeemed {
    Fresh(Pending),
    /// It was used before: whoever came first may have stolen it, and what it gave is taken back.
    Again(Option<String>),
    Unknown,
}

fn digest(code: &str) -> [u8; 32] {
    Sha256::digest(code.as_bytes()).into()
}

impl Codes {
    pub fn issue(&self, pending: Pending, now: SystemTime) -> Result<String> {
        let code = BASE64_URL_SAFE_NO_PAD.encode(random::bytes::<32>()?);
        let mut codes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        codes.retain(|_, (until, _)| *until > now);
        if codes.len() >= MOST {
            return Err(Error::limit_exceeded("too many sign in at once"));
        }
        codes.insert(digest(&code), (now + LIFE, Code::Waiting(pending)));
        Ok(code)
    }

    pub fn redeem(&self, code: &str, now: SystemTime) -> Redeemed {
        let mut codes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        codes.retain(|_, (until, _)| *until > now);
        match codes.get_mut(&digest(code)) {
            None => Redeemed::Unknown,
            Some((_, kept)) => match std::mem::replace(kept, Code::Spent(None)) {
                Code::Waiting(pending) => Redeemed::Fresh(pending),
                Code::Spent(grant) => {
                    *kept = Code::Spent(grant.clone());
                    Redeemed::Again(grant)
                }
            },
        }
    }

    /// What came of a code that was just redeemed.
    pub fn gave(&self, code: &str, grant: String) {
        let mut codes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, kept)) = codes.get_mut(&digest(code)) {
            *kept = Code::Spent(Some(grant));
        }
    }
}

/// Whether the client that asks is the one that began: it alone knows what it showed the digest of.
pub fn is_verified(challenge: &str, verifier: &str) -> bool {
    let is_sound = (43..=128).contains(&verifier.len())
        && verifier.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte));
    is_sound && BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes())) == challenge
}

#[cfg(test)]
mod tests {
    use super::super::records::Who;
    use super::*;

    fn pending() -> Pending {
        let who = Who::Account { name: "alice".into(), revision: "1".into() };
        let agreed = Agreed { client: "c".into(), who, scope: "sandpen:run".into() };
        Pending { agreed, redirect_uri: "https://a.example/".into(), challenge: String::new() }
    }

    #[test]
    fn a_code_is_good_once_and_for_a_minute() {
        let codes = Codes::default();
        let now = SystemTime::now();
        let code = codes.issue(pending(), now).unwrap();
        assert!(matches!(codes.redeem("other", now), Redeemed::Unknown));
        assert!(matches!(codes.redeem(&code, now), Redeemed::Fresh(_)));
        assert!(matches!(codes.redeem(&code, now), Redeemed::Again(None)));
        codes.gave(&code, "grant".into());
        assert!(matches!(codes.redeem(&code, now), Redeemed::Again(Some(grant)) if grant == "grant"));
        let late = codes.issue(pending(), now).unwrap();
        assert!(matches!(codes.redeem(&late, now + LIFE), Redeemed::Unknown));
    }

    /// The example of RFC 7636.
    #[test]
    fn the_verifier_is_what_the_challenge_is_the_digest_of() {
        let (verifier, challenge) =
            ("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
        assert!(is_verified(challenge, verifier));
        assert!(!is_verified(verifier, verifier), "a challenge as it is");
        for wrong in ["", "short", &verifier[1..], &format!("{verifier}="), &"a".repeat(129)] {
            assert!(!is_verified(challenge, wrong), "{wrong}");
        }
    }
}
