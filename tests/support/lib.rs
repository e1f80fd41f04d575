//! What the test programs share: the view from the host, the result table, engines in temporary places.
#![allow(missing_debug_implementations, reason = "handles of tests hold streams, which cannot be shown")]

#[cfg(feature = "weaken")]
pub mod aftermath;
pub mod census;
pub mod cgroups;
#[cfg(feature = "weaken")]
pub mod check;
pub mod daemon;
pub mod images;
#[cfg(feature = "weaken")]
pub mod lab;
pub mod mounts;
pub mod probe;
pub mod processes;
pub mod program;
pub mod random;
pub mod registry;
#[cfg(feature = "weaken")]
pub mod server;
pub mod table;
pub mod wire;

use std::fmt;

/// Why a test program could not go on; not a verdict about the product.
#[derive(Debug)]
pub struct Trouble(pub String);

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<std::io::Error> for Trouble {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

/// With its private cause: test output is a log.
impl From<sandbox::Error> for Trouble {
    fn from(error: sandbox::Error) -> Self {
        Self(format!("{error:?}"))
    }
}

impl From<String> for Trouble {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Trouble {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

pub type Result<T> = std::result::Result<T, Trouble>;

/// Whether this process has the rights of root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A number from the environment, for longer and shorter runs of the same program.
pub fn number_from(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}
