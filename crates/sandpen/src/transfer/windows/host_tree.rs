//! Writing below one directory of this machine what a sandbox has chosen the names of.
//!
//! Windows opens nothing relative to a directory for an ordinary program, so this goes by paths, and holds by other means:
//! no link is made at all, a name is one plain name or refused (`names`), and a directory on the way that is a link is
//! refused. What somebody swaps meanwhile in a directory of their own is theirs.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use sandbox::{Error, Result, SandboxId};

use super::kept::{Found, MOST_LEVELS, Opened};
use super::{HostSource, host_error, source};

/// A directory of this machine.
#[derive(Debug)]
pub struct HostTree {
    path: PathBuf,
}

impl HostTree {
    /// The directory that the person named; links in that name are theirs and are followed. Made if it is missing.
    pub fn open(path: &Path) -> Result<Self> {
        std::fs::create_dir_all(path).map_err(|cause| host_error(path, &cause))?;
        Self::open_existing(path)
    }

    pub fn open_existing(path: &Path) -> Result<Self> {
        let path = path.canonicalize().map_err(|cause| host_error(path, &cause))?;
        Ok(Self { path })
    }

    /// One directory below this one, made if it is missing.
    pub fn below(&self, name: &OsStr) -> Result<Self> {
        Ok(Self { path: self.directory(&[name])? })
    }

    /// There is nobody here to give things to.
    #[must_use]
    pub fn for_user(self, _: u32) -> Self {
        self
    }

    /// One directory below this one, made if it is missing. What is below the person's own directories is theirs alone.
    pub fn below_private(&self, name: &OsStr, _: &Path) -> Result<Self> {
        self.below(name)
    }

    /// One that is there.
    pub fn existing(&self, name: &OsStr, _: &Path) -> io::Result<Option<Self>> {
        let path = self.path.join(name);
        match std::fs::symlink_metadata(&path) {
            Ok(found) => Ok(found.is_dir().then_some(Self { path })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What has this name below, through no link.
    pub fn open_below(&self, names: &[impl AsRef<OsStr>]) -> io::Result<Opened> {
        let mut path = self.path.clone();
        let mut kind = None;
        for name in names {
            path.push(name.as_ref());
            kind = match std::fs::symlink_metadata(&path) {
                Ok(found) if found.is_symlink() => return Ok(Opened::Nothing),
                Ok(found) => Some(found.file_type()),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Opened::Nothing),
                Err(error) => return Err(error),
            };
        }
        match kind {
            Some(kind) if kind.is_file() => File::open(&path).map(Opened::File),
            Some(kind) if kind.is_dir() => Ok(Opened::Directory),
            Some(_) | None => Ok(Opened::Nothing),
        }
    }

    /// All that is below, directories before what they hold. Fails when there is more than this, or when it is too deep.
    pub fn walk(&self, most: usize) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        walk(&self.path, &mut Vec::new(), most, &mut found)?;
        Ok(found)
    }

    /// The names of what is at the top, in no order.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        std::fs::read_dir(&self.path)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
    }

    /// A file, a link (never what it leads to), or a directory with nothing in it. One that is gone is a success.
    pub fn remove(&self, names: &[impl AsRef<OsStr>]) -> io::Result<()> {
        let path = names.iter().fold(self.path.clone(), |path, name| path.join(name.as_ref()));
        let removed = match std::fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => std::fs::remove_dir(&path),
            Ok(_) => std::fs::remove_file(&path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The whole of it, to be copied.
    pub fn source(&self) -> Result<HostSource> {
        let file = source::open(&self.path).map_err(|cause| host_error(&self.path, &cause))?;
        Ok(HostSource { file, path: self.path.clone() })
    }

    /// A directory below, with those above it, each made if it is missing.
    pub fn directory(&self, names: &[impl AsRef<OsStr>]) -> Result<PathBuf> {
        let mut path = self.path.clone();
        for name in names {
            path.push(name.as_ref());
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(host_error(&path, &error)),
                Ok(()) | Err(_) => {}
            }
            let found = std::fs::symlink_metadata(&path).map_err(|cause| host_error(&path, &cause))?;
            if !found.is_dir() {
                return Err(Error::invalid_input(format!(
                    "{} is in the way, because it is not a directory",
                    path.display()
                ))
                .with_hint("copy to a directory without it"));
            }
        }
        Ok(path)
    }

    /// A file that replaces whatever has the name, but not a directory, when it is committed.
    pub fn new_file(&self, above: &[impl AsRef<OsStr>], name: &OsStr) -> Result<NewFile> {
        let directory = self.directory(above)?;
        let temporary = directory.join(format!(".{}.part", SandboxId::random()?));
        let path = directory.join(name);
        let file = File::create_new(&temporary).map_err(|cause| host_error(&path, &cause))?;
        Ok(NewFile { temporary: Some(temporary), file: Some(file), path })
    }

    /// The same: who may do what with a file is said by its directory.
    pub fn new_usual_file(&self, above: &[impl AsRef<OsStr>], name: &OsStr) -> Result<NewFile> {
        self.new_file(above, name)
    }

    /// To make one takes a right that people do not have, and one that leads out would be followed by the next program.
    pub fn link(&self, above: &[impl AsRef<OsStr>], name: &OsStr, _: &OsStr) -> Result<()> {
        let path = self.directory(above)?.join(name);
        Err(Error::unsupported(format!("{} is a link, and none is made on Windows", path.display()))
            .with_hint("pack the directory into an archive in the sandbox, and copy that"))
    }
}

/// A file under a name of ours until it is whole. Dropped before that, it leaves no trace.
#[derive(Debug)]
pub struct NewFile {
    temporary: Option<PathBuf>,
    /// Closed before it gets its name.
    file: Option<File>,
    path: PathBuf,
}

impl NewFile {
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes));
        written.map_err(|cause| host_error(&self.path, &cause))
    }

    /// Windows has no bits that say who may execute it.
    pub fn commit(self, _: u32) -> Result<()> {
        self.commit_as_made()
    }

    pub fn commit_as_made(mut self) -> Result<()> {
        drop(self.file.take());
        if let Some(temporary) = &self.temporary {
            std::fs::rename(temporary, &self.path).map_err(|cause| host_error(&self.path, &cause))?;
        }
        self.temporary = None;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        drop(self.file.take());
        if let Some(temporary) = &self.temporary {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

fn walk(directory: &Path, above: &mut Vec<OsString>, most: usize, found: &mut Vec<Found>) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if found.len() >= most {
            return Err(io::Error::other("there are too many files"));
        }
        if above.len() >= MOST_LEVELS {
            return Err(io::Error::other("there are too many directories within each other"));
        }
        above.push(entry.file_name());
        found.push(Found { names: above.clone(), bytes: metadata.is_file().then_some(metadata.len()) });
        if metadata.is_dir() {
            walk(&entry.path(), above, most, found)?;
        }
        above.pop();
    }
    Ok(())
}
