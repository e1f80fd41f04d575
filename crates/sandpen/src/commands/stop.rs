//! `sandpen stop`: the end of sandboxes.

use clap::Args;
use sandbox::{Owner, Result, SandboxService};
use serde::Serialize;

use crate::cli::examples;
use crate::commands::find;
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{self, Audience, Teller};
use crate::wiring;

/// Stop sandboxes and delete everything in them
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen stop lab", "one"),
    ("sandpen stop --all", "all of yours"),
]))]
pub struct Arguments {
    /// Ids or names
    #[arg(value_name = "ID", required_unless_present = "all")]
    sandboxes: Vec<String>,

    /// Stop every sandbox of yours
    #[arg(long, conflicts_with = "sandboxes")]
    all: bool,
}

#[derive(Serialize)]
struct Stopped {
    stopped: Vec<String>,
    failed: Vec<Failed>,
}

#[derive(Serialize)]
struct Failed {
    sandbox: String,
    kind: &'static str,
    message: String,
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let teller = Teller::new(&config);
    wiring::with_service(&config, |service| async move {
        let owner = Owner::local();
        let sandboxes = if arguments.all {
            service.list(&owner).await?.into_iter().map(|sandbox| sandbox.id.to_string()).collect()
        } else {
            arguments.sandboxes
        };
        let mut result = Stopped { stopped: Vec::new(), failed: Vec::new() };
        for sandbox in sandboxes {
            match stop(&service, &owner, &sandbox).await {
                Ok(()) => {
                    if teller.audience == Audience::Person {
                        output::text(&format!("{sandbox}\n"));
                    }
                    result.stopped.push(sandbox);
                }
                Err(error) => {
                    if teller.audience == Audience::Person {
                        teller.error(&error);
                    }
                    let (kind, message) = (error.kind().as_str(), error.message().to_owned());
                    result.failed.push(Failed { sandbox, kind, message });
                }
            }
        }
        if teller.audience == Audience::Program {
            output::object(&result);
        }
        Ok(if result.failed.is_empty() { Exit::SUCCESS } else { Exit::FAILURE })
    })
}

async fn stop(service: &SandboxService, owner: &Owner, sandbox: &str) -> Result<()> {
    let sandbox = find(service, owner, sandbox).await?;
    service.stop(owner, &sandbox.id).await
}
