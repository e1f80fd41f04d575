//! Settings of registries.

use std::collections::BTreeSet;

use images::Mirror;
use images::reference::is_host;
use sandbox::{Error, Result};

use super::Pull;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryConfig {
    /// Hosts that are spoken to without encryption.
    pub insecure: BTreeSet<String>,
    pub mirrors: Vec<Mirror>,
    pub pull: Pull,
}

impl Default for RegistryConfig {
    fn default() -> Self {
        Self { insecure: BTreeSet::new(), mirrors: Vec::new(), pull: Pull::Missing }
    }
}

pub fn host(text: &str) -> Result<String> {
    if is_host(text) {
        return Ok(text.to_ascii_lowercase());
    }
    Err(Error::invalid_input(format!("{text:?} is not the host of a registry"))
        .with_hint("write for example localhost:5000, without http://"))
}

pub fn mirror(text: &str) -> Result<Mirror> {
    text.parse().map_err(|_| {
        Error::invalid_input(format!("{text:?} is not a mirror"))
            .with_hint("write MIRROR for one of Docker's registry, or HOST=MIRROR for one of another")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_hosts_and_nothing_more() {
        assert_eq!(host("Localhost:5000").unwrap(), "localhost:5000");
        for text in ["", "http://localhost", "localhost/path", "a b", "localhost:x"] {
            assert!(host(text).is_err(), "{text:?}");
            assert!(mirror(text).is_err(), "{text:?}");
        }
    }
}
