//! Images and root trees on disk. Several processes may use one store at once, and any of them may die at any time.
//!
//! ```text
//! roots/                   trees of plain archives, see `trees`
//! v1/blobs/sha256-…        manifests, configurations and layers as they came; each appears whole, by a rename
//! v1/layers/               layers unpacked once by diff-id, for overlays to share; see `trees`
//! v1/apart/IDS/            the same layers with owners, for ordinary users: belonging to these ids, see `hands`
//! v1/names/sha256-….json   a name (its digest names the file) and the manifest it means; replaced by a rename
//! v1/downloads/sha256-…    blobs that have not come whole; kept for going on, for a week
//! v1/uses/sha256-…         held with a shared flock(2) by whoever uses the image of this manifest
//! v1/trash/                what was collected and is being removed
//! v1/lock                  held shared while adding and resolving, exclusively while collecting
//! ```
//!
//! Nothing can be seen before it is complete and its digest is right. A change of this layout gets a new number.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};

pub use self::blobs::NewBlob;
pub use self::collect::Collected;
pub use self::download::Download;
pub use self::image::{Image, ImageLayer};
pub use self::names::Named;
pub(crate) use self::writing::remaining;
pub use self::writing::{Begun, NewImage, Writing};
use crate::confined::{Directory, Missing};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::trees::{Trees, constant};

mod apart;
mod blobs;
mod collect;
mod download;
mod image;
mod names;
mod writing;

const VERSION: &str = "v1";

#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    roots: Trees,
    version: Directory,
    blobs: Directory,
    layers: Trees,
    apart: Directory,
    names: Directory,
    downloads: Directory,
    uses: Directory,
    trash: Directory,
}

impl Store {
    /// Opens the store in `path`, which is made if need be, readable by its maker alone.
    pub fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(path).map_err(Error::io(format!("making {shown}")))?;
        let top = Directory::open(path).map_err(Error::io(format!("opening {shown}")))?;
        let below = |directory: &Directory, name: &str| {
            directory
                .descend([constant(name)], Missing::Create)
                .map_err(Error::io(format!("opening {name} in {shown}")))
        };
        let version = below(&top, VERSION)?;
        Ok(Self {
            path: path.to_owned(),
            roots: Trees::new(path.join("roots"), below(&top, "roots")?),
            blobs: below(&version, "blobs")?,
            layers: Trees::new(path.join(VERSION).join("layers"), below(&version, "layers")?),
            apart: below(&version, "apart")?,
            names: below(&version, "names")?,
            downloads: below(&version, "downloads")?,
            uses: below(&version, "uses")?,
            trash: below(&version, "trash")?,
            version,
        })
    }

    /// Where the store itself is.
    pub fn directory(&self) -> &Path {
        &self.path
    }

    /// The finished root tree of this digest.
    pub fn get(&self, digest: Digest) -> Result<Option<PathBuf>> {
        self.roots.get(digest)
    }

    /// The finished root tree of this digest, filled by `make` if nobody has done so before.
    pub fn get_or_make(&self, digest: Digest, make: impl FnOnce(&Directory) -> Result<()>) -> Result<PathBuf> {
        self.roots.get_or_make(digest, make)
    }

    /// Removes what died makers left, and downloads that nobody went on with. What somebody is making now is left alone.
    pub fn sweep(&self) -> Result<()> {
        self.roots.sweep()?;
        self.layers.sweep()?;
        self.sweep_downloads()?;
        self.empty_trash();
        // Last, because they can be removed only while there are ids for it.
        self.all_apart()?.into_iter().try_for_each(|(_, trees)| trees.sweep())
    }

    fn lock(&self, operation: FlockOperation) -> Result<File> {
        lock_file(&self.version, "lock", operation)
    }
}

/// Opens a file for its lock alone.
fn lock_file(directory: &Directory, name: &str, operation: FlockOperation) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|error| Error::io(format!("opening {name}"))(error.into()))?;
    rustix::fs::flock(&file, operation).map_err(|error| Error::io(format!("locking {name}"))(error.into()))?;
    Ok(file.into())
}

fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::WouldBlock)
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
