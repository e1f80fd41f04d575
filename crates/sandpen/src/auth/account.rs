//! Local accounts: people who sign in with a password where there is no identity provider. Passwords are kept as argon2id.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::SystemTime;

use argon2::{Argon2, PasswordHasher, PasswordVerifier};
use sandbox::{Error, Owner, PrivateFile, Result};
use serde::Deserialize;

use super::followed::Followed;
use super::scope::Scope;
use super::token::{moment, quoted, seconds_of};
use crate::random;

/// As people type it to sign in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountName(String);

impl AccountName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for AccountName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._@+-".contains(&byte);
        if (1..=64).contains(&text.len()) && text.bytes().all(is_plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid_input(format!("{text:?} cannot be the name of an account"))
            .with_hint("use 1 to 64 of a-z, 0-9 and . _ @ + -"))
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is kept of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordDigest(String);

impl PasswordDigest {
    const LEAST: usize = 8;
    const MOST: usize = 1024;

    /// Takes a while, on purpose.
    pub fn new(password: &str) -> Result<Self> {
        if !(Self::LEAST..=Self::MOST).contains(&password.len()) {
            return Err(Error::invalid_input(format!("a password has {} to {} bytes", Self::LEAST, Self::MOST))
                .with_hint("several words are easy to remember and hard to guess"));
        }
        let made = Argon2::default().hash_password(password.as_bytes());
        made.map(|made| Self(made.to_string()))
            .map_err(|cause| Error::internal("the password cannot be digested").with_cause(cause))
    }

    /// Takes the same while, right or wrong.
    pub fn is(&self, password: &str) -> bool {
        password.len() <= Self::MOST && Argon2::default().verify_password(password.as_bytes(), self.0.as_str()).is_ok()
    }
}

impl fmt::Debug for PasswordDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordDigest")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub owner: Owner,
    /// The most that it can give to a client.
    pub scope: Scope,
    pub password: PasswordDigest,
    pub created_at: SystemTime,
    /// New with each password, and with each account of the same name: what was granted under another counts no more.
    pub revision: String,
}

impl Account {
    pub fn new(owner: Owner, scope: Scope, password: PasswordDigest, now: SystemTime) -> Result<Self> {
        Ok(Self { owner, scope, password, created_at: now, revision: random::digits()? })
    }
}

pub type Accounts = BTreeMap<AccountName, Account>;

#[derive(Debug)]
pub struct AccountFile(Followed<Accounts>);

impl AccountFile {
    pub fn of_state_directory(directory: &Path) -> Result<Self> {
        Followed::open(PrivateFile::new(directory.join("accounts.toml")), understand).map(Self)
    }

    pub fn current(&self) -> std::sync::Arc<Accounts> {
        self.0.current()
    }

    pub fn create(&self, name: AccountName, account: Account) -> Result<()> {
        self.0.change(written, |accounts| {
            if accounts.contains_key(&name) {
                return Err(Error::new(sandbox::ErrorKind::AlreadyExists, format!("there is an account {name}"))
                    .with_hint(format!("for a new password: sandpen account password {name}")));
            }
            accounts.insert(name, account);
            Ok(())
        })
    }

    pub fn set_password(&self, name: &AccountName, password: PasswordDigest) -> Result<()> {
        let revision = random::digits()?;
        self.0.change(written, |accounts| {
            let account = accounts.get_mut(name).ok_or_else(|| missing(name))?;
            account.password = password;
            account.revision = revision;
            Ok(())
        })
    }

    /// All of them, or none when one of them is not there.
    pub fn remove(&self, names: &[AccountName]) -> Result<()> {
        self.0.change(written, |accounts| {
            names.iter().try_for_each(|name| accounts.remove(name).map(drop).ok_or_else(|| missing(name)))
        })
    }

    /// Whether this is the password of an account. It takes as long where there is none.
    pub fn verify(&self, name: &str, password: &str) -> Option<AccountName> {
        let accounts = self.current();
        let known = name.parse::<AccountName>().ok().filter(|name| accounts.contains_key(name));
        match known.as_ref().and_then(|name| accounts.get(name)) {
            Some(account) => account.password.is(password).then_some(known).flatten(),
            None => {
                let _ = PasswordDigest::new(&format!("{password:.1000}        "));
                None
            }
        }
    }
}

