//! Writing below one directory of this machine what a sandbox has chosen the names of.
//!
//! The attacks are known from every `cp` of every sandbox: a link that leads out of the directory followed by a file
//! written through it, in one copy or over two. So every step goes from a directory descriptor to one name below it and
//! follows no link, a file is made under a new name and then put in place, and the links of a copy are made last.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use sandbox::{Error, Result, SandboxId};

use super::host_error;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory of this machine, by descriptor. Its path is only for messages.
#[derive(Debug)]
pub struct HostTree {
    root: OwnedFd,
    path: PathBuf,
}

impl HostTree {
    /// The directory that the person named; links in that name are theirs and are followed. Made if it is missing.
    pub fn open(path: &Path) -> Result<Self> {
        std::fs::create_dir_all(path).map_err(|cause| host_error(path, &cause))?;
        Self::open_existing(path)
    }

    /// A directory that was opened before; `path` is what messages call it.
    pub fn from_descriptor(root: OwnedFd, path: PathBuf) -> Self {
        Self { root, path }
    }

    /// One directory below this one, made if it is missing.
    pub fn below(&self, name: &OsStr) -> Result<Self> {
        Ok(Self { root: self.directory(&[name])?, path: self.path.join(name) })
    }

    pub fn open_existing(path: &Path) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| host_error(path, &errno.into()))?;
        Ok(Self { root, path: path.to_owned() })
    }

    /// A directory below, with those above it, each made if it is missing.
    pub fn directory(&self, names: &[&OsStr]) -> Result<OwnedFd> {
        let mut current = self.root.try_clone().map_err(|cause| host_error(&self.path, &cause))?;
        let mut path = self.path.clone();
        for name in names {
            path.push(name);
            match rustix::fs::mkdirat(&current, *name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(host_error(&path, &errno.into())),
            }
            current = rustix::fs::openat(&current, *name, DIRECTORY, Mode::empty()).map_err(|errno| match errno {
                Errno::LOOP | Errno::NOTDIR => {
                    Error::invalid_input(format!("{} is in the way, because it is not a directory", path.display()))
                        .with_hint("copy to a directory without it")
                }
                errno => host_error(&path, &errno.into()),
            })?;
        }
        Ok(current)
    }

    /// A file that replaces whatever has the name, but not a directory, when it is committed.
    pub fn new_file(&self, above: &[&OsStr], name: &OsStr) -> Result<NewFile> {
        let directory = self.directory(above)?;
        let path = self.shown(above, name);
        let temporary = format!(".{}.part", SandboxId::random()?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, &temporary, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| host_error(&path, &errno.into()))?;
        Ok(NewFile { directory, temporary: Some(temporary), name: name.to_owned(), file: file.into(), path })
    }

    /// A link with any target at all: it is made, never followed.
    pub fn link(&self, above: &[&OsStr], name: &OsStr, target: &OsStr) -> Result<()> {
        let directory = self.directory(above)?;
        let path = self.shown(above, name);
        let failed = |errno: Errno| host_error(&path, &errno.into());
        match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                return Err(Error::invalid_input(format!(
                    "{} is in the way, because it is a directory",
                    path.display()
                )));
            }
            Ok(_) => rustix::fs::unlinkat(&directory, name, AtFlags::empty()).map_err(failed)?,
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
        rustix::fs::symlinkat(target, &directory, name).map_err(failed)
    }

    fn shown(&self, above: &[&OsStr], name: &OsStr) -> PathBuf {
        above.iter().fold(self.path.clone(), |path, name| path.join(name)).join(name)
    }
}

/// A file under a name of ours until it is whole. Dropped before that, it leaves no trace.
#[derive(Debug)]
pub struct NewFile {
    directory: OwnedFd,
    temporary: Option<String>,
    name: OsString,
    file: std::fs::File,
    path: PathBuf,
}

impl NewFile {
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|cause| host_error(&self.path, &cause))
    }

    /// Permission bits only: a set-id bit that sandboxed code chose has no business on this machine.
    pub fn commit(mut self, mode: u32) -> Result<()> {
        let failed = |errno: Errno| host_error(&self.path, &errno.into());
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode & 0o777)).map_err(failed)?;
        if let Some(temporary) = &self.temporary {
            rustix::fs::renameat(&self.directory, temporary, &self.directory, &self.name).map_err(failed)?;
        }
        self.temporary = None;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = rustix::fs::unlinkat(&self.directory, temporary, AtFlags::empty());
        }
    }
}
