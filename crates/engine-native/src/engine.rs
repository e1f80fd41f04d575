//! The engine: keeps what is live, asks the launcher for more, and finds again what earlier processes left running.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use egress::Gateway;
use sandbox::{
    Capabilities, Engine, EngineSandbox, Error, ExecLog, ExecRequest, Files, Image, InstanceId, IsolationReport, Layer,
    Made, Network, NetworkUsage, Persistence, Process, Result, SandboxId, SandboxSpec, Usage,
};
use tokio::sync::OwnedRwLockReadGuard;

use crate::client::Launcher;
use crate::collect::Collector;
use crate::files::NativeFiles;
use crate::host::Host;
use crate::launcher::Configuration;
use crate::layout::Layouts;
use crate::live::{Live, not_found};
use crate::places::{self, Places};
use crate::pool::Pool;
use crate::wire::{FromInit, ToInit};
use crate::{ahead, network, process, record};

/// How the engine is set up.
#[derive(Clone, Debug)]
pub struct NativeConfig {
    pub state_dir: PathBuf,
    pub instance: InstanceId,
    /// Layers that the operator accepts to be without where the host cannot give them.
    pub allow_missing: BTreeSet<Layer>,
    /// How many spare sandboxes are kept of each kind that is asked for: worth their memory to a server, not to a
    /// command that makes one.
    pub spares: usize,
    /// What lets sandboxes out that were given a network.
    pub gateway: Arc<Gateway>,
    pub reopen: Reopen,
    /// Layers that are left out on purpose, to show that a test would notice.
    #[cfg(feature = "weaken")]
    pub without: BTreeSet<Layer>,
}

/// When a persistent sandbox with a network, which another process made, is let out again by this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reopen {
    /// With the first command that is started in it: for processes that only look, or come and go.
    AtFirstStart,
    /// As soon as it is listed: for a server, so that what runs in there can go on.
    WhenListed,
}

/// The embedded Linux engine.
#[derive(Debug)]
pub struct NativeEngine {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub struct Shared {
    pub(crate) config: NativeConfig,
    pub(crate) host: Host,
    pub(crate) walls: Result<BTreeSet<Layer>, (sandbox::ErrorKind, String, Option<String>)>,
    pub(crate) places: Places,
    /// Started when the first sandbox is made: most commands only look at those that there are.
    launcher: Mutex<Option<Arc<Launcher>>>,
    pub(crate) layouts: Layouts,
    pub(crate) pool: Pool,
    collector: Collector,
    sandboxes: Mutex<HashMap<SandboxId, Arc<Live>>>,
    _instance_lock: File,
}

impl NativeEngine {
    /// Must fail where programs cannot be root of sandboxes from such an image, and say why and what to do.
    pub fn check_root(&self, image: &Image) -> Result<()> {
        self.shared.check_root(image)
    }

