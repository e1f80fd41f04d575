//! Blobs as they came, under their digests.

use std::fs::File;
use std::io::Read;

use super::Store;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::manifest::{Descriptor, MAX_DOCUMENT};
use crate::trees::constant;

impl Store {
    /// Whether it is there, whole.
    pub fn has_blob(&self, digest: Digest) -> Result<bool> {
        let found =
            self.blobs.stat(constant(&digest.to_string())).map_err(Error::io(format!("looking for {digest}")))?;
        Ok(found.is_some())
    }

    pub fn open_blob(&self, digest: Digest) -> Result<File> {
        self.blobs.open_file(constant(&digest.to_string())).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::NotFound(format!("the store has no {}", digest.qualified())),
            _ => Error::Io { doing: format!("opening {digest}"), source },
        })
    }

    /// A manifest or configuration, checked again: it is small, and a bit that tipped on disk should not be believed.
    pub fn read_document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        let digest = descriptor.digest;
        let mut bytes = Vec::new();
        let doing = || Error::io(format!("reading {digest}"));
        self.open_blob(digest)?.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes).map_err(doing())?;
        if bytes.len() as u64 != descriptor.size || Digest::of(&bytes) != digest {
            return Err(Error::Refused(format!("{} is damaged in the store", digest.qualified())));
        }
        Ok(bytes)
    }

    pub fn blob_size(&self, digest: Digest) -> Result<u64> {
        Ok(self.open_blob(digest)?.metadata().map_err(Error::io(format!("looking at {digest}")))?.len())
    }
}
