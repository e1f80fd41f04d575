//! The engine: keeps streams to what is live, asks the daemon for more, and finds again what earlier processes left running.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::{ContainerInspectResponse, ContainerStatsResponse};
use sandbox::{
    Capabilities, Engine, EngineSandbox, Error, ErrorKind, ExecLog, ExecRequest, Files, ImageName, InstanceId,
    IsolationReport, Layer, Made, Persistence, Process, Result, SandboxId, SandboxSpec, Usage,
};

use crate::agent_volume::AgentVolume;
use crate::client::{Daemon, DaemonFacts};
use crate::files::DockerFiles;
use crate::image::{Images, PullProgress};
use crate::live::{Live, not_found};
use crate::places::{InstanceLock, Places};
use crate::pool::Pool;
use crate::record::{self, Maker};
use crate::reference::Reference;
use crate::{ContainerUser, Flavour, Logins, Wish, isolation};

/// How the engine is set up.
#[derive(Clone, Debug)]
pub struct DockerConfig {
    pub flavour: Flavour,
    /// Where the daemon is, when that was said.
    pub wish: Wish,
    pub state_dir: PathBuf,
    pub instance: InstanceId,
    pub user: ContainerUser,
    /// Another runtime than the daemon's own, by the name that the daemon knows it by.
    pub runtime: Option<String>,
    /// What a sandbox is made from whose image is the host's tree, which a daemon does not have.
    pub default_image: Option<String>,
    /// How many spare containers are kept of each kind that is asked for: worth their memory to a server, not to a
    /// command that makes one.
    pub spares: usize,
    /// Layers that the operator accepts to be without where the daemon cannot give them.
    pub allow_missing: BTreeSet<Layer>,
    pub logins: Option<Arc<dyn Logins>>,
}

impl DockerConfig {
    /// What a short-lived command uses.
    pub fn new(flavour: Flavour, state_dir: PathBuf, instance: InstanceId) -> Self {
        Self {
            flavour,
            wish: Wish::default(),
            state_dir,
            instance,
            user: ContainerUser::default(),
            runtime: None,
            default_image: None,
            spares: 0,
            allow_missing: BTreeSet::new(),
            logins: None,
        }
    }
}

/// Sandboxes as containers.
#[derive(Debug)]
pub struct DockerEngine {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub config: DockerConfig,
    pub daemon: Daemon,
    pub places: Places,
    pub images: Images,
    pub agent: AgentVolume,
    pub pool: Pool,
    /// There may be images that lost their names while they were used.
    pub retired: AtomicBool,
    sandboxes: Mutex<HashMap<SandboxId, Arc<Live>>>,
    _lock: InstanceLock,
}

