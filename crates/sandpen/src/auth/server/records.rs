//! What the authorization server remembers beyond its own life: clients that registered, and what they were granted.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sandbox::{Error, PrivateFile, Result};
use serde::{Deserialize, Serialize};

use crate::auth::followed::Followed;

/// Whoever signed in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case", deny_unknown_fields)]
pub enum Who {
    Account {
        name: String,
        revision: String,
    },
    /// By way of an identity provider.
    Elsewhere {
        issuer: String,
        subject: String,
        email: Option<String>,
    },
}

impl Who {
    /// As they know themselves.
    pub fn shown(&self) -> &str {
        match self {
            Self::Account { name, .. } => name,
            Self::Elsewhere { email: Some(email), .. } => email,
            Self::Elsewhere { subject, .. } => subject,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Records {
    pub clients: BTreeMap<String, ClientRecord>,
    pub grants: BTreeMap<String, GrantRecord>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientRecord {
    pub name: Option<String>,
    pub redirect_uris: Vec<String>,
    pub created: u64,
    /// When somebody last granted it something.
    pub used: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantRecord {
    pub client: String,
    pub who: Who,
    pub scope: String,
    pub begun: u64,
    pub used: u64,
    /// The digest of what all its tokens that renew have in common.
    pub family: String,
    /// The digest of what only the newest of them has.
    pub turn: String,
    pub access: Vec<AccessRecord>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessRecord {
    pub sha256: String,
    pub scope: String,
    pub until: u64,
}

#[derive(Debug)]
pub struct RecordsFile(Followed<Records>);

impl RecordsFile {
    pub fn of_state_directory(directory: &Path) -> Result<Self> {
        Followed::open(PrivateFile::new(directory.join("oauth.json")), understand).map(Self)
    }

    pub fn current(&self) -> Arc<Records> {
        self.0.current()
    }

    /// Blocks for as long as the disk does.
    pub fn change<R>(&self, change: impl FnOnce(&mut Records) -> Result<R>) -> Result<R> {
        self.0.change(written, change)
    }
}

fn understand(file: &PrivateFile, text: Option<String>) -> Result<Records> {
    let Some(text) = text else { return Ok(Records::default()) };
    serde_json::from_str(&text).map_err(|error| {
        Error::invalid_input(format!("{} is not what it was: {error}", file.path().display()))
            .with_hint("remove it; everybody signs in again then")
    })
}

fn written(records: &Records) -> String {
    // Maps of text to text and numbers: there is nothing in it that JSON has no words for.
    serde_json::to_string(records).unwrap_or_default()
}
