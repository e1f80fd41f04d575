//! The small tree that every root starts from, as the sandbox's own root's.
//!
//! On disk it belongs to whoever runs the engine. Where no mount can say otherwise, that is nobody inside, and nobody there
//! could change its directories; a copy in the writable layer can be changed by those who may change the image.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use images::Directory;
use images::confined::{Name, is_directory, is_symlink};
use rustix::fs::{Mode, OFlags};

use super::StepError;

/// More than any file of ours has.
const LARGEST: u64 = 1 << 20;

/// Into the directory of this name, which is empty.
pub(super) fn copy(skeleton: &OwnedFd, scratch: &OwnedFd, name: &str) -> Result<(), StepError> {
    let open = |parent: &OwnedFd, name: &str| -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Directory::from(rustix::fs::openat(parent, name, flags, Mode::empty())?))
    };
    Ok(copy_all(&open(skeleton, ".")?, &open(scratch, name)?)?)
}

fn copy_all(from: &Directory, to: &Directory) -> io::Result<()> {
    for name in from.names()? {
        let Some(name) = Name::new(&name) else { continue };
        let Some(found) = from.stat(name)? else { continue };
        if is_directory(&found) {
            to.make_directory(name, found.st_mode & 0o777)?;
            copy_all(&from.enter(name)?, &to.enter(name)?)?;
        } else if is_symlink(&found) {
            let target = rustix::fs::readlinkat(from, name.as_os_str(), Vec::new())?;
            to.symlink(name, target.as_bytes())?;
        } else {
            let mut bytes = Vec::new();
            from.open_file(name)?.take(LARGEST).read_to_end(&mut bytes)?;
            to.create_file(name, found.st_mode & 0o777)?.write_all(&bytes)?;
        }
    }
    Ok(())
}
