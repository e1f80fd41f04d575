//! A path below a directory, through no link at all, as the kernel sees to it.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// `rest` has plain names only.
pub fn resolve(directory: &OwnedFd, rest: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
    rustix::fs::openat2(directory, rest, flags, Mode::empty(), RESOLVE)
}