    /// Look at the host and take the instance's lock. Needs a tokio runtime.
    pub async fn start(config: NativeConfig) -> Result<Self> {
        let places = Places::prepare(&config.state_dir)?;
        let host = Host::detect();
        let instance_lock = places.lock_instance(&config.instance).map_err(|cause| {
            Error::new(sandbox::ErrorKind::AlreadyExists, "another engine runs under this instance id")
                .with_cause(cause)
        })?;
        let walls = host.walls(&config.allow_missing).map(|walls| config.built(walls));
        let walls = walls.map_err(|error| (error.kind(), error.message().to_owned(), error.hint().map(str::to_owned)));
        let shared = Shared {
            pool: Pool::new(config.spares),
            collector: Collector::default(),
            config,
            host,
            walls,
            places,
            launcher: Mutex::default(),
            layouts: Layouts::default(),
            sandboxes: Mutex::default(),
            _instance_lock: instance_lock,
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

impl NativeConfig {
    /// What a short-lived command uses: no layer may be missing, nothing is made ahead.
    pub fn new(state_dir: PathBuf, instance: InstanceId, gateway: Arc<Gateway>) -> Self {
        Self {
            state_dir,
            instance,
            allow_missing: BTreeSet::new(),
            spares: 0,
            gateway,
            reopen: Reopen::AtFirstStart,
            #[cfg(feature = "weaken")]
            without: BTreeSet::new(),
        }
    }

    #[cfg(not(feature = "weaken"))]
    fn built(&self, walls: BTreeSet<Layer>) -> BTreeSet<Layer> {
        walls
    }

    #[cfg(feature = "weaken")]
    fn built(&self, walls: BTreeSet<Layer>) -> BTreeSet<Layer> {
        let mut walls: BTreeSet<Layer> = walls.difference(&self.without).copied().collect();
        if !walls.contains(&Layer::UserNamespace) {
            walls.remove(&Layer::UidRange);
        }
        walls
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.places.unlock_instance(&self.config.instance);
    }
}

impl Shared {
    pub(crate) fn walls(&self) -> Result<&BTreeSet<Layer>> {
        self.walls.as_ref().map_err(|(kind, message, hint)| {
            let error = Error::new(*kind, message.clone());
            match hint {
                Some(hint) => error.with_hint(hint.clone()),
                None => error,
            }
        })
    }

    pub(crate) fn launcher(&self) -> Result<Arc<Launcher>> {
        let mut launcher = self.launcher.lock().unwrap_or_else(PoisonError::into_inner);
        match &*launcher {
            Some(running) if running.is_running() => Ok(running.clone()),
            _ => {
                let configuration = Configuration {
                    id_locks: self.places.id_locks.clone(),
                    programs: self.program_directory(),
                    instance_lock: self.places.instance_lock(&self.config.instance),
                    pool: self.host.pool,
                };
                let started = Launcher::start(configuration)
                    .map_err(|cause| Error::unavailable("the engine's launcher does not start").with_cause(cause))?;
                Ok(launcher.insert(Arc::new(started)).clone())
            }
        }
    }

    /// Only where every sandbox has ids of its own, and so none that root's files belong to.
    fn program_directory(&self) -> Option<PathBuf> {
        let apart = self
            .walls
            .as_ref()
            .is_ok_and(|walls| [Layer::UserNamespace, Layer::UidRange].iter().all(|layer| walls.contains(layer)));
        apart.then(|| self.places.programs.clone())
    }

    fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Live>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep(&self, live: Arc<Live>) {
        self.sandboxes().insert(live.id().clone(), live);
    }

    pub(crate) fn knows(&self, id: &SandboxId) -> bool {
        self.sandboxes().contains_key(id)
    }

    /// A sandbox that runs: one of ours, or a persistent one that another process made.
    pub(crate) async fn live(&self, id: &SandboxId) -> Result<Arc<Live>> {
        loop {
            let known = self.sandboxes().get(id).cloned();
            let Some(live) = known else { break };
            if !live.has_ended() {
                return Ok(live);
            }
            if !self.is_current(&live) {
                continue;
            }
            if !self.has_moved(&live) {
                self.forget(&live).await;
                return Err(not_found(id));
            }
            self.drop_known(&live);
        }
        let live = Arc::new(self.reconnect(id).await?.ok_or_else(|| not_found(id))?);
        Ok(self.sandboxes().entry(id.clone()).or_insert(live).clone())
    }

    /// A sandbox in which something may be done as long as the second value is kept: nobody restarts it meanwhile.
    pub(crate) async fn enter(&self, id: &SandboxId) -> Result<(Arc<Live>, OwnedRwLockReadGuard<()>)> {
        let (live, inside) = self.find_entrance(id).await?;
        ahead::dismiss(&live).await;
        Ok((live, inside))
    }

    /// The same for whoever changes nothing in it, or starts what was expected.
    async fn find_entrance(&self, id: &SandboxId) -> Result<(Arc<Live>, OwnedRwLockReadGuard<()>)> {
        loop {
            let live = self.live(id).await?;
            let inside = live.entrance.clone().read_owned().await;
            // It may have been restarted while we waited.
            if self.is_current(&live) {
                return Ok((live, inside));
            }
        }
    }

    /// Ask process 1, and its successor when it goes while it is asked: from the answers to these questions follows whether
    /// a sandbox is there at all.
    async fn ask(&self, id: &SandboxId, question: &ToInit) -> Result<(Arc<Live>, FromInit)> {
        loop {
            let (live, _inside) = self.find_entrance(id).await?;
            match live.ask(question).await {
                Ok(answer) => return Ok((live, answer)),
                Err(error) if error.kind() == sandbox::ErrorKind::NotFound => {
                    live.ended().await;
                    if self.is_current(&live) && !self.has_moved(&live) {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether this is the one that the sandbox's id stands for, and not one that another has taken the place of.
    pub(crate) fn is_current(&self, live: &Arc<Live>) -> bool {
        self.sandboxes().get(live.id()).is_some_and(|current| Arc::ptr_eq(current, live))
    }

    /// Whether another process has put a successor in its place.
    fn has_moved(&self, live: &Live) -> bool {
        let ours = &live.description.socket;
        if ours.is_none() {
            return false;
        }
        match record::read_both(&self.places.records, live.id()) {
            // While one is put in the place of another the record has both.
            Ok(Some((found, successor))) => {
                found.socket != *ours || successor.is_some_and(|successor| successor.socket != *ours)
            }
            Ok(None) => false,
            // What cannot be read is no reason to remove anything.
            Err(_) => true,
        }
    }

    fn drop_known(&self, live: &Arc<Live>) {
        let mut sandboxes = self.sandboxes();
        if sandboxes.get(live.id()).is_some_and(|current| Arc::ptr_eq(current, live)) {
            sandboxes.remove(live.id());
        }
    }

    /// Remove every trace of a sandbox that has ended.
    async fn forget(&self, live: &Arc<Live>) {
        live.sockets.close();
        self.drop_known(live);
        if self.has_moved(live) {
            return;
        }
        if live.cleared_by_launcher().await && live.description.persistence == Persistence::Ephemeral {
            return;
        }
        let description = live.description.clone();
        let records = self.places.records.clone();
        // Groups of the dying may refuse to go for some milliseconds, which must not hold up the runtime.
        let cleared = tokio::task::spawn_blocking(move || {
            places::clear_groups(&description.groups);
            if let Some(socket) = &description.socket {
                let _ = std::fs::remove_file(socket);
            }
            if description.persistence == Persistence::Persistent {
                let _ = record::remove(&records, &description.id);
            }
        });
        let _ = cleared.await;
    }
}

#[async_trait]
impl Engine for NativeEngine {
    async fn capabilities(&self) -> Result<Capabilities> {
        let network = self.shared.walls()?.contains(&Layer::NetworkNamespace) && network::is_possible();
        Ok(Capabilities { name: "native", realm: None, persistence: true, terminal: true, usage: true, network })
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Made> {
        self.shared.create(id, spec).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        loop {
            let live = match self.shared.live(id).await {
                Ok(live) => live,
                Err(error) if error.kind() == sandbox::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            };
            let _changing = live.changing.clone().lock_owned().await;
            // While we waited it may have been restarted.
            if self.shared.is_current(&live) {
                live.kill();
                live.ended().await;
                let is_last = !self.shared.has_moved(&live);
                self.shared.forget(&live).await;
                if is_last {
                    return Ok(());
                }
            }
        }
    }

    async fn list(&self) -> Result<Vec<EngineSandbox>> {
        let shared = &self.shared;
        let (sweeper, groups) = (self.shared.clone(), shared.host.places.clone());
        let swept = tokio::task::spawn_blocking(move || {
            sweeper.places.sweep(&groups);
            sweeper.collector.collect_in_time(&sweeper.places);
        });
        let _ = swept.await;
        let mut ids: BTreeSet<SandboxId> = shared.sandboxes().keys().cloned().collect();
        let unreadable = |cause: io::Error| Error::unavailable("the engine's records cannot be read").with_cause(cause);
        ids.extend(record::all(&shared.places.records).map_err(unreadable)?);
        let mut found = Vec::new();
        for id in ids {
            // One that has ended meanwhile, or whose record makes no sense, is not live.
            let Ok(live) = shared.live(&id).await else { continue };
            if shared.config.reopen == Reopen::WhenListed
                && let Err(error) = shared.door(&live).await
            {
                // It is there all the same; whoever starts something in it is told.
                tracing::warn!(sandbox = %id, ?error, "a sandbox that was found cannot be let out");
            }
            let description = &live.description;
            found.push(EngineSandbox {
                id,
                owner: description.owner.clone(),
                name: description.name.clone(),
                persistence: description.persistence,
                rest: None,
            });
        }
        Ok(found)
    }

    async fn start(&self, id: &SandboxId, request: &ExecRequest) -> Result<Process> {
        let (live, _inside) = self.shared.find_entrance(id).await?;
        self.shared.door(&live).await?;
        process::start(live, request).await
    }

    async fn logs(&self, id: &SandboxId) -> Result<Vec<ExecLog>> {
        let (live, _inside) = self.shared.enter(id).await?;
        process::logs(&live).await
    }

    fn files(&self, id: &SandboxId) -> Box<dyn Files> {
        Box::new(NativeFiles { shared: self.shared.clone(), id: id.clone() })
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage> {
        let (live, answer) = self.shared.ask(id, &ToInit::Measure).await?;
        let frozen = live.history().held().bytes;
        let (disk, helpers, quiet) = match answer {
            FromInit::Measured { disk, helpers, quiet_milliseconds } => {
                (Some(disk + frozen), helpers, quiet_milliseconds)
            }
            FromInit::Ready
            | FromInit::DeadlineSet
            | FromInit::Frozen { .. }
            | FromInit::Busy
            | FromInit::Staying
            | FromInit::Network(_) => (None, 0, None),
        };
        let meter = &live.meter;
        Ok(Usage {
            cpu: meter.cpu(),
            memory: meter.memory(),
            peak_memory: meter.peak_memory(),
            processes: meter.processes().map(|count| count.saturating_sub(helpers)),
            disk,
            network: match live.description.network {
                Network::None => None,
                Network::Hosts(_) | Network::Internet => {
                    Some(live.account().map_or_else(NetworkUsage::default, |account| account.usage()))
                }
            },
            quiet: quiet.map(Duration::from_millis),
        })
    }

    async fn isolation(&self, id: &SandboxId) -> Result<IsolationReport> {
        let live = self.shared.live(id).await?;
        let description = &live.description;
        Ok(self.shared.host.report(description))
    }

    /// With the launcher, so that nothing of ours is there a moment longer than we are.
    async fn close(&self) {
        drop(self.shared.pool.close());
        let launcher = self.shared.launcher.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(launcher) = launcher {
            launcher.close().await;
        }
    }

    async fn set_deadline(&self, id: &SandboxId, from_now: Option<Duration>) -> Result<()> {
        let milliseconds = from_now.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 2));
        self.shared.ask(id, &ToInit::SetDeadline { milliseconds }).await.map(drop)
    }
}
