//! `sandpen image import`: from a file.

use std::path::PathBuf;

use clap::Args;
use images::import::{self, Request};
use sandbox::Result;

use super::{ImageObject, new_name, open_store, work};
use crate::config::Config;
use crate::exit::Exit;

/// Take an image from a file or directory
///
/// That is what docker save or podman save wrote, an OCI layout as archive or directory, or a tar archive of a root tree,
/// plain or compressed by gzip or zstd.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The file or directory
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::AnyPath)]
    file: PathBuf,

    /// The name it gets [default: the one it has in the file]
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Which image, if there are several: its name in the file
    #[arg(long, value_name = "NAME")]
    pick: Option<String>,
}

pub fn run(arguments: Arguments, config: &Config) -> Result<Exit> {
    let name = arguments.name.as_deref().map(new_name).transpose()?;
    let store = open_store(config)?;
    let request = Request { name, pick: arguments.pick };
    let importing = {
        let store = store.clone();
        work(config, move |work| {
            store.sweep()?;
            let named = import::import(&store, &arguments.file, &request, work)?;
            store.collect()?;
            Ok(named)
        })?
    };
    let named = match importing {
        Ok(named) => named,
        Err(exit) => return Ok(exit),
    };
    ImageObject::new(&store, &named)?.print("imported", config);
    Ok(Exit::SUCCESS)
}
