//! `sandpen image pull`: from a registry.

use clap::Args;
use images::registry;
use sandbox::Result;

use super::{ImageObject, open_store, reference, settings, work};
use crate::config::Config;
use crate::exit::Exit;
use crate::output;

/// Fetch an image from a registry
///
/// What is here already is not fetched again, and a pull that was interrupted goes on where it was.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The image: debian:12, ghcr.io/owner/tool:1.2, name@sha256:…
    #[arg(value_name = "IMAGE")]
    image: String,
}

pub fn run(arguments: Arguments, config: &Config) -> Result<Exit> {
    let name = reference(&arguments.image)?;
    let store = open_store(config)?;
    let settings = settings(config)?;
    let pulling = {
        let store = store.clone();
        work(config, move |work| {
            store.sweep()?;
            let named = registry::pull(&store, &name, &settings, work)?;
            // A tag that moved leaves the image that it meant before.
            store.collect()?;
            Ok(named)
        })?
    };
    let named = match pulling {
        Ok(named) => named,
        Err(exit) => return Ok(exit),
    };
    let object = ImageObject::new(&store, &named)?;
    if config.json {
        output::object(&object);
    } else {
        output::text(&object.sentence("pulled"));
    }
    Ok(Exit::SUCCESS)
}
