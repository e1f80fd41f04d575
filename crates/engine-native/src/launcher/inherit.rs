//! What a sandbox has from another: taken from that one's process 1, which holds it for those who may.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::PidfdGetfdFlags;

use crate::ids::Extent;
use crate::jail::Raw;
use crate::plan::{Heir, Inheritance};
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
            holds: (INIT_HOLDS..INIT_FROZEN)
                .map_while(|number| optional(number).transpose())
                .collect::<io::Result<_>>()?,
            ids: match inheritance.heir {
                Heir::Successor => Some((maps_of(process)?, optional(INIT_LOCK)?)),
                Heir::Fork => None,
            },
        })
    }
}

/// The id maps of a process, as we see them.
fn maps_of(process: &OwnedFd) -> io::Result<Maps> {
    let unknown = || io::Error::from_raw_os_error(libc::ESRCH);
    let find = || -> io::Result<i32> {
        let information = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
        let pid = information.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
        pid.filter(|pid| *pid > 0).ok_or_else(unknown)
    };
    let pid = find()?;
    let read = |name: &str| -> io::Result<Vec<Extent>> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/{name}"))?;
        text.lines().map(|line| extent(line).ok_or_else(unknown)).collect()
    };
    let maps = (read("uid_map")?, read("gid_map")?);
    // The number may have become somebody else's while we read.
    find().map(|_| maps)
}

fn extent(line: &str) -> Option<Extent> {
    let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
    Some(Extent { inside: numbers.next()??, outside: numbers.next()??, count: numbers.next()?? })
}
