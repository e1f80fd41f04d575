//! Files that are for their owner alone, on systems of the Unix kind.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

use super::Exposure;

pub fn private_directory() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
}

/// Neither follows a link nor waits for a pipe: the directory is ours alone, but a state directory below `/tmp` would not
/// be.
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    options
}

/// One that somebody named: links are followed, and a pipe in its place does not hold us up.
pub fn file_of_another() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    options
}

/// Whether [`private_file`] refused to follow a link.
pub fn is_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}

/// Whether a file that is open is the one that has this name.
pub fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let opened = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(named) => Ok(named.dev() == opened.dev() && named.ino() == opened.ino()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// What to lock in order to lock an open file that others read and write.
pub fn lock_of(file: &File, _: &Path) -> io::Result<File> {
    file.try_clone()
}

pub fn read_at(file: &File, bytes: &mut [u8], position: u64) -> io::Result<usize> {
    file.read_at(bytes, position)
}

pub fn write_at(file: &File, bytes: &[u8], position: u64) -> io::Result<usize> {
    file.write_at(bytes, position)
}

/// The names in a directory are on disk when it returns.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// What keeps a file from being for its owner alone.
pub fn exposure(metadata: &Metadata) -> Option<Exposure> {
    let user = geteuid().as_raw();
    if metadata.uid() != user {
        return Some(Exposure::OfAnother { user });
    }
    (metadata.mode() & 0o077 != 0).then_some(Exposure::Open)
}

pub fn is_root() -> bool {
    geteuid().is_root()
}

/// As many descriptors as this process may have; many systems begin with 1,024. Tells how many that are.
pub fn allow_descriptors() -> u64 {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // macOS says that there is no limit, and takes no number above this one.
    let tries = [maximum, maximum.map_or(Some(10_240), |most| Some(most.min(10_240)))];
    if !tries.into_iter().any(|current| setrlimit(Resource::Nofile, Rlimit { current, maximum }).is_ok()) {
        tracing::debug!("the number of descriptors stays as it is");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// What this process holds must not be written to disk by a crash.
pub fn keep_out_of_core_dumps() {
    // A limit can always be lowered.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}
