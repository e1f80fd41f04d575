//! `sandpen doctor`: what protects you on this machine, what is missing, and what to do about it.

use clap::Args;
use engine_docker::Flavour;
use sandbox::Result;

use crate::config::{Config, EngineChoice};
use crate::exit::Exit;
use crate::output::{BAD, DOUBTFUL, GOOD};
use crate::wiring;

mod daemon;
#[cfg_attr(not(target_os = "linux"), path = "doctor/no_embedded.rs")]
mod embedded;

/// Show what protects you on this machine, layer by layer
///
/// Ends with 1 if an isolation layer is missing that was not allowed to be with --allow-missing. With --engine docker or
/// podman it is that daemon's machine, and a sandbox is made there to look at.
#[derive(Args, Debug)]
pub struct Arguments {}

pub fn run(_: Arguments, config: Config) -> Result<Exit> {
    match config.engine {
        EngineChoice::Native => embedded::run(&config),
        EngineChoice::Docker => daemon::run(&config, Flavour::Docker),
        EngineChoice::Podman => daemon::run(&config, Flavour::Podman),
        EngineChoice::Kubernetes => Err(wiring::not_driven(config.engine)),
    }
}

/// A sign that can be read without colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Yes,
    No,
    Perhaps,
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Yes => write!(f, "{GOOD}✓{GOOD:#}"),
            Self::No => write!(f, "{BAD}✗{BAD:#}"),
            Self::Perhaps => write!(f, "{DOUBTFUL}?{DOUBTFUL:#}"),
        }
    }
}
