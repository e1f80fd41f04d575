//! The one door to sandboxes: every edge, be it a command line, an MCP tool or a dashboard, comes through here.
//!
//! # What it promises
//!
//! - A sandbox is seen and touched by its owner only; to everybody else it does not exist.
//! - A create waits its turn among owners, not among creates: a thousand of one owner do not hold up one of another.
//! - A call that makes or ends something finishes or cleans up, also when its caller goes away in the middle.
//! - A job goes on whoever looks at it, ends when it is stopped, with its sandbox and with the service, and takes the
//!   sandbox that was made for it with it. What is kept of it is bounded.
//! - A sandbox ends when it was idle for its idle time or old enough, never while something runs in it (but for the total
//!   time), whoever started that, and never after a renewal that was answered.
//! - Several processes may share one state directory: each sees what the others made persistent, and nothing is lost or
//!   done twice.
//!
//! It knows nothing of how sandboxes are built: that is the engine's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::broadcast;

use crate::artifact::Artifact;
use crate::context::{ContextInfo, ContextName, ContextSettings};
use crate::engine::{Capabilities, Engine, Files, Reach, Rest, Usage};
use crate::error::{ErrorKind, Result};
use crate::event::{Event, EventBus, StopReason};
use crate::exec::{ExecLog, ExecRequest};
use crate::file::{ByteRange, FileStat};
use crate::history::History;
use crate::id::{InstanceId, JobId, Owner, SandboxId, SandboxName};
use crate::image::{Image, ImageProgram};
use crate::isolation::IsolationReport;
use crate::job::JobRequest;
use crate::network::Network;
use crate::path::GuestPath;
use crate::port::{GuestPort, GuestStream};
use crate::runner::{ImageRunners, RunCode, Runners};
use crate::spec::{Lifetime, Limits, Persistence, SandboxSpec};
use crate::tree::{Changes, Checkpoint, Powers, SavedImage, SavedName};

mod allotment;
mod clock;
mod context;
mod core;
mod create;
mod execution;
mod expire;
mod expiry;
mod facts;
mod files;
mod history;
mod hold;
mod job;
mod languages;
mod ledger;
mod lifecycle;
mod packages;
mod ports;
mod queue;
mod quota;
mod reaper;
mod recovery;
mod registry;
mod renew;
mod run;
mod slots;
mod stop;
mod trees;

use self::core::Core;
use self::create::Origin;
use self::files::HeldFiles;

pub use context::BranchRequest;
pub use execution::{Captured, Execution, ExecutionControl};
pub use job::{Attendance, Job, JobFollower, JobSettings};
pub use languages::Language;
pub use lifecycle::State;
pub use packages::{PackageHost, PackageIndex, PackageSet, PackageSettings, PackageStep, Prepared, ResolvedPackage};
pub use quota::{Bounds, Quota};
pub use trees::ForkRequest;

/// What a process that keeps sandboxes decides once.
#[derive(Clone, Debug)]
pub struct ServiceSettings {
    /// Where the ledger is. Processes with the same directory share their persistent sandboxes.
    pub state_dir: PathBuf,
    pub instance: InstanceId,
    pub quota: Quota,
    /// Of owners for whom it is another.
    pub quota_of: BTreeMap<Owner, Quota>,
    /// Sandboxes that are made at the same time. One owner alone gets half of them: the rest is for who comes next.
    pub create_slots: usize,
    /// Creates that may wait for a slot; one more is refused as busy. One owner alone gets half of these too.
    pub create_queue: usize,
    pub jobs: JobSettings,
    pub contexts: ContextSettings,
    pub runners: Runners,
    /// Whether an engine is told what the sandboxes of jobs will start, so that it can begin that ahead.
    pub warm: bool,
    /// For an engine without a host image: who knows which images run which languages.
    pub image_runners: Option<Arc<dyn ImageRunners>>,
    /// How often what exists is compared with what is remembered.
    pub sweep_every: Duration,
    pub recovery: Recovery,
    /// An engine that has something to tell is given the same one.
    pub events: EventBus,
    /// What the engine can do besides making sandboxes.
    pub powers: Powers,
    /// Variables whose values are the operator's own: of these a history has the names only.
    pub passed_through: BTreeSet<String>,
    /// `None`: no packages are installed.
    pub packages: Option<PackageSettings>,
}

