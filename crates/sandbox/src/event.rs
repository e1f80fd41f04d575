//! Everything that is worth auditing or counting, as one closed list.
//!
//! The service sends these; logs, metrics and audit trails listen. A listener that falls behind loses events and learns how
//! many, because an audit sink must never be able to hold up a sandbox.

use std::time::Duration;

use crate::error::ErrorKind;
use crate::exec::ExecOutcome;
use crate::id::{Owner, SandboxId};
use crate::path::GuestPath;
use crate::spec::{Limits, Persistence};

/// Something that happened to one sandbox of one owner.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub owner: Owner,
    /// A refused create has one too: it was chosen before the refusal, and ties the event to the log.
    pub id: SandboxId,
    pub kind: EventKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    Created {
        persistence: Persistence,
        limits: Limits,
        took: Duration,
    },
    /// The request was wrong, a quota was used up, or the service was too busy: the engine was not asked.
    CreateRefused {
        kind: ErrorKind,
    },
    /// The engine was asked and could not.
    CreateFailed {
        kind: ErrorKind,
    },
    /// A live sandbox that another process made is now looked after by this one too.
    Adopted,
    ExecStarted {
        program: String,
    },
    ExecRefused {
        kind: ErrorKind,
    },
    ExecEnded {
        program: String,
        outcome: ExecOutcome,
        stdout_bytes: u64,
        stderr_bytes: u64,
    },
    FileRead {
        path: GuestPath,
        bytes: u64,
    },
    FileWritten {
        path: GuestPath,
        bytes: u64,
    },
    FileRemoved {
        path: GuestPath,
    },
    FileRenamed {
        from: GuestPath,
        to: GuestPath,
    },
    Renewed,
    Stopped {
        reason: StopReason,
    },
    /// The engine could not end it; the service tries again until it is gone.
    StopFailed {
        reason: StopReason,
        kind: ErrorKind,
    },
}

impl EventKind {
    /// The word that logs and metrics use.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Created { .. } => "created",
            Self::CreateRefused { .. } => "create_refused",
            Self::CreateFailed { .. } => "create_failed",
            Self::Adopted => "adopted",
            Self::ExecStarted { .. } => "exec_started",
            Self::ExecRefused { .. } => "exec_refused",
            Self::ExecEnded { .. } => "exec_ended",
            Self::FileRead { .. } => "file_read",
            Self::FileWritten { .. } => "file_written",
            Self::FileRemoved { .. } => "file_removed",
            Self::FileRenamed { .. } => "file_renamed",
            Self::Renewed => "renewed",
            Self::Stopped { .. } => "stopped",
            Self::StopFailed { .. } => "stop_failed",
        }
    }
}

/// Why a sandbox ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// Its owner said so.
    Asked,
    /// Nothing used it for its idle time.
    Idle,
    /// Its total time was over.
    Total,
    /// The caller of `create` was gone before it could learn the id.
    Abandoned,
    Shutdown,
    /// The job that it was made for has ended.
    Finished,
    /// The engine no longer has it: it died, its own deadline passed, or another process stopped it.
    Lost,
}

impl StopReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Idle => "idle",
            Self::Total => "total",
            Self::Abandoned => "abandoned",
            Self::Shutdown => "shutdown",
            Self::Finished => "finished",
            Self::Lost => "lost",
        }
    }
}
