//! Registries that are asked before the one that was named.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::reference::{DEFAULT_REGISTRY, is_host};

/// A host that has what another one has. Credentials of the one are not sent to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    pub of: String,
    pub host: String,
}

impl FromStr for Mirror {
    type Err = Error;

    /// `MIRROR`, of Docker's own registry, or `HOST=MIRROR`.
    fn from_str(text: &str) -> Result<Self> {
        let (of, host) = text.split_once('=').unwrap_or((DEFAULT_REGISTRY, text));
        if !is_host(of) || !is_host(host) {
            return Err(Error::Invalid(format!("{text:?} is not a host, or two with a = between them")));
        }
        Ok(Self { of: of.to_ascii_lowercase(), host: host.to_ascii_lowercase() })
    }
}

impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.of, self.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_of_docker_s_registry_unless_another_is_named() {
        assert_eq!("mirror.example".parse::<Mirror>().unwrap().to_string(), "docker.io=mirror.example");
        assert_eq!("ghcr.io=Localhost:5000".parse::<Mirror>().unwrap().to_string(), "ghcr.io=localhost:5000");
        for text in ["", "=", "a=b=c", "https://mirror.example", "mirror.example/path"] {
            assert!(text.parse::<Mirror>().is_err(), "{text}");
        }
    }
}
