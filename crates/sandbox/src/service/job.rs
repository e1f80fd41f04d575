//! Jobs as the service hands them out: handles on runs that go on by themselves.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::stop::Leaving;
use crate::error::{ErrorKind, Result};
use crate::id::{JobId, Owner, SandboxId};
use crate::job::{JobFailure, JobOutput, JobResult, JobStatus};
use crate::network::Network;
use crate::output::OutputCaps;

mod adopt;
mod attend;
mod displayed;
mod journal;
mod kept;
mod look;
mod stream;
mod table;
mod task;
mod work;

pub use attend::Attendance;
use attend::Attendants;
pub(super) use displayed::Displayed;
use journal::Entry;
pub(super) use journal::Journals;
pub(super) use kept::Kept;
pub use stream::JobFollower;
use stream::Streams;
pub(super) use table::Jobs;

/// What is kept of jobs, and for how long. What is over a bound goes, the oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobSettings {
    /// Of each stream.
    pub output: OutputCaps,
    /// Of each stream, for a job that asks for more than usual.
    pub most_output: OutputCaps,
    /// How long an ended job that asks for no other time, and the artifacts of its sandbox, can be read.
    pub kept_for: Duration,
    /// Ended jobs of one owner.
    pub kept_jobs: usize,
    /// Output of ended jobs of one owner, in bytes.
    pub kept_output: usize,
    /// Larger artifacts of a fresh sandbox go with it.
    pub artifact_bytes: u64,
    /// Artifacts of all fresh sandboxes of one owner.
    pub owner_artifact_bytes: u64,
    /// Artifacts of all fresh sandboxes.
    pub all_artifact_bytes: u64,
}

impl Default for JobSettings {
    fn default() -> Self {
        Self {
            output: OutputCaps { head: 256 * 1024, tail: 256 * 1024 },
            most_output: OutputCaps { head: 512 * 1024, tail: 512 * 1024 },
            kept_for: Duration::from_secs(10 * 60),
            kept_jobs: 64,
            kept_output: 16 << 20,
            artifact_bytes: 8 << 20,
            owner_artifact_bytes: 32 << 20,
            all_artifact_bytes: 256 << 20,
        }
    }
}

/// A run that goes on whoever looks. Copies mean the same job, and dropping them stops nothing.
///
/// The job is known to its service by its id while it runs and for a while after; a handle can be read for ever.
#[derive(Clone)]
pub struct Job {
    shared: Arc<Shared>,
}

/// What the handles and the task of one job share.
struct Shared {
    id: JobId,
    owner: Owner,
    sandbox: SandboxId,
    fresh: bool,
    network: Network,
    started_at: SystemTime,
    title: String,
    streams: Arc<Streams>,
    status: watch::Sender<JobStatus>,
    stop: watch::Sender<bool>,
    attendants: Attendants,
    /// How long it can be read when it has ended.
    kept_for: Duration,
    /// Set before the end is told: something of it may still run.
    unproven: AtomicBool,
    /// Set before the end is told: its sandbox, of whose end nobody has seen the last yet.
    leaving: OnceLock<Leaving>,
    /// Of one in a persistent sandbox.
    outliving: Option<Outliving>,
}

/// Where a job is written down that must be found by later processes.
struct Outliving {
    journals: Journals,
    engine: String,
}

impl Job {
    pub fn id(&self) -> &JobId {
        &self.shared.id
    }

    /// Where it runs. Chosen before that exists, so that a caller can name its files at once.
    pub fn sandbox(&self) -> &SandboxId {
        &self.shared.sandbox
    }

    /// Whether the sandbox is made for this job and ends with it.
    pub fn is_fresh(&self) -> bool {
        self.shared.fresh
    }

    /// Of its sandbox.
    pub fn network(&self) -> &Network {
        &self.shared.network
    }

    pub fn started_at(&self) -> SystemTime {
        self.shared.started_at
    }

    /// For people: the language, or the start of the command.
    pub fn title(&self) -> &str {
        &self.shared.title
    }

    pub fn status(&self) -> JobStatus {
        self.shared.status.borrow().clone()
    }

    /// What was kept of the output so far.
    pub fn output(&self) -> JobOutput {
        self.shared.streams.snapshot()
    }

    /// The output from its first byte, as far as it is kept, and then as it comes.
    pub fn follow(&self) -> JobFollower {
        self.shared.streams.follow()
    }

    /// How it ended. Many may wait, and waiting may be given up.
    pub async fn wait(&self) -> Result<JobResult> {
        match self.shared.ended().await {
            Ok(result) => Ok(result),
            Err(failure) => Err(failure.to_error()),
        }
    }

    /// [`Job::stop`] without waiting, for who is about to go away.
    pub fn ask_to_stop(&self) {
        self.shared.ask_to_stop();
    }

    /// Kill everything that the run started, and wait until it has ended, and its sandbox where it had one made for it. Success when
    /// they already had.
    ///
    /// Its outcome is then `Cancelled`, unless it came to another end first. Fails only when the engine does not show that
    /// nothing is left; stopping the sandbox is then what helps.
    pub async fn stop(&self) -> Result<()> {
        self.shared.ask_to_stop();
        match self.shared.ended().await {
            Err(failure) if self.shared.unproven.load(Ordering::Acquire) => Err(failure.to_error()),
            Ok(_) | Err(_) => match self.shared.leaving.get() {
                Some(leaving) => leaving.gone().await,
                None => Ok(()),
            },
        }
    }
}

/// What is said to who waits for a job of a process that is gone.
fn interrupted() -> JobFailure {
    JobFailure {
        kind: ErrorKind::Unavailable,
        message: "the server ended while the job ran, and the job with it".to_owned(),
        hint: Some("its output up to then is there; start it again".to_owned()),
    }
}

impl Shared {
    /// Whoever is told of it must find it again, in a later process too.
    fn outlive(&self) {
        let Some(Outliving { journals, engine }) = &self.outliving else { return };
        let entry = || Entry {
            id: self.id.clone(),
            owner: self.owner.clone(),
            sandbox: self.sandbox.clone(),
            engine: engine.clone(),
            network: self.network.clone(),
            started_at: self.started_at,
            title: self.title.clone(),
            caps: self.streams.caps(),
            kept_for: self.kept_for,
            end: None,
        };
        if let Err(error) = self.streams.outlive(journals, entry) {
            tracing::warn!(job = %self.id, ?error, "a job is not written down, and ends with this process");
        }
    }

    async fn ended(&self) -> Result<JobResult, JobFailure> {
        let mut statuses = self.status.subscribe();
        loop {
            match &*statuses.borrow_and_update() {
                JobStatus::Running => {}
                JobStatus::Ended(result) => return Ok(result.clone()),
                JobStatus::Failed(failure) => return Err(failure.clone()),
                JobStatus::Interrupted => return Err(interrupted()),
            }
            // We hold the sender.
            let _ = statuses.changed().await;
        }
    }

    fn is_running(&self) -> bool {
        matches!(*self.status.borrow(), JobStatus::Running)
    }

    fn ask_to_stop(&self) {
        self.stop.send_replace(true);
    }

    fn is_asked_to_stop(&self) -> bool {
        *self.stop.borrow()
    }

    async fn asked_to_stop(&self) {
        let _ = self.stop.subscribe().wait_for(|asked| *asked).await;
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("id", &self.shared.id).field("status", &self.status()).finish_non_exhaustive()
    }
}
