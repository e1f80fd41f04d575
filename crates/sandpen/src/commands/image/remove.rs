//! `sandpen image rm`: names first, then what no name leads to.

use clap::Args;
use sandbox::{ByteSize, Result};
use serde::Serialize;

use super::{called, image_error, list_of, open_store, saved};
use crate::config::Config;
use crate::exit::Exit;
use crate::output;

/// Remove images
///
/// What sandboxes still use stays on disk until the last of them is gone.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Names, or the first twelve or more digits of digests
    #[arg(value_name = "IMAGE", required_unless_present = "unused")]
    images: Vec<String>,

    /// Remove nothing by name, only what is not used any more
    #[arg(long, conflicts_with = "images")]
    unused: bool,
}

#[derive(Serialize)]
struct Removed {
    removed: Vec<String>,
    freed_bytes: u64,
}

pub fn run(arguments: &Arguments, config: &Config) -> Result<Exit> {
    let store = open_store(config)?;
    let found: Result<Vec<_>> = arguments.images.iter().map(|text| saved::look_up(&store, text)).collect();
    let mut removed = Vec::new();
    for named in found? {
        store.remove_name(&named.reference).map_err(image_error)?;
        removed.push(called(&named));
    }
    store.sweep().map_err(image_error)?;
    let collected = store.collect().map_err(image_error)?;
    if config.json {
        output::object(&Removed { removed, freed_bytes: collected.bytes });
        return Ok(Exit::SUCCESS);
    }
    let freed = format!("{} freed", ByteSize::new(collected.bytes));
    output::text(&if removed.is_empty() {
        format!("{freed}\n")
    } else {
        format!("removed {} ({freed})\n", list_of(&removed))
    });
    if collected.postponed {
        output::note("an image is being added, so room will be freed later", None);
    }
    Ok(Exit::SUCCESS)
}
