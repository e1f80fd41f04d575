//! Writing a file whole or not at all.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::SpliceFlags;

use super::make_directories;
use crate::wire::{self, FileFailure, FromFile, PlacedFile, ToFile};

pub struct Options {
    pub mode: u32,
    pub parents: bool,
    pub replace: bool,
}

/// As many links as the kernel itself would follow.
const MAX_LINKS: usize = 40;

/// Take bytes from the pipe into a file without a name; give it its name when the sender says that all have come.
///
/// Until then a reader sees the old file, and a sender that goes away leaves nothing behind.
pub fn write(channel: &OwnedFd, path: &[u8], options: Options, pipe: OwnedFd) -> Result<(), FileFailure> {
    let target = Target::find(path, options.parents)?;
    if target.exists && !options.replace {
        return Err(FileFailure::System(libc::EEXIST));
    }
    let mode = Mode::from_raw_mode(options.mode & 0o777);
    let unfinished = Unfinished::make(&target.directory, mode)?;
    rustix::fs::fchmod(&unfinished.file, mode)?;
    wire::send(channel.as_fd(), &FromFile::Done, &[])?;
    copy(&pipe, &unfinished.file)?;
    await_commit(channel)?;
    rustix::fs::fsync(&unfinished.file)?;
    target.give_name(&unfinished, options.replace)
}

