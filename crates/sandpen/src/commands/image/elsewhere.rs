//! `sandpen image` where images are a daemon's alone.

use clap::{Args, Subcommand};
use engine_docker::Flavour;
use sandbox::Result;

pub use self::daemon::PullBars;
pub use self::error::image_error;
use crate::cli::examples;
use crate::config::flags::RegistryFlags;
use crate::config::{Config, EngineChoice, Written};
use crate::embedded;
use crate::exit::Exit;

mod asked;
mod daemon;
mod error;
mod progress;

/// Fetch and list images of the daemon
///
/// Everything else about them is for its own client: docker image, podman image.
#[derive(Args, Debug)]
#[command(disable_help_subcommand = true, after_help = examples(&[
    ("sandpen image pull debian:12", "fetch an image from a registry"),
    ("sandpen image ls", "see what is there, and how large it is"),
]))]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    registries: RegistryFlags,
}

#[derive(Debug, Subcommand)]
enum Command {
    Pull(asked::Pull),
    Ls(asked::List),
}

impl Arguments {
    pub fn write_to(&self, written: &mut Written) {
        self.registries.write_to(written);
    }
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let flavour = match config.engine {
        EngineChoice::Docker => Flavour::Docker,
        EngineChoice::Podman => Flavour::Podman,
        EngineChoice::Native | EngineChoice::Kubernetes => return Err(embedded::not_here()),
    };
    match arguments.command {
        Command::Pull(arguments) => daemon::pull(&arguments, &config, flavour),
        Command::Ls(arguments) => daemon::list(&arguments, &config, flavour),
    }
}
