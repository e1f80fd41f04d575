//! Secrets are named here and valued nowhere near: only the gateway that puts one in knows more than its name.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The name of a secret, and of the environment variable that holds its placeholder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretName(String);

impl SecretName {
    pub const MAX_BYTES: usize = 64;

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SecretName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut bytes = text.bytes();
        let starts_well = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        let sound = starts_well && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if sound && text.len() <= Self::MAX_BYTES {
            return Ok(Self(text.to_owned()));
        }
        let shown: String = text.chars().take(Self::MAX_BYTES).collect();
        Err(Error::invalid_input(format!("{shown:?} cannot be the name of a secret"))
            .with_hint("it is the name of a variable too: use letters, digits and _, not starting with a digit"))
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
