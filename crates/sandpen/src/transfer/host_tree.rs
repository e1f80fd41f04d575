//! Writing below one directory of this machine what a sandbox has chosen the names of.
//!
//! The attacks are known from every `cp` of every sandbox: a link that leads out of the directory followed by a file
//! written through it, in one copy or over two. So every step goes from a directory descriptor to one name below it and
//! follows no link, a file is made under a new name and then put in place, and the links of a copy are made last.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RawMode};
use rustix::io::Errno;
use sandbox::{Error, Result, SandboxId};

use super::kept::{Found, MOST_LEVELS, Opened};
use super::resolve::resolve;
use super::{HostSource, host_error};

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory of this machine, by descriptor. Its path is only for messages.
#[derive(Debug)]
pub struct HostTree {
    root: OwnedFd,
    path: PathBuf,
    /// Whose that is which is made here, if not this process's user's.
    user: Option<u32>,
}

impl HostTree {
    /// The directory that the person named; links in that name are theirs and are followed. Made if it is missing.
    pub fn open(path: &Path) -> Result<Self> {
        std::fs::create_dir_all(path).map_err(|cause| host_error(path, &cause))?;
        Self::open_existing(path)
    }

    /// A directory that was opened before; `path` is what messages call it.
    pub fn from_descriptor(root: OwnedFd, path: PathBuf) -> Self {
        Self { root, path, user: None }
    }

    /// What is made from now on is this user's and its group's, as far as this process can give things away.
    #[must_use]
    pub fn for_user(self, user: u32) -> Self {
        Self { user: Some(user), ..self }
    }

    /// One directory below this one, made if it is missing.
    pub fn below(&self, name: &OsStr) -> Result<Self> {
        Ok(Self { root: self.directory(&[name])?, path: self.path.join(name), user: self.user })
    }

