//! Frozen layers: files of another sandbox, or of this one before it was restarted, that lie under the writable layer.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::mounts::{READ_ONLY, clone_tree};
use super::{Jail, StepError};
use crate::plan::{Heir, Inheritance};
use crate::syscall;

/// More than process 1 keeps of each, and of all of them.
const LARGEST_LOG: u64 = 2 << 20;
const MOST_LOG_FILES: usize = 128;

/// Descriptors from the process 1 that is inherited from.
#[derive(Debug)]
pub struct Raw {
    pub scratch: OwnedFd,
    /// The lowest first.
    pub layers: Vec<OwnedFd>,
    pub inheritance: Inheritance,
}

/// Layers on their way to a sandbox.
#[derive(Debug)]
pub enum Inheriting {
    Copied(Inherited),
    /// An ordinary user's launcher may not copy mounts; the child may, in its own user namespace.
    Raw(Raw),
}

#[derive(Debug)]
pub struct Inherited {
    /// The lowest first.
    pub layers: Vec<Layer>,
    /// The writable layer of the process 1 that is succeeded, for the sake of what it kept for itself.
    pub logs: Option<OwnedFd>,
}

/// One frozen layer. Neither of the two mounts can be written to.
#[derive(Debug)]
pub struct Layer {
    /// For process 1 to hold, so that it can be inherited again. Its owners are those of the sandbox that made it.
    pub kept: OwnedFd,
    /// For the tree; `None` once it is there.
    pub mounted: Option<OwnedFd>,
}

impl Raw {
    /// Needs the right to mount. Before Linux 6.15 what process 1 holds is no mount, and cannot be copied.
    pub fn copied(self) -> Result<Inherited, StepError> {
        let mut layers = Vec::new();
        let upper = self.inheritance.freeze.then_some((&self.scratch, "upper"));
        for (layer, path) in self.layers.iter().map(|layer| (layer, "")).chain(upper) {
            let kept = read_only_copy(layer, path)?;
            layers.push(Layer { mounted: Some(read_only_copy(&kept, "")?), kept });
        }
        let logs = (self.inheritance.heir == Heir::Successor).then_some(self.scratch);
        Ok(Inherited { layers, logs })
    }
}

fn read_only_copy(tree: &OwnedFd, path: &str) -> Result<OwnedFd, StepError> {
    let copy = clone_tree(tree, path)?;
    syscall::restrict_mount(copy.as_fd(), READ_ONLY)?;
    Ok(copy)
}

impl Jail {
    pub(super) fn open_frozen(&mut self) -> Result<(), StepError> {
        self.inherited = match self.held.inherited.take() {
            None => None,
            Some(Inheriting::Copied(inherited)) => Some(inherited),
            Some(Inheriting::Raw(raw)) => Some(raw.copied()?),
        };
        Ok(())
    }

    /// What detached commands wrote before a restart, kept where process 1 keeps it.
    pub(super) fn take_logs_over(&self, scratch: &OwnedFd) -> Result<(), StepError> {
        let Some(before) = self.inherited.as_ref().and_then(|inherited| inherited.logs.as_ref()) else { return Ok(()) };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let from = match open_beneath(before, "run/log", flags) {
            Err(Errno::NOENT) => return Ok(()),
            result => result?,
        };
        rustix::fs::mkdirat(scratch, "run/log", Mode::from_raw_mode(0o755))?;
        let to = open_beneath(scratch, "run/log", flags)?;
        for entry in Dir::read_from(&from)?.take(MOST_LOG_FILES) {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let source = open_beneath(&from, name, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let target = rustix::fs::openat(&to, name, flags, Mode::from_raw_mode(0o644))?;
            copy(source, target)?;
        }
        Ok(())
    }
}

fn open_beneath(directory: &OwnedFd, path: impl rustix::path::Arg, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve)
}

fn copy(source: OwnedFd, target: OwnedFd) -> io::Result<()> {
    let mut bytes = Vec::new();
    std::fs::File::from(source).take(LARGEST_LOG).read_to_end(&mut bytes)?;
    std::fs::File::from(target).write_all(&bytes)
}
