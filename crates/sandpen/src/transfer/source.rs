//! A file or directory of this machine, opened to be copied.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opening must not wait for the other end of a pipe.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Its permission bits.
pub fn mode(metadata: &Metadata) -> u32 {
    metadata.permissions().mode() & 0o777
}
