//! Bearer tokens: made once, shown once, kept as digests.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sandbox::{Error, Owner, PrivateFile, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::scope::{Scope, Scopes};
use crate::random;

/// What tells a token of ours from others, to people and to programs that look for leaked ones.
const PREFIX: &str = "sandpen_";
const SECRET_BYTES: usize = 32;
const NAME_CHARACTERS: usize = 64;

/// A token as its holder has it. It is told once, when it is made.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    fn new(id: &TokenId) -> Result<Self> {
        let secret = random::bytes::<SECRET_BYTES>()?;
        Ok(Self(format!("{PREFIX}{id}_{}", BASE64_URL_SAFE_NO_PAD.encode(secret))))
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Names a token without being one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(String);

impl TokenId {
    const CHARACTERS: usize = 12;

    fn random() -> Result<Self> {
        random::digits().map(|digits| Self(digits[..Self::CHARACTERS].to_owned()))
    }

    /// The one that a token says that it has.
    fn of(token: &str) -> Option<Self> {
        token.strip_prefix(PREFIX)?.split_once('_')?.0.parse().ok()
    }
}

impl FromStr for TokenId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_plain = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() == Self::CHARACTERS && text.bytes().all(is_plain) {
            return Ok(Self(text.to_owned()));
        }
        if text.starts_with(PREFIX) {
            return Err(Error::invalid_input("this is a token itself, not its id")
                .with_hint("name it by its id, as `sandpen token ls` does; whoever saw the token can use it"));
        }
        Err(Error::invalid_input(format!("{text:?} is not the id of a token"))
            .with_hint("sandpen token ls shows the ids"))
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What of a token is kept: enough to know it again, and nothing to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

/// A token that somebody has shown, as far as it is remembered.
#[derive(Clone, Debug)]
pub struct Shown {
    pub id: Option<TokenId>,
    pub digest: TokenDigest,
}

impl Shown {
    pub fn new(token: &str) -> Self {
        Self { id: TokenId::of(token), digest: TokenDigest::of(token.as_bytes()) }
    }
}

impl TokenDigest {
    pub fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// Compares all bytes, wherever they differ.
    pub fn is(&self, other: &Self) -> bool {
        let differences = self.0.iter().zip(other.0).fold(0, |seen, (one, other)| seen | (one ^ other));
        std::hint::black_box(differences) == 0
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok();
        (0..32).map(byte).collect::<Option<Vec<u8>>>()?.try_into().ok().map(Self)
    }
}

impl fmt::Display for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a person calls a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenName(String);

impl FromStr for TokenName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let count = text.chars().count();
        if (1..=NAME_CHARACTERS).contains(&count) && !text.chars().any(char::is_control) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid_input(format!("a token's name is 1 to {NAME_CHARACTERS} characters that can be printed")))
    }
}

impl fmt::Display for TokenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// All that is known of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub name: Option<TokenName>,
    pub owner: Owner,
    pub scopes: Scopes,
    pub digest: TokenDigest,
    pub created_at: SystemTime,
    pub expires_at: Option<SystemTime>,
}

impl Known {
    pub fn is_over(&self, now: SystemTime) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}

pub type Tokens = BTreeMap<TokenId, Known>;

/// Where tokens are kept.
#[derive(Clone, Debug)]
pub struct TokenFile(PrivateFile);

/// A token that is to be made.
#[derive(Clone, Debug)]
pub struct NewToken {
    pub name: Option<TokenName>,
    pub owner: Owner,
    pub scope: Scope,
    pub lives: Option<Duration>,
}

impl TokenFile {
    pub fn of_state_directory(directory: &Path) -> Self {
        Self(PrivateFile::new(directory.join("tokens.toml")))
    }

    pub fn file(&self) -> &PrivateFile {
        &self.0
    }

    /// None if there is no file.
    pub fn read(&self) -> Result<Tokens> {
        self.understand(self.0.read_if_there()?)
    }

