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
        if sound && means_something_else(text) {
            return Err(Error::invalid_input(format!("{text} means something to programs, and cannot be a secret"))
                .with_hint("name it after what it is for, like API_KEY"));
        }
        if sound && text.len() <= Self::MAX_BYTES {
            return Ok(Self(text.to_owned()));
        }
        let shown: String = text.chars().take(Self::MAX_BYTES).collect();
        Err(Error::invalid_input(format!("{shown:?} cannot be the name of a secret"))
            .with_hint("it is the name of a variable too: use letters, digits and _, not starting with a digit"))
    }
}

/// With a placeholder in one of these, programs are not found, or do not find their way out.
fn means_something_else(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    matches!(name.as_str(), "PATH" | "HOME" | "PWD" | "SHELL" | "USER" | "LANG" | "TERM" | "TMPDIR")
        || name.ends_with("_PROXY")
        || name.starts_with("LD_")
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_of_a_variable_that_is_free() {
        for name in ["API_KEY", "_k", "token2", "HOME_TOKEN", "PROXY"] {
            assert_eq!(name.parse::<SecretName>().unwrap().as_str(), name);
        }
        for name in ["", "2fa", "a-b", "A=B", "PATH", "https_proxy", "LD_PRELOAD", &"A".repeat(65)] {
            assert!(name.parse::<SecretName>().unwrap_err().hint().is_some(), "{name:?} was taken");
        }
    }
}
