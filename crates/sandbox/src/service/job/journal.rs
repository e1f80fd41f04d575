//! What outlives the process of a job in a persistent sandbox: which job it was, what it has written, how it ended.
//!
//! ```text
//! jobs/job_….OWNER.json      the record: replaced whole, never changed in place; OWNER is a digest, as in the ledger
//! jobs/job_….OWNER.stdout    what is kept of the stream, beside memory and before anybody is shown it; the same for stderr
//! jobs/job_….OWNER.lock      held by the process that knows the job. A record whose lock is free was left by one that is gone
//! ```
//!
//! It begins when somebody is told the job's id. Nothing is forced to the disk: what ends the kernel ends the sandbox too.

use std::fs;
use std::io::{self, ErrorKind as IoErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::id::{JobId, Owner};
use crate::job::{JobOutput, JobStatus, JobStream};
use crate::service::ledger::{Ledger, RecordLock, owner_digits};
use crate::system::{private_directory, private_file};

mod record;
mod stream;

pub(super) use record::Entry;
use stream::StreamFile;

/// Titles and names of artifacts are bounded, so no record of ours is larger.
const MAX_RECORD_BYTES: u64 = 1 << 20;
/// The lock that guards them all is the last to go.
const EXTENSIONS: [&str; 5] = ["json", "new", "stdout", "stderr", "lock"];

/// The place for what outlives a process.
#[derive(Clone, Debug)]
pub(crate) struct Journals {
    directory: PathBuf,
}

/// What one job has there, with the right to change it.
#[derive(Debug)]
pub(super) struct Journal {
    /// Without an extension.
    base: PathBuf,
    entry: Entry,
    /// `None` once nothing more comes, or nothing more can be written.
    streams: Option<[StreamFile; 2]>,
    _lock: RecordLock,
}

/// What a process has left that is gone.
#[derive(Debug)]
pub(super) struct Left {
    pub journal: Journal,
    pub entry: Entry,
    pub output: JobOutput,
}

impl Journals {
    pub fn new(state_dir: &Path) -> Self {
        Self { directory: state_dir.join("jobs") }
    }

    fn base(&self, owner: &Owner, id: &JobId) -> PathBuf {
        self.directory.join(format!("{id}.{}", owner_digits(owner)))
    }

    /// With what was kept so far.
    pub(super) fn begin(&self, entry: Entry, so_far: &JobOutput) -> Result<Journal> {
        private_directory().create(&self.directory).map_err(unusable)?;
        let base = self.base(&entry.owner, &entry.id);
        let Some(lock) = Ledger::try_lock_file(&with(&base, "lock"))? else {
            return Err(Error::internal("another process has a job of this name"));
        };
        let made = || {
            let stdout = StreamFile::make(&with(&base, "stdout"), &so_far.stdout)?;
            Ok([stdout, StreamFile::make(&with(&base, "stderr"), &so_far.stderr)?])
        };
        let streams = made().map_err(unusable);
        let journal = streams.and_then(|streams| {
            let journal = Journal { base: base.clone(), entry, streams: Some(streams), _lock: lock };
            journal.write().map(|()| journal)
        });
        if journal.is_err() {
            remove(&base);
        }
        journal
    }

    /// The jobs of processes that are gone, the oldest first, without those that cannot be read.
    pub(super) fn left(&self) -> Result<Vec<Left>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(unusable)?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let Ok(name) = entry.map_err(unusable)?.file_name().into_string() else { continue };
            if let Some(base) = name.strip_suffix(".lock") {
                all.extend(take(&self.directory.join(base))?);
            }
        }
        all.sort_by_key(|left| left.entry.started_at);
        Ok(all)
    }

    /// That job, if the process that had it is gone.
    pub(super) fn left_of(&self, owner: &Owner, id: &JobId) -> Result<Option<Left>> {
        let base = self.base(owner, id);
        // Whoever asks for jobs that never were must not make files.
        if !with(&base, "lock").exists() {
            return Ok(None);
        }
        Ok(take(&base)?.filter(|left| left.entry.owner == *owner))
    }
}

/// `None` when somebody has it, or it is no more. What cannot be read is of no use to anybody, and goes.
fn take(base: &Path) -> Result<Option<Left>> {
    let Some(lock) = Ledger::try_lock_file(&with(base, "lock"))? else { return Ok(None) };
    let read = || -> Result<Left> {
        let entry = Entry::decode(&read_record(&with(base, "json"))?)?;
        let stdout = StreamFile::open(&with(base, "stdout"), entry.caps).map_err(unusable)?;
        let stderr = StreamFile::open(&with(base, "stderr"), entry.caps).map_err(unusable)?;
        let output = JobOutput { stdout: stdout.read().map_err(unusable)?, stderr: stderr.read().map_err(unusable)? };
        let streams = Some([stdout, stderr]);
        let journal = Journal { base: base.to_owned(), entry: entry.clone(), streams, _lock: lock };
        Ok(Left { journal, entry, output })
    };
    match read() {
        Ok(left) => Ok(Some(left)),
        Err(error) => {
            tracing::warn!(job = %base.display(), ?error, "what was kept of a job cannot be read, and is removed");
            remove(base);
            Ok(None)
        }
    }
}

fn read_record(path: &Path) -> Result<Vec<u8>> {
    let file = private_file().read(true).open(path).map_err(unusable)?;
    let mut bytes = Vec::new();
    file.take(MAX_RECORD_BYTES).read_to_end(&mut bytes).map_err(unusable)?;
    Ok(bytes)
}

impl Journal {
    pub fn push(&mut self, stream: JobStream, bytes: &[u8]) -> Result<()> {
        let Some([stdout, stderr]) = &mut self.streams else { return Ok(()) };
        let file = match stream {
            JobStream::Stdout => stdout,
            JobStream::Stderr => stderr,
        };
        let written = file.push(bytes).map_err(unusable);
        if written.is_err() {
            // What follows would not be what came next.
            self.streams = None;
        }
        written
    }

    pub fn conclude(&mut self, at: SystemTime, status: JobStatus) -> Result<()> {
        self.entry.end = Some((at, status));
        self.streams = None;
        self.write()
    }

    fn write(&self) -> Result<()> {
        let (temporary, bytes) = (with(&self.base, "new"), self.entry.encode()?);
        let written = private_file().write(true).create(true).truncate(true).open(&temporary);
        let written = written.and_then(|mut file| file.write_all(&bytes));
        written.and_then(|()| fs::rename(temporary, with(&self.base, "json"))).map_err(unusable)
    }

    /// Nobody is to know of the job any more.
    pub fn remove(self) {
        remove(&self.base);
    }
}

/// Under the lock.
fn remove(base: &Path) {
    for extension in EXTENSIONS {
        let _ = fs::remove_file(with(base, extension));
    }
}

fn with(base: &Path, extension: &str) -> PathBuf {
    let mut name = base.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

fn unusable(cause: io::Error) -> Error {
    Error::unavailable("what is kept of a job cannot be read or written").with_cause(cause)
}
