//! What must survive the process: a small file per persistent sandbox, on disk before the engine is asked.
//!
//! # Why only persistent ones
//!
//! Engines are the source of truth about what exists, and end ephemeral sandboxes themselves when their process dies. A
//! record of an ephemeral sandbox could only say what the engine says already, and its two fsyncs would cost more than
//! making the sandbox. A persistent sandbox is different: its owner's spec, its name and its end are known to nobody else
//! once its maker has exited.
//!
//! # Files and locks
//!
//! ```text
//! ledger/admission.lock          held while names and quotas of persistent sandboxes are checked
//! ledger/sb-….OWNER.json         the record: replaced whole, never changed in place; OWNER is a digest
//! ledger/sb-….lock               exclusive: whoever makes, ends or extends this sandbox
//! ledger/sb-….lease              shared: whoever uses it; exclusive: whoever ends it because nobody does
//! ledger/sb-….history            what was done in it: added to by whoever does something
//! ledger/saving/                 room that saves have taken from their owner's quota, locked while they last
//! ledger/quarantine/             records that could not be read, kept for a person to look at
//! ```
//!
//! Locks are those of files: the kernel drops them with their process, so a record in state `creating` or `stopping` whose lock is
//! free was left by a process that died, and whoever finds it finishes the work.
//!
//! # Why an owner is in a name
//!
//! A record is asked for as (owner, id), and that is one look-up: somebody else's is a file that is not there, as an unknown one is.
//! Were the owner only in the record, it would be read before it is denied, and how long that takes would tell that it exists.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::id::{Owner, SandboxId};
use crate::system::{is_at, is_link, private_directory, private_file, sync_directory};

mod history;
mod lease;
mod line;
mod name;
mod record;
mod saving;

pub(crate) use history::HistoryFile;
pub(crate) use lease::{Lease, LeaseHold};
pub(crate) use line::{WrittenBytes, WrittenStatus};
pub(crate) use name::{RecordName, owner_digits};
pub(crate) use record::{Record, RecordState};
pub(crate) use saving::{Saving, SavingRoom};

/// No record of ours is larger: an environment is bounded, and so is everything else in a spec.
const MAX_RECORD_BYTES: u64 = 1 << 20;
/// The files that a sandbox may have beside its record. The lock that guards them all is the last to go.
const BESIDE: [&str; 7] = ["new", "lease", "lease-lock", "history", "history-lock", "history-new", "lock"];
const LOCK_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    directory: PathBuf,
}

/// The right to change one record. Dropping the last copy gives the right to the next.
#[derive(Clone, Debug)]
pub(crate) struct RecordLock {
    _file: Arc<File>,
}

/// A record as it was found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reading {
    Nothing,
    Record(Box<Record>),
    /// Written by a later version, which may be running now: left alone.
    Later,
}

impl Ledger {
    pub fn open(state_dir: &Path) -> Result<Self> {
        let directory = state_dir.join("ledger");
        private_directory().create(&directory).map_err(unusable)?;
        Ok(Self { directory })
    }

    fn path(&self, id: &SandboxId, extension: &str) -> PathBuf {
        self.directory.join(format!("{id}.{extension}"))
    }

    fn record_path(&self, name: &RecordName) -> PathBuf {
        self.directory.join(name.file_name())
    }

    pub fn has_record(&self, name: &RecordName) -> bool {
        self.record_path(name).exists()
    }

