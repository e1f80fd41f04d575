//! `sandpen image tag`: one more name.

use clap::Args;
use images::Writing;
use sandbox::Result;

use super::{ImageObject, called, image_error, new_name, open_store, saved};
use crate::config::Config;
use crate::exit::Exit;
use crate::output;

/// Give an image one more name
#[derive(Args, Debug)]
pub struct Arguments {
    /// The image, by a name or by the first twelve or more digits of its digest
    #[arg(value_name = "IMAGE")]
    image: String,

    /// The new name
    #[arg(value_name = "NAME")]
    name: String,
}

pub fn run(arguments: &Arguments, config: &Config) -> Result<Exit> {
    let name = new_name(&arguments.name)?;
    let store = open_store(config)?;
    let writing = Writing::begin(&store).map_err(image_error)?;
    let named = saved::look_up(&store, &arguments.image)?;
    let tagged = writing.tag(&named, &name).map_err(image_error)?;
    drop(writing);
    store.collect().map_err(image_error)?;
    let object = ImageObject::new(&store, &tagged)?;
    if config.json {
        output::object(&object);
    } else {
        output::text(&format!("{} is now {} too\n", called(&named), object.image));
    }
    Ok(Exit::SUCCESS)
}
