//! Names of things, each a type of its own so that one can never stand in for another.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Lower-case letters and digits without those that people misread (0/o, 1/l/i, u/v).
const ALPHABET: &[u8; 30] = b"23456789abcdefghjkmnpqrstvwxyz";
const RANDOM_CHARACTERS: usize = 16;

fn random_text(prefix: &str) -> Result<String> {
    let mut bytes = [0u8; RANDOM_CHARACTERS];
    getrandom::fill(&mut bytes)
        .map_err(|cause| Error::internal("no random numbers from the system").with_cause(cause.to_string()))?;
    let mut text = String::with_capacity(prefix.len() + RANDOM_CHARACTERS);
    text.push_str(prefix);
    text.extend(bytes.iter().map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])));
    Ok(text)
}

fn check_text(what: &str, prefix: &str, text: &str) -> Result<()> {
    let random = text.strip_prefix(prefix).unwrap_or("");
    let well_formed = random.len() == RANDOM_CHARACTERS && random.bytes().all(|byte| ALPHABET.contains(&byte));
    if well_formed {
        return Ok(());
    }
    Err(Error::invalid_input(format!("{:?} is not a {what}", Excerpt(text)))
        .with_hint(format!("a {what} looks like {prefix}7k2m9x4bqhtw3ecd")))
}

/// At most the first 64 characters of something a client sent, for messages.
struct Excerpt<'a>(&'a str);

impl fmt::Debug for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(64) {
            Some((end, _)) => write!(f, "{:?}…", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            pub fn random() -> Result<Self> {
                random_text($prefix).map(Self)
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                check_text($what, $prefix, text)?;
                Ok(Self(text.to_owned()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

random_id!(
    /// One sandbox. Long enough that it cannot be guessed, safe as a file name and as a cgroup name.
    SandboxId,
    "sandbox id",
    "sb-"
);
random_id!(
    /// One run of a Sandpen process that may own sandboxes; ties what is found on the host to who made it.
    InstanceId,
    "instance id",
    "in-"
);

random_id!(
    /// One job. As hard to guess as a sandbox's id, because it is all that a caller shows to read or stop the job later.
    JobId,
    "job id",
    "job_"
);

/// Who a sandbox belongs to. All that the lower layers know of authentication.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(String);

impl Owner {
    pub const MAX_BYTES: usize = 128;

    /// The one owner of a machine without authentication: the person at the keyboard.
    pub fn local() -> Self {
        Self("local".to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Owner {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.is_empty() || text.len() > Self::MAX_BYTES || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::invalid_input("an owner is 1 to 128 visible ASCII characters"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name that a person gave to a sandbox; also its host name inside.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxName(String);

impl SandboxName {
    pub const MAX_BYTES: usize = 63;

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SandboxName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let outer = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        let bytes = text.as_bytes();
        if bytes.len() > Self::MAX_BYTES
            || !bytes.iter().all(|&byte| inner(byte))
            || !outer(bytes.first())
            || !outer(bytes.last())
        {
            return Err(Error::invalid_input(format!("{:?} cannot be a sandbox name", Excerpt(text)))
                .with_hint("use up to 63 lower-case letters, digits and inner hyphens, for example data-lab-2"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for SandboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_parse_and_differ() {
        let first = SandboxId::random().unwrap();
        let second = SandboxId::random().unwrap();
        assert_ne!(first, second);
        assert_eq!(first.as_str().parse::<SandboxId>().unwrap(), first);
    }

    #[test]
    fn ids_that_could_be_paths_are_refused() {
        for text in
            ["", "sb-", "sb-../../etc/passwd", "sb-7k2m9x4bqhtw3ec/", "in-7k2m9x4bqhtw3ecd", "sb-7K2M9X4BQHTW3ECD"]
        {
            assert!(text.parse::<SandboxId>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn a_long_wrong_id_is_quoted_in_part() {
        let error = "x".repeat(10_000).parse::<SandboxId>().unwrap_err();
        assert!(error.message().len() < 200);
    }

    #[test]
    fn names_are_host_names() {
        assert!("data-lab-2".parse::<SandboxName>().is_ok());
        for text in ["", "-a", "a-", "A", "a b", "a.b", "ä", &"a".repeat(64)] {
            assert!(text.parse::<SandboxName>().is_err(), "{text:?} was taken");
        }
    }
}
