//! The engine: keeps streams to what is live, asks the daemon for more, and finds again what earlier processes left running.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bollard::models::ContainerStatsResponse;
use egress::{Account, Door, Gateway, GatewaySettings};
use sandbox::{
    Capabilities, Engine, EngineSandbox, Error, ErrorKind, ExecLog, ExecRequest, Files, Image, ImageName, InstanceId,
    IsolationReport, Layer, Made, NetworkUsage, Owner, Persistence, Process, Reach, Rest, Result, SandboxId,
    SandboxSpec, Usage,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::agent_volume::AgentVolume;
use crate::built::Builds;
use crate::catalogue::DaemonImage;
use crate::client::{Daemon, DaemonFacts};
use crate::demand::Demand;
use crate::exhausted::explained;
use crate::files::DockerFiles;
use crate::image::Images;
use crate::isolation::Kernel;
use crate::kept::Trees;
use crate::live::{Live, not_found};
use crate::observed::observed;
use crate::places::{InstanceLock, Places};
use crate::pool::Pool;
use crate::pull::PullProgress;
use crate::reach::Shell;
use crate::record::{self, Description, Maker, Storage, User};
use crate::recovery::SURE;
use crate::reference::Reference;
use crate::stopped::Condition;
use crate::{Fetch, Flavour, Logins, PullWatcher, Wish, disk, isolation, reach};

/// What a process that ends waits for spares to be gone, and for what is being made or taken back.
const LAST_WORK: Duration = Duration::from_secs(10);

/// How the engine is set up.
#[derive(Clone, Debug)]
pub struct DockerConfig {
    pub flavour: Flavour,
    /// Where the daemon is, when that was said.
    pub wish: Wish,
    pub state_dir: PathBuf,
    pub instance: InstanceId,
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
    /// What lets sandboxes out that were given a network.
    pub gateway: Arc<Gateway>,
    pub reopen: Reopen,
    pub fetch: Fetch,
    /// Who is told of images that are fetched because a sandbox wants them.
    pub watcher: Option<Arc<dyn PullWatcher>>,
}

/// When a persistent sandbox with a network, which another process made, is let out again by this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reopen {
    /// With the first command that is started in it: for processes that only look, or come and go.
    AtFirstStart,
    /// As soon as it is listed: for a server, so that what runs in there can go on.
    WhenListed,
}

