//! What somebody wrote in one place, not yet understood.

use std::path::PathBuf;

use sandbox::Error;
use tools::ProfileName;

use super::key::Key;

/// Where a value was written, so that a message can point at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    File(PathBuf),
    Variables,
    Flags,
    /// What an older server does, unless somebody says otherwise.
    Profile(ProfileName),
}

impl Origin {
    fn of(&self, key: Key) -> String {
        match self {
            Self::File(path) => format!("{} in {}", key.name(), path.display()),
            Self::Variables => key.variable(),
            Self::Flags => key.flag(),
            Self::Profile(profile) => format!("{} of the profile {profile}", key.name()),
        }
    }

    /// The same error, led by the place that a person has to change.
    pub fn point_at(&self, key: Key, error: &Error) -> Error {
        let pointed = Error::new(error.kind(), format!("{}: {}", self.of(key), error.message()));
        match error.hint() {
            Some(hint) => pointed.with_hint(hint),
            None => pointed,
        }
    }
}

/// The settings of one place, in the order in which they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub origin: Origin,
    pub values: Vec<(Key, String)>,
}

impl Written {
    pub fn new(origin: Origin) -> Self {
        Self { origin, values: Vec::new() }
    }

    pub fn push(&mut self, key: Key, value: impl Into<String>) {
        self.values.push((key, value.into()));
    }
}
