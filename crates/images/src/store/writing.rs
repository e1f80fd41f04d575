//! Adding to the store. While somebody does, nothing is collected, so what has no name yet is safe.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::FlockOperation;
use tokio_util::sync::CancellationToken;

pub use super::download::Begun;
use super::{Download, Named, NewBlob, Store};
use crate::config::ImageConfig;
use crate::confined::Directory;
use crate::digest::{Digest, Hasher};
use crate::error::{Error, Result};
use crate::manifest::{Descriptor, ImageLimits, Manifest};
use crate::overlaid::Overlaid;
use crate::reference::Reference;
use crate::unpack::{Limits, Owners, unpack_layer};

#[derive(Debug)]
pub struct Writing {
    store: Arc<Store>,
    _lock: File,
}

impl Writing {
    /// Waits while somebody collects, which is short.
    pub fn begin(store: &Arc<Store>) -> Result<Self> {
        Ok(Self { store: store.clone(), _lock: store.lock(FlockOperation::LockShared)? })
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn begin_download(&self, descriptor: &Descriptor) -> Result<Begun> {
        self.store.begin_download(descriptor)
    }

    pub fn finish_download(&self, download: Download) -> Result<()> {
        self.store.finish_download(download)
    }

    pub fn abandon_download(&self, download: Download) {
        self.store.abandon_download(download);
    }

    /// A manifest or configuration.
    pub fn put_document(&self, bytes: &[u8]) -> Result<Digest> {
        let digest = Digest::of(bytes);
        self.put(bytes, &Descriptor::new("", digest, bytes.len() as u64), &CancellationToken::new())?;
        Ok(digest)
    }

    /// A blob from a reader, which must hold exactly what the descriptor says.
    pub fn put(&self, mut reader: impl Read, descriptor: &Descriptor, cancel: &CancellationToken) -> Result<()> {
        if self.store.has_blob(descriptor.digest)? {
            return Ok(());
        }
        let mut blob = self.begin_blob(descriptor.size)?;
        copy(&mut reader, &mut blob, cancel)?;
        self.finish_blob_as(blob, descriptor)
    }

    /// A blob of which only its end is known: it is read twice, once for its digest.
    pub fn put_file(
        &self,
        file: &mut (impl Read + std::io::Seek),
        cancel: &CancellationToken,
    ) -> Result<(Digest, u64)> {
        let doing = || Error::io("reading what is to be stored");
        let start = file.stream_position().map_err(doing())?;
        let (mut hasher, mut size, mut buffer) = (Hasher::default(), 0, vec![0; 128 * 1024]);
        loop {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let count = file.read(&mut buffer).map_err(doing())?;
            if count == 0 {
                break;
            }
            hasher.update(&buffer[..count]);
            size += count as u64;
        }
        let digest = hasher.finish();
        file.seek(std::io::SeekFrom::Start(start)).map_err(doing())?;
        self.put(file, &Descriptor::new("", digest, size), cancel)?;
        Ok((digest, size))
    }

    /// Unpacks a layer whose blob is there, unless that has been done before. Returns its unpacked size.
    pub fn unpack(
        &self,
        diff_id: Digest,
        blob: &Descriptor,
        limits: &Limits,
        cancel: &CancellationToken,
    ) -> Result<u64> {
        self.store.unpack_layer(diff_id, blob.digest, limits, cancel)
    }

    /// Gives an image that is all there its name. This is the moment in which it appears.
    pub fn name(&self, reference: &Reference, image: &NewImage) -> Result<Named> {
        for layer in &image.manifest.layers {
            if !self.store.has_blob(layer.digest)? {
                return Err(Error::NotFound(format!("the layer {} is not in the store", layer.digest.qualified())));
            }
        }
        let added = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let named = Named {
            reference: reference.clone(),
            manifest: image.descriptor.clone(),
            index: image.index,
            platform: image.config.platform.clone(),
            added,
        };
        self.store.write_name(&named)?;
        Ok(named)
    }

    /// A further name for an image that has one.
    pub fn tag(&self, named: &Named, reference: &Reference) -> Result<Named> {
        let tagged = Named { reference: reference.clone(), ..named.clone() };
        self.store.write_name(&tagged)?;
        Ok(tagged)
    }

    /// Makes an image of a configuration and of layers that are in the store as blobs.
    pub fn assemble(&self, config: ImageConfig, layers: Vec<Descriptor>, limits: &ImageLimits) -> Result<NewImage> {
        self.assemble_from(&config.to_bytes(), layers, limits)
    }

    /// The same, of a configuration in somebody else's spelling, whose digest stays what it is.
    pub fn assemble_from(&self, config: &[u8], layers: Vec<Descriptor>, limits: &ImageLimits) -> Result<NewImage> {
        let parsed = ImageConfig::parse(config)?;
        let described = Descriptor::new(crate::manifest::OCI_CONFIG, Digest::of(config), config.len() as u64);
        let manifest = Manifest::new(described, layers);
        manifest.check(limits)?;
        parsed.check(&manifest, limits)?;
        let bytes = serde_json::to_vec(&manifest).expect("a manifest holds nothing that JSON lacks");
        self.put_document(config)?;
        let digest = self.put_document(&bytes)?;
        let descriptor = Descriptor::new(crate::manifest::OCI_MANIFEST, digest, bytes.len() as u64);
        Ok(NewImage { descriptor, manifest, config: parsed, index: None })
    }

    /// The tree of layers that are in the store as blobs, the lowest first, each with its diff-id. Unpacks what is not.
    pub fn tree(
        &self,
        layers: &[(Digest, Descriptor)],
        limits: &ImageLimits,
        cancel: &CancellationToken,
    ) -> Result<Overlaid> {
        let mut unpacked = 0;
        let mut trees = Vec::with_capacity(layers.len());
        for (diff_id, blob) in layers {
            unpacked += self.unpack(*diff_id, blob, &remaining(limits, unpacked), cancel)?;
            trees.push(self.store.layer_tree(*diff_id)?);
        }
        trees.reverse();
        Ok(Overlaid::of_layers(trees))
    }

    /// Unpacks all layers, within the limits of the whole.
    pub fn unpack_all(&self, image: &NewImage, limits: &ImageLimits, cancel: &CancellationToken) -> Result<()> {
        let mut unpacked = 0u64;
        for (layer, diff_id) in image.manifest.layers.iter().zip(&image.config.rootfs.diff_ids) {
            unpacked += self.unpack(*diff_id, layer, &remaining(limits, unpacked), cancel)?;
        }
        Ok(())
    }
}

fn copy(reader: &mut impl Read, blob: &mut NewBlob, cancel: &CancellationToken) -> Result<()> {
    let mut buffer = vec![0; 128 * 1024];
    loop {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) if count as u64 > blob.room() => {
                return Err(Error::Refused("more than was announced came".to_owned()));
            }
            Ok(count) => blob.write_all(&buffer[..count]).map_err(Error::io("writing what is to be stored"))?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("reading what is to be stored")(error)),
        }
    }
}

