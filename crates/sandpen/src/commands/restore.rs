//! `sandpen restore`: back to the files of a checkpoint.

use clap::Args;
use sandbox::{Checkpoint, Owner, Result};
use serde::Serialize;

use crate::cli::examples;
use crate::commands::find;
use crate::config::Config;
use crate::exit::Exit;
use crate::{output, wiring};

/// Put a sandbox's files back to what they were at a checkpoint
///
/// What was written since is gone, and so are later checkpoints. No command may be running in it.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen exec --checkpoint lab -- ./clean-up.sh", "a command that may do harm"),
    ("sandpen restore lab 1", "go back to before it"),
]))]
pub struct Arguments {
    /// Id or name of the sandbox
    #[arg(value_name = "ID")]
    sandbox: String,

    /// The number of the checkpoint
    #[arg(value_name = "N")]
    checkpoint: u32,
}

#[derive(Serialize)]
struct Restored {
    sandbox_id: String,
    checkpoint: u32,
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    wiring::with_service(&config, |service| async move {
        let owner = Owner::local();
        let sandbox = find(&service, &owner, &arguments.sandbox).await?;
        let checkpoint = arguments.checkpoint;
        service.restore(&owner, &sandbox.id, Checkpoint(checkpoint)).await?;
        if config.json {
            output::object(&Restored { sandbox_id: sandbox.id.to_string(), checkpoint });
        }
        Ok(Exit::SUCCESS)
    })
}
