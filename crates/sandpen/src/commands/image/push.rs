//! `sandpen image push`: to a registry.

use clap::Args;
use images::registry;
use sandbox::Result;
use serde::Serialize;

use super::{image_error, open_store, reference, settings, work};
use crate::config::Config;
use crate::exit::Exit;
use crate::output;

/// Send an image to a registry
#[derive(Args, Debug)]
pub struct Arguments {
    /// The image here
    #[arg(value_name = "IMAGE")]
    image: String,

    /// Where it goes, with the registry: ghcr.io/owner/tool:1.2 [default: by the name it has here]
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

#[derive(Serialize)]
struct Pushed {
    image: String,
    digest: String,
}

pub fn run(arguments: Arguments, config: &Config) -> Result<Exit> {
    let store = open_store(config)?;
    let named = store.look_up(&arguments.image).map_err(image_error)?;
    let name = arguments.name.as_deref().map_or_else(|| Ok(named.reference.clone()), reference)?;
    let image = store.image(named).map_err(image_error)?;
    let settings = settings(config)?;
    let target = name.clone();
    let digest = match work(config, move |work| registry::push(&store, &image, &target, &settings, work))? {
        Ok(digest) => digest,
        Err(exit) => return Ok(exit),
    };
    let pushed = Pushed { image: name.familiar(), digest: digest.qualified() };
    if config.json {
        output::object(&pushed);
    } else {
        output::text(&format!("pushed {} ({})\n", pushed.image, pushed.digest));
    }
    Ok(Exit::SUCCESS)
}
