//! To whom the files of a layer belong.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Gid, Uid, XattrFlags};
use tar::Header;

use super::path::Shown;
use super::{Kind, Unpacking};
use crate::confined::{Directory, Name};
use crate::error::{Error, Result};

/// Where the owner is written down by those who may not give files away.
pub const OWNER_ATTRIBUTE: &str = "user.sandpen.owner";

/// Who owns what belongs to no id that is known, here as in the kernel.
const NOBODY: u32 = 65534;

/// What becomes of the owners that a layer names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owners {
    /// Files get the numbers of the image, which a mount can shift to those of a sandbox. Only root can do this.
    Kept,
    /// The same for those that the caller's user namespace has; whatever belongs to others is the caller's. For layers that
    /// are put over each other in one directory, which becomes the upper one of an overlay.
    Mapped,
    /// Files get the numbers of the image, as the caller's user namespace has them; whatever belongs to others is nobody's.
    Known,
    /// Everything belongs to the caller. Who should own a file or directory, if not root, stands in its attribute
    /// `user.sandpen.owner` as `uid:gid`; links cannot have one.
    Noted,
}

impl Owners {
    /// What the caller can do. Root of a user namespace may not know all the numbers of an image.
    pub fn for_caller() -> Self {
        let every_id = || {
            let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
            map.split_whitespace().eq(["0", "0", "4294967295"])
        };
        if rustix::process::geteuid().is_root() && every_id() { Self::Kept } else { Self::Noted }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Owner {
    owners: Owners,
    user: u32,
    group: u32,
}

impl Owner {
    /// To a file or directory that is open.
    pub fn give(self, file: impl AsFd) -> io::Result<()> {
        match self.owners {
            Owners::Kept => Ok(rustix::fs::fchown(file, Some(self.user()), Some(self.group()))?),
            Owners::Mapped => unless_unknown(rustix::fs::fchown(file, Some(self.user()), Some(self.group()))),
            Owners::Known => {
                let file = file.as_fd();
                for (number, nobody) in self.each() {
                    let give = |(user, group)| rustix::fs::fchown(file, user, group);
                    or_nobody(give(number), || give(nobody))?;
                }
                Ok(())
            }
            Owners::Noted if (self.user, self.group) == (0, 0) => Ok(()),
            Owners::Noted => {
                let value = format!("{}:{}", self.user, self.group);
                Ok(rustix::fs::fsetxattr(file, OWNER_ATTRIBUTE, value.as_bytes(), XattrFlags::empty())?)
            }
        }
    }

    pub fn give_link(self, parent: &Directory, name: Name<'_>) -> io::Result<()> {
        match self.owners {
            Owners::Kept | Owners::Mapped => {
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                let given = rustix::fs::chownat(parent, name.as_os_str(), Some(self.user()), Some(self.group()), flags);
                if self.owners == Owners::Mapped { unless_unknown(given) } else { Ok(given?) }
            }
            Owners::Known => {
                for (number, nobody) in self.each() {
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    let give = |(user, group)| rustix::fs::chownat(parent, name.as_os_str(), user, group, flags);
                    or_nobody(give(number), || give(nobody))?;
                }
                Ok(())
            }
            Owners::Noted => Ok(()),
        }
    }

    /// The user and the group, and who is taken for one that is not known.
    fn each(self) -> [(Pair, Pair); 2] {
        let nobody = (Some(Uid::from_raw(NOBODY)), Some(Gid::from_raw(NOBODY)));
        [((Some(self.user()), None), (nobody.0, None)), ((None, Some(self.group())), (None, nobody.1))]
    }

    fn user(self) -> Uid {
        Uid::from_raw(self.user)
    }

    fn group(self) -> Gid {
        Gid::from_raw(self.group)
    }
}

/// A user, a group, or both, as system calls take them.
type Pair = (Option<Uid>, Option<Gid>);

fn or_nobody(given: rustix::io::Result<()>, nobody: impl FnOnce() -> rustix::io::Result<()>) -> io::Result<()> {
    match given {
        Err(rustix::io::Errno::INVAL) => Ok(nobody()?),
        result => Ok(result?),
    }
}

/// What the kernel says of an id that a user namespace does not have.
fn unless_unknown(given: rustix::io::Result<()>) -> io::Result<()> {
    match given {
        Err(rustix::io::Errno::INVAL) => Ok(()),
        result => Ok(result?),
    }
}

impl Unpacking<'_> {
    /// Of an entry, if owners are of interest.
    pub(super) fn owner(&self, header: &Header, path: &[u8]) -> Result<Option<Owner>> {
        let Kind::Layer(owners) = self.kind else { return Ok(None) };
        let fields = header.as_old();
        // Writers that know no owner leave the field empty. The last number of all means nobody to the kernel.
        let number = |field: &[u8], found: io::Result<u64>| {
            if field.iter().all(|byte| matches!(byte, 0 | b' ')) {
                return Ok(0);
            }
            let number = found.map_err(|error| self.meter.explain(error))?;
            u32::try_from(number)
                .ok()
                .filter(|number| *number != u32::MAX)
                .ok_or_else(|| Error::Refused(format!("{} has an owner that there cannot be", Shown(path))))
        };
        Ok(Some(Owner { owners, user: number(&fields.uid, header.uid())?, group: number(&fields.gid, header.gid())? }))
    }
}
