//! What a sandbox has from another: taken from that one's process 1, which holds it for those who may.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::process::PidfdGetfdFlags;

use crate::ids::Extent;
use crate::jail::Raw;
use crate::plan::{Heir, Inheritance};
use crate::syscall::{self, MountAttributes};
use crate::wire::{INIT_FROZEN, INIT_HOLDS, INIT_LOCK, INIT_SCRATCH};

#[derive(Debug)]
pub(super) struct Estate {
    pub tree: Raw,
    pub holds: Vec<OwnedFd>,
    /// Of a sandbox that is succeeded: which ids it has, and the lock on them.
    pub ids: Option<(Maps, Option<OwnedFd>)>,
}

/// Users, groups.
pub(super) type Maps = (Vec<Extent>, Vec<Extent>);

impl Estate {
    pub(super) fn of(process: &OwnedFd, inheritance: Inheritance) -> io::Result<Self> {
        let take = |number: i32| -> io::Result<OwnedFd> {
            Ok(rustix::process::pidfd_getfd(process, number, PidfdGetfdFlags::empty())?)
        };
        let optional = |number: i32| match take(number) {
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(None),
            result => result.map(Some),
        };
        let layers = (INIT_FROZEN..).take(inheritance.layers).map(take).collect::<io::Result<_>>()?;
        Ok(Self {
            tree: Raw { scratch: take(INIT_SCRATCH)?, layers, inheritance },
            holds: (INIT_HOLDS..).take(inheritance.holds).map(take).collect::<io::Result<_>>()?,
            ids: match inheritance.heir {
                Heir::Successor => Some((maps_of(process)?, optional(INIT_LOCK)?)),
                Heir::Fork => None,
            },
        })
    }
}

/// The id maps of a process, as we see them.
fn maps_of(process: &OwnedFd) -> io::Result<Maps> {
    let pid = pid_of(process)?;
    let read = |name: &str| -> io::Result<Vec<Extent>> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/{name}"))?;
        text.lines().map(|line| extent(line).ok_or_else(gone)).collect()
    };
    let maps = (read("uid_map")?, read("gid_map")?);
    // The number may have become somebody else's while we read.
    pid_of(process).map(|_| maps)
}

/// Must fail when it has ended.
pub(crate) fn pid_of(process: impl AsFd) -> io::Result<i32> {
    let information = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_fd().as_raw_fd()))?;
    let pid = information.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    pid.filter(|pid| *pid > 0).ok_or_else(gone)
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ESRCH)
}

/// A frozen layer of a sandbox, for a child that joins its user namespace. One that it inherited may have the owners of
/// another: it is seen as the sandbox itself sees it, or not at all.
pub(super) fn layer_for(process: &OwnedFd, index: usize, owners: Owners) -> io::Result<OwnedFd> {
    let number = INIT_FROZEN + i32::try_from(index).unwrap_or(i32::MAX - INIT_FROZEN);
    let layer = rustix::process::pidfd_getfd(process, number, PidfdGetfdFlags::empty())?;
    match owners {
        Owners::AsTheyAre => Ok(layer),
        Owners::Shifted => {
            let copy = read_only(open_tree(&layer, "", COPY | OpenTreeFlags::AT_EMPTY_PATH)?)?;
            syscall::map_owners(copy.as_fd(), user_namespace_of(process)?.as_fd())?;
            Ok(copy)
        }
    }
}

/// A directory of an image, for the same. An ordinary user's belong to that user, whom nobody inside is.
pub(super) fn path_for(process: &OwnedFd, path: &Path, owners: Owners) -> io::Result<OwnedFd> {
    match owners {
        Owners::AsTheyAre => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Ok(rustix::fs::open(path, flags, Mode::empty())?)
        }
        Owners::Shifted => {
            let tree = read_only(open_tree(CWD, path, COPY)?)?;
            match syscall::map_owners(tree.as_fd(), user_namespace_of(process)?.as_fd()) {
                // As when a sandbox is built: the owners are strangers then, and what is closed to those is not seen.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EINVAL | libc::EOPNOTSUPP)) => {}
                result => result?,
            }
            Ok(tree)
        }
    }
}

/// As whose files are seen in a user namespace that is not theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owners {
    AsTheyAre,
    /// As the users of that namespace who have the same numbers. Only root can do that, and only root lets sandboxes have
    /// layers of others.
    Shifted,
}

impl Owners {
    /// `namespaces` are those of a sandbox that are its own.
    pub(super) fn of_layers(privileged: bool, namespaces: u64) -> Self {
        match privileged && namespaces & libc::CLONE_NEWUSER as u64 != 0 {
            true => Self::Shifted,
            false => Self::AsTheyAre,
        }
    }
}

const COPY: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

fn read_only(tree: OwnedFd) -> io::Result<OwnedFd> {
    syscall::restrict_mount(tree.as_fd(), MountAttributes { read_only: true, no_devices: true, no_exec: true })?;
    Ok(tree)
}

fn user_namespace_of(process: &OwnedFd) -> io::Result<OwnedFd> {
    let namespace = std::fs::File::open(format!("/proc/{}/ns/user", pid_of(process)?))?;
    // The number may have become somebody else's before it was opened.
    pid_of(process).map(|_| namespace.into())
}

fn extent(line: &str) -> Option<Extent> {
    let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
    Some(Extent { inside: numbers.next()??, outside: numbers.next()??, count: numbers.next()?? })
}
