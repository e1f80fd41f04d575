//! The rules of the gateway by name, so that a test can leave one out and see that somebody would notice.

/// A closed list: what is here can be left out by tests, and by nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Nobody reaches private, metadata and special addresses.
    Addresses,
    /// A sandbox reaches, and resolves, only what its network names.
    Names,
    /// The address that was checked is the address that is dialled; without it the name is resolved once more.
    CheckedDial,
    /// Nobody reaches what this process listens on.
    ServerItself,
    /// A client says no other name than the one that it may reach, in a greeting of TLS or in a plain request.
    ServerName,
    /// A response that echoes a secret is masked.
    Masking,
}

/// Which rules stand: all of them, except in tests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    #[cfg(feature = "weaken")]
    pub without: std::collections::BTreeSet<Rule>,
}

impl Rules {
    #[cfg(feature = "weaken")]
    pub fn stands(&self, rule: Rule) -> bool {
        !self.without.contains(&rule)
    }

    #[cfg(not(feature = "weaken"))]
    pub fn stands(&self, _rule: Rule) -> bool {
        true
    }
}
