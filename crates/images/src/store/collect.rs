//! Removing what no name means and nobody uses.

use std::collections::HashSet;

use rustix::fs::FlockOperation;

use super::apart::discarded;
use super::image::size_note;
use super::{Store, is_busy, lock_file};
use crate::confined::{Directory, Name};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::manifest::{Descriptor, Document};
use crate::trees::{constant, remove};

/// What a collection came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    pub blobs: u64,
    pub layers: u64,
    /// Of both, on disk.
    pub bytes: u64,
    /// Somebody was adding to the store, so nothing was done. Whoever collects next does it.
    pub postponed: bool,
}

#[derive(Default)]
struct Wanted {
    blobs: HashSet<Digest>,
    layers: HashSet<Digest>,
}

impl Store {
    /// Removes every blob and layer that no name leads to and nobody holds.
    pub fn collect(&self) -> Result<Collected> {
        let lock = match self.lock(FlockOperation::NonBlockingLockExclusive) {
            Ok(lock) => lock,
            Err(error) if is_busy(&error) => return Ok(Collected { postponed: true, ..Collected::default() }),
            Err(error) => return Err(error),
        };
        let wanted = self.wanted()?;
        let mut collected = Collected::default();
        for digest in digests(&self.blobs)? {
            if !wanted.blobs.contains(&digest) {
                collected.bytes += self.blob_size(digest).unwrap_or(0);
                collected.blobs += 1;
                self.discard(&self.blobs, &digest.to_string(), &digest.to_string())?;
            }
        }
        for (ids, trees) in self.all_apart()? {
            for digest in trees.all()?.into_iter().filter(|digest| !wanted.layers.contains(digest)) {
                collected.bytes += self.layer_size(digest).unwrap_or(0);
                self.discard(trees.directory(), &digest.to_string(), &discarded(&ids, digest))?;
            }
        }
        for digest in self.layers.all()? {
            if !wanted.layers.contains(&digest) {
                collected.bytes += self.layer_size(digest).unwrap_or(0);
                collected.layers += 1;
                self.discard(self.layers.directory(), &digest.to_string(), &digest.to_string())?;
                self.discard(self.layers.directory(), &size_note(digest), &size_note(digest))?;
            }
        }
        self.sweep_names()?;
        // To remove a large tree takes a while, and what is in the trash is in nobody's way.
        drop(lock);
        self.empty_trash();
        Ok(collected)
    }

    /// Of everything in the store, on disk: blobs, and files of unpacked layers.
    pub fn size(&self) -> Result<u64> {
        let blobs = digests(&self.blobs)?.into_iter().map(|digest| self.blob_size(digest).unwrap_or(0)).sum::<u64>();
        let layers = self.layers.all()?.into_iter().map(|digest| self.layer_size(digest).unwrap_or(0)).sum::<u64>();
        Ok(blobs + layers + self.size_apart()?)
    }

    pub(super) fn empty_trash(&self) {
        // Somebody else may be at it, or die at it: the next one goes on.
        for name in self.trash.names().unwrap_or_default() {
            if let Some(name) = Name::new(&name) {
                let _ = remove(&self.trash, name);
            }
        }
    }

    fn wanted(&self) -> Result<Wanted> {
        let mut wanted = Wanted::default();
        for named in self.names()? {
            wanted.blobs.extend(named.index);
            self.want(&named.manifest, &mut wanted);
        }
        for digest in digests(&self.uses)? {
            let name = digest.to_string();
            match lock_file(&self.uses, &name, FlockOperation::NonBlockingLockExclusive) {
                // Nobody can have begun to wait for it: that takes the lock which is held here.
                Ok(_unused) => self.uses.remove_file(constant(&name)).map_err(Error::io("removing a mark of use"))?,
                Err(error) if is_busy(&error) => {
                    let size = self.blob_size(digest).unwrap_or(0);
                    self.want(&Descriptor::new("", digest, size), &mut wanted);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(wanted)
    }

    /// An image that cannot be read any more wants nothing but itself.
    fn want(&self, manifest: &Descriptor, wanted: &mut Wanted) {
        wanted.blobs.insert(manifest.digest);
        let Ok(bytes) = self.read_document(manifest) else { return };
        let Ok(Document::Manifest(parsed)) = Document::parse(&bytes, None) else { return };
        wanted.blobs.insert(parsed.config.digest);
        wanted.blobs.extend(parsed.layers.iter().map(|layer| layer.digest));
        let Ok(bytes) = self.read_document(&parsed.config) else { return };
        let Ok(config) = crate::config::ImageConfig::parse(&bytes) else { return };
        wanted.layers.extend(config.rootfs.diff_ids);
    }

    fn discard(&self, from: &Directory, name: &str, discarded: &str) -> Result<()> {
        // A name in the trash may be taken by something that could not be removed.
        let doing = || Error::io(format!("removing {name}"));
        let _ = remove(&self.trash, constant(discarded));
        match rustix::fs::renameat(from, name, &self.trash, discarded) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(doing()(error.into())),
        }
    }
}

fn digests(directory: &Directory) -> Result<Vec<Digest>> {
    let names = directory.names().map_err(Error::io("listing the store"))?;
    Ok(names.iter().filter_map(|name| Digest::parse(std::str::from_utf8(name).ok()?)).collect())
}