impl ServiceSettings {
    pub fn new(state_dir: impl Into<PathBuf>, instance: InstanceId) -> Self {
        Self {
            state_dir: state_dir.into(),
            instance,
            quota: Quota::default(),
            quota_of: BTreeMap::new(),
            create_slots: create_slots(),
            create_queue: 256,
            jobs: JobSettings::default(),
            contexts: ContextSettings::default(),
            runners: Runners::built_in(),
            warm: true,
            image_runners: None,
            sweep_every: Duration::from_secs(30),
            recovery: Recovery::BeforeStart,
            events: EventBus::default(),
            powers: Powers::default(),
            passed_through: BTreeSet::new(),
            packages: None,
        }
    }
}

/// One per core, of which one owner alone gets half: another's create finds a core, and takes less than twice as long as on
/// an idle machine (RX-15). With two per core it took a little more than that.
fn create_slots() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).max(2)
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
    /// Why it does not run, as far as this process knows.
    pub rest: Option<Rest>,
    pub created_at: SystemTime,
    /// If nothing uses it from now on. `None` while a command runs in it and its total time is unbounded.
    pub expires_at: Option<SystemTime>,
    pub lifetime: Lifetime,
    /// As enforced, which may be tighter than what was asked.
    pub limits: Limits,
    pub network: Network,
    pub work_directory: GuestPath,
    /// What its image is made to run.
    pub program: ImageProgram,
    /// Commands that run in it now, as far as this process knows.
    pub running: usize,
}

impl SandboxInfo {
    /// Where it is in its life, in one word.
    pub fn condition(&self) -> &'static str {
        match (self.state, self.rest) {
            (State::Live, Some(rest)) => rest.as_str(),
            (state, _) => state.as_str(),
        }
    }
}

/// How much there is, of all owners together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    pub sandboxes: usize,
    /// Commands that run now.
    pub execs: usize,
    /// Sandboxes that are being made, and those that wait for it.
    pub creates: usize,
    pub waiting: usize,
}

/// A handle to the service; copies are cheap and mean the same service.
///
/// Jobs hold what they need of it, so they are asked to stop when the last handle is dropped.
#[derive(Clone)]
pub struct SandboxService {
    core: Arc<Core>,
    _door: Arc<Door>,
}

/// Closed with the last handle.
struct Door {
    core: Arc<Core>,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.core.jobs.close();
        self.core.contexts.clear();
    }
}

/// Commands that live for milliseconds end before this, and leave recovery to those that look around.
const BACKGROUND_RECOVERY: Duration = Duration::from_millis(200);

impl SandboxService {
    /// Ask the engine what it can, recover what earlier processes left, and start the background task.
    ///
    /// Must be called inside a tokio runtime that outlives the service.
    pub async fn start(engine: Arc<dyn Engine>, settings: ServiceSettings) -> Result<Self> {
        let capabilities = engine.capabilities().await?;
        let recovery = settings.recovery;
        let core = Arc::new(Core::new(engine, capabilities, settings)?);
        let now = core.clock.now();
        let sweep_at = match recovery {
            Recovery::BeforeStart => {
                core.reconcile().await?;
                core.adopt_jobs()?;
                now.after(core.settings.sweep_every)
            }
            Recovery::InBackground => now.after(BACKGROUND_RECOVERY),
        };
        tokio::spawn(reaper::run(Arc::downgrade(&core), sweep_at));
        let door = Arc::new(Door { core: Arc::clone(&core) });
        Ok(Self { core, _door: door })
    }

    pub fn capabilities(&self) -> &Capabilities {
        &self.core.capabilities
    }

    /// What the engine can do besides, for those who work on trees without an owner.
    pub fn powers(&self) -> &Powers {
        &self.core.settings.powers
    }

    pub fn runners(&self) -> &Runners {
        &self.core.settings.runners
    }

