//! `sandpen save`: a sandbox's files as an image.

use clap::Args;
use sandbox::{ByteSize, Owner, Result, SavedImage, SavedName};
use serde::Serialize;

use crate::cli::examples;
use crate::commands::find;
use crate::config::Config;
use crate::exit::Exit;
use crate::signals::Signals;
use crate::{output, time, wiring};

/// Keep a sandbox's files as an image to start from
///
/// All files that are different from what the sandbox started with are kept, the work directory too; running programs are
/// not. The sandbox goes on as it is. One that had the same name is replaced.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen save lab ready", "keep it as saved:ready"),
    ("sandpen run python work.py --image saved:ready", "start from it"),
    ("sandpen image tag saved:ready team/ready:1", "give it a name that can be pushed"),
    ("sandpen image rm saved:ready", "remove it"),
]))]
pub struct Arguments {
    /// Id or name of the sandbox
    #[arg(value_name = "ID")]
    sandbox: String,

    /// What to call the image: lower-case letters, digits and dashes
    #[arg(value_name = "NAME")]
    name: String,
}

#[derive(Serialize)]
struct SavedObject {
    image: String,
    digest: String,
    bytes: u64,
    saved_at: String,
    left_out: u64,
    /// Beside its files, and so not in the image.
    packages: Vec<String>,
}

impl SavedObject {
    fn new(saved: &SavedImage, packages: Vec<String>) -> Self {
        Self {
            image: format!("saved:{}", saved.name),
            digest: saved.digest.clone(),
            bytes: saved.bytes,
            saved_at: time::rfc3339(saved.saved_at),
            left_out: saved.left_out,
            packages,
        }
    }
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    // It may be copied from where images are shown.
    let name: SavedName = arguments.name.strip_prefix("saved:").unwrap_or(&arguments.name).parse()?;
    wiring::with_service(&config, |service| async move {
        let mut signals = Signals::listen()?;
        let owner = Owner::local();
        let sandbox = find(&service, &owner, &arguments.sandbox).await?;
        let saved = match signals.unless_ended(service.save(&owner, &sandbox.id, &name)).await {
            Ok(saved) => saved?,
            Err(signal) => return Ok(Exit::signal(signal)),
        };
        let object = SavedObject::new(&saved, service.packages_of(&owner, &sandbox.id).await?);
        if config.json {
            output::object(&object);
            return Ok(Exit::SUCCESS);
        }
        output::text(&format!("{} ({})\n", object.image, ByteSize::new(object.bytes)));
        if saved.left_out > 0 {
            output::note(&format!("{} sockets, FIFOs and devices were left out", saved.left_out), None);
        }
        if !object.packages.is_empty() {
            let hint = format!("ask for them again with --package {}", object.packages.join(","));
            output::note("packages are not part of the image", Some(&hint));
        }
        Ok(Exit::SUCCESS)
    })
}
