//! Who uses a persistent sandbox now, when it was used last, and until when its engine keeps it: shared by all processes.
//!
//! The file is a lock and two numbers. It is not synced: after a loss of power the sandbox is gone, or its idle time starts
//! anew.

use std::fs::{File, TryLockError};
use std::path::PathBuf;

use super::{open_to_lock, unusable};
use crate::error::{Error, Result};
use crate::service::clock::Moment;
use crate::system::{is_at, lock_of, private_file, read_exact_at, write_all_at};

/// A number as 20 digits and a line feed.
const FIELD_BYTES: u64 = 21;

#[derive(Clone, Debug)]
pub(crate) struct Lease {
    path: PathBuf,
}

/// A use of the sandbox, or its end: while it lasts, the other cannot happen.
#[derive(Debug)]
pub(crate) struct LeaseHold {
    file: File,
    lock: File,
    path: PathBuf,
}

impl Lease {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Only whoever makes the sandbox.
    pub fn make(&self, now: Moment) -> Result<()> {
        self.holding(open_to_lock(&self.path).map_err(unusable)?)?.touch(now)
    }

    /// `None` when the sandbox is gone.
    pub fn hold(&self) -> Result<Option<LeaseHold>> {
        let Some(hold) = self.open()? else { return Ok(None) };
        match hold.lock.try_lock_shared() {
            Ok(()) => Ok(hold.if_linked()),
            Err(TryLockError::WouldBlock) => Err(Error::wrong_state("the sandbox is being stopped")),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    /// `None` when it is in use, or gone.
    pub fn hold_alone(&self) -> Result<Option<LeaseHold>> {
        let Some(hold) = self.open()? else { return Ok(None) };
        match hold.lock.try_lock() {
            Ok(()) => Ok(hold.if_linked()),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }

    /// Without holding it.
    pub fn last_used(&self) -> Option<Moment> {
        self.open().ok().flatten()?.last_used()
    }

    fn open(&self) -> Result<Option<LeaseHold>> {
        match private_file().read(true).write(true).open(&self.path) {
            Ok(file) => self.holding(file).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unusable(error)),
        }
    }

    fn holding(&self, file: File) -> Result<LeaseHold> {
        let lock = lock_of(&file, &self.path).map_err(unusable)?;
        Ok(LeaseHold { file, lock, path: self.path.clone() })
    }
}

impl LeaseHold {
    /// Whoever ends a sandbox removes the file first, then lets go: a hold on a removed file is a hold on nothing.
    fn if_linked(self) -> Option<Self> {
        let linked = self.is_linked();
        linked.then_some(self)
    }

    /// Whether the sandbox still is: its end removes the file.
    pub fn is_linked(&self) -> bool {
        is_at(&self.file, &self.path).unwrap_or(false)
    }

    pub fn touch(&self, now: Moment) -> Result<()> {
        self.write(0, now)
    }

    pub fn last_used(&self) -> Option<Moment> {
        self.read(0)
    }

    pub fn engine_deadline(&self) -> Option<Moment> {
        self.read(1)
    }

    /// Only under the record's lock: two processes that extend at once must not shorten each other's.
    pub fn set_engine_deadline(&self, deadline: Moment) -> Result<()> {
        self.write(1, deadline)
    }

    fn read(&self, field: u64) -> Option<Moment> {
        let mut digits = [0; FIELD_BYTES as usize - 1];
        read_exact_at(&self.file, &mut digits, field * FIELD_BYTES).ok()?;
        std::str::from_utf8(&digits).ok()?.parse().ok().map(Moment)
    }

    fn write(&self, field: u64, moment: Moment) -> Result<()> {
        write_all_at(&self.file, format!("{:020}\n", moment.0).as_bytes(), field * FIELD_BYTES).map_err(unusable)
    }
}
