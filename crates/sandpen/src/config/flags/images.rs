//! Flags for where images come from.

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::{Key, Written, push};
use crate::config::Pull;

/// How a sandbox gets an image that is not here.
#[derive(Args, Clone, Debug, Default)]
pub struct PullFlags {
    /// Whether to fetch an image that is not here: missing or never [default: missing]
    #[arg(
        long,
        value_name = "WHEN",
        value_parser = PossibleValuesParser::new(Pull::NAMES),
        hide_possible_values = true,
        help_heading = "Sandbox"
    )]
    pull: Option<String>,

    #[command(flatten)]
    registries: RegistryFlags,
}

impl PullFlags {
    pub fn write_to(&self, written: &mut Written) {
        push(written, Key::Pull, &self.pull);
        self.registries.write_to(written);
    }
}

/// How registries are reached.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Registries")]
pub struct RegistryFlags {
    /// Speak to this registry without encryption: localhost:5000
    #[arg(long, global = true, value_name = "HOST")]
    insecure_registry: Vec<String>,

    /// Ask this host before Docker's registry, or before another that is named: mirror.example, ghcr.io=mirror.example
    #[arg(long, global = true, value_name = "[HOST=]MIRROR")]
    registry_mirror: Vec<String>,
}

impl RegistryFlags {
    pub fn write_to(&self, written: &mut Written) {
        push(written, Key::InsecureRegistry, &self.insecure_registry);
        push(written, Key::RegistryMirror, &self.registry_mirror);
    }
}