    /// Who owns the sandboxes of builds that somebody asked for: nobody who can ask for anything, so no client finds them.
    /// It is another one for each who asks, so that a quota is not used up by others.
    pub fn builds_of(&self, asker: &Owner) -> Owner {
        let digits = packages::digest([asker.as_str()]);
        let text = format!("builds@{}/{}", self.core.settings.instance, &digits[..32]);
        text.parse().expect("it is short and visible ASCII")
    }

    pub fn census(&self) -> Census {
        let (sandboxes, execs) = self.core.registry.count();
        let (creates, waiting) = self.core.slots.count();
        Census { sandboxes, execs, creates, waiting }
    }

    /// Bounds of owners, in place of those before.
    pub fn set_bounds(&self, bounds: Bounds) {
        self.core.quotas.replace(bounds);
    }

    /// Events from now on. A reader that is slower than the service misses some and is told how many.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.core.subscribe()
    }

    /// The spec's owner is replaced by `owner`, and so is that of its image. When this future is dropped, the sandbox is not made, or ended.
    pub async fn create(&self, owner: &Owner, mut spec: SandboxSpec) -> Result<SandboxInfo> {
        spec.owner = owner.clone();
        spec.image_owner = None;
        self.core.create(spec, Origin::Image).await
    }

    /// Oldest first. Asks the engine where other processes may have changed something.
    pub async fn list(&self, owner: &Owner) -> Result<Vec<SandboxInfo>> {
        if self.core.may_have_persistent()? {
            self.core.reconcile().await?;
            self.core.expire_overdue(owner).await;
        }
        Ok(oldest_first(self.core.registry.list(owner, &self.core.clock)))
    }

    /// Of all owners, oldest first: for whoever answers for the whole server. Everything else still asks for the owner, whom
    /// each names.
    pub async fn list_all(&self) -> Result<Vec<SandboxInfo>> {
        if self.core.may_have_persistent()? {
            self.core.reconcile().await?;
        }
        Ok(oldest_first(self.core.registry.list_all(&self.core.clock)))
    }

    /// Of all owners, as far as this process knows: nobody is asked, for those who look all the time.
    pub fn known(&self) -> Vec<SandboxInfo> {
        oldest_first(self.core.registry.list_all(&self.core.clock))
    }

    /// One that is unknown and one that is somebody else's give the same error.
    pub async fn find(&self, owner: &Owner, id_or_name: &str) -> Result<SandboxInfo> {
        let id = self.core.find_or_adopt(owner, id_or_name).await?;
        self.core.registry.info(owner, &id, &self.core.clock)
    }

    /// Returns when nothing of it is left; the work goes on when this future is dropped.
    pub async fn stop(&self, owner: &Owner, id: &SandboxId) -> Result<()> {
        self.core.locate(owner, id)?;
        self.core.end(id, StopReason::Asked).await
    }

    pub async fn exec(&self, owner: &Owner, id: &SandboxId, request: ExecRequest) -> Result<Execution> {
        self.core.admit_run(owner)?;
        self.core.exec(owner, id, &request).await
    }

    /// Write the code into the sandbox, build it if its language asks for that, and start it.
    ///
    /// A build that fails is an outcome: the execution that is returned has its output and its exit code.
    pub async fn run_code(&self, owner: &Owner, id: &SandboxId, run: RunCode) -> Result<Execution> {
        self.core.admit_run(owner)?;
        self.core.run_code(owner, id, run).await
    }

    /// Register a run and let it go on by itself; never waits for its sandbox.
    ///
    /// What is plainly wrong is refused here; whatever comes later is in the job's status. The same request with the same
    /// key is the same job, as long as that is remembered, also when it has failed.
    pub fn start_job(&self, owner: &Owner, request: JobRequest) -> Result<Job> {
        self.core.start_job(owner, request)
    }

    /// One that runs, or ended a while ago at most. Somebody else's does not exist.
    pub fn job(&self, owner: &Owner, id: &JobId) -> Result<Job> {
        self.core.find_job(owner, id)
    }

    /// Oldest first.
    pub fn jobs(&self, owner: &Owner) -> Vec<Job> {
        self.core.jobs.list(owner)
    }

    /// The contexts of a sandbox by name, those that have ended among them as long as they are remembered.
    pub fn contexts(&self, owner: &Owner, id: &SandboxId) -> Result<Vec<ContextInfo>> {
        self.core.contexts_of(owner, id)
    }

    /// End a context with whatever runs in it. Its name is free then.
    pub async fn close_context(&self, owner: &Owner, id: &SandboxId, name: &ContextName) -> Result<()> {
        self.core.close_context(owner, id, name).await
    }

    /// The same, and begin anew under that name.
    pub async fn restart_context(&self, owner: &Owner, id: &SandboxId, name: &ContextName) -> Result<ContextInfo> {
        self.core.restart_context(owner, id, name).await
    }

    /// Contexts with the variables of one, in the same sandbox: all that are asked for, or none.
    pub async fn branch_context(
        &self,
        owner: &Owner,
        id: &SandboxId,
        name: &ContextName,
        request: &BranchRequest,
    ) -> Result<Vec<ContextInfo>> {
        self.core.branch_context(owner, id, name, request).await
    }

    /// Part of a file: of a live sandbox, or of what was kept of one that ended with its job.
    ///
    /// At most [`JobSettings::artifact_bytes`] at once, however many are asked for.
    pub async fn read_artifact(
        &self,
        owner: &Owner,
        sandbox: &SandboxId,
        path: &GuestPath,
        range: ByteRange,
    ) -> Result<(FileStat, Vec<u8>)> {
        self.core.read_artifact(owner, sandbox, path, range).await
    }

    /// What can be read of a sandbox that ended with its job.
    pub fn kept_artifacts(&self, owner: &Owner, sandbox: &SandboxId) -> Vec<Artifact> {
        self.core.kept.list(owner, sandbox)
    }

    /// Where relative paths of this sandbox start.
    pub fn work_directory(&self, owner: &Owner, id: &SandboxId) -> Result<GuestPath> {
        self.core.locate(owner, id)?;
        self.core.registry.info(owner, id, &self.core.clock).map(|info| info.work_directory)
    }

    /// The sandbox's files. Each operation counts as use.
    pub fn files(&self, owner: &Owner, id: &SandboxId) -> Result<Box<dyn Files>> {
        self.core.locate(owner, id)?;
        Ok(Box::new(HeldFiles::new(&self.core, owner, id)))
    }

    /// A connection to what a program in the sandbox listens on. It counts as use for as long as it is kept, and the engine is
    /// told to expect one of `longest`.
    pub async fn connect(
        &self,
        owner: &Owner,
        id: &SandboxId,
        port: GuestPort,
        longest: Duration,
    ) -> Result<GuestStream> {
        self.core.connect(owner, id, port, longest).await
    }

    /// What detached commands wrote, the oldest first.
    pub async fn logs(&self, owner: &Owner, id: &SandboxId) -> Result<Vec<ExecLog>> {
        self.core.locate(owner, id)?;
        match self.core.engine.logs(id).await {
            Ok(logs) => Ok(logs),
            Err(error) => Err(self.core.explain(id, error).await),
        }
    }

    /// Looking is no use: a dashboard that polls must not keep a sandbox alive.
    pub async fn usage(&self, owner: &Owner, id: &SandboxId) -> Result<Usage> {
        self.core.locate(owner, id)?;
        match self.core.engine.usage(id).await {
            Ok(usage) => Ok(usage),
            Err(error) => Err(self.core.explain(id, error).await),
        }
    }

    pub async fn isolation(&self, owner: &Owner, id: &SandboxId) -> Result<IsolationReport> {
        self.core.locate(owner, id)?;
        match self.core.engine.isolation(id).await {
            Ok(report) => Ok(report),
            Err(error) => Err(self.core.explain(id, error).await),
        }
    }

    /// How it is reached without us, for whoever may use what the engine drives.
    pub async fn reach(&self, owner: &Owner, id: &SandboxId) -> Result<Option<Reach>> {
        self.core.locate(owner, id)?;
        self.core.engine.reach(id).await
    }

    /// Start the idle time anew; with a `lifetime`, live by that from now on.
    ///
    /// What was answered is in force, in the engine too.
    pub async fn renew(&self, owner: &Owner, id: &SandboxId, lifetime: Option<Lifetime>) -> Result<SandboxInfo> {
        self.core.renew(owner, id, lifetime).await
    }

    /// Keep the sandbox's whole tree as the image `saved:NAME` of its owner, in place of one that had this name.
    pub async fn save(&self, owner: &Owner, id: &SandboxId, name: &SavedName) -> Result<SavedImage> {
        self.core.save(owner, id, name).await
    }

    /// By name.
    pub async fn saved(&self, owner: &Owner) -> Result<Vec<SavedImage>> {
        self.core.snapshots()?.saved(owner).await
    }

    /// Whether there was one. Sandboxes made from it stay as they are.
    pub async fn forget(&self, owner: &Owner, name: &SavedName) -> Result<bool> {
        self.core.forget(owner, name).await
    }

    /// A new sandbox with the same files and the same rights; running programs stay where they are. When this future is
    /// dropped, it is not made, or ended.
    pub async fn fork(&self, owner: &Owner, id: &SandboxId, request: ForkRequest) -> Result<SandboxInfo> {
        self.core.fork(owner, id, request).await
    }

    /// Remember all files as they are now. Fails while a command runs.
    pub async fn checkpoint(&self, owner: &Owner, id: &SandboxId) -> Result<Checkpoint> {
        self.core.checkpoint(owner, id).await
    }

    /// What is different from what it was then, or at its start; at most so many, in the order of their paths.
    pub async fn changes(
        &self,
        owner: &Owner,
        id: &SandboxId,
        since: Option<Checkpoint>,
        most: usize,
    ) -> Result<Changes> {
        self.core.changes(owner, id, since, most).await
    }

    /// Put all files back. Fails while a command runs.
    pub async fn restore(&self, owner: &Owner, id: &SandboxId, to: Checkpoint) -> Result<()> {
        self.core.restore(owner, id, to).await
    }

    /// What was done in it through the service, as far as it is kept. Looking is no use.
    pub async fn history(&self, owner: &Owner, id: &SandboxId) -> Result<History> {
        self.core.history(owner, id)
    }

    /// Stop every job, end every ephemeral sandbox of this process, leave persistent ones, take no new ones.
    ///
    /// Fails with the first failure, after all were tried.
    pub async fn shutdown(&self) -> Result<()> {
        for job in self.core.jobs.close() {
            // What cannot be shown to have ended goes with its sandbox, or with us.
            let _ = job.stop().await;
        }
        self.core.kept.clear();
        self.core.contexts.end_all().await;
        let mut endings = tokio::task::JoinSet::new();
        for id in self.core.registry.close() {
            let core = Arc::clone(&self.core);
            endings.spawn(async move { core.end(&id, StopReason::Shutdown).await });
        }
        let mut first_failure = Ok(());
        while let Some(ended) = endings.join_next().await {
            match ended {
                Ok(Err(error)) if error.kind() != ErrorKind::NotFound => first_failure = first_failure.and(Err(error)),
                Ok(Ok(()) | Err(_)) | Err(_) => {}
            }
        }
        self.core.engine.close().await;
        first_failure
    }
}

fn oldest_first(mut sandboxes: Vec<SandboxInfo>) -> Vec<SandboxInfo> {
    sandboxes.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    sandboxes
}

impl std::fmt::Debug for SandboxService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SandboxService").field("engine", &self.core.capabilities.name).finish_non_exhaustive()
    }
}

/// Whether bytes on disk would be taken for a record of this sandbox. For fuzzing: it must not panic, whatever they are.
#[cfg(feature = "testing")]
pub fn reads_as_record(bytes: &[u8], id: &SandboxId) -> bool {
    ledger::reads_as_record(bytes, &Owner::local(), id)
}
