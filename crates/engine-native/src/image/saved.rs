//! Images that were saved of sandboxes: the image that the sandbox was made from, and layers of its own above that.
//!
//! As root these are layers like all others. An ordinary user cannot let them have owners inside, and what a sandbox wrote
//! would be nobody's in the next one; there the layer is put into that one's writable layer instead.

use std::io;
use std::path::{Path, PathBuf};

use images::ImageConfig;
use images::unpack::Owners;
use sandbox::{Error, Result, Role};

use super::host::host_tree;
use super::layers::{Found, Layers};
use super::{Fill, RootTree, image_error, named};
use crate::ids::ImageIds;

/// What lies below the layers that are there.
pub const BASE_LABEL: &str = "org.sandpen.base";
/// The host's own tree, which is no part of the image.
pub const HOST_BASE: &str = "host";
/// How many of the layers, the highest ones, were saved of sandboxes.
pub const LAYERS_LABEL: &str = "org.sandpen.layers";

pub fn own_layers(config: &ImageConfig) -> usize {
    let found = config.config.labels.get(LAYERS_LABEL).and_then(|number| number.parse().ok());
    found.unwrap_or(0).min(config.rootfs.diff_ids.len())
}

pub fn tree(image: &images::Image, state: &Path, owners: Option<ImageIds>, role: Role) -> Result<RootTree> {
    let filled = match Owners::for_caller() {
        Owners::Kept | Owners::Mapped | Owners::Known => 0,
        Owners::Noted if owners.is_some() => 0,
        Owners::Noted => own_layers(&image.config),
    };
    // An overlay wants the highest first.
    let mut lowers: Vec<PathBuf> = image.directories_below(filled).cloned().collect();
    lowers.reverse();
    let is_host = image.config.config.labels.get(BASE_LABEL).is_some_and(|base| base == HOST_BASE);
    let mut tree = match is_host {
        true => RootTree { lowers, ..host_tree(&state.join("host"))? },
        false => named::described(lowers, &image.config.config, role)?,
    };
    let layers = Layers::open(&directories(image)).map_err(unreadable)?;
    tree.top = layers.top_directories().map_err(unreadable)?;
    let store = images::Store::open(&state.join("images")).map_err(image_error)?;
    let in_upper = image.layers[image.layers.len() - filled..].iter();
    tree.fill =
        in_upper.map(|layer| Fill { path: store.blob_path(layer.blob.digest), digest: layer.diff_id }).collect();
    Ok(tree)
}

/// Which modes the directories of a sandbox have had that are there from the start. Their owners can use them, whatever a
/// program did to them.
pub fn modes(image: &images::Image, paths: &[&str]) -> Result<Vec<(String, u32)>> {
    let layers = Layers::open(&directories(image)).map_err(unreadable)?;
    let mut modes = Vec::new();
    for path in paths {
        let found = layers.find(path).map_err(unreadable)?.filter(Found::is_directory);
        modes.extend(found.map(|found| ((*path).to_owned(), found.stat.st_mode & 0o1777 | 0o700)));
    }
    Ok(modes)
}

/// The highest first.
fn directories(image: &images::Image) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = image.directories().cloned().collect();
    all.reverse();
    all
}

fn unreadable(cause: io::Error) -> Error {
    Error::unavailable("the image's tree cannot be read").with_cause(cause)
}
