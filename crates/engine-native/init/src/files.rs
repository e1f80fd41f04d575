//! File work for the server, done by a process of the sandbox's user inside the sandbox.
//!
//! Here every path means what it means to the sandboxed code, and every permission is the sandbox's own: a link that was
//! planted to lead the server astray leads to something that the code could reach anyway. Magic links of `/proc` are not
//! followed, because behind one of them may stand something that only this process can reach.

mod archive;
mod listing;
mod write;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};

use crate::syscall;
use crate::wire::{self, FileFailure, FileOperation, FromFile, Kind, Stat};
use crate::{identity, kept};

/// Do one operation, in a process of its own, and answer on its channel.
pub fn work(operation: FileOperation, channel: OwnedFd, pipe: Option<OwnedFd>) {
    // A reader that goes away is an error to report, not a death.
    syscall::ignore_signal(libc::SIGPIPE);
    rustix::process::umask(Mode::empty());

    // Held until the answer is sent: whoever sees the pipe close must find the reason already there.
    let _held = pipe.as_ref().and_then(|pipe| pipe.try_clone().ok());
    let done = identity::become_user(None).map_err(Into::into).and_then(|()| serve(operation, &channel, pipe));
    if let Err(failure) = done {
        let _ = wire::send(channel.as_fd(), &FromFile::Failed(failure), &[]);
    }
}

fn serve(operation: FileOperation, channel: &OwnedFd, pipe: Option<OwnedFd>) -> Result<(), FileFailure> {
    let answer = |answer: FromFile| wire::send(channel.as_fd(), &answer, &[]).map_err(FileFailure::from);
    let pipe = || pipe.ok_or(FileFailure::System(libc::EBADF));
    match operation {
        FileOperation::Stat { path } => answer(FromFile::Stat(stat(&path)?)),
        FileOperation::List { path, recursive, max_entries } => listing::list(channel, &path, recursive, max_entries),
        FileOperation::Read { path } => {
            let (file, stat) = open_regular(&path)?;
            Ok(wire::send(channel.as_fd(), &FromFile::Opened(stat), &[file.as_fd()])?)
        }
        FileOperation::Write { path, mode, parents, replace } => {
            let options = write::Options { mode, parents, replace };
            write::write(channel, &path, options, pipe()?)?;
            answer(FromFile::Done)
        }
        FileOperation::Place { files } => {
            write::place(&files, &pipe()?)?;
            answer(FromFile::Done)
        }
        FileOperation::MakeDirectory { path } => {
            make_directories(&path)?;
            answer(FromFile::Done)
        }
        FileOperation::Remove { path } => {
            let path = as_path(&path);
            if stat(path.as_os_str().as_bytes())?.kind == Kind::Directory {
                std::fs::remove_dir_all(path)?;
            } else {
                std::fs::remove_file(path)?;
            }
            answer(FromFile::Done)
        }
        FileOperation::Rename { from, to } => {
            if stat(&to).is_ok_and(|stat| stat.kind == Kind::Directory) {
                return Err(FileFailure::IsDirectory);
            }
            std::fs::rename(as_path(&from), as_path(&to))?;
            answer(FromFile::Done)
        }
        FileOperation::Pack { path } => {
            archive::pack(&path, pipe()?, || answer(FromFile::Done))?;
            answer(FromFile::Done)
        }
        FileOperation::PackTrees { places } => {
            let mut output = io::BufWriter::with_capacity(256 << 10, File::from(pipe()?));
            answer(FromFile::Done)?;
            kept::archive::pack(&paths(places), &kept::in_memory()?, &mut output)?;
            output.into_inner().map_err(io::IntoInnerError::into_error)?;
            answer(FromFile::Done)
        }
        FileOperation::ReplaceTrees { places } => {
            kept::archive::clear(&paths(places))?;
            answer(FromFile::Done)?;
            kept::archive::unpack(&mut io::BufReader::with_capacity(256 << 10, File::from(pipe()?)))?;
            write::await_commit(channel)?;
            answer(FromFile::Done)
        }
        FileOperation::Unpack { path } => {
            archive::unpack(&path, pipe()?, || answer(FromFile::Done))?;
            write::await_commit(channel)?;
            answer(FromFile::Done)
        }
    }
}

/// What the writable layer, or each place that can be written to, holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    pub bytes: u64,
    pub inodes: u64,
}

pub fn used(scratch: &[OwnedFd]) -> Used {
    scratch.iter().filter_map(|place| rustix::fs::fstatfs(place).ok()).fold(Used::default(), |all, layer| Used {
        bytes: all.bytes + layer.f_blocks.saturating_sub(layer.f_bfree) * layer.f_bsize as u64,
        inodes: all.inodes + layer.f_files.saturating_sub(layer.f_ffree),
    })
}

impl From<io::Error> for FileFailure {
    fn from(error: io::Error) -> Self {
        Self::System(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for FileFailure {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.raw_os_error())
    }
}

fn paths(places: Vec<Vec<u8>>) -> Vec<PathBuf> {
    places.into_iter().map(|place| PathBuf::from(OsString::from_vec(place))).collect()
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

fn open(path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    match rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        // Kernels that are programs themselves may not know the call (gVisor). What its magic links lead to from here is
        // a pipe and a socket, which are refused for what they are, and our own program, which everybody can read.
        Err(rustix::io::Errno::NOSYS) => rustix::fs::openat(CWD, path, flags, Mode::empty()),
        result => result,
    }
}

fn stat(path: &[u8]) -> Result<Stat, FileFailure> {
    Ok(convert(&rustix::fs::fstat(open(path, OFlags::PATH | OFlags::NOFOLLOW)?)?))
}

/// Open a file for reading. Without blocking: opening a FIFO that nobody writes to would wait for ever.
fn open_regular(path: &[u8]) -> Result<(OwnedFd, Stat), FileFailure> {
    // Looked at before it is opened, because opening a device can have effects of its own.
    match convert(&rustix::fs::fstat(open(path, OFlags::PATH)?)?).kind {
        Kind::Regular => {}
        Kind::Directory => return Err(FileFailure::IsDirectory),
        Kind::Link | Kind::Other => return Err(FileFailure::NotRegular),
    }
    let file = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    let stat = convert(&rustix::fs::fstat(&file)?);
    if stat.kind != Kind::Regular {
        return Err(FileFailure::NotRegular);
    }
    Ok((file, stat))
}

fn make_directories(path: &[u8]) -> Result<(), FileFailure> {
    use std::os::unix::fs::DirBuilderExt;
    Ok(std::fs::DirBuilder::new().recursive(true).mode(0o755).create(as_path(path))?)
}

fn convert(stat: &rustix::fs::Stat) -> Stat {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::Regular,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Link,
        _ => Kind::Other,
    };
    Stat {
        kind,
        bytes: stat.st_size as u64,
        mode: stat.st_mode & 0o777,
        modified_seconds: stat.st_mtime,
        modified_nanoseconds: stat.st_mtime_nsec as u32,
        changed_seconds: stat.st_ctime,
        changed_nanoseconds: stat.st_ctime_nsec as u32,
    }
}
