//! `sandpen image prune`: what builds kept for later.

use clap::Args;
use sandbox::{ByteSize, Result};
use serde::Serialize;

use super::{image_error, open_store};
use crate::build::cache;
use crate::config::Config;
use crate::exit::Exit;
use crate::output;

/// Remove what is not needed
///
/// That is the steps that builds kept, so that the next build does all of them again, and what no image uses any more.
/// Images that have a name stay.
#[derive(Args, Debug)]
pub struct Arguments {}

#[derive(Serialize)]
struct Pruned {
    removed_steps: usize,
    freed_bytes: u64,
}

pub fn run(_: &Arguments, config: &Config) -> Result<Exit> {
    let store = open_store(config)?;
    let removed_steps = cache::forget(&store)?;
    store.sweep().map_err(image_error)?;
    let collected = store.collect().map_err(image_error)?;
    if config.json {
        output::object(&Pruned { removed_steps, freed_bytes: collected.bytes });
        return Ok(Exit::SUCCESS);
    }
    let steps = if removed_steps == 1 { "step" } else { "steps" };
    output::text(&format!("removed {removed_steps} kept {steps} ({} freed)\n", ByteSize::new(collected.bytes)));
    if collected.postponed {
        output::note("an image is being added, so room will be freed later", None);
    }
    Ok(Exit::SUCCESS)
}
