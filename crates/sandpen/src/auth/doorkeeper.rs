//! Everybody who is let in over HTTP, however they are known: by tokens of ours, by grants of our own authorization server, or by
//! tokens of an issuer that is believed.

use std::sync::Arc;
use std::time::SystemTime;

use super::Principal;
use super::challenge::Unknown;
use super::keyring::Keyring;
use super::oauth::jwt::{self, Issuers, Refused};
use super::oauth::site::Site;
use super::server::grants::{Grants, Presented};
use super::token::Shown;

#[derive(Debug)]
pub struct Doorkeeper {
    pub keyring: Keyring,
    pub oauth: Option<OAuth>,
}

/// What there is besides tokens of ours.
#[derive(Debug)]
pub struct OAuth {
    pub site: Arc<Site>,
    pub issuers: Issuers,
    pub grants: Option<Arc<Grants>>,
}

/// What somebody was let in by, as far as it is remembered while they are answered.
#[derive(Clone, Debug)]
pub enum Standing {
    Token(Shown),
    Grant(Presented),
    /// It cannot be taken back, and ends by itself.
    Until(SystemTime),
}

impl Doorkeeper {
    pub async fn admit(&self, token: &str, now: SystemTime) -> Result<(Principal, Standing), Unknown> {
        if let Some(oauth) = &self.oauth {
            if let Some((grants, presented)) = oauth.grants.as_ref().zip(Presented::access(token)) {
                let principal = grants.admit(&presented, now).ok_or(Unknown::Wrong)?;
                return Ok((principal, Standing::Grant(presented)));
            }
            if jwt::is_one(token) {
                return match oauth.issuers.admit(token).await {
                    Ok(vouched) => Ok((vouched.principal, Standing::Until(vouched.until))),
                    Err(Refused::Wrong) => Err(Unknown::Wrong),
                    Err(Refused::Unavailable) => Err(Unknown::Unsure),
                };
            }
        }
        let shown = Shown::new(token);
        let principal = self.keyring.admit(&shown, now).ok_or(Unknown::Wrong)?;
        Ok((principal, Standing::Token(shown)))
    }

    /// Whether what has begun may go on. That a grant's own token ends is no reason: its client has the next one already.
    pub fn still(&self, standing: &Standing, now: SystemTime) -> bool {
        match standing {
            Standing::Token(shown) => self.keyring.admit(shown, now).is_some(),
            Standing::Grant(presented) => {
                let grants = self.oauth.as_ref().and_then(|oauth| oauth.grants.as_ref());
                grants.is_some_and(|grants| grants.stands(presented, now))
            }
            Standing::Until(until) => now < *until,
        }
    }
}
