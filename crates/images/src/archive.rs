//! Root trees from archives of the host: each is read and unpacked once, however often it is asked for.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::digest::{Digest, Hashing};
use crate::error::{Error, Result};
use crate::stamp::{self, Stamps};
use crate::store::Store;
use crate::unpack::{Limits, Links, unpack};

/// The unpacked tree of the archive at `path`.
///
/// An archive that has not changed since the last time costs a stat. Any other is read whole, so this belongs on a
/// thread that may block.
pub fn unpacked(store: &Store, path: &Path, limits: &Limits) -> Result<PathBuf> {
    let known = store.directory().join(format!("archive-{}.json", Digest::of(path.as_os_str().as_bytes())));
    if let Some(digest) = stamp::load::<String>(&known).as_deref().and_then(Digest::parse)
        && let Some(tree) = store.get(digest)?
    {
        return Ok(tree);
    }
    let mut stamps = Stamps::default();
    stamps.path(path);
    let mut file = open(path)?;
    let doing = || Error::io(format!("reading {}", path.display()));
    let digest = Digest::of_reader(&file).map_err(doing())?;
    let tree = store.get_or_make(digest, |directory| {
        file.seek(SeekFrom::Start(0)).map_err(doing())?;
        let mut hashing = Hashing::new(&file);
        let summary = unpack(&mut hashing, directory, limits, Links::Any)?;
        // What follows the end mark is not unpacked, but it is part of what the digest names.
        io::copy(&mut hashing, &mut io::sink()).map_err(doing())?;
        if hashing.finish() != digest {
            return Err(Error::Refused("the archive changed while it was read".to_owned()));
        }
        if summary.entries == 0 {
            return Err(Error::Refused("the archive is empty".to_owned()));
        }
        Ok(())
    })?;
    stamp::save(&known, &stamps, &digest.to_string()).map_err(Error::io("keeping what an archive holds"))?;
    Ok(tree)
}

/// Only a regular file: reading from anything else may never end.
fn open(path: &Path) -> Result<File> {
    let doing = || Error::io(format!("opening {}", path.display()));
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|error| doing()(error.into()))?);
    if !file.metadata().map_err(doing())?.is_file() {
        return Err(Error::Refused("it is not a file".to_owned()));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write_archive(path: &Path, contents: &str) {
        let mut builder = tar::Builder::new(File::create(path).unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, "etc/name", contents.as_bytes()).unwrap();
        builder.finish().unwrap();
    }

    #[test]
    fn an_archive_is_unpacked_once_and_again_when_it_changes() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(&place.path().join("store")).unwrap();
        let archive = place.path().join("root.tar");
        write_archive(&archive, "one");
        let first = unpacked(&store, &archive, &Limits::default()).unwrap();
        assert_eq!(fs::read_to_string(first.join("etc/name")).unwrap(), "one");
        assert_eq!(unpacked(&store, &archive, &Limits::default()).unwrap(), first);

        write_archive(&archive, "another");
        let second = unpacked(&store, &archive, &Limits::default()).unwrap();
        assert_ne!(second, first);
        assert_eq!(fs::read_to_string(second.join("etc/name")).unwrap(), "another");

        let copy = place.path().join("copy.tar");
        fs::copy(&archive, &copy).unwrap();
        assert_eq!(unpacked(&store, &copy, &Limits::default()).unwrap(), second, "the same contents are kept once");
    }

    #[test]
    fn what_is_no_archive_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(&place.path().join("store")).unwrap();
        let trees = || {
            fs::read_dir(place.path().join("store/roots"))
                .unwrap()
                .flatten()
                .filter(|entry| entry.path().is_dir())
                .count()
        };
        let archive = place.path().join("root.tar");
        for contents in [&b""[..], b"no archive at all, just some text", &[0; 1024]] {
            fs::write(&archive, contents).unwrap();
            let refused = unpacked(&store, &archive, &Limits::default());
            assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
        }
        assert!(matches!(unpacked(&store, place.path(), &Limits::default()), Err(Error::Refused(_))));
        assert_eq!(trees(), 0);
    }
}
