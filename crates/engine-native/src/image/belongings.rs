//! What of an image belongs to the user that programs run as.
//!
//! As root it is that user's by a mount. An ordinary user's sandboxes see the image's files as nobody's; there it is written
//! down once as a layer, which every sandbox unpacks beside its writable layer and has over the image.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use images::belongings::{Account, Bounds};
use images::overlaid::Overlaid;
use images::{Digest, Directory};
use sandbox::{Error, Result};
use serde::{Deserialize, Serialize};

use super::{Fill, User, image_error};
use crate::collect;

/// Some milliseconds of each start, and this much memory of each sandbox.
const BOUNDS: Bounds = Bounds { entries: 2048, bytes: 8 << 20 };

/// What files in memory are measured in, nearly everywhere.
const PAGE: u64 = 4096;

/// A copy of what there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Belongings {
    pub layer: Fill,
    pub entries: u64,
    pub bytes: u64,
}

impl Belongings {
    /// With what is lost at the end of each file.
    pub fn most_bytes(&self) -> u64 {
        self.bytes + self.entries * PAGE
    }
}

/// Written next to the archive.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    digest: Digest,
    entries: u64,
    bytes: u64,
}

/// Sets apart what several engines in one process are writing at once.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

/// What of these layers, the highest first, is this user's. Found once for an image, and kept below `directory`.
pub fn find(image: Digest, lowers: &[PathBuf], user: User, directory: &Path) -> Result<Option<Belongings>> {
    // The same image may be saved with other layers above it, which are no part of this.
    let place = directory.join(format!("belongings-{}-{}-{}-{}", image.digits(), lowers.len(), user.id, user.group));
    collect::keep(&place);
    if let Some(note) = read(&place) {
        return Ok(told(&place, note));
    }
    let unwritable =
        |cause: io::Error| Error::unavailable("the files of the image's user cannot be copied").with_cause(cause);
    let attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
    let unfinished = directory.join(format!("new-belongings-{}-{attempt}", std::process::id()));
    fs::create_dir(&unfinished).map_err(unwritable)?;
    let note = write(&unfinished, lowers, user).and_then(|note| {
        fs::rename(&unfinished, &place).map_err(unwritable)?;
        Ok(note)
    });
    match note {
        Ok(note) => Ok(told(&place, note)),
        Err(error) => {
            let _ = fs::remove_dir_all(&unfinished);
            // Another process may have been faster; what it wrote is the same.
            read(&place).map_or(Err(error), |note| Ok(told(&place, note)))
        }
    }
}

/// Makes sure that what a sandbox began with is there for its next start.
pub fn restore(own: &Belongings, lowers: &[PathBuf], user: User) -> Result<()> {
    let Some(place) = own.layer.path.parent() else { return Ok(()) };
    collect::keep(place);
    if own.layer.path.exists() {
        return Ok(());
    }
    let unwritable =
        |cause: io::Error| Error::unavailable("the files of the image's user cannot be copied").with_cause(cause);
    fs::create_dir_all(place).map_err(unwritable)?;
    write(place, lowers, user).map(drop)
}

fn write(place: &Path, lowers: &[PathBuf], user: User) -> Result<Note> {
    let unwritable =
        |cause: io::Error| Error::unavailable("the files of the image's user cannot be copied").with_cause(cause);
    let trees = lowers.iter().map(|path| Directory::open(path)).collect::<io::Result<Vec<_>>>().map_err(unwritable)?;
    let file = File::create(place.join("layer")).map_err(unwritable)?;
    let tree = Overlaid::of_layers(trees);
    let account = Account { user: user.id, group: user.group };
    let found = images::belongings::write(&tree, account, BOUNDS, &file).map_err(image_error)?;
    if found.left_out > 0 {
        tracing::info!(left_out = found.left_out, "files of the image's user stay as they are: there are too many");
    }
    let note = Note { digest: found.digest, entries: found.entries, bytes: found.bytes };
    let text = serde_json::to_vec(&note).map_err(|cause| unwritable(cause.into()))?;
    fs::write(place.join("note"), text).map_err(unwritable)?;
    Ok(note)
}

fn read(place: &Path) -> Option<Note> {
    serde_json::from_slice(&fs::read(place.join("note")).ok()?).ok()
}

fn told(place: &Path, note: Note) -> Option<Belongings> {
    let layer = Fill { path: place.join("layer"), digest: note.digest };
    (note.entries > 0).then_some(Belongings { layer, entries: note.entries, bytes: note.bytes })
}
