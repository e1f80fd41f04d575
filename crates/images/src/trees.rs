//! Directory trees on disk, named after what they were made from, each made once.
//!
//! ```text
//! sha256-…/                a finished tree; it appears whole, by a rename, and never changes
//! .unfinished-sha256-…/    a tree being made, by the holder of the lock or by somebody who died
//! .lock-sha256-…           held with flock(2) while making, so the kernel forgets it with its holder
//! ```
//!
//! Several processes may use them. A lock file is never removed: whoever waits for it would hold a lock on
//! nothing while the next one makes the file anew.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::confined::{Directory, Name, is_directory};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::hands;

const UNFINISHED: &str = ".unfinished-";
const LOCK: &str = ".lock-";

#[derive(Debug)]
pub struct Trees {
    path: PathBuf,
    directory: Directory,
}

impl Trees {
    /// Those in a directory that is open, and is at `path`.
    pub fn new(path: PathBuf, directory: Directory) -> Self {
        Self { path, directory }
    }

    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The digests of all finished trees.
    pub fn all(&self) -> Result<Vec<Digest>> {
        let names = self.directory.names().map_err(Error::io("listing the store"))?;
        Ok(names.iter().filter_map(|name| Digest::parse(std::str::from_utf8(name).ok()?)).collect())
    }

    /// The finished tree of this digest.
    pub fn get(&self, digest: Digest) -> Result<Option<PathBuf>> {
        let name = digest.to_string();
        let stat = self.directory.stat(constant(&name)).map_err(Error::io(format!("looking for {name}")))?;
        Ok(stat.filter(is_directory).map(|_| self.path.join(name)))
    }

    /// The finished tree of this digest, filled by `make` if nobody has done so before.
    ///
    /// Waits while another process makes the same tree. If `make` fails, nothing of its work is left.
    pub fn get_or_make(&self, digest: Digest, make: impl FnOnce(&Directory) -> Result<()>) -> Result<PathBuf> {
        if let Some(path) = self.get(digest)? {
            return Ok(path);
        }
        let _lock = self.lock(digest, FlockOperation::LockExclusive)?;
        if let Some(path) = self.get(digest)? {
            return Ok(path);
        }
        let finished = digest.to_string();
        let unfinished = format!("{UNFINISHED}{digest}");
        let making = || format!("making {finished}");
        remove(&self.directory, constant(&unfinished)).map_err(Error::io(making()))?;
        let made = self.fill(constant(&unfinished), make).and_then(|()| {
            self.directory.publish(constant(&unfinished), constant(&finished)).map_err(Error::io(making()))
        });
        match made {
            Ok(()) => Ok(self.path.join(finished)),
            Err(error) => {
                // What cannot be removed now is removed by the next one to make this tree, or by a sweep.
                let _ = remove(&self.directory, constant(&unfinished));
                Err(error)
            }
        }
    }

    /// Removes what died makers left. Trees that somebody is making now are left alone.
    pub fn sweep(&self) -> Result<()> {
        for name in self.directory.names().map_err(Error::io("listing the store"))? {
            let digest = std::str::from_utf8(&name).ok().and_then(|name| name.strip_prefix(UNFINISHED));
            let (Some(digest), Some(name)) = (digest.and_then(Digest::parse), Name::new(&name)) else { continue };
            let lock = self.lock(digest, FlockOperation::NonBlockingLockExclusive);
            match lock {
                Ok(_lock) => remove(&self.directory, name).map_err(Error::io("removing an unfinished tree"))?,
                Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn fill(&self, name: Name<'_>, make: impl FnOnce(&Directory) -> Result<()>) -> Result<()> {
        let directory = self
            .directory
            .make_directory(name, 0o700)
            .and_then(|()| self.directory.enter(name))
            .map_err(Error::io(format!("making {name:?}")))?;
        make(&directory)?;
        // A root must be open to whoever it is the root of; what encloses the store keeps others out.
        directory.set_mode(0o755).map_err(Error::io(format!("opening {name:?}")))?;
        directory.sync_file_system().map_err(Error::io(format!("writing {name:?} to disk")))
    }

    fn lock(&self, digest: Digest, operation: FlockOperation) -> Result<File> {
        let name = format!("{LOCK}{digest}");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, &*name, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| Error::io(format!("opening {name}"))(error.into()))?;
        rustix::fs::flock(&file, operation).map_err(|error| Error::io(format!("locking {name}"))(error.into()))?;
        Ok(file.into())
    }
}

/// Removes a tree of the store, by other hands where it has files of others.
pub fn remove(directory: &Directory, name: Name<'_>) -> io::Result<()> {
    let Err(error) = directory.remove_tree(name) else { return Ok(()) };
    match hands::lent() {
        Some(hands) if error.kind() == io::ErrorKind::PermissionDenied => {
            let place = directory.enter(name)?;
            place.set_mode(0o777)?;
            hands.clear(&place).map_err(io::Error::other)?;
            directory.remove_tree(name)
        }
        _ => Err(error),
    }
}

pub fn constant(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("names in the store are made of digests and constants")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn trees(path: &Path) -> Trees {
        Trees::new(path.to_owned(), Directory::open(path).unwrap())
    }

    fn write_hello(directory: &Directory) -> Result<()> {
        let mut file = directory.create_file(constant("hello"), 0o644).map_err(Error::io("test"))?;
        file.write_all(b"hello").map_err(Error::io("test"))
    }

    #[test]
    fn a_tree_is_made_once_even_by_many_at_once() {
        let place = tempfile::tempdir().unwrap();
        let made = AtomicUsize::new(0);
        let digest = Digest::of(b"tree");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let path = trees(place.path())
                        .get_or_make(digest, |directory| {
                            made.fetch_add(1, Ordering::Relaxed);
                            write_hello(directory)
                        })
                        .unwrap();
                    assert_eq!(fs::read(path.join("hello")).unwrap(), b"hello");
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn a_failed_tree_leaves_nothing_and_can_be_made_again() {
        let place = tempfile::tempdir().unwrap();
        let store = trees(place.path());
        let digest = Digest::of(b"tree");
        let failed = store.get_or_make(digest, |directory| {
            write_hello(directory)?;
            Err(Error::Refused("no".into()))
        });
        assert!(matches!(failed, Err(Error::Refused(_))));
        assert!(store.get(digest).unwrap().is_none());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "only the lock is left");
        assert!(store.get_or_make(digest, write_hello).is_ok());
    }

    #[test]
    fn what_a_crash_left_is_never_seen_and_swept() {
        let place = tempfile::tempdir().unwrap();
        let store = trees(place.path());
        let (crashed, busy) = (Digest::of(b"crashed"), Digest::of(b"busy"));
        for digest in [crashed, busy] {
            fs::create_dir_all(place.path().join(format!("{UNFINISHED}{digest}/half"))).unwrap();
        }
        assert!(store.get(crashed).unwrap().is_none());
        let held = store.lock(busy, FlockOperation::LockExclusive).unwrap();
        trees(place.path()).sweep().unwrap();
        assert!(!place.path().join(format!("{UNFINISHED}{crashed}")).exists());
        assert!(place.path().join(format!("{UNFINISHED}{busy}")).exists());
        drop(held);
        let path = store.get_or_make(busy, write_hello).unwrap();
        assert!(!path.join("half").exists());
    }
}