    /// Garbage is moved aside and reported: one bad file must not keep a server from starting.
    pub fn read(&self, name: &RecordName) -> Result<Reading> {
        let path = self.record_path(name);
        let file = match private_file().read(true).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(Reading::Nothing),
            Err(error) if is_link(&error) => {
                return self.put_aside(name, "it is a link");
            }
            Err(error) => return Err(unusable(error)),
        };
        if !file.metadata().map_err(unusable)?.is_file() {
            return self.put_aside(name, "it is not a regular file");
        }
        let mut bytes = Vec::new();
        file.take(MAX_RECORD_BYTES + 1).read_to_end(&mut bytes).map_err(unusable)?;
        match record::decode(&bytes, name) {
            Ok(Some(record)) => Ok(Reading::Record(Box::new(record))),
            Ok(None) => {
                tracing::warn!(id = %name.id, "the record was written by a later version and is left alone");
                Ok(Reading::Later)
            }
            Err(reason) => self.put_aside(name, &reason),
        }
    }

    fn put_aside(&self, name: &RecordName, reason: &str) -> Result<Reading> {
        tracing::error!(id = %name.id, %reason, "the record cannot be read and is moved to quarantine");
        self.quarantine(name)?;
        Ok(Reading::Nothing)
    }

    fn quarantine(&self, name: &RecordName) -> Result<()> {
        let directory = self.directory.join("quarantine");
        private_directory().create(&directory).map_err(unusable)?;
        match fs::rename(self.record_path(name), directory.join(name.file_name())) {
            // Another process was quicker.
            Err(error) if error.kind() == IoErrorKind::NotFound => Ok(()),
            other => other.map_err(unusable),
        }
    }

    /// Whether a record of it could not be read once.
    pub fn has_quarantined(&self, name: &RecordName) -> bool {
        self.directory.join("quarantine").join(name.file_name()).exists()
    }

    /// The records that there are, readable or not. What writers that died left beside is cleared away.
    pub fn names(&self) -> Result<Vec<RecordName>> {
        let (mut names, mut others) = (Vec::new(), BTreeSet::new());
        for entry in fs::read_dir(&self.directory).map_err(unusable)? {
            let Ok(name) = entry.map_err(unusable)?.file_name().into_string() else { continue };
            if let Some(name) = RecordName::of_file(&name) {
                names.push(name);
            } else if let Some((stem, extension)) = name.split_once('.')
                && let Ok(id) = stem.parse::<SandboxId>()
                && BESIDE.contains(&extension)
            {
                others.insert(id);
            }
        }
        names.sort();
        let written: BTreeSet<SandboxId> = names.iter().map(|name| name.id.clone()).collect();
        for id in others.difference(&written) {
            self.clear_remains(id);
        }
        Ok(names)
    }

    /// Whoever makes a sandbox holds its lock before there is a record, so a free lock means that nobody does.
    fn clear_remains(&self, id: &SandboxId) {
        if let Ok(Some(_lock)) = self.try_lock(id)
            && matches!(self.is_written(id), Ok(false))
        {
            for extension in BESIDE {
                let _ = fs::remove_file(self.path(id, extension));
            }
        }
    }

    /// Whoever the owner is, and however long it takes.
    fn is_written(&self, id: &SandboxId) -> std::io::Result<bool> {
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name().into_string().ok();
            if name.and_then(|name| RecordName::of_file(&name)).is_some_and(|name| name.id == *id) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Those of one owner; of others nothing is read.
    pub fn scan(&self, owner: &Owner) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for name in self.names()?.iter().filter(|name| name.may_be_of(owner)) {
            if let Reading::Record(record) = self.read(name)?
                && record.spec.owner == *owner
            {
                records.push(*record);
            }
        }
        Ok(records)
    }

    /// Durable when it returns: a reader sees the old record or the new one, also after a loss of power.
    pub async fn write(&self, record: &Record, lock: &RecordLock) -> Result<()> {
        let bytes = record::encode(record)?;
        let (ledger, name) = (self.clone(), record.name());
        off_the_runtime(lock.clone(), move || ledger.write_now(&name, &bytes)).await
    }

    fn write_now(&self, name: &RecordName, bytes: &[u8]) -> Result<()> {
        let temporary = self.path(&name.id, "new");
        let mut file = open_anew(&temporary)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if let Err(error) = written.and_then(|()| fs::rename(&temporary, self.record_path(name))) {
            let _ = fs::remove_file(&temporary);
            return Err(unusable(error));
        }
        self.sync_directory()
    }

    pub async fn remove(&self, name: &RecordName, lock: RecordLock) -> Result<()> {
        let (ledger, name) = (self.clone(), name.clone());
        off_the_runtime(lock, move || ledger.remove_now(&name)).await
    }

    /// The record first: without it the other files mean nothing, with it they are still needed.
    fn remove_now(&self, name: &RecordName) -> Result<()> {
        let beside = BESIDE.map(|extension| self.path(&name.id, extension));
        for path in std::iter::once(self.record_path(name)).chain(beside) {
            match fs::remove_file(path) {
                Err(error) if error.kind() == IoErrorKind::NotFound => {}
                other => other.map_err(unusable)?,
            }
        }
        self.sync_directory()
    }

    fn sync_directory(&self) -> Result<()> {
        sync_directory(&self.directory).map_err(unusable)
    }

    /// `None` when somebody is at work on it.
    pub fn try_lock(&self, id: &SandboxId) -> Result<Option<RecordLock>> {
        Self::try_lock_file(&self.path(id, "lock"))
    }

    /// `None` when somebody has it.
    pub fn try_lock_file(path: &Path) -> Result<Option<RecordLock>> {
        loop {
            let file = open_to_lock(path).map_err(unusable)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) if error.kind() == IoErrorKind::Interrupted => continue,
                Err(TryLockError::Error(error)) => return Err(unusable(error)),
            }
            // A lock on a file that was removed between open and lock excludes nobody.
            if is_at(&file, path).map_err(unusable)? {
                return Ok(Some(RecordLock { _file: Arc::new(file) }));
            }
        }
    }

    /// Waits its turn. Polls, because a thread per waiter is worse than a few wake-ups.
    pub async fn lock(&self, id: &SandboxId) -> Result<RecordLock> {
        self.lock_file(self.path(id, "lock")).await
    }

    /// One at a time, over all processes: whoever makes a new persistent sandbox.
    pub async fn lock_admission(&self) -> Result<RecordLock> {
        self.lock_file(self.directory.join("admission.lock")).await
    }

    async fn lock_file(&self, path: PathBuf) -> Result<RecordLock> {
        let deadline = tokio::time::Instant::now() + LOCK_PATIENCE;
        let mut pause = Duration::from_micros(200);
        loop {
            if let Some(lock) = Self::try_lock_file(&path)? {
                return Ok(lock);
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(
                    Error::unavailable("another process is at work on this sandbox").with_hint("try again in a moment")
                );
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    pub fn history(&self, id: &SandboxId) -> HistoryFile {
        HistoryFile::new(self.path(id, "history"))
    }

    pub fn lease(&self, id: &SandboxId) -> Lease {
        Lease::new(self.path(id, "lease"))
    }
}

/// A disk may take long to sync, and other sandboxes must not wait for it. The lock goes along: a caller who goes away must
/// not let the next one in before this is done.
async fn off_the_runtime(lock: RecordLock, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let done = tokio::task::spawn_blocking(move || {
        let result = work();
        drop(lock);
        result
    });
    done.await.unwrap_or_else(|cause| Err(Error::internal("the ledger gave no answer").with_cause(cause)))
}

fn open_to_lock(path: &Path) -> std::io::Result<File> {
    private_file().read(true).write(true).create(true).truncate(false).open(path)
}

/// Empty, whatever somebody has left there who died.
fn open_anew(path: &Path) -> Result<File> {
    private_file().write(true).create(true).truncate(true).open(path).map_err(unusable)
}

#[cfg(feature = "testing")]
pub(super) fn reads_as_record(bytes: &[u8], owner: &Owner, id: &SandboxId) -> bool {
    matches!(record::decode(bytes, &RecordName::new(owner, id)), Ok(Some(_)))
}

fn unusable(cause: std::io::Error) -> Error {
    let full = matches!(cause.kind(), IoErrorKind::StorageFull | IoErrorKind::QuotaExceeded);
    if full {
        return Error::limit_exceeded("the disk of the state directory is full").with_cause(cause);
    }
    Error::unavailable("the state directory cannot be used").with_cause(cause)
}

#[cfg(test)]
#[path = "ledger/tests.rs"]
mod tests;