/// An image whose parts are in the store but which has no name yet.
#[derive(Clone, Debug)]
pub struct NewImage {
    pub descriptor: Descriptor,
    pub manifest: Manifest,
    pub config: ImageConfig,
    pub index: Option<Digest>,
}

/// What the next layer may be.
pub(crate) fn remaining(limits: &ImageLimits, unpacked: u64) -> Limits {
    Limits { bytes: limits.layer.bytes.min(limits.unpacked_bytes.saturating_sub(unpacked)), ..limits.layer }
}

impl Store {
    fn layer_tree(&self, diff_id: Digest) -> Result<Directory> {
        let path = self.layers.get(diff_id)?;
        let path = path.ok_or_else(|| Error::NotFound(format!("the layer {diff_id} is gone")))?;
        Directory::open(&path).map_err(Error::io(format!("opening {diff_id}")))
    }

    pub(super) fn unpack_layer(
        &self,
        diff_id: Digest,
        blob: Digest,
        limits: &Limits,
        cancel: &CancellationToken,
    ) -> Result<u64> {
        self.layers.get_or_make(diff_id, |directory| {
            let reader = Cancelling { inner: self.open_blob(blob)?, cancel };
            let summary = unpack_layer(reader, diff_id, directory, limits, Owners::for_caller());
            let summary = summary.map_err(|error| if cancel.is_cancelled() { Error::Cancelled } else { error })?;
            self.note_size(diff_id, summary.bytes)
        })?;
        self.layer_size(diff_id)
    }
}

/// Ends with an error as soon as the work is not wanted any more.
struct Cancelling<'a, R> {
    inner: R,
    cancel: &'a CancellationToken,
}

impl<R: Read> Read for Cancelling<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(std::io::Error::other("cancelled"));
        }
        self.inner.read(buffer)
    }
}
