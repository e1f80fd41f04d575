//! An image that is held while it is used.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use rustix::fs::FlockOperation;
use tokio_util::sync::CancellationToken;

use super::{Named, Store, lock_file};
use crate::config::ImageConfig;
use crate::confined::Directory;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::manifest::{Descriptor, Document, ImageLimits, Manifest};
use crate::reference::Reference;
use crate::trees::constant;

/// An image, unpacked and ready to be mounted. It is not collected while this value, or a copy of its descriptor in any
/// process, is there.
#[derive(Debug)]
pub struct Image {
    pub named: Named,
    pub manifest: Manifest,
    pub config: ImageConfig,
    /// The lowest first; an overlay wants the highest first.
    pub layers: Vec<ImageLayer>,
    hold: File,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageLayer {
    pub diff_id: Digest,
    pub blob: Descriptor,
    /// The unpacked tree, never to be written to.
    pub path: PathBuf,
}

impl Image {
    /// What keeps the image. A process that outlives this one keeps it by a copy.
    pub fn hold(&self) -> BorrowedFd<'_> {
        self.hold.as_fd()
    }

    /// The directories to mount over each other, the lowest first. A layer that hides everything below it is the first.
    pub fn directories(&self) -> impl Iterator<Item = &PathBuf> {
        stacked(&self.layers)
    }

    /// The same without so many of the highest layers.
    pub fn directories_below(&self, highest: usize) -> impl Iterator<Item = &PathBuf> {
        stacked(&self.layers[..self.layers.len().saturating_sub(highest)])
    }
}

/// One that is there twice counts where it is highest, which shows and hides all that it does below; an overlay takes no
/// directory twice.
fn stacked(layers: &[ImageLayer]) -> impl Iterator<Item = &PathBuf> {
    let is_opaque = |layer: &ImageLayer| Directory::open(&layer.path).is_ok_and(|root| root.is_opaque());
    let first = layers.iter().rposition(is_opaque).unwrap_or(0);
    let is_last =
        move |(index, layer): &(usize, &ImageLayer)| layers[index + 1..].iter().all(|higher| higher.path != layer.path);
    layers.iter().enumerate().skip(first).filter(is_last).map(|(_, layer)| &layer.path)
}

impl Store {
    /// The image of this name, held until the value is dropped. A tree that is missing is unpacked again.
    pub fn resolve(&self, reference: &Reference) -> Result<Option<Image>> {
        let _lock = self.lock(FlockOperation::LockShared)?;
        self.find(reference)?.map(|named| self.hold(named)).transpose()
    }

    /// The image that a record means, held until the value is dropped.
    pub fn image(&self, named: Named) -> Result<Image> {
        let _lock = self.lock(FlockOperation::LockShared)?;
        self.hold(named)
    }

    fn hold(&self, named: Named) -> Result<Image> {
        let hold = lock_file(&self.uses, &named.manifest.digest.to_string(), FlockOperation::LockShared)?;
        let (manifest, config) = self.describe(&named.manifest)?;
        let limits = ImageLimits::default();
        let mut layers = Vec::with_capacity(manifest.layers.len());
        for (blob, &diff_id) in manifest.layers.iter().zip(&config.rootfs.diff_ids) {
            let path = match self.layers.get(diff_id)? {
                Some(path) => path,
                None => {
                    self.unpack_layer(diff_id, blob.digest, &limits.layer, &CancellationToken::new())?;
                    self.layers.get(diff_id)?.ok_or_else(|| Error::NotFound("a layer is gone".to_owned()))?
                }
            };
            layers.push(ImageLayer { diff_id, blob: blob.clone(), path });
        }
        Ok(Image { named, manifest, config, layers, hold })
    }

    /// What is written about an image in the store.
    pub fn describe(&self, manifest: &Descriptor) -> Result<(Manifest, ImageConfig)> {
        let bytes = self.read_document(manifest)?;
        let Document::Manifest(parsed) = Document::parse(&bytes, Some(&manifest.media_type))? else {
            return Err(Error::Refused("a name means a list of images".to_owned()));
        };
        let config = ImageConfig::parse(&self.read_document(&parsed.config)?)?;
        config.check(&parsed, &ImageLimits::default())?;
        Ok((*parsed, config))
    }

    /// Files of a layer once unpacked.
    pub fn layer_size(&self, diff_id: Digest) -> Result<u64> {
        let mut text = String::new();
        // Without the note, which is written before the tree appears, there is nothing to tell.
        let Ok(file) = self.layers.directory().open_file(constant(&size_note(diff_id))) else { return Ok(0) };
        file.take(32).read_to_string(&mut text).map_err(Error::io(format!("reading the size of {diff_id}")))?;
        Ok(text.trim().parse().unwrap_or(0))
    }

    pub(super) fn note_size(&self, diff_id: Digest, bytes: u64) -> Result<()> {
        let name = size_note(diff_id);
        let doing = || Error::io(format!("noting the size of {diff_id}"));
        let directory = self.layers.directory();
        directory.remove_tree(constant(&name)).map_err(doing())?;
        let mut file = directory.create_file(constant(&name), 0o600).map_err(doing())?;
        file.write_all(bytes.to_string().as_bytes()).map_err(doing())
    }
}

pub(super) fn size_note(diff_id: Digest) -> String {
    format!(".size-{diff_id}")
}