    pub fn open_existing(path: &Path) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| host_error(path, &errno.into()))?;
        Ok(Self { root, path: path.to_owned(), user: None })
    }

    /// One directory below this one, called `shown` in messages, for its user alone if it has to be made.
    pub fn below_private(&self, name: &OsStr, shown: &Path) -> Result<Self> {
        let is_new = match rustix::fs::mkdirat(&self.root, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(host_error(shown, &errno.into())),
        };
        let found = self.existing(name, shown).map_err(|cause| host_error(shown, &cause))?;
        let found = found.ok_or_else(|| Error::unavailable(format!("{} is not a directory", shown.display())))?;
        if is_new {
            self.give(&found.root);
        }
        Ok(found)
    }

    /// One that is there, called `shown` in messages.
    pub fn existing(&self, name: &OsStr, shown: &Path) -> io::Result<Option<Self>> {
        match resolve(&self.root, Path::new(name), OFlags::RDONLY | DIRECTORY) {
            Ok(root) => Ok(Some(Self { root, path: shown.to_owned(), user: self.user })),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// What has this name below, through no link.
    pub fn open_below(&self, names: &[impl AsRef<OsStr>]) -> io::Result<Opened> {
        let path: PathBuf = names.iter().map(AsRef::as_ref).collect();
        // Opening must not wait for the other end of a pipe.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match resolve(&self.root, &path, flags) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NXIO | Errno::NAMETOOLONG) => {
                return Ok(Opened::Nothing);
            }
            Err(errno) => return Err(errno.into()),
        };
        let kind = file.metadata()?.file_type();
        Ok(match (kind.is_file(), kind.is_dir()) {
            (true, _) => Opened::File(file),
            (false, true) => Opened::Directory,
            (false, false) => Opened::Nothing,
        })
    }

    /// All that is below, directories before what they hold. Fails when there is more than this, or when it is too deep.
    pub fn walk(&self, most: usize) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        walk(&self.root, &mut Vec::new(), most, &mut found)?;
        Ok(found)
    }

    /// The names of what is at the top, in no order.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        Ok(entries(&self.root)?)
    }

    /// A file, a link (never what it leads to), or a directory with nothing in it. One that is gone is a success.
    pub fn remove(&self, names: &[impl AsRef<OsStr>]) -> io::Result<()> {
        let Some((name, above)) = names.split_last() else { return Ok(()) };
        let above: PathBuf = above.iter().map(AsRef::as_ref).collect();
        let removed = resolve(&self.root, &above, OFlags::RDONLY | DIRECTORY).and_then(|above| {
            match rustix::fs::unlinkat(&above, name.as_ref(), AtFlags::empty()) {
                Err(Errno::ISDIR | Errno::PERM) => rustix::fs::unlinkat(&above, name.as_ref(), AtFlags::REMOVEDIR),
                removed => removed,
            }
        });
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The whole of it, to be copied.
    pub fn source(&self) -> Result<HostSource> {
        let file = self.root.try_clone().map_err(|cause| host_error(&self.path, &cause))?;
        Ok(HostSource { file: file.into(), path: self.path.clone() })
    }

    /// A directory below, with those above it, each made if it is missing.
    pub fn directory(&self, names: &[impl AsRef<OsStr>]) -> Result<OwnedFd> {
        let mut current = self.root.try_clone().map_err(|cause| host_error(&self.path, &cause))?;
        let mut path = self.path.clone();
        for name in names {
            let name = name.as_ref();
            path.push(name);
            let is_new = match rustix::fs::mkdirat(&current, name, Mode::from_raw_mode(0o755)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(errno) => return Err(host_error(&path, &errno.into())),
            };
            current = rustix::fs::openat(&current, name, DIRECTORY, Mode::empty()).map_err(|errno| match errno {
                Errno::LOOP | Errno::NOTDIR => {
                    Error::invalid_input(format!("{} is in the way, because it is not a directory", path.display()))
                        .with_hint("copy to a directory without it")
                }
                errno => host_error(&path, &errno.into()),
            })?;
            if is_new {
                self.give(&current);
            }
        }
        Ok(current)
    }

    /// A file that replaces whatever has the name, but not a directory, when it is committed.
    pub fn new_file(&self, above: &[impl AsRef<OsStr>], name: &OsStr) -> Result<NewFile> {
        self.new_file_with(0o600, above, name)
    }

    /// The same with the mode that files have which nobody chose one for: this process's mask says what others may do.
    pub fn new_usual_file(&self, above: &[impl AsRef<OsStr>], name: &OsStr) -> Result<NewFile> {
        self.new_file_with(0o666, above, name)
    }

    fn new_file_with(&self, mode: RawMode, above: &[impl AsRef<OsStr>], name: &OsStr) -> Result<NewFile> {
        let directory = self.directory(above)?;
        let path = self.shown(above, name);
        let temporary = format!(".{}.part", SandboxId::random()?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, &temporary, flags, Mode::from_raw_mode(mode))
            .map_err(|errno| host_error(&path, &errno.into()))?;
        self.give(&file);
        Ok(NewFile { directory, temporary: Some(temporary), name: name.to_owned(), file: file.into(), path })
    }

    /// A link with any target at all: it is made, never followed.
    pub fn link(&self, above: &[impl AsRef<OsStr>], name: &OsStr, target: &OsStr) -> Result<()> {
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

    /// Only root can, and what stays ours is as good: nothing here depends on it.
    fn give(&self, made: &OwnedFd) {
        let Some(user) = self.user else { return };
        if let Err(error) = std::os::unix::fs::fchown(made, Some(user), Some(user)) {
            tracing::debug!(%error, user, "a file stays this process's own");
        }
    }

    fn shown(&self, above: &[impl AsRef<OsStr>], name: &OsStr) -> PathBuf {
        above.iter().fold(self.path.clone(), |path, name| path.join(name.as_ref())).join(name)
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
    pub fn commit(self, mode: u32) -> Result<()> {
        rustix::fs::fchmod(&self.file, permissions(mode)).map_err(|errno| host_error(&self.path, &errno.into()))?;
        self.commit_as_made()
    }

    /// With the mode that it was made with.
    pub fn commit_as_made(mut self) -> Result<()> {
        let failed = |errno: Errno| host_error(&self.path, &errno.into());
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

fn entries(directory: &OwnedFd) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

fn walk(directory: &OwnedFd, above: &mut Vec<OsString>, most: usize, found: &mut Vec<Found>) -> io::Result<()> {
    let mut names = entries(directory)?;
    names.sort();
    for name in names {
        let stat = match rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno.into()),
        };
        if found.len() >= most {
            return Err(io::Error::other("there are too many files"));
        }
        if above.len() >= MOST_LEVELS {
            return Err(io::Error::other("there are too many directories within each other"));
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        above.push(name);
        found.push(Found {
            names: above.clone(),
            bytes: (kind == FileType::RegularFile).then(|| u64::try_from(stat.st_size).unwrap_or(0)),
        });
        if let (FileType::Directory, Some(name)) = (kind, above.last()) {
            let below = rustix::fs::openat(directory, name, OFlags::RDONLY | DIRECTORY, Mode::empty())?;
            walk(&below, above, most, found)?;
        }
        above.pop();
    }
    Ok(())
}

/// The numbers of modes are not as wide on every system.
fn permissions(mode: u32) -> Mode {
    Mode::from_bits_truncate((mode & 0o777) as RawMode)
}
