//! The one door to sandboxes: every edge, be it a command line, an MCP tool or a dashboard, comes through here.
//!
//! # What it promises
//!
//! - A sandbox is seen and touched by its owner only; to everybody else it does not exist.
//! - A call that makes or ends something finishes or cleans up, also when its caller goes away in the middle.
//! - A sandbox ends when it was idle for its idle time or old enough, never while a command runs in it (but for the total
//!   time), and never after a renewal that was answered.
//! - Several processes may share one state directory: each sees what the others made persistent, and nothing is lost or
//!   done twice.
//!
//! It knows nothing of how sandboxes are built: that is the engine's.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::broadcast;

use crate::engine::{Capabilities, Engine, Files, Usage};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::exec::ExecRequest;
use crate::id::{InstanceId, Owner, SandboxId, SandboxName};
use crate::isolation::IsolationReport;
use crate::path::GuestPath;
use crate::runner::{RunCode, Runners};
use crate::spec::{Image, Lifetime, Limits, Network, Persistence, SandboxSpec};

pub mod execution;
pub mod lifecycle;
pub mod quota;

pub use execution::{Captured, Execution, ExecutionControl};
pub use lifecycle::State;
pub use quota::Quota;

/// What a process that keeps sandboxes decides once.
#[derive(Clone, Debug)]
pub struct ServiceSettings {
    /// Where the ledger is. Processes with the same directory share their persistent sandboxes.
    pub state_dir: PathBuf,
    pub instance: InstanceId,
    pub quota: Quota,
    /// Sandboxes that are made at the same time.
    pub create_slots: usize,
    /// Creates that may wait for a slot; one more is refused as busy.
    pub create_queue: usize,
    pub runners: Runners,
    /// How often what exists is compared with what is remembered.
    pub sweep_every: Duration,
    pub recovery: Recovery,
}

impl ServiceSettings {
    pub fn new(state_dir: impl Into<PathBuf>, instance: InstanceId) -> Self {
        Self {
            state_dir: state_dir.into(),
            instance,
            quota: Quota::default(),
            create_slots: 8,
            create_queue: 256,
            runners: Runners::built_in(),
            sweep_every: Duration::from_secs(30),
            recovery: Recovery::BeforeStart,
        }
    }
}

/// When what earlier processes left behind is adopted or cleared away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// `start` returns when it is done: for servers.
    BeforeStart,
    /// By the background task: for a command that lives for milliseconds. Look-ups ask the ledger, so they miss nothing.
    InBackground,
}

/// A sandbox as its owner sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxInfo {
    pub id: SandboxId,
    pub owner: Owner,
    pub name: Option<SandboxName>,
    pub image: Image,
    pub persistence: Persistence,
    pub state: State,
    pub created_at: SystemTime,
    /// If nothing uses it from now on. `None` while a command runs in it and its total time is unbounded.
    pub expires_at: Option<SystemTime>,
    pub lifetime: Lifetime,
    pub limits: Limits,
    pub network: Network,
    pub work_directory: GuestPath,
    /// Commands that run in it now, as far as this process knows.
    pub running: usize,
}

/// A handle to the service; copies are cheap and mean the same service.
#[derive(Clone)]
pub struct SandboxService {
    _engine: Arc<dyn Engine>,
    runners: Arc<Runners>,
}

fn not_built<T>() -> Result<T> {
    Err(Error::unsupported("not built yet"))
}

impl SandboxService {
    /// Ask the engine what it can, recover what earlier processes left, and start the background task.
    ///
    /// Must be called inside a tokio runtime that outlives the service.
    pub async fn start(engine: Arc<dyn Engine>, settings: ServiceSettings) -> Result<Self> {
        Ok(Self { _engine: engine, runners: Arc::new(settings.runners) })
    }

    pub fn capabilities(&self) -> &Capabilities {
        const NONE: Capabilities = Capabilities { name: "none", persistence: false, terminal: false, usage: false };
        &NONE
    }

    pub fn runners(&self) -> &Runners {
        &self.runners
    }

    /// Events from now on. A reader that is slower than the service misses some and is told how many.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        broadcast::channel(1).1
    }

    /// The spec's owner is replaced by `owner`.
    pub async fn create(&self, _owner: &Owner, _spec: SandboxSpec) -> Result<SandboxInfo> {
        not_built()
    }

    /// Oldest first.
    pub async fn list(&self, _owner: &Owner) -> Result<Vec<SandboxInfo>> {
        not_built()
    }

    /// One that is unknown and one that is somebody else's give the same error.
    pub async fn find(&self, _owner: &Owner, _id_or_name: &str) -> Result<SandboxInfo> {
        not_built()
    }

    /// Returns when nothing of it is left.
    pub async fn stop(&self, _owner: &Owner, _id: &SandboxId) -> Result<()> {
        not_built()
    }

    pub async fn exec(&self, _owner: &Owner, _id: &SandboxId, _request: ExecRequest) -> Result<Execution> {
        not_built()
    }

    /// Write the code into the sandbox, build it if its language asks for that, and start it.
    ///
    /// A build that fails is an outcome: the execution that is returned has its output and its exit code.
    pub async fn run_code(&self, _owner: &Owner, _id: &SandboxId, _run: RunCode) -> Result<Execution> {
        not_built()
    }

    /// The sandbox's files. Each operation counts as use.
    pub fn files(&self, _owner: &Owner, _id: &SandboxId) -> Result<Box<dyn Files>> {
        not_built()
    }

    pub async fn usage(&self, _owner: &Owner, _id: &SandboxId) -> Result<Usage> {
        not_built()
    }

    pub async fn isolation(&self, _owner: &Owner, _id: &SandboxId) -> Result<IsolationReport> {
        not_built()
    }

    /// Start the idle time anew; with a `lifetime`, live by that from now on.
    ///
    /// What was answered is in force, in the engine too.
    pub async fn renew(&self, _owner: &Owner, _id: &SandboxId, _lifetime: Option<Lifetime>) -> Result<SandboxInfo> {
        not_built()
    }

    /// End every ephemeral sandbox of this process, leave persistent ones, take no new ones.
    pub async fn shutdown(&self) -> Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for SandboxService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxService").finish_non_exhaustive()
    }
}