    pub fn create(&self, new: NewToken, now: SystemTime) -> Result<(Token, TokenId, Known)> {
        // Whole seconds, as they are written down.
        let now = seconds_of(now).map_or(now, moment);
        let NewToken { name, owner, scope, lives } = new;
        let expires_at = match lives {
            Some(lives) => Some(now.checked_add(lives).ok_or_else(|| Error::invalid_input("that is too far ahead"))?),
            None => None,
        };
        let id = TokenId::random()?;
        let token = Token::new(&id)?;
        let digest = TokenDigest::of(token.reveal().as_bytes());
        let known = Known { name, owner, scopes: [scope].into_iter().collect(), digest, created_at: now, expires_at };
        self.change(|tokens| {
            tokens.insert(id.clone(), known.clone());
            Ok(())
        })?;
        Ok((token, id, known))
    }

    /// All of them, or none when one of them is not there.
    pub fn revoke(&self, ids: &[TokenId]) -> Result<()> {
        self.change(|tokens| {
            ids.iter().try_for_each(|id| match tokens.remove(id) {
                Some(_) => Ok(()),
                None => Err(Error::not_found(format!("there is no token {id}"))
                    .with_hint("sandpen token ls shows those that there are")),
            })
        })
    }

    fn change(&self, change: impl FnOnce(&mut Tokens) -> Result<()>) -> Result<()> {
        self.0.change(|text| {
            let mut tokens = self.understand(text)?;
            change(&mut tokens)?;
            Ok((written(&tokens), ()))
        })
    }

    fn understand(&self, text: Option<String>) -> Result<Tokens> {
        let wrong = |why: &str| {
            Error::invalid_input(format!("{} is not a file of tokens: {why}", self.0.path().display()))
                .with_hint("put a copy back, or remove it and make new tokens with `sandpen token create`")
        };
        let rows: BTreeMap<String, Row> =
            toml::from_str(&text.unwrap_or_default()).map_err(|error| wrong(error.message()))?;
        rows.into_iter()
            .map(|(id, row)| {
                let known = row.read().ok_or_else(|| wrong(&format!("[{id}] makes no sense")))?;
                Ok((id.parse().map_err(|_| wrong(&format!("{id:?} is no id")))?, known))
            })
            .collect()
    }
}

/// A token as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: Option<String>,
    owner: String,
    scope: String,
    sha256: String,
    created: u64,
    expires: Option<u64>,
}

impl Row {
    fn read(self) -> Option<Known> {
        Some(Known {
            name: self.name.map(|name| name.parse()).transpose().ok()?,
            owner: self.owner.parse().ok()?,
            scopes: [self.scope.parse::<Scope>().ok()?].into_iter().collect(),
            digest: TokenDigest::read(&self.sha256)?,
            created_at: moment(self.created),
            expires_at: self.expires.map(moment),
        })
    }
}

fn written(tokens: &Tokens) -> String {
    let mut text = "# Written by sandpen token, which keeps no comments. Tokens themselves are not here.\n".to_owned();
    for (id, known) in tokens {
        let Some(scope) = known.scopes.highest() else { continue };
        text += &format!("\n[{id}]\n");
        if let Some(name) = &known.name {
            text += &format!("name = {}\n", quoted(&name.0));
        }
        text += &format!("owner = {}\nscope = \"{scope}\"\n", quoted(known.owner.as_str()));
        text += &format!("sha256 = \"{}\"\n", known.digest);
        text += &format!("created = {}\n", seconds_of(known.created_at).unwrap_or(0));
        if let Some(end) = known.expires_at.and_then(seconds_of) {
            text += &format!("expires = {end}\n");
        }
    }
    text
}

/// A basic string of TOML. Nothing that is written here holds control characters.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

pub(super) fn seconds_of(time: SystemTime) -> Option<u64> {
    time.duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

pub fn moment(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
