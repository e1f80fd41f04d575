//! `sandpen image pull`: from a registry.

use std::path::Path;
use std::sync::Arc;

use images::{Named, Reference, Store, registry};
use sandbox::{Error, Image, Result};

use super::{ImageObject, asked, image_error, open_store, reference, settings, work};
use crate::config::{Config, EngineChoice, Pull};
use crate::exit::Exit;
use crate::output;

pub fn run(arguments: &asked::Pull, config: &Config) -> Result<Exit> {
    let store = open_store(config)?;
    let named = match pull(&store, reference(&arguments.image)?, config)? {
        Ok(named) => named,
        Err(exit) => return Ok(exit),
    };
    ImageObject::new(&store, &named)?.print("pulled", config);
    Ok(Exit::SUCCESS)
}

/// What came of a look for the image of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// There is nothing to pull, or it may not be pulled, or it is here now.
    GoOn,
    /// A signal came first.
    GivenUp(Exit),
}

/// Pulls the image that sandboxes of these settings start from, if it has a name and is not here.
pub fn pull_missing(config: &Config) -> Result<Pulled> {
    let (Image::Named(name), EngineChoice::Native, Pull::Missing) =
        (&config.sandbox.image, config.engine, config.registries.pull)
    else {
        return Ok(Pulled::GoOn);
    };
    let written = name.as_str();
    let name = reference(written)?;
    let store = open_store(config)?;
    if store.find(&name).map_err(image_error)?.is_some() {
        return Ok(Pulled::GoOn);
    }
    if [".tar", ".tgz", ".tar.gz", ".tar.zst"].iter().any(|ending| written.ends_with(ending))
        && Path::new(written).is_file()
    {
        return Err(Error::not_found(format!("there is no image {written} here, but a file of that name")).with_hint(
            format!(
                "write tar:{written} for a root tree, or get an image from it by sandpen image import {written} NAME"
            ),
        ));
    }
    match pull(&store, name, config)? {
        Ok(named) => {
            if !config.json {
                output::note(ImageObject::new(&store, &named)?.sentence("pulled").trim_end(), None);
            }
            Ok(Pulled::GoOn)
        }
        Err(exit) => Ok(Pulled::GivenUp(exit)),
    }
}

fn pull(store: &Arc<Store>, name: Reference, config: &Config) -> Result<std::result::Result<Named, Exit>> {
    let (store, settings) = (store.clone(), settings(config)?);
    work(config, move |work| {
        store.sweep()?;
        let named = registry::pull(&store, &name, &settings, work)?;
        // A tag that moved leaves the image that it meant before.
        store.collect()?;
        Ok(named)
    })
}
