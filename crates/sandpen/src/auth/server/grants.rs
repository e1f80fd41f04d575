//! What people have granted to clients: a family of tokens each, kept as digests, with at most one that can be renewed.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sandbox::{Error, Owner, Result};
use serde::{Deserialize, Serialize};

use super::records::{AccessRecord, GrantRecord, Records, RecordsFile, Who};
use crate::auth::Principal;
use crate::auth::account::{Account, AccountFile};
use crate::auth::oauth::subject;
use crate::auth::scope::{Scope, Scopes};
use crate::auth::token::{TokenDigest, moment, seconds_of};
use crate::random;

const ACCESS: &str = "sandpen_at_";
const REFRESH: &str = "sandpen_rt_";

/// How long a grant lasts that nobody uses.
const UNUSED: Duration = Duration::from_secs(30 * 86400);

/// Tokens of one grant that are good at the same time: what was begun with the one before may still be asking.
const ACCESS_AT_ONCE: usize = 4;

const MOST_GRANTS: usize = 2048;

/// Who may sign in by way of another issuer, so that who may no more is out at once.
pub type Allowed = Arc<dyn Fn(&Who) -> Option<Scope> + Send + Sync>;

pub struct Grants {
    records: Arc<RecordsFile>,
    accounts: Arc<AccountFile>,
    elsewhere: Allowed,
    access_life: Duration,
}

/// A token that somebody has shown, as far as it is remembered.
#[derive(Clone, Debug)]
pub struct Presented {
    grant: String,
    digest: TokenDigest,
}

impl Presented {
    pub fn access(token: &str) -> Option<Self> {
        let grant = token.strip_prefix(ACCESS)?.split_once('_')?.0.to_owned();
        Some(Self { grant, digest: TokenDigest::of(token.as_bytes()) })
    }
}

/// A token that renews: one half names the family, the other is new each time.
struct Renewing<'a> {
    grant: &'a str,
    family: &'a str,
    turn: &'a str,
}

impl<'a> Renewing<'a> {
    const HALF: usize = 43;

    fn read(token: &'a str) -> Option<Self> {
        let (grant, halves) = token.strip_prefix(REFRESH)?.split_once('_')?;
        if halves.len() != 2 * Self::HALF || !halves.is_ascii() {
            return None;
        }
        let (family, turn) = halves.split_at(Self::HALF);
        Some(Self { grant, family, turn })
    }
}

/// What a client is handed; told once.
pub struct Issued {
    pub access: String,
    pub refresh: String,
    pub scopes: Scopes,
    pub lives: Duration,
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Issued")
    }
}

impl fmt::Debug for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grants")
    }
}

/// What was agreed to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Agreed {
    pub client: String,
    pub who: Who,
    pub scope: String,
}