impl DockerEngine {
    /// Find the daemon and take the instance's lock. Needs a tokio runtime.
    pub async fn start(config: DockerConfig) -> Result<Self> {
        let places = Places::prepare(&config.state_dir)?;
        let lock = places.lock(&config.instance)?;
        let daemon = Daemon::connect(config.flavour, &config.wish).await?;
        daemon.check_platform()?;
        let known = &daemon.facts().runtimes;
        if let Some(runtime) = config.runtime.as_ref().filter(|runtime| !known.is_empty() && !known.contains(*runtime))
        {
            let names: Vec<&str> = known.iter().map(String::as_str).collect();
            return Err(Error::not_found(format!("the daemon has no runtime {runtime:?}"))
                .with_hint(format!("it has {}", names.join(", "))));
        }
        let images = Images::new(config.default_image.clone(), config.user, config.logins.clone());
        let spares = config.spares;
        let shared = Shared {
            config,
            daemon,
            places,
            images,
            agent: AgentVolume::new(agent::PROGRAM, agent::PROGRAM_HASH),
            pool: Pool::new(spares),
            // Those of an earlier process.
            retired: AtomicBool::new(true),
            sandboxes: Mutex::default(),
            _lock: lock,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub fn daemon(&self) -> &DaemonFacts {
        self.shared.daemon.facts()
    }

    /// Have an image there; what the daemon says meanwhile is told.
    pub async fn pull(&self, name: &ImageName, progress: &(dyn Fn(PullProgress) + Send + Sync)) -> Result<()> {
        let reference = Reference::parse(name.as_str())?;
        self.shared.images.pull(&self.shared.daemon, &reference, progress).await.map(drop)
    }
}

impl Shared {
    pub fn maker(&self) -> Maker<'_> {
        Maker { installation: &self.places.installation, instance: self.config.instance.as_str() }
    }

    pub fn check_walls(&self) -> Result<()> {
        isolation::check(self.config.flavour, self.daemon.facts(), &self.config.allow_missing)
    }

    fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Live>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Back when there is one with its id already.
    pub fn keep(&self, live: Live) -> Option<Live> {
        match self.sandboxes().entry(live.id().clone()) {
            Entry::Vacant(place) => {
                place.insert(Arc::new(live));
                None
            }
            Entry::Occupied(_) => Some(live),
        }
    }

    pub fn knows(&self, id: &SandboxId) -> bool {
        self.sandboxes().contains_key(id)
    }

    fn drop_known(&self, live: &Arc<Live>) {
        let mut sandboxes = self.sandboxes();
        if sandboxes.get(live.id()).is_some_and(|current| Arc::ptr_eq(current, live)) {
            sandboxes.remove(live.id());
        }
    }

    /// A sandbox that runs: one of ours, or a persistent one that another process made.
    pub async fn live(&self, id: &SandboxId) -> Result<Arc<Live>> {
        let known = self.sandboxes().get(id).cloned();
        if let Some(live) = known {
            if !live.connection.is_closed() {
                return Ok(live);
            }
            let runs = self.outlived_its_stream(&live).await?;
            self.drop_known(&live);
            if !runs {
                return Err(not_found(id));
            }
        }
        let live = Arc::new(self.reconnect(id).await?.ok_or_else(|| not_found(id))?);
        Ok(self.sandboxes().entry(id.clone()).or_insert(live).clone())
    }

    /// Whether a sandbox is there although our stream to it has ended. An ephemeral one is not: it ends with its stream.
    async fn outlived_its_stream(&self, live: &Live) -> Result<bool> {
        let runs = match live.description.persistence {
            Persistence::Ephemeral => {
                self.daemon.remove(&live.container).await?;
                false
            }
            Persistence::Persistent => {
                self.daemon.inspect(&live.container).await?.is_some_and(|found| is_running(&found))
            }
        };
        if !runs {
            live.connection.sandbox_is_gone();
        }
        Ok(runs)
    }

    /// An answer of a sandbox that may have gone meanwhile: then that is the answer.
    pub async fn settled<T>(&self, live: &Arc<Live>, answer: Result<T>) -> Result<T> {
        let Err(error) = answer else { return answer };
        if !live.connection.is_closed() || error.kind() == ErrorKind::NotFound {
            return Err(error);
        }
        match self.outlived_its_stream(live).await {
            Ok(false) => Err(not_found(live.id())),
            Ok(true) => Err(error),
            Err(unavailable) => Err(unavailable),
        }
    }

    /// A persistent sandbox by its container. `None` when there is none that runs and is ours.
    async fn reconnect(&self, id: &SandboxId) -> Result<Option<Live>> {
        let name = record::container_name(id);
        let Some(found) = self.daemon.inspect(&name).await? else { return Ok(None) };
        let runs = is_running(&found);
        let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
        let is_ours = labels.get(record::INSTALLATION) == Some(&self.places.installation);
        let Some(description) = record::read(&labels).filter(|description| description.id == *id) else {
            return Ok(None);
        };
        if !is_ours || !runs || description.persistence == Persistence::Ephemeral {
            return Ok(None);
        }
        let reached = Live::reach(&self.daemon, found.id.unwrap_or(name.clone()), description).await;
        match reached {
            Ok(live) => Ok(Some(live)),
            // It may have ended while we knocked.
            Err(error) => match self.daemon.inspect(&name).await? {
                Some(found) if is_running(&found) => Err(error),
                Some(_) | None => Ok(None),
            },
        }
    }

    /// End whatever container has this id, and hear when the daemon has removed it.
    async fn end(&self, id: &SandboxId) -> Result<()> {
        let known = self.sandboxes().get(id).cloned();
        if let Some(live) = known {
            self.daemon.remove(&live.container).await?;
            live.connection.sandbox_is_gone();
            self.drop_known(&live);
            return Ok(());
        }
        let name = record::container_name(id);
        let Some(found) = self.daemon.inspect(&name).await? else { return Ok(()) };
        let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
        if labels.get(record::INSTALLATION) == Some(&self.places.installation) {
            self.daemon.remove(&name).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Engine for DockerEngine {
    async fn capabilities(&self) -> Result<Capabilities> {
        self.shared.check_walls()?;
        let name = self.shared.config.flavour.as_str();
        Ok(Capabilities { name, persistence: true, terminal: true, usage: true, network: false })
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Made> {
        self.shared.create(id, spec).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        self.shared.end(id).await
    }

    async fn list(&self) -> Result<Vec<EngineSandbox>> {
        // Those of ours as they are at this moment: to look around takes longer than some of them live.
        let known: Vec<Arc<Live>> = self.shared.sandboxes().values().cloned().collect();
        let (ended, ours): (Vec<&Arc<Live>>, Vec<&Arc<Live>>) =
            known.iter().partition(|live| live.connection.is_closed());
        let ours = ours.into_iter().map(|live| EngineSandbox {
            id: live.description.id.clone(),
            owner: live.description.owner.clone(),
            name: live.description.name.clone(),
            persistence: live.description.persistence,
        });
        for live in ended {
            if let Ok(false) = self.shared.outlived_its_stream(live).await {
                self.shared.drop_known(live);
            }
        }
        let mut found: BTreeMap<SandboxId, EngineSandbox> = ours.map(|found| (found.id.clone(), found)).collect();
        for other in self.shared.look_around().await? {
            found.entry(other.id.clone()).or_insert(other);
        }
        Ok(found.into_values().collect())
    }

    async fn start(&self, id: &SandboxId, request: &ExecRequest) -> Result<Process> {
        if request.account.is_some() {
            return Err(Error::denied("programs in this sandbox run as its own user and nobody else"));
        }
        let live = self.shared.live(id).await?;
        let started = live.connection.start(&live.completed(request)).await;
        self.shared.settled(&live, started).await
    }

    async fn logs(&self, id: &SandboxId) -> Result<Vec<ExecLog>> {
        let live = self.shared.live(id).await?;
        let logs = live.connection.logs().await;
        self.shared.settled(&live, logs).await
    }

    fn files(&self, id: &SandboxId) -> Box<dyn Files> {
        Box::new(DockerFiles { shared: self.shared.clone(), id: id.clone() })
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage> {
        let live = self.shared.live(id).await?;
        let measured = live.connection.measure().await;
        let measured = self.shared.settled(&live, measured).await?;
        let stats = self.shared.daemon.stats(&live.container).await?.ok_or_else(|| not_found(id))?;
        let told = usage(&stats);
        Ok(Usage {
            processes: told.processes.map(|count| count.saturating_sub(measured.helpers)),
            disk: Some(measured.disk),
            quiet: measured.quiet,
            ..told
        })
    }

    async fn isolation(&self, id: &SandboxId) -> Result<IsolationReport> {
        let live = self.shared.live(id).await?;
        let Shared { config, daemon, .. } = &*self.shared;
        Ok(isolation::report(config.flavour, daemon.facts(), config.runtime.as_deref(), &live.description))
    }

    async fn set_deadline(&self, id: &SandboxId, from_now: Option<Duration>) -> Result<()> {
        let live = self.shared.live(id).await?;
        let set = live.connection.set_deadline(from_now).await;
        self.shared.settled(&live, set).await
    }
}

fn is_running(container: &ContainerInspectResponse) -> bool {
    container.state.as_ref().is_some_and(|state| state.running.unwrap_or(false))
}

fn usage(stats: &ContainerStatsResponse) -> Usage {
    let memory = stats.memory_stats.as_ref();
    let cpu = stats.cpu_stats.as_ref().and_then(|stats| stats.cpu_usage.as_ref()).and_then(|usage| usage.total_usage);
    Usage {
        cpu: cpu.map(Duration::from_nanos),
        memory: memory.and_then(|memory| memory.usage),
        peak_memory: memory.and_then(|memory| memory.max_usage).filter(|most| *most > 0),
        processes: stats.pids_stats.as_ref().and_then(|pids| pids.current),
        ..Usage::default()
    }
}
