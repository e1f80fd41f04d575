//! What a layer takes away from those below it: `.wh.NAME` in the archive, a device 0/0 for the overlay.

use rustix::fs::{FileType, Mode, Stat, XattrFlags};

use super::path::Shown;
use super::{Unpacking, identity};
use crate::confined::{Directory, Name, is_directory};
use crate::error::{Error, Result};

/// Hides what a name has in the layers below.
const PREFIX: &[u8] = b".wh.";
/// Hides all that its directory has in the layers below.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Bookkeeping of a file system that is no more.
const BOOKKEEPING: &[u8] = b".wh..wh.";

pub const OPAQUE_ATTRIBUTE: &str = "user.overlay.opaque";

impl Unpacking<'_> {
    /// Whether the entry was such a mark. They speak of lower layers alone: what this layer itself has stays, in
    /// whichever order they come.
    pub(super) fn add_whiteout(&mut self, path: &[u8], names: &[Name<'_>]) -> Result<bool> {
        let is_mark = |name: &Name<'_>| name.as_bytes().starts_with(PREFIX);
        let Some((last, parents)) = names.split_last() else { return Ok(false) };
        if parents.iter().any(is_mark) {
            return Err(Error::Refused(format!("{} goes through a mark for something removed", Shown(path))));
        }
        if !is_mark(last) {
            return Ok(false);
        }
        if last.as_bytes() == OPAQUE {
            let parent = self.enter(path, parents)?;
            if self.lies_over() {
                self.clear_all(&parent, path)?;
            }
            make_opaque(&parent, path)?;
            return Ok(true);
        }
        if last.as_bytes().starts_with(BOOKKEEPING) {
            self.summary.left_out += 1;
            return Ok(true);
        }
        let Some(hidden) = Name::new(&last.as_bytes()[PREFIX.len()..]) else {
            return Err(Error::Refused(format!("{} removes something that cannot be there", Shown(path))));
        };
        let parent = self.enter(path, parents)?;
        let doing = || Error::io(format!("marking {} as removed", Shown(path)));
        self.clear(&parent, hidden).map_err(doing())?;
        match parent.stat(hidden).map_err(doing())? {
            None => parent.make_whiteout(hidden).map_err(doing())?,
            Some(found) if is_directory(&found) => make_opaque(&parent.enter(hidden).map_err(doing())?, path)?,
            Some(_) => {}
        }
        Ok(true)
    }

    /// Removes all that layers below have in a directory. Nothing of theirs comes back, so a mark that is repeated costs
    /// nothing.
    fn clear_all(&mut self, directory: &Directory, path: &[u8]) -> Result<()> {
        if !self.cleared.insert(identity(directory, path)?) {
            return Ok(());
        }
        let doing = || Error::io(format!("hiding what is below {}", Shown(path)));
        for bytes in directory.names().map_err(doing())? {
            if let Some(name) = Name::new(&bytes) {
                self.clear(directory, name).map_err(doing())?;
            }
        }
        Ok(())
    }

    pub(super) fn is_whiteout(&self, parent: &Directory, name: Name<'_>) -> bool {
        // Devices of archives are left out, so one that is there is ours.
        parent.stat(name).ok().flatten().is_some_and(|found| is_device(&found))
    }

    /// A directory that this layer has at a name that it removes from those below shows nothing of theirs.
    pub(super) fn replace_whiteout(&mut self, parent: &Directory, name: Name<'_>, path: &[u8]) -> Result<Directory> {
        parent.remove_file(name).map_err(Error::io(format!("making {}", Shown(path))))?;
        let made = self.make_directory(parent, name, path)?;
        make_opaque(&made, path)?;
        Ok(made)
    }
}

impl Directory {
    /// A device that stands for nothing at all; the one kind that needs no privilege.
    pub fn make_whiteout(&self, name: Name<'_>) -> std::io::Result<()> {
        let (kind, mode) = (FileType::CharacterDevice, Mode::empty());
        Ok(rustix::fs::mknodat(self, name.as_os_str(), kind, mode, rustix::fs::makedev(0, 0))?)
    }

    /// Whether what lies below it in an overlay is hidden.
    pub fn is_opaque(&self) -> bool {
        [OPAQUE_ATTRIBUTE, "trusted.overlay.opaque"].iter().any(|attribute| {
            let mut value = [0u8; 1];
            rustix::fs::fgetxattr(self, *attribute, &mut value[..]).is_ok_and(|length| value[..length] == *b"y")
        })
    }
}

fn make_opaque(directory: &Directory, path: &[u8]) -> Result<()> {
    rustix::fs::fsetxattr(directory, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty())
        .map_err(|error| Error::io(format!("hiding what is below {}", Shown(path)))(error.into()))
}

fn is_device(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
}
