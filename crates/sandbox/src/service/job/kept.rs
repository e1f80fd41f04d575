//! Artifacts of sandboxes that were made for one job: kept for a while after the sandbox is gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::AsyncReadExt;
use tokio::sync::Semaphore;

use super::JobSettings;
use crate::artifact::Artifact;
use crate::engine::Files;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{ByteRange, FileStat};
use crate::id::{Owner, SandboxId};
use crate::path::GuestPath;
use crate::service::clock::Moment;
use crate::service::core::Core;
use crate::service::files::HeldFiles;

/// Sandboxes whose files are read at the same time, so that many that end together do not fill the memory together.
const READERS: usize = 4;

pub(crate) struct Kept {
    batches: Mutex<Vec<Batch>>,
    readers: Semaphore,
    settings: JobSettings,
}

/// The artifacts of one sandbox.
struct Batch {
    owner: Owner,
    sandbox: SandboxId,
    since: Moment,
    /// What it may hold, counted before it is read.
    bytes: u64,
    files: HashMap<GuestPath, KeptFile>,
}

enum KeptFile {
    Whole(FileStat, Arc<[u8]>),
    /// It was too large, or could not be read.
    Gone,
}

impl Kept {
    pub fn new(settings: JobSettings) -> Self {
        Self { batches: Mutex::default(), readers: Semaphore::new(READERS), settings }
    }

    /// The oldest first.
    fn lock(&self) -> MutexGuard<'_, Vec<Batch>> {
        // A panic under the lock is a fault of one call; the list is changed in single steps and stays whole.
        self.batches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Read what may be kept of `artifacts`. What cannot be read is not kept, which is no fault: the run has ended.
    pub async fn keep(
        &self,
        owner: &Owner,
        sandbox: &SandboxId,
        artifacts: &[Artifact],
        files: &dyn Files,
        now: Moment,
    ) {
        if artifacts.is_empty() {
            return;
        }
        let Ok(_reader) = self.readers.acquire().await else { return };
        let fitting = self.begin(owner, sandbox, artifacts, now);
        for artifact in fitting {
            let Some((stat, contents)) = read(files, &artifact).await else { continue };
            self.add(sandbox, artifact.path, KeptFile::Whole(stat, contents.into()));
        }
    }

    /// Make room; those artifacts for which there is room.
    fn begin(&self, owner: &Owner, sandbox: &SandboxId, artifacts: &[Artifact], now: Moment) -> Vec<Artifact> {
        let most = self.settings.owner_artifact_bytes.min(self.settings.all_artifact_bytes);
        // Names are kept too.
        let mut bytes: u64 = artifacts.iter().map(|artifact| artifact.path.as_bytes().len() as u64).sum();
        let mut fitting = Vec::new();
        for artifact in artifacts {
            if artifact.bytes <= self.settings.artifact_bytes && bytes + artifact.bytes <= most {
                bytes += artifact.bytes;
                fitting.push(artifact.clone());
            }
        }
        let mut batches = self.lock();
        let files = artifacts.iter().map(|artifact| (artifact.path.clone(), KeptFile::Gone)).collect();
        batches.push(Batch { owner: owner.clone(), sandbox: sandbox.clone(), since: now, bytes, files });
        let is_own = |batch: &Batch| batch.owner == *owner;
        evict(&mut batches, self.settings.kept_jobs, self.settings.owner_artifact_bytes, is_own);
        evict(&mut batches, usize::MAX, self.settings.all_artifact_bytes, |_| true);
        fitting
    }

    fn add(&self, sandbox: &SandboxId, path: GuestPath, file: KeptFile) {
        // Others may have needed the room meanwhile.
        if let Some(batch) = self.lock().iter_mut().find(|batch| batch.sandbox == *sandbox) {
            batch.files.insert(path, file);
        }
    }

