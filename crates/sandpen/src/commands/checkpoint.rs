//! `sandpen checkpoint`: a moment of a sandbox's files to go back to.

use clap::Args;
use sandbox::{Checkpoint, Owner, Result};
use serde::Serialize;

use crate::cli::examples;
use crate::commands::find;
use crate::config::Config;
use crate::exit::Exit;
use crate::{output, wiring};

/// Remember a sandbox's files as they are, and print the number of the checkpoint
///
/// No command may be running in it. What a checkpoint holds counts against the sandbox's disk and memory limits.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("n=$(sandpen checkpoint lab)", "remember"),
    ("sandpen diff lab --since $n", "see what has changed"),
    ("sandpen restore lab $n", "go back"),
]))]
pub struct Arguments {
    /// Id or name of the sandbox
    #[arg(value_name = "ID")]
    sandbox: String,
}

#[derive(Serialize)]
struct Checkpointed {
    sandbox_id: String,
    checkpoint: u32,
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    wiring::with_service(&config, |service| async move {
        let owner = Owner::local();
        let sandbox = find(&service, &owner, &arguments.sandbox).await?;
        let Checkpoint(checkpoint) = service.checkpoint(&owner, &sandbox.id).await?;
        if config.json {
            output::object(&Checkpointed { sandbox_id: sandbox.id.to_string(), checkpoint });
        } else {
            output::text(&format!("{checkpoint}\n"));
        }
        Ok(Exit::SUCCESS)
    })
}