impl DockerConfig {
    /// What a short-lived command uses.
    pub fn new(flavour: Flavour, state_dir: PathBuf, instance: InstanceId) -> Self {
        Self {
            flavour,
            wish: Wish::default(),
            state_dir,
            instance,
            runtime: None,
            default_image: None,
            spares: 0,
            allow_missing: BTreeSet::new(),
            logins: None,
            gateway: Arc::new(Gateway::new(GatewaySettings::default())),
            reopen: Reopen::AtFirstStart,
            fetch: Fetch::default(),
            watcher: None,
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
    pub demand: Demand,
    /// No more spares are wanted.
    pub closing: CancellationToken,
    /// All that makes containers or takes them back, whoever waits for it.
    pub work: TaskTracker,
    pub trees: Trees,
    /// Images that are built for exports.
    pub builds: Builds,
    /// There may be images that lost their names while they were used.
    pub retired: AtomicBool,
    /// The daemon's host has said that it knows no addresses of the sixth version.
    pub without_ipv6: AtomicBool,
    sandboxes: Mutex<HashMap<SandboxId, Arc<Live>>>,
    _lock: InstanceLock,
}

impl DockerEngine {
    /// Find the daemon and take the instance's lock. Needs a tokio runtime.
    pub async fn start(config: DockerConfig) -> Result<Self> {
        let daemon = Daemon::connect(config.flavour, &config.wish).await?;
        daemon.check_platform()?;
        let places = Places::prepare(&config.state_dir, daemon.identity())?;
        let lock = places.lock(&config.instance)?;
        if let Some(runtime) = &config.runtime {
            isolation::check_runtime(config.flavour, &daemon.facts(), runtime)?;
        }
        let images = Images::new(&config);
        let spares = config.spares;
        let shared = Shared {
            config,
            daemon,
            places,
            images,
            agent: AgentVolume::new(agent::PROGRAM, agent::PROGRAM_HASH),
            pool: Pool::new(spares),
            demand: Demand::default(),
            closing: CancellationToken::new(),
            work: TaskTracker::new(),
            trees: Trees::new(),
            builds: Builds::default(),
            // Those of an earlier process.
            retired: AtomicBool::new(true),
            without_ipv6: AtomicBool::new(false),
            sandboxes: Mutex::default(),
            _lock: lock,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub fn daemon(&self) -> Arc<DaemonFacts> {
        self.shared.daemon.facts()
    }

    /// Fetch an image, also when there is one of this name; what the daemon says meanwhile is told.
    pub async fn pull(&self, name: &ImageName, progress: &(dyn Fn(PullProgress) + Send + Sync)) -> Result<DaemonImage> {
        let reference = Reference::parse(name.as_str())?;
        let Shared { daemon, images, .. } = &*self.shared;
        let pulled = images.pull(daemon, &reference, progress).await?;
        daemon.described(&reference, pulled.id.as_deref().unwrap_or_default()).await
    }

    /// Have an image there, fetched when it is not.
    pub async fn provide(&self, name: &ImageName, progress: &(dyn Fn(PullProgress) + Send + Sync)) -> Result<()> {
        let reference = Reference::parse(name.as_str())?;
        self.shared.images.provide(&self.shared.daemon, &reference, progress).await.map(drop)
    }
}

impl DockerEngine {
    /// What tells one state of an image from every other, and whom programs of it run as. Fetched if it is not there.
    pub async fn identity(&self, owner: &Owner, image: &Image) -> Result<String> {
        let spec = SandboxSpec { image: image.clone(), ..SandboxSpec::new(owner.clone()) };
        let Shared { images, daemon, .. } = &*self.shared;
        let facts = images.find(daemon, self.shared.maker(), &spec).await?;
        let User { id, group } = facts.runs_as(&spec, self.shared.kernel());
        Ok(format!("{} {} {id}:{group}", self.shared.config.flavour.as_str(), facts.id))
    }
}

impl Shared {
    pub fn maker(&self) -> Maker<'_> {
        Maker { installation: &self.places.installation, instance: self.config.instance.as_str() }
    }

    /// What new sandboxes are made with.
    pub fn runtime(&self) -> Option<String> {
        self.config.runtime.clone().or_else(|| self.daemon.facts().default_runtime.clone())
    }

    /// Which kernel programs of new sandboxes speak to.
    pub fn kernel(&self) -> Kernel {
        Kernel::of(self.config.runtime.as_deref(), &self.daemon.facts())
    }

    /// Which kernel those of this one speak to.
    fn kernel_of(&self, description: &Description) -> Kernel {
        Kernel::of(description.runtime.as_deref(), &self.daemon.facts())
    }

    /// Whether the daemon can build every wall. One that was away may have been set up anew, for better or for worse.
    pub async fn check_walls(&self) -> Result<()> {
        self.daemon.check_same(Duration::MAX).await?;
        if self.walls().is_err() {
            self.daemon.check_same(Duration::ZERO).await?;
        }
        self.walls()
    }

    fn walls(&self) -> Result<()> {
        let DockerConfig { flavour, runtime, allow_missing, .. } = &self.config;
        let facts = self.daemon.facts();
        if let Some(runtime) = runtime {
            isolation::check_runtime(*flavour, &facts, runtime)?;
        }
        isolation::check(*flavour, &facts, runtime.as_deref(), allow_missing)
    }

    fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Live>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Back when there is one with its id already.
    pub fn keep(&self, live: Live) -> Option<Live> {
        match self.sandboxes().entry(live.id().clone()) {
            Entry::Vacant(place) => {
                disk::watch(&self.daemon, place.insert(Arc::new(live)));
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

    /// A sandbox that runs: one of ours, or a persistent one that another process made. One that was stopped is started.
    pub async fn live(&self, id: &SandboxId) -> Result<Arc<Live>> {
        let account = self.account(id);
        match self.known(id).await? {
            Some(live) => Ok(live),
            None => self.reached(id, account).await,
        }
    }

    /// The same, but one that rests is left at rest.
    async fn standing(&self, id: &SandboxId) -> Result<Standing> {
        let account = self.account(id);
        if let Some(live) = self.known(id).await? {
            return Ok(Standing::Live(live));
        }
        if let Some((found, description)) = self.find(id).await?
            && let Condition::Rests(rest) = Condition::of(&found, &description)
        {
            return Ok(Standing::Rests(rest, Box::new(description)));
        }
        self.reached(id, account).await.map(Standing::Live)
    }

    /// Reach one that we have no stream to. What its network was used for goes on from what we know.
    async fn reached(&self, id: &SandboxId, account: Option<Account>) -> Result<Arc<Live>> {
        let mut live = self.reconnect(id).await?.ok_or_else(|| not_found(id))?;
        live.account = account;
        let reached = || {
            let live = Arc::new(live);
            disk::watch(&self.daemon, &live);
            live
        };
        Ok(self.sandboxes().entry(id.clone()).or_insert_with(reached).clone())
    }

    fn account(&self, id: &SandboxId) -> Option<Account> {
        self.sandboxes().get(id).and_then(|live| live.account())
    }

    /// One that we have a stream to.
    async fn known(&self, id: &SandboxId) -> Result<Option<Arc<Live>>> {
        let Some(live) = self.sandboxes().get(id).cloned() else { return Ok(None) };
        if self.is_reached(&live).await? {
            return Ok(Some(live));
        }
        let is_there = self.outlived_its_stream(&live).await?;
        self.drop_known(&live);
        if is_there { Ok(None) } else { Err(live.gone()) }
    }

    /// Whether our stream still leads to it. One that its operator can stop may have been, and a daemon says so to whoever
    /// stopped it before it closes the stream. What is asked of it now would be lost on the way, and nobody could tell whether
    /// it had begun; so such a one is first asked what can be asked again.
    async fn is_reached(&self, live: &Live) -> Result<bool> {
        if !live.description.keeps_files() || live.connection.is_closed() {
            return Ok(!live.connection.is_closed());
        }
        match live.connection.measure().await {
            // It was waited for as long as anything is; each further question would be so much more.
            Err(error) if error.kind() == ErrorKind::Unavailable && !live.connection.is_closed() => Err(error),
            // What it answers is no matter.
            Ok(_) | Err(_) => Ok(!live.connection.is_closed()),
        }
    }

    /// Whether a sandbox is there although our stream to it has ended. An ephemeral one is not: it ends with its stream.
    async fn outlived_its_stream(&self, live: &Live) -> Result<bool> {
        let condition = match live.description.persistence {
            Persistence::Ephemeral => Condition::Ended,
            Persistence::Persistent => match self.daemon.inspect(&live.container).await? {
                Some(found) => Condition::of(&found, &live.description),
                None => {
                    self.daemon.check_same(Duration::ZERO).await?;
                    Condition::Ended
                }
            },
        };
        match condition {
            Condition::Runs => Ok(true),
            Condition::Rests(_) => {
                live.connection.sandbox_is_gone();
                Ok(true)
            }
            Condition::Ended | Condition::Made => {
                self.remove_whole(&live.container, &live.description).await?;
                live.connection.sandbox_is_gone();
                Ok(false)
            }
        }
    }

    /// An answer of a sandbox that may have gone meanwhile: then that is the answer.
    pub async fn settled<T>(&self, live: &Arc<Live>, answer: Result<T>) -> Result<T> {
        let Err(error) = answer else { return answer };
        if !live.connection.is_closed() || error.kind() == ErrorKind::NotFound {
            return Err(error);
        }
        match self.outlived_its_stream(live).await {
            Ok(false) => Err(live.gone()),
            Ok(true) => Err(error),
            Err(unavailable) => Err(unavailable),
        }
    }

    /// End whatever container has this id, and hear when the daemon has removed it.
    async fn end(&self, id: &SandboxId) -> Result<()> {
        self.daemon.check_same(SURE).await?;
        let known = self.sandboxes().get(id).cloned();
        if let Some(live) = known {
            self.end_live(&live).await?;
            self.drop_known(&live);
            self.places.keepsakes.forget(id);
            return Ok(());
        }
        let name = record::container_name(id);
        if let Some(found) = self.daemon.inspect(&name).await? {
            let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
            if labels.get(record::INSTALLATION) != Some(&self.places.installation) {
                return Ok(());
            }
            self.daemon.remove(&name).await?;
            self.places.keepsakes.forget(id);
        }
        self.forget_checkpoints(id);
        self.remove_kept_volume(id).await
    }

    async fn list(&self) -> Result<Vec<EngineSandbox>> {
        // Those of ours as they are at this moment: to look around takes longer than some of them live.
        let known: Vec<Arc<Live>> = self.sandboxes().values().cloned().collect();
        let (ended, ours): (Vec<&Arc<Live>>, Vec<&Arc<Live>>) =
            known.iter().partition(|live| live.connection.is_closed());
        let ours = ours.into_iter().map(|live| EngineSandbox {
            id: live.description.id.clone(),
            owner: live.description.owner.clone(),
            name: live.description.name.clone(),
            persistence: live.description.persistence,
            rest: None,
        });
        for live in ended {
            if let Ok(false) = self.outlived_its_stream(live).await {
                self.drop_known(live);
            }
        }
        let mut found: BTreeMap<SandboxId, EngineSandbox> = ours.map(|found| (found.id.clone(), found)).collect();
        for other in self.look_around().await? {
            let is_known = found.contains_key(&other.id);
            if !is_known && other.rest.is_none() && self.config.reopen == Reopen::WhenListed {
                self.reopen(&other.id).await;
            }
            // The daemon's word on one that rests is newer than ours: our stream to it ends a moment later.
            if !is_known || other.rest.is_some() {
                found.insert(other.id.clone(), other);
            }
        }
        Ok(found.into_values().collect())
    }
}

/// A sandbox as it is found.
enum Standing {
    Live(Arc<Live>),
    Rests(Rest, Box<Description>),
}

#[async_trait]
impl Engine for DockerEngine {
    async fn capabilities(&self) -> Result<Capabilities> {
        self.shared.check_walls().await?;
        let name = self.shared.config.flavour.as_str();
        Ok(Capabilities {
            name,
            realm: Some(self.shared.daemon.identity().to_owned()),
            persistence: true,
            terminal: true,
            usage: true,
            network: self.shared.kernel() != Kernel::Gvisor,
        })
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Made> {
        self.shared.create(id, spec).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        self.shared.daemon.unless_hanging(self.shared.end(id)).await
    }

    async fn list(&self) -> Result<Vec<EngineSandbox>> {
        // It is many questions, and to each of them a daemon that hangs would have its whole time.
        self.shared.daemon.unless_hanging(self.shared.list()).await
    }

    async fn start(&self, id: &SandboxId, request: &ExecRequest) -> Result<Process> {
        if request.account.is_some() {
            return Err(Error::denied("programs in this sandbox run as its own user and nobody else"));
        }
        let live = self.shared.live(id).await?;
        let request = live.completed(request)?;
        let opened = self.shared.door(&live).await;
        let mark = self.shared.settled(&live, opened).await?.map(Door::mark);
        let inside = self.shared.inside(&live).await?;
        let started = live.connection.start(&request).await;
        drop(inside);
        let process = self.shared.settled(&live, started).await?;
        let kernel = self.shared.kernel_of(&live.description);
        let process = explained(process, live.clone(), self.shared.daemon.clone(), kernel);
        Ok(observed(process, live, mark))
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
        let live = match self.shared.standing(id).await? {
            Standing::Live(live) => live,
            Standing::Rests(rest, _) => {
                return Err(Error::wrong_state(format!("sandbox {id} is {} and uses nothing", rest.as_str())));
            }
        };
        let measured = live.connection.measure().await;
        let measured = self.shared.settled(&live, measured).await?;
        let stats = self.shared.daemon.stats(&live.container).await?.ok_or_else(|| not_found(id))?;
        let told = usage(&stats);
        let in_layer = match live.description.storage {
            Storage::Memory => 0,
            Storage::Layer => self.shared.daemon.layer_bytes(&live.container).await?.unwrap_or(0),
        };
        let processes = match self.shared.kernel_of(&live.description) {
            // The host counts its own threads.
            Kernel::Gvisor => None,
            Kernel::Hosts | Kernel::Virtual | Kernel::Unknown => told.processes,
        };
        Ok(Usage {
            processes: processes.map(|count| count.saturating_sub(measured.helpers)),
            disk: Some(measured.disk + in_layer),
            quiet: measured.quiet,
            network: (!live.description.network.is_none())
                .then(|| live.account().map_or_else(NetworkUsage::default, |account| account.usage())),
            ..told
        })
    }

    async fn isolation(&self, id: &SandboxId) -> Result<IsolationReport> {
        let standing = self.shared.standing(id).await?;
        let description = match &standing {
            Standing::Live(live) => &live.description,
            Standing::Rests(_, description) => description,
        };
        let Shared { config, daemon, .. } = &*self.shared;
        Ok(isolation::report(config.flavour, &daemon.facts(), description))
    }

    async fn reach(&self, id: &SandboxId) -> Result<Option<Reach>> {
        let standing = self.shared.standing(id).await?;
        let description = match &standing {
            Standing::Live(live) => &live.description,
            Standing::Rests(_, description) => description,
        };
        let Shared { config, daemon, .. } = &*self.shared;
        let shell = match (&standing, description.persistence) {
            (Standing::Live(live), Persistence::Persistent) => {
                match daemon.file_size(&live.container, reach::SHELL).await {
                    Ok(None) => Shell::Absent,
                    // What is not known is taken to be as it usually is.
                    Ok(Some(_)) | Err(_) => Shell::There,
                }
            }
            (Standing::Live(_) | Standing::Rests(..), _) => Shell::There,
        };
        Ok(reach::reach(config.flavour, daemon.client_arguments(), description, shell))
    }

    async fn set_deadline(&self, id: &SandboxId, from_now: Option<Duration>) -> Result<()> {
        let live = match self.shared.standing(id).await? {
            Standing::Live(live) => live,
            Standing::Rests(..) => return Ok(()),
        };
        let set = live.connection.set_deadline(from_now).await;
        self.shared.settled(&live, set).await
    }

    async fn close(&self) {
        let Shared { closing, pool, work, .. } = &*self.shared;
        closing.cancel();
        for spare in pool.close() {
            // They would end by themselves, but a moment after us.
            let shared = self.shared.clone();
            work.spawn(async move {
                if let Err(error) = shared.end_live(&spare).await {
                    tracing::debug!(?error, "a spare sandbox was not seen to end");
                }
            });
        }
        work.close();
        // A daemon that does not answer must not keep a process from ending; what it makes yet is swept by the next.
        let _ = tokio::time::timeout(LAST_WORK, work.wait()).await;
    }
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
