//! Everything that is worth auditing or counting, as one closed list.
//!
//! The service sends these; logs, metrics and audit trails listen. A listener that falls behind loses events and learns how
//! many, because an audit sink must never be able to hold up a sandbox.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::broadcast;

use crate::error::ErrorKind;
use crate::exec::ExecOutcome;
use crate::id::{Owner, SandboxId};
use crate::network::{Denial, Host, Network};
use crate::path::GuestPath;
use crate::secret::SecretName;
use crate::spec::{Limits, Persistence};
use crate::tree::{Checkpoint, SavedName};

/// Something that happened to a sandbox of one owner, or to what is left of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub owner: Owner,
    /// A refused create has one too: it was chosen before the refusal, and ties the event to the log. `None` of what is
    /// about no sandbox, such as the end of a saved image.
    pub id: Option<SandboxId>,
    pub kind: EventKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    Created {
        persistence: Persistence,
        limits: Limits,
        network: Network,
        /// Names of those that it may use.
        secrets: BTreeSet<SecretName>,
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
    /// A connection out of the sandbox has ended; bytes as the sandbox sees them.
    Connected {
        host: Host,
        port: u16,
        bytes_in: u64,
        bytes_out: u64,
        took: Duration,
        /// Names of the secrets that were put in.
        secrets: Vec<SecretName>,
    },
    /// The sandbox asked for a connection, or for a name when there is no port, and was refused.
    ConnectionRefused {
        host: Host,
        port: Option<u16>,
        denial: Denial,
    },
    Renewed,
    Saved {
        name: SavedName,
        bytes: u64,
        took: Duration,
    },
    /// A saved image is no more.
    Forgotten {
        name: SavedName,
    },
    /// Of the one that was branched; the branch has a `Created` of its own.
    Forked {
        into: SandboxId,
    },
    Checkpointed {
        checkpoint: Checkpoint,
        took: Duration,
    },
    Restored {
        checkpoint: Checkpoint,
        took: Duration,
    },
    /// It was asked for and not done, for the caller's fault or ours.
    TreeFailed {
        work: TreeWork,
        kind: ErrorKind,
    },
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
            Self::Connected { .. } => "connected",
            Self::ConnectionRefused { .. } => "connection_refused",
            Self::Renewed => "renewed",
            Self::Saved { .. } => "saved",
            Self::Forgotten { .. } => "forgotten",
            Self::Forked { .. } => "forked",
            Self::Checkpointed { .. } => "checkpointed",
            Self::Restored { .. } => "restored",
            Self::TreeFailed { .. } => "tree_failed",
            Self::Stopped { .. } => "stopped",
            Self::StopFailed { .. } => "stop_failed",
        }
    }
}

/// Where events go: to everybody who listens, and to nobody in particular. Copies mean the same bus.
#[derive(Clone, Debug, Default)]
pub struct EventBus {
    /// Made for the first listener: room for this many events takes longer to lay out than a command needs to start.
    sender: Arc<OnceLock<broadcast::Sender<Event>>>,
}

/// Enough for a burst of a few hundred execs between two turns of a listener.
const EVENTS_KEPT: usize = 4096;

impl EventBus {
    /// Without listeners an event is dropped, which is no fault.
    pub fn emit(&self, owner: &Owner, id: &SandboxId, kind: EventKind) {
        if let Some(sender) = self.sender.get() {
            let _ = sender.send(Event { owner: owner.clone(), id: Some(id.clone()), kind });
        }
    }

    /// What is about no sandbox.
    pub fn emit_of(&self, owner: &Owner, kind: EventKind) {
        if let Some(sender) = self.sender.get() {
            let _ = sender.send(Event { owner: owner.clone(), id: None, kind });
        }
    }

    /// Events from now on. A reader that is slower than the service misses some and is told how many.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.sender.get_or_init(|| broadcast::Sender::new(EVENTS_KEPT)).subscribe()
    }
}

/// What can be done with a whole tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TreeWork {
    Save,
    Forget,
    Checkpoint,
    Restore,
}

impl TreeWork {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Save => "save",
            Self::Forget => "forget",
            Self::Checkpoint => "checkpoint",
            Self::Restore => "restore",
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