fn secret() -> Result<String> {
    random::bytes::<32>().map(|bytes| BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

fn hex(text: &str) -> String {
    TokenDigest::of(text.as_bytes()).to_string()
}

fn is(kept: &str, shown: &TokenDigest) -> bool {
    TokenDigest::read(kept).is_some_and(|kept| kept.is(shown))
}

fn is_of(kept: &str, secret: &str) -> bool {
    is(kept, &TokenDigest::of(secret.as_bytes()))
}

pub fn scopes_of(claims: &str) -> Scopes {
    claims.split(' ').filter_map(Scope::from_claim).collect()
}

impl Grants {
    pub fn new(
        records: Arc<RecordsFile>,
        accounts: Arc<AccountFile>,
        elsewhere: Allowed,
        access_life: Duration,
    ) -> Self {
        Self { records, accounts, elsewhere, access_life }
    }

    /// The most that somebody has here; `None` when they are nobody any more.
    pub fn rights(&self, who: &Who) -> Option<Scopes> {
        match who {
            Who::Account { .. } => self.account(who).map(|account| [account.scope].into_iter().collect()),
            Who::Elsewhere { .. } => (self.elsewhere)(who).map(|scope| [scope].into_iter().collect()),
        }
    }

    /// Whose sandboxes somebody has.
    pub fn owner(&self, who: &Who) -> Option<Owner> {
        match who {
            Who::Account { .. } => self.account(who).map(|account| account.owner),
            Who::Elsewhere { issuer, subject, .. } => Some(subject::owner(&issuer.parse().ok()?, subject)),
        }
    }

    /// A new password is for those who fear that somebody knows the old one.
    fn account(&self, who: &Who) -> Option<Account> {
        let Who::Account { name, revision } = who else { return None };
        let accounts = self.accounts.current();
        accounts.get(&name.parse().ok()?).filter(|account| account.revision == *revision).cloned()
    }

    pub fn admit(&self, presented: &Presented, now: SystemTime) -> Option<Principal> {
        let records = self.records.current();
        let grant = records.grants.get(&presented.grant)?;
        let access = grant.access.iter().filter(|access| moment(access.until) > now);
        let access = access.fold(
            None,
            |found, access| {
                if is(&access.sha256, &presented.digest) { Some(access) } else { found }
            },
        )?;
        let principal = self.principal(grant, now)?;
        Some(Principal { scopes: scopes_of(&access.scope).within(principal.scopes), ..principal })
    }

    /// Whether what a token was given for is still granted.
    pub fn stands(&self, presented: &Presented, now: SystemTime) -> bool {
        let records = self.records.current();
        records.grants.get(&presented.grant).is_some_and(|grant| self.principal(grant, now).is_some())
    }

    fn principal(&self, grant: &GrantRecord, now: SystemTime) -> Option<Principal> {
        if moment(grant.used) + UNUSED <= now {
            return None;
        }
        let scopes = scopes_of(&grant.scope).within(self.rights(&grant.who)?);
        let owner = self.owner(&grant.who)?;
        Some(Principal { owner, scopes })
    }

    /// A new family. Blocks.
    pub fn begin(&self, agreed: &Agreed, now: SystemTime) -> Result<(String, Issued)> {
        let seconds = seconds_of(now).unwrap_or(0);
        let id = random::digits()?[..12].to_owned();
        let family = secret()?;
        let mut grant = GrantRecord {
            client: agreed.client.clone(),
            who: agreed.who.clone(),
            scope: agreed.scope.clone(),
            begun: seconds,
            used: seconds,
            family: hex(&family),
            turn: String::new(),
            access: Vec::new(),
        };
        let issued = self.issue(&id, &mut grant, &family, scopes_of(&agreed.scope), now)?;
        self.records.change(|records| {
            records.grants.retain(|_, grant| moment(grant.used) + UNUSED > now);
            while records.grants.len() >= MOST_GRANTS {
                let idle = records.grants.iter().min_by_key(|(_, grant)| grant.used).map(|(id, _)| id.clone());
                match idle {
                    Some(id) => records.grants.remove(&id),
                    None => break,
                };
            }
            if let Some(client) = records.clients.get_mut(&grant.client) {
                client.used = Some(seconds);
            }
            records.grants.insert(id.clone(), grant);
            Ok(())
        })?;
        Ok((id, issued))
    }

    /// The next tokens of a family. One that was renewed before is a stolen one, or its thief was first: the family ends. Blocks.
    pub fn renew(&self, token: &str, client: &str, scope: Option<&str>, now: SystemTime) -> Result<Option<Issued>> {
        let Some(shown) = Renewing::read(token) else { return Ok(None) };
        self.records.change(|records| {
            let Some(grant) = records.grants.get_mut(shown.grant) else { return Ok(None) };
            if !is_of(&grant.family, shown.family) || grant.client != client {
                return Ok(None);
            }
            if !is_of(&grant.turn, shown.turn) {
                tracing::warn!(grant = shown.grant, client, "a refresh token came twice, and its grant is ended");
                records.grants.remove(shown.grant);
                return Ok(None);
            }
            if self.principal(grant, now).is_none() {
                records.grants.remove(shown.grant);
                return Ok(None);
            }
            let granted = scopes_of(&grant.scope);
            let scopes = scope.map_or(granted, |asked| scopes_of(asked).within(granted));
            grant.used = seconds_of(now).unwrap_or(grant.used);
            self.issue(shown.grant, grant, shown.family, scopes, now).map(Some)
        })
    }

    /// Ends the whole family of a token that is genuine. Blocks.
    pub fn revoke(&self, token: &str) -> Result<()> {
        let genuine = |records: &Records| -> Option<String> {
            if let Some(shown) = Renewing::read(token) {
                let grant = records.grants.get(shown.grant)?;
                return is_of(&grant.family, shown.family).then(|| shown.grant.to_owned());
            }
            let shown = Presented::access(token)?;
            let grant = records.grants.get(&shown.grant)?;
            grant.access.iter().any(|access| is(&access.sha256, &shown.digest)).then_some(shown.grant)
        };
        match genuine(&self.records.current()) {
            Some(id) => self.end(&id),
            None => Ok(()),
        }
    }

    pub fn end(&self, id: &str) -> Result<()> {
        self.records.change(|records| {
            records.grants.remove(id);
            Ok(())
        })
    }

    fn issue(
        &self,
        id: &str,
        grant: &mut GrantRecord,
        family: &str,
        scopes: Scopes,
        now: SystemTime,
    ) -> Result<Issued> {
        let access = format!("{ACCESS}{id}_{}", secret()?);
        let turn = secret()?;
        grant.turn = hex(&turn);
        grant.access.retain(|access| moment(access.until) > now);
        if grant.access.len() >= ACCESS_AT_ONCE {
            grant.access.remove(0);
        }
        let end = now.checked_add(self.access_life).ok_or_else(|| Error::internal("a token would never end"))?;
        let until = seconds_of(end).unwrap_or(0);
        grant.access.push(AccessRecord { sha256: hex(&access), scope: scopes.claims(), until });
        let refresh = format!("{REFRESH}{id}_{family}{turn}");
        Ok(Issued { access, refresh, scopes, lives: self.access_life })
    }
}

#[cfg(test)]
#[path = "grants_tests.rs"]
mod tests;