fn missing(name: &AccountName) -> Error {
    Error::not_found(format!("there is no account {name}")).with_hint("sandpen account ls shows those that there are")
}

/// An account as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    owner: String,
    scope: String,
    password: String,
    created: u64,
    revision: String,
}

impl Row {
    fn read(self) -> Option<Account> {
        let is_digest = self.password.starts_with("$argon2id$");
        Some(Account {
            owner: self.owner.parse().ok()?,
            scope: self.scope.parse().ok()?,
            password: is_digest.then_some(PasswordDigest(self.password))?,
            created_at: moment(self.created),
            revision: self.revision,
        })
    }
}

fn understand(file: &PrivateFile, text: Option<String>) -> Result<Accounts> {
    let wrong = |why: &str| {
        Error::invalid_input(format!("{} is not a file of accounts: {why}", file.path().display()))
            .with_hint("put a copy back, or remove it and make accounts with `sandpen account create`")
    };
    let rows: BTreeMap<String, Row> =
        toml::from_str(&text.unwrap_or_default()).map_err(|error| wrong(error.message()))?;
    rows.into_iter()
        .map(|(name, row)| {
            let account = row.read().ok_or_else(|| wrong(&format!("[{name}] makes no sense")))?;
            Ok((name.parse().map_err(|_| wrong(&format!("{name:?} is no name")))?, account))
        })
        .collect()
}

fn written(accounts: &Accounts) -> String {
    let mut text = "# Written by sandpen account, which keeps no comments.\n".to_owned();
    for (name, account) in accounts {
        text += &format!("\n[{}]\n", quoted(name.as_str()));
        text += &format!("owner = {}\nscope = \"{}\"\n", quoted(account.owner.as_str()), account.scope);
        text += &format!("password = {}\n", quoted(&account.password.0));
        text += &format!("created = {}\n", seconds_of(account.created_at).unwrap_or(0));
        text += &format!("revision = {}\n", quoted(&account.revision));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(password: &str) -> Account {
        let password = PasswordDigest::new(password).unwrap();
        Account::new("alice".parse().unwrap(), Scope::Run, password, moment(1_800_000_000)).unwrap()
    }

    #[test]
    fn a_password_is_known_again_and_not_told() {
        let directory = tempfile::tempdir().unwrap();
        let file = AccountFile::of_state_directory(directory.path()).unwrap();
        let name: AccountName = "alice@example.com".parse().unwrap();
        file.create(name.clone(), account("correct horse")).unwrap();
        let kept = std::fs::read_to_string(directory.path().join("accounts.toml")).unwrap();
        assert!(kept.contains("$argon2id$") && !kept.contains("correct horse"), "{kept}");
        // Another process reads what this one wrote.
        let other = AccountFile::of_state_directory(directory.path()).unwrap();
        assert_eq!(*other.current(), *file.current());
        assert_eq!(other.verify("alice@example.com", "correct horse"), Some(name.clone()));
        for (who, password) in [("alice@example.com", "correct horsf"), ("bob", "correct horse"), ("", ""), ("A", "x")]
        {
            assert_eq!(other.verify(who, password), None, "{who}");
        }
        assert!(file.create(name.clone(), account("correct horse")).is_err(), "there is one");
        let revision = other.current()[&name].revision.clone();
        file.set_password(&name, PasswordDigest::new("battery staple").unwrap()).unwrap();
        assert_eq!(other.verify("alice@example.com", "correct horse"), None);
        assert_ne!(other.current()[&name].revision, revision);
        file.remove(std::slice::from_ref(&name)).unwrap();
        assert!(other.current().is_empty() && file.remove(&[name]).is_err());
    }

    #[test]
    fn names_and_passwords_have_bounds() {
        for name in ["", "Alice", "a b", "a\nb", &"a".repeat(65), "a/b"] {
            assert!(name.parse::<AccountName>().is_err(), "{name:?}");
        }
        assert!(PasswordDigest::new("short").is_err());
        assert!(PasswordDigest::new(&"x".repeat(1025)).is_err());
    }
}