    /// `None` when nothing of this sandbox is kept.
    pub fn read(
        &self,
        owner: &Owner,
        sandbox: &SandboxId,
        path: &GuestPath,
        range: ByteRange,
    ) -> Option<Result<(FileStat, Vec<u8>)>> {
        let batches = self.lock();
        let batch = batches.iter().find(|batch| batch.sandbox == *sandbox && batch.owner == *owner)?;
        let (stat, contents) = match batch.files.get(path) {
            Some(KeptFile::Whole(stat, contents)) => (stat.clone(), Arc::clone(contents)),
            Some(KeptFile::Gone) => {
                return Some(Err(Error::not_found(format!("{path} was not kept when its sandbox ended"))
                    .with_hint("create a sandbox first and run in it: its files stay as long as it does")));
            }
            None => return Some(Err(Error::not_found(format!("the run that ended has left no {path}")))),
        };
        drop(batches);
        let start = usize::try_from(range.offset).unwrap_or(usize::MAX).min(contents.len());
        let length = range.length.and_then(|length| usize::try_from(length).ok()).unwrap_or(usize::MAX);
        let end = start.saturating_add(length).min(contents.len());
        Some(Ok((stat, contents[start..end].to_vec())))
    }

    /// Those that can be read, in the order of their paths.
    pub fn list(&self, owner: &Owner, sandbox: &SandboxId) -> Vec<Artifact> {
        let batches = self.lock();
        let Some(batch) = batches.iter().find(|batch| batch.sandbox == *sandbox && batch.owner == *owner) else {
            return Vec::new();
        };
        let whole = batch.files.iter().filter_map(|(path, file)| match file {
            KeptFile::Whole(stat, _) => Some(Artifact { path: path.clone(), bytes: stat.bytes }),
            KeptFile::Gone => None,
        });
        let mut artifacts: Vec<_> = whole.collect();
        artifacts.sort_by(|one, other| one.path.cmp(&other.path));
        artifacts
    }

    /// Drop what is too old; when to ask again.
    pub fn expire(&self, now: Moment) -> Option<Moment> {
        let mut batches = self.lock();
        batches.retain(|batch| batch.since.after(self.settings.kept_for) > now);
        batches.iter().map(|batch| batch.since.after(self.settings.kept_for)).min()
    }

    pub fn clear(&self) {
        self.lock().clear();
    }
}

impl Core {
    pub(in crate::service) async fn read_artifact(
        self: &Arc<Self>,
        owner: &Owner,
        sandbox: &SandboxId,
        path: &GuestPath,
        range: ByteRange,
    ) -> Result<(FileStat, Vec<u8>)> {
        let most = self.settings.jobs.artifact_bytes;
        let length = range.length.map_or(most, |length| length.min(most));
        let range = ByteRange { offset: range.offset, length: Some(length) };
        // First, because a sandbox that is being destroyed is still there for a moment.
        if let Some(read) = self.kept.read(owner, sandbox, path, range) {
            return read;
        }
        self.locate(owner, sandbox).map_err(|error| {
            if error.kind() != ErrorKind::NotFound {
                return error;
            }
            error.with_hint(
                "the files of a sandbox that was made for one run are kept for a while only; to keep them longer, \
                 create a sandbox and run in it",
            )
        })?;
        let file = HeldFiles::new(self, owner, sandbox).read(path, range).await?;
        let mut contents = Vec::new();
        let read = file.stream.take(length).read_to_end(&mut contents).await;
        read.map_err(|cause| Error::unavailable(format!("{path} could not be read to its end")).with_cause(cause))?;
        Ok((file.stat, contents))
    }
}

/// Drop the oldest of those that are counted until the rest is within bounds. The newest is within bounds by itself.
fn evict(batches: &mut Vec<Batch>, most: usize, most_bytes: u64, counts: impl Fn(&Batch) -> bool) {
    let counted = || batches.iter().filter(|batch| counts(batch));
    let (mut number, mut bytes) = (counted().count(), counted().map(|batch| batch.bytes).sum::<u64>());
    batches.retain(|batch| {
        let goes = counts(batch) && (number > most || bytes > most_bytes);
        if goes {
            number -= 1;
            bytes -= batch.bytes;
        }
        !goes
    });
}

/// No more than was counted, also of a file that something in the sandbox still writes to.
async fn read(files: &dyn Files, artifact: &Artifact) -> Option<(FileStat, Vec<u8>)> {
    let range = ByteRange { offset: 0, length: Some(artifact.bytes) };
    let file = files.read(&artifact.path, range).await.ok()?;
    let mut contents = Vec::with_capacity(usize::try_from(artifact.bytes).ok()?);
    file.stream.take(artifact.bytes).read_to_end(&mut contents).await.ok()?;
    let stat = FileStat { bytes: contents.len() as u64, ..file.stat };
    Some((stat, contents))
}
