//! The engine contract: what makes sandboxes, behind one seam.
//!
//! # Life cycle
//!
//! ```text
//! create ──▶ live ──▶ destroy ──▶ gone
//!   │          │ expires by its own clock, or its process 1 dies
//!   └─ fails   └──────────────────▶ gone
//! ```
//!
//! A sandbox is *live* from the moment `create` returns until it is destroyed, its own deadline passes, or something
//! kills its first process; a persistent one of an engine that can do so may only [`Rest`] after that. Then it is *gone*: every method answers [`ErrorKind::NotFound`] for it, and nothing of it is
//! left on the host: no process, mount, cgroup, namespace or directory.
//!
//! # Rules for every engine
//!
//! - **The engine is the source of truth.** What `list` does not show does not exist. A registry can be rebuilt from it.
//! - **No half things.** A `create` that fails, or whose future is dropped, leaves nothing behind.
//! - **No silent fallback.** A wall that cannot be built fails `create` with [`ErrorKind::Unsupported`] and the remedy as
//!   hint, unless the operator allowed it to be missing, and then the report of that sandbox says so.
//! - **An ending is not an error.** A program that exits non-zero, is killed or runs out of memory is an outcome.
//! - **Death bounds life.** An ephemeral sandbox ends within two seconds of the engine's process, however that ended.
//! - **Nothing outside is followed.** File operations resolve links inside the sandbox's own tree, as its own user.
//!
//! [`ErrorKind::NotFound`]: crate::ErrorKind::NotFound
//! [`ErrorKind::Unsupported`]: crate::ErrorKind::Unsupported

use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::Result;
use crate::exec::{ExecLog, ExecOutcome, ExecRequest, Signal, TerminalSize};
use crate::file::{ByteRange, FileStat, ListOptions, Listing, WriteOptions};
use crate::id::{Owner, SandboxId, SandboxName};
use crate::image::ImageProgram;
use crate::isolation::IsolationReport;
use crate::network::NetworkUsage;
use crate::path::GuestPath;
use crate::spec::{Persistence, SandboxSpec};

#[cfg(feature = "testing")]
pub mod fake;
pub mod spares;
#[cfg(feature = "testing")]
pub mod testsuite;

/// Something that makes sandboxes.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// What this engine can do on this host. Asked once, at start.
    ///
    /// Must fail when the engine cannot make any sandbox here, with the remedy as hint.
    async fn capabilities(&self) -> Result<Capabilities>;

    /// Make a sandbox and wait until it takes execs.
    ///
    /// A work directory that the image has keeps its owner and its mode; one that it lacks is made, and is the user's. So
    /// is [`GuestPath::workspace`], which every guest has. A word of the image that means its root, or a place that is not
    /// the image's to have, is no word.
    ///
    /// Must fail when `id` exists (`AlreadyExists`), when a wall or a limit of `spec` cannot be enforced
    /// (`Unsupported`), when a secret is unknown (`NotFound`) or its host is out of reach (`InvalidInput`), when the
    /// image cannot be used (`NotFound`, `InvalidInput`), when the host has no room (`LimitExceeded`).
    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Made>;

    /// End a sandbox and wait until nothing of it is left.
    ///
    /// A sandbox that is already gone is a success: two callers may race, and the second must not see an error.
    async fn destroy(&self, id: &SandboxId) -> Result<()>;

    /// Every live sandbox that this engine can reach, whoever made it: its own, and persistent ones of earlier
    /// processes, those that rest too. Also clears away what dead processes left behind.
    async fn list(&self) -> Result<Vec<EngineSandbox>>;

    /// Start a command.
    ///
    /// Must fail when the sandbox is gone (`NotFound`), when the program does not exist (`NotFound`) or cannot be
    /// executed (`InvalidInput`), when the directory does not exist (`NotFound`), when the process limit is reached
    /// (`LimitExceeded`), when its script cannot be written (as a write of that file would). The script may be there
    /// after a failure.
    async fn start(&self, id: &SandboxId, request: &ExecRequest) -> Result<Process>;

    /// What commands with [`OutputTarget::Log`] wrote, the oldest first. Old ones and old output make room for new.
    ///
    /// [`OutputTarget::Log`]: crate::OutputTarget::Log
    async fn logs(&self, id: &SandboxId) -> Result<Vec<ExecLog>>;

    /// The sandbox's file tree. Does not fail for a sandbox that is gone; the operations do.
    fn files(&self, id: &SandboxId) -> Box<dyn Files>;

    /// What the sandbox uses now. One that rests uses nothing, and is not woken (`WrongState`).
    async fn usage(&self, id: &SandboxId) -> Result<Usage>;

    /// The walls around this very sandbox, as built.
    async fn isolation(&self, id: &SandboxId) -> Result<IsolationReport>;

    /// Move the moment at which the sandbox ends by itself. `None` means no such moment.
    ///
    /// A renewal that was answered is in force; one that came too late fails with `NotFound`. To one that rests it means
    /// nothing, and is answered.
    async fn set_deadline(&self, id: &SandboxId, from_now: Option<Duration>) -> Result<()>;

    /// How a persistent sandbox is reached without us. `None` where there are no other tools that could.
    async fn reach(&self, _id: &SandboxId) -> Result<Option<Reach>> {
        Ok(None)
    }

    /// Make nothing ahead of demand any more, and leave nothing half made: the process is about to end.
    async fn close(&self) {}
}

