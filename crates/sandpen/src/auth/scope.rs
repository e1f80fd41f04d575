//! What a credential is good for.

use std::fmt;
use std::str::FromStr;

use sandbox::{Error, Result};

use crate::suggest;

/// One right. Each includes those that stand before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Look: list, read, describe.
    Read,
    /// Run code, and make, change and end sandboxes of one's own.
    Run,
    /// What all owners do on this server.
    Admin,
}

impl Scope {
    pub const ALL: &'static [Self] = &[Self::Read, Self::Run, Self::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::Admin => "admin",
        }
    }

    /// As OAuth has it: issuers have scopes of other services too.
    pub fn claim(self) -> &'static str {
        match self {
            Self::Read => "sandpen:read",
            Self::Run => "sandpen:run",
            Self::Admin => "sandpen:admin",
        }
    }

    /// `None` for one that is not ours.
    pub fn from_claim(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|scope| scope.claim() == word)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let names = || Self::ALL.iter().map(|scope| scope.as_str());
        Self::ALL.iter().copied().find(|scope| scope.as_str() == text).ok_or_else(|| {
            let hint = match suggest::nearest(text, names()) {
                Some(nearest) => format!("did you mean {nearest}?"),
                None => format!("there are {}", names().collect::<Vec<_>>().join(", ")),
            };
            Error::invalid_input(format!("{text:?} is not a scope")).with_hint(hint)
        })
    }
}

/// The rights of one principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scopes(Option<Scope>);

impl Scopes {
    pub fn all() -> Self {
        Self(Scope::ALL.last().copied())
    }

    pub fn allow(self, needed: Scope) -> bool {
        self.0.is_some_and(|highest| highest >= needed)
    }

    /// No more than these and those.
    pub fn within(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }

    /// All of them in the words of OAuth.
    pub fn claims(self) -> String {
        let held = Scope::ALL.iter().filter(|scope| self.allow(**scope));
        held.map(|scope| scope.claim()).collect::<Vec<_>>().join(" ")
    }

    /// As they are written down: the highest stands for all below it.
    pub fn highest(self) -> Option<Scope> {
        self.0
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_includes_the_smaller_ones() {
        let runs: Scopes = [Scope::Run].into_iter().collect();
        assert!(runs.allow(Scope::Read) && runs.allow(Scope::Run) && !runs.allow(Scope::Admin));
        let none: Scopes = [].into_iter().collect();
        assert!(!none.allow(Scope::Read));
        assert!(Scopes::all().allow(Scope::Admin));
    }

    #[test]
    fn in_oauth_a_right_is_named_with_whose_it_is() {
        let runs: Scopes = [Scope::Run].into_iter().collect();
        assert_eq!(runs.claims(), "sandpen:read sandpen:run");
        assert_eq!(Scope::ALL.iter().map(|scope| Scope::from_claim(scope.claim())).max(), Some(Some(Scope::Admin)));
        for word in ["run", "sandpen:", "sandpen:Run", "other:run", ""] {
            assert_eq!(Scope::from_claim(word), None, "{word:?}");
        }
        assert_eq!(Scopes::all().within(runs), runs);
        assert_eq!(runs.within([].into_iter().collect()).claims(), "");
    }

    #[test]
    fn a_word_that_is_close_is_suggested() {
        assert_eq!("run".parse::<Scope>().unwrap(), Scope::Run);
        assert_eq!("amdin".parse::<Scope>().unwrap_err().hint(), Some("did you mean admin?"));
        assert_eq!("Run ".parse::<Scope>().unwrap_err().kind(), sandbox::ErrorKind::InvalidInput);
    }
}
