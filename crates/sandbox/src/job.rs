//! A job: one run that goes on whoever waits for it. What is asked of it, and what comes of it.
//!
//! The service runs jobs; see [`SandboxService::start_job`].
//!
//! [`SandboxService::start_job`]: crate::SandboxService::start_job

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::artifact::Artifact;
use crate::context::{ContextReport, Results};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::{ExecOutcome, ExecRequest};
use crate::id::SandboxId;
use crate::isolation::Layer;
use crate::output::{CappedOutput, OutputCaps};
use crate::path::AskedPath;
use crate::runner::RunCode;
use crate::spec::{Environment, SandboxSpec};
use crate::tree::Checkpoint;

/// Everything that is needed to run something once.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct JobRequest {
    pub place: JobPlace,
    pub work: JobWork,
    /// Where it runs, when not in the sandbox's own work directory.
    pub work_directory: Option<AskedPath>,
    pub files: Vec<JobFile>,
    /// All that the program can read on its stdin, which ends after it.
    pub stdin: Vec<u8>,
    pub key: Option<IdempotencyKey>,
    /// Remember the files first, to be able to go back to them. Only in a sandbox that stays.
    pub checkpoint: bool,
    /// What is kept of each stream, when not as much as usual. Of more than the service lets be asked for, that is kept.
    pub kept: Option<OutputCaps>,
    /// In a sandbox that stays: written down from its beginning, so that later processes can read it, and kept for so long, while
    /// there is room.
    pub recorded: Option<Duration>,
}

impl JobRequest {
    pub fn new(place: JobPlace, work: JobWork) -> Self {
        Self {
            place,
            work,
            work_directory: None,
            files: Vec::new(),
            stdin: Vec::new(),
            key: None,
            checkpoint: false,
            kept: None,
            recorded: None,
        }
    }
}

/// Where a job runs.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum JobPlace {
    /// In a sandbox that was there before and stays. In a persistent one too, the run ends with this process.
    Existing(SandboxId),
    /// In one that is made for this job, and destroyed when it ends. It must be ephemeral.
    Fresh(Box<SandboxSpec>),
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub enum JobWork {
    Code(RunCode),
    /// Its `on_disconnect` is not asked: a job has nobody to lose.
    Command(ExecRequest),
    /// What the sandbox's image is made to run.
    Program(RunProgram),
}

/// The program of an image, to be run as it says.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct RunProgram {
    /// For its entry point, in place of the image's own.
    pub arguments: Option<Vec<String>>,
    pub environment: Environment,
    pub timeout: Duration,
}

/// A file that is written, with its parent directories, before the work starts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobFile {
    pub path: AskedPath,
    pub contents: Vec<u8>,
}

/// A word by which a caller recognises its own request: sent twice, it runs once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    pub const MAX_CHARACTERS: usize = 128;

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for IdempotencyKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let length = text.chars().take(Self::MAX_CHARACTERS + 1).count();
        if length == 0 || length > Self::MAX_CHARACTERS || text.chars().any(char::is_control) {
            return Err(Error::invalid_input("an idempotency key is 1 to 128 printable characters")
                .with_hint("a random identifier, made anew for each run, works well"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a job is in its life. What is not `Running` is final.
#[derive(Clone, Debug, PartialEq)]
pub enum JobStatus {
    /// From the moment it is registered: also while its sandbox is made.
    Running,
    /// It ran. A program that failed, was killed or was stopped has ended too: the outcome says how.
    Ended(JobResult),
    /// The request could not be served: no sandbox, no such program, no room.
    Failed(JobFailure),
    /// The process that ran it is gone, and it went along, or nobody saw its end. Its output up to then is kept.
    Interrupted,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq)]
pub struct JobResult {
    pub outcome: ExecOutcome,
    /// New and changed files, in the order of their paths. None of a run that was stopped, or whose sandbox is gone.
    pub artifacts: Vec<Artifact>,
    /// Artifacts that were seen and are not in the list.
    pub artifacts_left_out: usize,
    /// The walls that its sandbox did not have.
    pub missing_layers: Vec<Layer>,
    /// Of a run in a context.
    pub context: Option<Box<ContextReport>>,
    /// The value of the code's last expression and what it displayed.
    pub results: Box<Results>,
    /// The files as they were before the run and before those that came with it.
    pub checkpoint: Option<Checkpoint>,
}

/// What is left of an error once its cause was logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFailure {
    pub kind: ErrorKind,
    pub message: String,
    pub hint: Option<String>,
}

impl JobFailure {
    pub fn to_error(&self) -> Error {
        let error = Error::new(self.kind, self.message.clone());
        match &self.hint {
            Some(hint) => error.with_hint(hint.clone()),
            None => error,
        }
    }
}

impl From<&Error> for JobFailure {
    fn from(error: &Error) -> Self {
        Self { kind: error.kind(), message: error.message().to_owned(), hint: error.hint().map(str::to_owned) }
    }
}

/// What was kept of a job's output up to one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOutput {
    pub stdout: CappedOutput,
    pub stderr: CappedOutput,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobStream {
    Stdout,
    Stderr,
}

/// A piece of output as it was read: it may end in the middle of a line or of a character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobChunk {
    pub stream: JobStream,
    pub bytes: Vec<u8>,
    /// Bytes of this stream just before these that were no longer there when the follower came for them.
    pub skipped: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_short_and_printable() {
        for text in ["a", "7f3c 11", "ключ", &"é".repeat(128)] {
            assert_eq!(text.parse::<IdempotencyKey>().unwrap().as_str(), text);
        }
        for text in ["", "a\nb", "\u{1b}[2J", &"x".repeat(129)] {
            assert!(text.parse::<IdempotencyKey>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn a_failure_is_the_error_without_its_cause() {
        let error = Error::not_found("no such thing").with_hint("look elsewhere").with_cause("a secret");
        let again = JobFailure::from(&error).to_error();
        assert_eq!((again.kind(), again.message(), again.hint()), (error.kind(), error.message(), error.hint()));
        assert!(again.cause().is_none());
    }
}
