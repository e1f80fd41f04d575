//! Writing a file whole or not at all.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
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
    let file = rustix::fs::openat(&target.directory, ".", OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC, mode)?;
    rustix::fs::fchmod(&file, mode)?;
    wire::send(channel.as_fd(), &FromFile::Done, &[])?;
    copy(&pipe, &file)?;
    await_commit(channel)?;
    rustix::fs::fsync(&file)?;
    target.give_name(&file, options.replace)
}

/// Take the contents of several files from the pipe, and give each its name when it is whole. They replace what was there.
pub fn place(files: &[PlacedFile], pipe: &OwnedFd) -> Result<(), FileFailure> {
    for file in files {
        let target = Target::find(&file.path, true)?;
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let unnamed = rustix::fs::openat(&target.directory, ".", flags, Mode::from_raw_mode(0o644))?;
        let mut left = file.bytes;
        while left > 0 {
            match rustix::pipe::splice(pipe, None, &unnamed, None, left as usize, SpliceFlags::MOVE) {
                Ok(0) => return Err(FileFailure::System(libc::ECANCELED)),
                Ok(count) => left = left.saturating_sub(count as u64),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        target.give_name(&unnamed, true)?;
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
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
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

    fn give_name(&self, file: &OwnedFd, replace: bool) -> Result<(), FileFailure> {
        let anonymous = format!("/proc/self/fd/{}", file.as_raw_fd());
        let link =
            |name: &[u8]| rustix::fs::linkat(CWD, anonymous.as_str(), &self.directory, name, AtFlags::SYMLINK_FOLLOW);
        if !replace || !self.exists {
            match link(&self.name) {
                Err(Errno::EXIST) if replace => {}
                result => return Ok(result?),
            }
        }
        let temporary = format!(".sandpen-{}.new", rustix::process::getpid().as_raw_nonzero());
        link(temporary.as_bytes())?;
        rustix::fs::renameat(&self.directory, temporary.as_str(), &self.directory, &self.name).map_err(|error| {
            let _ = rustix::fs::unlinkat(&self.directory, temporary.as_str(), AtFlags::empty());
            error.into()
        })
    }
}

fn open_directory(path: &[u8], make: bool) -> Result<OwnedFd, FileFailure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = || rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS);
    match open() {
        Err(Errno::NOENT) if make => {
            make_directories(path)?;
            Ok(open()?)
        }
        Err(Errno::NOTDIR) => Err(FileFailure::NotDirectory),
        result => Ok(result?),
    }
}
