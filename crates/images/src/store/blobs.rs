//! Blobs as they came, under their digests.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD};

use super::{Store, Writing};
use crate::digest::{Digest, Hasher};
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

    /// Where it is, for whoever holds an image that has it.
    pub fn blob_path(&self, digest: Digest) -> PathBuf {
        self.directory().join(super::VERSION).join("blobs").join(digest.to_string())
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

/// A blob of which neither digest nor size is known before it is whole. It has no name until then, so that its room is
/// given back whatever happens.
#[derive(Debug)]
pub struct NewBlob {
    file: File,
    hasher: Hasher,
    size: u64,
    most: u64,
}

impl NewBlob {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How much more may come.
    pub(super) fn room(&self) -> u64 {
        self.most - self.size
    }
}

impl Write for NewBlob {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.room() {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {} bytes came", self.most)));
        }
        let count = self.file.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Writing {
    /// Begin a blob of at most so many bytes.
    pub fn begin_blob(&self, most: u64) -> Result<NewBlob> {
        let file = self.store().nameless_file()?;
        Ok(NewBlob { file, hasher: Hasher::default(), size: 0, most })
    }

    /// From here on it can be seen, by its digest.
    pub fn finish_blob(&self, blob: NewBlob) -> Result<Digest> {
        let digest = blob.hasher.finish();
        self.publish(&blob.file, digest)?;
        Ok(digest)
    }

    /// The same of a blob that was announced. If it is something else, nothing of it is kept.
    pub(super) fn finish_blob_as(&self, blob: NewBlob, announced: &Descriptor) -> Result<()> {
        if blob.size != announced.size || blob.hasher.finish() != announced.digest {
            return Err(Error::Refused(format!("what came for {} is something else", announced.digest.qualified())));
        }
        self.publish(&blob.file, announced.digest)
    }

    fn publish(&self, file: &File, digest: Digest) -> Result<()> {
        let doing = || Error::io(format!("finishing {digest}"));
        file.sync_all().map_err(doing())?;
        let anonymous = format!("/proc/self/fd/{}", file.as_raw_fd());
        let (blobs, name) = (&self.store().blobs, digest.to_string());
        match rustix::fs::linkat(CWD, &*anonymous, blobs, &*name, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(doing()(error.into())),
        }
        rustix::fs::fsync(blobs).map_err(|error| doing()(error.into()))
    }
}
