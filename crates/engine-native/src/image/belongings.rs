//! What of an image belongs to the user that programs run as.
//!
//! As root it is that user's by a mount. An ordinary user's sandboxes see the image's files as nobody's; there it is written
//! down once as a layer, which every sandbox unpacks beside its writable layer and has over the image.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
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

/// What of these layers, the highest first, is this user's. Found once for all images that have them, and kept below
/// `directory`.
pub fn find(lowers: &[PathBuf], user: User, directory: &Path) -> Result<Option<Belongings>> {
    if lowers.is_empty() {
        return Ok(None);
    }
    // They are named after what they hold. Every save and fork is another image, over the same layers.
    let names: Vec<u8> = lowers.iter().flat_map(|path| [path.as_os_str().as_bytes(), b"\n"].concat()).collect();
    let place = directory.join(format!("belongings-{}-{}-{}", Digest::of(&names).digits(), user.id, user.group));
    collect::keep(&place);
    if let Some(note) = read(&place) {
        return Ok(told(&place, note));
    }
    make(&place, lowers, user).map(|note| told(&place, note))
}

/// Makes sure that what a sandbox began with is there for its next start.
pub fn restore(own: &Belongings, lowers: &[PathBuf], user: User) -> Result<()> {
    let Some(place) = own.layer.path.parent() else { return Ok(()) };
    collect::keep(place);
    if own.layer.path.exists() {
        return Ok(());
    }
    make(place, lowers, user).map(drop)
}

/// All of it appears at once, by a rename.
fn make(place: &Path, lowers: &[PathBuf], user: User) -> Result<Note> {
    let attempt = ATTEMPTS.fetch_add(1, Ordering::Relaxed);
    let unfinished = place.with_file_name(format!("new-belongings-{}-{attempt}", std::process::id()));
    // Somebody with the same number may have died at it.
    let _ = fs::remove_dir_all(&unfinished);
    let made = fs::create_dir_all(&unfinished).map_err(unwritable).and_then(|()| write(&unfinished, lowers, user));
    let made = made.and_then(|note| publish(&unfinished, place).map(|()| note).map_err(unwritable));
    made.or_else(|error| {
        let _ = fs::remove_dir_all(&unfinished);
        // Another process may have been faster; what it wrote is the same.
        read(place).ok_or(error)
    })
}

fn publish(unfinished: &Path, place: &Path) -> io::Result<()> {
    match fs::rename(unfinished, place) {
        // What a crash of the machine left is of no use to anybody.
        Err(_) if place.exists() && read(place).is_none() => {
            fs::remove_dir_all(place)?;
            fs::rename(unfinished, place)
        }
        result => result,
    }
}

fn write(place: &Path, lowers: &[PathBuf], user: User) -> Result<Note> {
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
    let write_note = || -> io::Result<()> {
        file.sync_all()?;
        let mut note = File::create(place.join("note"))?;
        note.write_all(&text)?;
        note.sync_all()
    };
    write_note().map_err(unwritable)?;
    Ok(note)
}

fn read(place: &Path) -> Option<Note> {
    serde_json::from_slice(&fs::read(place.join("note")).ok()?).ok()
}

fn told(place: &Path, note: Note) -> Option<Belongings> {
    let layer = Fill { path: place.join("layer"), digest: note.digest };
    (note.entries > 0).then_some(Belongings { layer, entries: note.entries, bytes: note.bytes })
}

fn unwritable(cause: io::Error) -> Error {
    Error::unavailable("the files of the image's user cannot be copied").with_cause(cause)
}

#[cfg(test)]
mod tests {
    use images::unpack::OWNER_ATTRIBUTE;
    use rustix::fs::XattrFlags;

    use super::*;

    fn layer(place: &Path) -> Vec<PathBuf> {
        let lower = place.join("layer");
        fs::create_dir_all(lower.join("srv")).unwrap();
        fs::write(lower.join("srv/own"), "own").unwrap();
        let file = File::open(lower.join("srv/own")).unwrap();
        rustix::fs::fsetxattr(&file, OWNER_ATTRIBUTE, b"1000:1000", XattrFlags::empty()).unwrap();
        vec![lower]
    }

    #[test]
    fn it_is_found_once_and_made_again_when_it_is_gone() {
        let place = tempfile::tempdir().unwrap();
        let (lowers, kept) = (layer(place.path()), place.path().join("kept"));
        let found = find(&lowers, User::SANDBOX, &kept).unwrap().unwrap();
        assert_eq!((found.entries, found.bytes), (2, 3));
        let before = fs::read(&found.layer.path).unwrap();
        assert_eq!(Digest::of(&before), found.layer.digest);
        fs::write(lowers[0].join("srv/own"), "layers never change, or this would be seen").unwrap();
        assert_eq!(find(&lowers, User::SANDBOX, &kept).unwrap().unwrap(), found);
        fs::write(lowers[0].join("srv/own"), "own").unwrap();
        fs::remove_dir_all(found.layer.path.parent().unwrap()).unwrap();
        restore(&found, &lowers, User::SANDBOX).unwrap();
        assert_eq!(find(&lowers, User::SANDBOX, &kept).unwrap().map(|found| found.entries), Some(2));
        assert_eq!(find(&lowers, User { id: 7, group: 7 }, &kept).unwrap(), None);
        assert_eq!(find(&[], User::SANDBOX, &kept).unwrap(), None);
    }

    #[test]
    fn what_a_crash_left_is_in_nobody_s_way() {
        let place = tempfile::tempdir().unwrap();
        let (lowers, kept) = (layer(place.path()), place.path().join("kept"));
        let found = find(&lowers, User::SANDBOX, &kept).unwrap().unwrap();
        let note = found.layer.path.with_file_name("note");
        fs::write(&note, "").unwrap();
        assert_eq!(find(&lowers, User::SANDBOX, &kept).unwrap().unwrap(), found);
        assert!(!fs::read(&note).unwrap().is_empty());
        assert_eq!(fs::read_dir(&kept).unwrap().count(), 1, "something is left beside it");
    }
}