/// Take the contents of several files from the pipe, and give each its name when it is whole. They replace what was there.
pub fn place(files: &[PlacedFile], pipe: &OwnedFd) -> Result<(), FileFailure> {
    for file in files {
        let target = Target::find(&file.path, true)?;
        let unfinished = Unfinished::make(&target.directory, Mode::from_raw_mode(0o644))?;
        let (mut left, mut bytes) = (file.bytes, [0; 64 << 10]);
        while left > 0 {
            let most = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match rustix::io::read(pipe, &mut bytes[..most]) {
                Ok(0) => return Err(FileFailure::System(libc::ECANCELED)),
                Ok(count) => {
                    write_all(&unfinished.file, &bytes[..count])?;
                    left -= count as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        target.give_name(&unfinished, true)?;
    }
    Ok(())
}

/// The sender closes its pipe both when it is done and when it gives up; only the message tells which.
pub fn await_commit(channel: &OwnedFd) -> Result<(), FileFailure> {
    match wire::receive::<ToFile>(channel.as_fd())? {
        Some((ToFile::Commit, _)) => Ok(()),
        None => Err(FileFailure::System(libc::ECANCELED)),
    }
}

/// In the kernel where it can be done there, so that a large file costs one copy.
fn copy(pipe: &OwnedFd, file: &OwnedFd) -> Result<(), FileFailure> {
    loop {
        match rustix::pipe::splice(pipe, None, file, None, 1 << 20, SpliceFlags::MOVE) {
            Ok(0) => return copy_by_hand(pipe, file),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Not every kernel means the end by nothing (gVisor): only a read that has nothing is the end.
fn copy_by_hand(pipe: &OwnedFd, file: &OwnedFd) -> Result<(), FileFailure> {
    let mut bytes = [0; 64 << 10];
    loop {
        match rustix::io::read(pipe, &mut bytes) {
            Ok(0) => return Ok(()),
            Ok(count) => write_all(file, &bytes[..count])?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), FileFailure> {
    while !bytes.is_empty() {
        bytes = &bytes[rustix::io::retry_on_intr(|| rustix::io::write(file, bytes))?..];
    }
    Ok(())
}

/// A file that nobody is meant to see yet.
struct Unfinished<'a> {
    file: OwnedFd,
    directory: &'a OwnedFd,
    /// Its name, removed with this value, where files without one cannot be made: on overlays before Linux 6.1.
    name: Option<String>,
}

impl<'a> Unfinished<'a> {
    fn make(directory: &'a OwnedFd, mode: Mode) -> Result<Self, FileFailure> {
        match rustix::fs::openat(directory, ".", OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC, mode) {
            Ok(file) => Ok(Self { file, directory, name: None }),
            Err(Errno::OPNOTSUPP) => Self::make_named(directory, mode),
            Err(error) => Err(error.into()),
        }
    }

    fn make_named(directory: &'a OwnedFd, mode: Mode) -> Result<Self, FileFailure> {
        let name = temporary_name("part");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, name.as_str(), flags, mode)?;
        Ok(Self { file, directory, name: Some(name) })
    }

    fn link(&self, name: &[u8]) -> rustix::io::Result<()> {
        match &self.name {
            Some(own) => rustix::fs::linkat(self.directory, own.as_str(), self.directory, name, AtFlags::empty()),
            None => {
                let anonymous = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                rustix::fs::linkat(CWD, anonymous.as_str(), self.directory, name, AtFlags::SYMLINK_FOLLOW)
            }
        }
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = rustix::fs::unlinkat(self.directory, name.as_str(), AtFlags::empty());
        }
    }
}

fn temporary_name(ending: &str) -> String {
    format!(".sandpen-{}.{ending}", rustix::process::getpid().as_raw_nonzero())
}

/// Where a file is to stand: its directory, held open, and its name there.
struct Target {
    directory: OwnedFd,
    name: Vec<u8>,
    /// Whether a regular file stands there now.
    exists: bool,
}

impl Target {
    /// Follow links by hand down to the name that will be replaced: a rename replaces a link, not what it points to.
    fn find(path: &[u8], parents: bool) -> Result<Self, FileFailure> {
        let mut path = path.to_vec();
        for _ in 0..MAX_LINKS {
            let slash = path.iter().rposition(|&byte| byte == b'/').ok_or(FileFailure::System(libc::EINVAL))?;
            let (parent, name) = (&path[..slash.max(1)], path[slash + 1..].to_vec());
            if name.is_empty() {
                return Err(FileFailure::IsDirectory);
            }
            let directory = open_directory(parent, parents)?;
            let stat = match rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => return Ok(Self { directory, name, exists: false }),
                Err(error) => return Err(error.into()),
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => return Ok(Self { directory, name, exists: true }),
                FileType::Directory => return Err(FileFailure::IsDirectory),
                FileType::Symlink => {
                    let link = rustix::fs::readlinkat(&directory, &name, Vec::new())?.into_bytes();
                    path = if link.starts_with(b"/") { link } else { [parent, b"/", link.as_slice()].concat() };
                }
                _ => return Err(FileFailure::NotRegular),
            }
        }
        Err(FileFailure::System(libc::ELOOP))
    }

    fn give_name(&self, unfinished: &Unfinished<'_>, replace: bool) -> Result<(), FileFailure> {
        if !replace || !self.exists {
            match unfinished.link(&self.name) {
                Err(Errno::EXIST) if replace => {}
                result => return Ok(result?),
            }
        }
        let temporary = temporary_name("new");
        unfinished.link(temporary.as_bytes())?;
        rustix::fs::renameat(&self.directory, temporary.as_str(), &self.directory, &self.name).map_err(|error| {
            let _ = rustix::fs::unlinkat(&self.directory, temporary.as_str(), AtFlags::empty());
            error.into()
        })
    }
}

fn open_directory(path: &[u8], make: bool) -> Result<OwnedFd, FileFailure> {
    let open = || super::open(path, OFlags::RDONLY | OFlags::DIRECTORY);
    match open() {
        Err(Errno::NOENT) if make => {
            make_directories(path)?;
            Ok(open()?)
        }
        Err(Errno::NOTDIR) => Err(FileFailure::NotDirectory),
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_must_have_a_name_meanwhile_leaves_none() {
        let place = std::env::temp_dir().join(temporary_name("test"));
        std::fs::create_dir(&place).unwrap();
        let directory = open_directory(place.to_str().unwrap().as_bytes(), false).unwrap();
        let names = || std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        for (name, replace) in [("given", false), ("given", true)] {
            let exists = place.join(name).exists();
            let target = Target { directory: directory.try_clone().unwrap(), name: name.into(), exists };
            let unfinished = Unfinished::make_named(&target.directory, Mode::from_raw_mode(0o600)).unwrap();
            assert_eq!(names().len(), 1 + usize::from(exists));
            target.give_name(&unfinished, replace).unwrap();
            drop(unfinished);
            assert_eq!(names(), [name]);
        }
        std::fs::remove_dir_all(place).unwrap();
    }
}
