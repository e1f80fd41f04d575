//! `sandpen links`: the signed links to files that `sandpen serve` gives out.

use clap::{Args, Subcommand};
use sandbox::Result;
use serde::Serialize;

use crate::cli::examples;
use crate::config::Config;
use crate::exit::Exit;
use crate::files::link::KeyFile;
use crate::output::{self, Audience};

/// End the links to files that `sandpen serve` has given out
///
/// Each is good for one file and 15 minutes at most, for whoever has it, without a token. Servers that run take notice with the
/// next request.
#[derive(Args, Debug)]
#[command(after_help = examples(&[("sandpen links revoke", "let nobody in by any link that there is")]))]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Revoke(RevokeArguments),
}

/// Sign with another key from now on, so that no link of before is good any more
#[derive(Args, Debug)]
struct RevokeArguments {}

#[derive(Serialize)]
struct Revoked {
    revoked: bool,
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    match arguments.action {
        Action::Revoke(RevokeArguments {}) => KeyFile::of_state_directory(config.state_dir()?).rotate()?,
    }
    match Audience::new(config.json) {
        Audience::Program => output::object(&Revoked { revoked: true }),
        Audience::Person => output::note("no link of before is good any more", None),
    }
    Ok(Exit::SUCCESS)
}