/// Commands of the tools of whatever an engine drives, for whoever may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Start a shell in it, as its user.
    pub enter: String,
    /// Stop it, with its files kept, and have it run again; absent where a stop would be its end.
    pub stop: Option<String>,
    pub start: Option<String>,
    /// Remove it with all that belongs to it.
    pub remove: String,
}

/// What an engine answers once, instead of "unsupported" in many places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// `native`, `docker`, `podman`, `kubernetes`; `fake` in tests.
    pub name: &'static str,
    /// Which of several, for an engine that can be in more than one place: what one of them does not list may be there in
    /// another, and is no business of this one's.
    pub realm: Option<String>,
    pub persistence: bool,
    pub terminal: bool,
    pub usage: bool,
    /// Whether a sandbox can be given a network, and be held to it.
    pub network: bool,
}

/// What a new sandbox has of its image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Where programs start that are not told otherwise; relative paths are below it.
    pub work_directory: GuestPath,
    pub program: ImageProgram,
}

/// A sandbox as its engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSandbox {
    pub id: SandboxId,
    pub owner: Owner,
    pub name: Option<SandboxName>,
    pub persistence: Persistence,
    /// Why it does not run. `None` for one that does.
    pub rest: Option<Rest>,
}

/// Why a persistent sandbox does not run although it exists: somebody who may has ended its processes, by other means than
/// this engine's. It then has no clock of its own, and is there until it is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Its files are kept. Whoever uses it has it run again.
    Stopped,
    /// It had no time to keep its files: what was written since it was last stopped, or all of it, is lost. It is not used
    /// again by itself (`WrongState`), because whoever does must know that.
    Interrupted,
}

impl Rest {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A running command. Dropping it does what its request's `on_disconnect` says.
pub struct Process {
    /// With pipes, dropping it closes the command's stdin. With a terminal it is what is typed there, and dropping it
    /// changes nothing: write an end-of-file character (`\x04`) instead. `None` only with [`OutputTarget::Log`], where the
    /// command's stdin is empty from the start.
    ///
    /// [`OutputTarget::Log`]: crate::OutputTarget::Log
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// Empty with a terminal.
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    pub control: Box<dyn ProcessControl>,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").finish_non_exhaustive()
    }
}

/// Power over one running command. Streams end on their own; they are not needed for `wait`.
#[async_trait]
pub trait ProcessControl: Send + Sync {
    /// Send a signal to the command's process group. Success when the command has already ended.
    async fn signal(&self, signal: Signal) -> Result<()>;

    async fn resize(&self, size: TerminalSize) -> Result<()>;

    /// Kill the command and everything that it started, also what left its group or session.
    ///
    /// `wait` then answers `Cancelled`, and only when nothing of the tree is left.
    async fn kill(&self) -> Result<()>;

    /// How the command ended. Does not wait for daemons that it left behind. May be called more than once.
    async fn wait(&self) -> Result<ExecOutcome>;
}

/// The file tree of one sandbox.
///
/// Only regular files are read and written. Links are followed, inside the sandbox's own root; FIFOs, sockets and devices
/// are refused with `InvalidInput`. Everything happens with the rights of the sandbox's user.
#[async_trait]
pub trait Files: Send + Sync {
    /// Links are not followed at the last component.
    async fn stat(&self, path: &GuestPath) -> Result<FileStat>;

    /// In byte order of the names, so that two listings of the same tree are equal.
    async fn list(&self, path: &GuestPath, options: ListOptions) -> Result<Listing>;

    async fn read(&self, path: &GuestPath, range: ByteRange) -> Result<ReadFile>;

    /// A new file beside the old one; [`WriteFile::commit`] puts it in place in one step.
    async fn write(&self, path: &GuestPath, options: WriteOptions) -> Result<Box<dyn WriteFile>>;

    /// With parents; one that exists is a success.
    async fn make_directory(&self, path: &GuestPath) -> Result<()>;

    /// A directory and all below it, a file, or a link (never what it points to).
    async fn remove(&self, path: &GuestPath) -> Result<()>;

    /// Replaces a file at `to`; refuses to replace a directory.
    async fn rename(&self, from: &GuestPath, to: &GuestPath) -> Result<()>;

    /// A directory or file as a tar stream; names in it are relative to `path`'s parent.
    async fn pack(&self, path: &GuestPath) -> Result<Box<dyn AsyncRead + Send + Unpin>>;

    /// The contents of a tar stream, below `path`. Nothing in the stream can lead outside of it.
    async fn unpack(&self, path: &GuestPath) -> Result<Box<dyn WriteFile>>;
}

/// A file that was opened for reading: its size is of that moment.
pub struct ReadFile {
    pub stat: FileStat,
    pub stream: Box<dyn AsyncRead + Send + Unpin>,
}

impl std::fmt::Debug for ReadFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadFile").field("stat", &self.stat).finish_non_exhaustive()
    }
}

/// Bytes on their way into a sandbox. Dropped before `commit`, it leaves no trace.
///
/// After a write has failed, `commit` fails too, and says why: a stream can only say that it broke.
#[async_trait]
pub trait WriteFile: AsyncWrite + Send + Unpin {
    async fn commit(self: Box<Self>) -> Result<()>;
}

/// What a sandbox uses now; `None` where the host cannot tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu: Option<Duration>,
    pub memory: Option<u64>,
    pub peak_memory: Option<u64>,
    pub processes: Option<u64>,
    pub disk: Option<u64>,
    /// Since the sandbox was made, or since this process found it. `None` when it has no network.
    pub network: Option<NetworkUsage>,
    /// How long ago the last command and all that it left behind ended. `None` also while something runs.
    pub quiet: Option<Duration>,
}
