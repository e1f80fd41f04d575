//! `sandpen image ls`: what is here.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandbox::{ByteSize, Result};
use serde::Serialize;

use super::{ImageObject, asked, called, image_error, open_store, saved};
use crate::config::Config;
use crate::exit::Exit;
use crate::output::{self, DIM};
use crate::table::{Align, Cell, Table};
use crate::time;

#[derive(Serialize)]
struct Images {
    images: Vec<ImageObject>,
    /// Of everything on disk, what images share counted once.
    store_bytes: u64,
}

pub fn run(arguments: &asked::List, config: &Config) -> Result<Exit> {
    let store = open_store(config)?;
    let mut names = store.names().map_err(image_error)?;
    names.retain(|named| saved::shown(&named.reference).is_some());
    if arguments.quiet && !config.json {
        output::text(&names.iter().map(|named| format!("{}\n", called(named))).collect::<String>());
        return Ok(Exit::SUCCESS);
    }
    if names.is_empty() && !config.json {
        output::note("there are no images", Some("fetch one with sandpen image pull"));
        return Ok(Exit::SUCCESS);
    }
    // One that is removed between the list and the question is not worth an error.
    let described = names.iter().filter_map(|named| ImageObject::new(&store, named).ok().map(|object| (object, named)));
    let (objects, names): (Vec<ImageObject>, Vec<_>) = described.unzip();
    let store_bytes = store.size().map_err(image_error)?;
    if config.json {
        output::object(&Images { images: objects, store_bytes });
        return Ok(Exit::SUCCESS);
    }
    let columns = [("IMAGE", Align::Left), ("DIGEST", Align::Left), ("SIZE", Align::Right), ("ADDED", Align::Left)];
    let mut table = Table::new(&columns);
    for (object, named) in objects.iter().zip(&names) {
        let added = UNIX_EPOCH + Duration::from_secs(named.added);
        let age = SystemTime::now().duration_since(added).unwrap_or_default();
        table.push([
            object.image.clone().into(),
            Cell::styled(named.manifest.digest.short(), DIM),
            ByteSize::new(object.unpacked_bytes).to_string().into(),
            format!("{} ago", time::short(Duration::from_secs(age.as_secs()))).into(),
        ]);
    }
    output::text(&table.render());
    output::text(&format!("{DIM}{} on disk in all{DIM:#}\n", ByteSize::new(store_bytes)));
    Ok(Exit::SUCCESS)
}
