//! Making a sandbox.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use egress::Pass;
use sandbox::{
    Environment, Error, ErrorKind, GuestPath, ImageProgram, Insistence, Made, Network, Owner, Persistence, Result,
    Role, SandboxId, SandboxSpec,
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::engine::Shared;
use crate::image::Facts;
use crate::isolation::Kernel;
use crate::keepsakes::Keepsake;
use crate::live::Live;
use crate::network::is_without_ipv6;
use crate::pool::Kind;
use crate::random;
use crate::record::{self, Description, Storage};
use crate::translate::{self, Wanted};

/// For what is tried once more with a daemon that did not answer: together with what was waited already, below half a minute.
const SHORT_PATIENCE: Duration = Duration::from_secs(3);
const HOME: &str = "/home/sandbox";

const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Shared {
    pub async fn create(self: &Arc<Self>, id: &SandboxId, spec: &SandboxSpec) -> Result<Made> {
        self.check_new(id, spec).await?;
        let abandoned = CancellationToken::new();
        let (shared, id, spec, told) = (self.clone(), id.clone(), spec.clone(), abandoned.clone());
        let _waiting = self.demand.begin();
        self.keep_made(abandoned, async move { shared.make(&id, &spec, &told).await }).await
    }

    /// A sandbox with the files of another.
    pub async fn branch(self: &Arc<Self>, source: Arc<Live>, new: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        self.check_new(new, spec).await?;
        let pass = self.pass(new, spec)?;
        let abandoned = CancellationToken::new();
        let (shared, new, spec, told) = (self.clone(), new.clone(), spec.clone(), abandoned.clone());
        let _waiting = self.demand.begin();
        let making = async move {
            // Held until there is a container of it.
            let (image, _committed) = match source.description.storage {
                Storage::Memory => (shared.image_of(&source.description).await?, None),
                Storage::Layer => {
                    let committed = shared.commit_in_passing(&source).await?;
                    (committed.image().await?, Some(committed))
                }
            };
            let mut image = Facts::clone(&*shared.images.facts(&shared.daemon, shared.maker(), image).await?);
            image.trees = source.description.places.clone();
            image.work_directory = Some(source.description.work_directory.clone());
            // Its files are of whom programs were in the source.
            let is_root = source.description.user.id == 0;
            let role = if is_root { Role::ImageUser(Insistence::Must) } else { Role::Guest };
            let spec = SandboxSpec { role, ..spec };
            let description = shared.describe_with_trees(&new, &spec, &image, pass.as_ref()).await?;
            let (live, _) = shared.build_on(&description, &image, &told).await?;
            let filled = async {
                shared.hand_over(&source, &live).await?;
                shared.settle(&live, pass.as_ref()).await
            };
            let filled = filled.await;
            Ok((shared.unless_failed(live, filled).await?, image.program))
        };
        self.keep_made(abandoned, making).await.map(drop)
    }

    /// Make a sandbox in a task of its own: a daemon finishes what it was asked for, whether or not somebody still waits for
    /// it, and what it has then made must be removed.
    async fn keep_made(
        self: &Arc<Self>,
        abandoned: CancellationToken,
        making: impl Future<Output = Result<(Live, ImageProgram)>> + Send + 'static,
    ) -> Result<Made> {
        let _abandoned = abandoned.drop_guard();
        let (sender, receiver) = oneshot::channel();
        let shared = self.clone();
        self.work.spawn(async move {
            let made = making.await.map(|(live, program)| (Unclaimed { shared, live: Some(live) }, program));
            // Nobody may be there to take it, or may go away before they do: what is not claimed is taken back.
            let _ = sender.send(made);
        });
        let ended = |cause| Error::internal("the making of a sandbox ended unexpectedly").with_cause(cause);
        // Whatever it consists of: who leaves is not waited for, and what comes of it is taken back.
        let making = async { receiver.await.map_err(ended)? };
        let (unclaimed, program) = self.daemon.unless_hanging(making).await?;
        let live = unclaimed.claim().ok_or_else(|| Error::internal("a sandbox was claimed twice"))?;
        let work_directory = live.description.work_directory.clone();
        match self.keep(live) {
            None => Ok(Made { work_directory, program }),
            // Two have asked for one id, and spares do not have it in their names.
            Some(second) => {
                self.take_back(&second).await;
                Err(already_exists(second.id()))
            }
        }
    }

    /// The last steps of a sandbox that has its files: what later processes must know of it, and its way out.
    async fn settle(&self, live: &Live, pass: Option<&Pass>) -> Result<()> {
        match live.description.persistence {
            Persistence::Persistent => {
                let environment = live.description.environment.clone().unwrap_or_default();
                let gateway = pass.and_then(|pass| pass.keepsake.clone());
                self.places.keepsakes.write(live.id(), &Keepsake { environment, gateway })?;
            }
            Persistence::Ephemeral => {}
        }
        self.let_out(live, pass).await
    }

    /// The sandbox, unless what was done to it afterwards has failed.
    async fn unless_failed(self: &Arc<Self>, live: Live, done: Result<()>) -> Result<Live> {
        match done {
            Ok(()) => Ok(live),
            Err(error) => {
                self.undo_after(&error, &live.container, &live.description).await;
                Err(error)
            }
        }
    }

    /// What must hold before anything of a sandbox is made.
    pub(crate) async fn check_new(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        self.check_walls().await?;
        spec.limits.check()?;
        let title = self.config.flavour.title();
        if self.knows(id) {
            return Err(already_exists(id));
        }
        if !spec.network.is_none() && self.kernel() == Kernel::Gvisor {
            // What sends connections to us instead of anywhere else is Linux's.
            return Err(Error::unsupported("a network cannot be held to its rules under gVisor")
                .with_hint("use the daemon's own runtime for sandboxes with a network"));
        }
        if !spec.role.is_guest() {
            return Err(Error::unsupported(format!("images are not built in sandboxes of {title}"))
                .with_hint(format!("use `{} build`", self.config.flavour.as_str())));
        }
        Ok(())
    }

    async fn make(
        self: &Arc<Self>,
        id: &SandboxId,
        spec: &SandboxSpec,
        abandoned: &CancellationToken,
    ) -> Result<(Live, ImageProgram)> {
        let pass = self.pass(id, spec)?;
        let image = self.images.find(&self.daemon, self.maker(), spec).await?;
        let description = self.describe_with_trees(id, spec, &image, pass.as_ref()).await?;
        let kind = Kind::of(spec, &image, &description);
        let spare =
            kind.as_ref().and_then(|kind| self.pool.take(kind, &spec.owner, |spare| spare.connection.is_closed()));
        let made = match spare {
            Some(spare) => Ok(spare.for_owner(&description)),
            None => self.build_and_fill(&description, &image, abandoned).await,
        };
        let live = made?;
        let settled = self.settle(&live, pass.as_ref()).await;
        let live = self.unless_failed(live, settled).await?;
        if let Some(kind) = kind {
            self.fill_pool(kind, spec, &image);
        }
        Ok((live, image.program.clone()))
    }

    /// Make spares in the background. The task holds us weakly: it must not keep an engine alive that nobody uses.
    fn fill_pool(self: &Arc<Self>, kind: Kind, spec: &SandboxSpec, image: &Arc<Facts>) {
        let (wanted, retired) = self.pool.wants(&kind);
        for spare in retired {
            let shared = self.clone();
            self.work.spawn(async move { shared.take_back(&spare).await });
        }
        if !wanted {
            return;
        }
        let (shared, image) = (Arc::downgrade(self), image.clone());
        let mut spec = SandboxSpec { owner: Owner::local(), ..spec.clone() };
        // Given to a spare when it becomes somebody's.
        (spec.environment, spec.secrets, spec.private_hosts) = Default::default();
        if !spec.network.is_none() {
            // Which one is said by whoever serves it, and nobody does yet.
            spec.network = Network::Internet;
        }
        let (demand, closing) = (self.demand.clone(), self.closing.clone());
        self.work.spawn(async move {
            loop {
                if closing.run_until_cancelled(demand.calm()).await.is_none() {
                    return;
                }
                let Some(shared) = shared.upgrade() else { return };
                match shared.make_spare(&spec, &image).await {
                    Ok(live) => match shared.pool.put(&kind, live) {
                        Ok(true) => {}
                        Ok(false) => return,
                        Err(spare) => return shared.take_back(&spare).await,
                    },
                    Err(error) => {
                        tracing::debug!(?error, "no spare sandbox could be made");
                        return shared.pool.give_up(&kind);
                    }
                }
            }
        });
    }

    async fn make_spare(self: &Arc<Self>, spec: &SandboxSpec, image: &Facts) -> Result<Live> {
        let description = self.describe_with_trees(&SandboxId::random()?, spec, image, None).await?;
        self.build_and_fill(&description, image, &self.closing).await
    }

    async fn describe_with_trees(
        &self,
        id: &SandboxId,
        spec: &SandboxSpec,
        image: &Facts,
        pass: Option<&Pass>,
    ) -> Result<Description> {
        let description = describe(id, spec, image, pass, self.kernel())?;
        let attachments = self.attached(&spec.attachments, &description, image).await?;
        Ok(Description { attachments, runtime: self.runtime(), ..description })
    }

    /// With what the image has where the sandbox can write.
    async fn build_and_fill(
        self: &Arc<Self>,
        description: &Description,
        image: &Facts,
        abandoned: &CancellationToken,
    ) -> Result<Live> {
        let (live, mut trees) = self.build_on(description, image, abandoned).await?;
        // Over the image itself they are there.
        let in_memory = |tree: &&GuestPath| match description.storage {
            Storage::Memory => !trees.contains(tree),
            Storage::Layer => description.places.contains(tree) && !trees.contains(tree),
        };
        trees.extend(image.trees.iter().filter(in_memory).cloned().collect::<Vec<_>>());
        if trees.is_empty() {
            return Ok(live);
        }
        let filled = self.put_back(&live, &trees).await;
        self.unless_failed(live, filled).await
    }

    /// Build it, empty; and say which of its places are in the image too.
    async fn build_on(
        self: &Arc<Self>,
        description: &Description,
        image: &Facts,
        abandoned: &CancellationToken,
    ) -> Result<(Live, Vec<GuestPath>)> {
        self.check_walls().await?;
        // Until it runs. One that was not started and that nobody holds is removed by whoever looks around.
        let _held = self.daemon.names().hold(&record::container_name(&description.id));
        let made = match self.build(description, image, abandoned).await {
            // Process 1 is not at the daemon yet, or was removed behind our back. To look every time would cost more.
            Err(error) if self.is_without_program(&error) => {
                // Also while somebody else brings it.
                self.daemon.unless_hanging(self.agent.fill(&self.daemon, self.maker(), &image.id)).await?;
                self.build(description, image, abandoned).await
            }
            Err(error) if is_without_ipv6(&error) && !self.without_ipv6.swap(true, Ordering::Relaxed) => {
                self.build(description, image, abandoned).await
            }
            made => made,
        };
        made.map_err(|error| explained(error, self.config.flavour))
    }

    async fn build(
        self: &Arc<Self>,
        description: &Description,
        image: &Facts,
        abandoned: &CancellationToken,
    ) -> Result<(Live, Vec<GuestPath>)> {
        let hosts = self.agent.hosts(&self.daemon, self.maker(), &image.id).await?;
        let body = translate::container(&Wanted {
            flavour: self.config.flavour,
            maker: self.maker(),
            description,
            agent_volume: &self.agent.name,
            hosts,
            volumes: &image.volumes,
            runtime: self.config.runtime.as_deref(),
            has_ipv6: !self.without_ipv6.load(Ordering::Relaxed),
            processors: self.daemon.facts().processors,
            kernel: self.kernel(),
        });
        let name = record::container_name(&description.id);
        self.make_kept_volume(description).await?;
        let container = match self.daemon.create(&name, body).await {
            Ok(container) => container,
            // What it keeps its files in is the other one's.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(already_exists(&description.id)),
            Err(error) => {
                self.undo_after(&error, &name, description).await;
                return Err(error);
            }
        };
        let started = async {
            self.check_attached(&description.attachments).await?;
            // Before it is started, when nothing is mounted over them.
            let trees = self.images.places_in(&self.daemon, &container, description).await?;
            self.settle_resolver(&container, description).await?;
            if abandoned.is_cancelled() {
                return Err(Error::unavailable("nobody waits for the sandbox any more"));
            }
            let live = Live::start(&self.daemon, container.clone(), description.clone()).await?;
            Ok((live, trees))
        };
        match started.await {
            Ok(made) => Ok(made),
            Err(error) => {
                self.undo_after(&error, &container, description).await;
                Err(error)
            }
        }
    }

    /// Whether a daemon says that the program that it is to start is not there, or what lies beside it.
    fn is_without_program(&self, error: &Error) -> bool {
        error.cause().is_some_and(|cause| self.agent.is_missed_by(&cause.to_string()))
    }

    async fn take_back(&self, live: &Live) {
        self.undo(&live.container, &live.description).await;
    }

    /// Undo a creation that failed. Who waited for a daemon that does not answer does not wait for it once more.
    async fn undo_after(self: &Arc<Self>, error: &Error, container: &str, description: &Description) {
        let (shared, container, description) = (Arc::clone(self), container.to_owned(), description.clone());
        let undoing = self.work.spawn(async move {
            shared.undo(&container, &description).await;
            shared.drop_made_up(&description.attachments).await;
        });
        let patience = if error.kind() == ErrorKind::Unavailable { SHORT_PATIENCE } else { Duration::MAX };
        // It says itself what goes wrong.
        let _ = tokio::time::timeout(patience, undoing).await;
    }

    /// Undo a creation that failed or that nobody waits for.
    async fn undo(&self, container: &str, description: &Description) {
        if let Err(error) = self.remove_whole(container, description).await {
            tracing::warn!(?error, container, "a container that nobody wants stays until somebody looks around");
        }
    }
}

/// A sandbox on its way to whoever asked for it.
struct Unclaimed {
    shared: Arc<Shared>,
    live: Option<Live>,
}

impl Unclaimed {
    fn claim(mut self) -> Option<Live> {
        self.live.take()
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        let Some(live) = self.live.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let shared = self.shared.clone();
        self.shared.work.spawn_on(async move { shared.take_back(&live).await }, &runtime);
    }
}

/// Of variables, ours go first, then the image's, the gateway's, and what was asked for: the last wins.
pub(crate) fn describe(
    id: &SandboxId,
    spec: &SandboxSpec,
    image: &Facts,
    pass: Option<&Pass>,
    kernel: Kernel,
) -> Result<Description> {
    let user = image.runs_as(spec, kernel);
    let storage = Storage::of(user, kernel);
    let name = if user.id == 0 { "root" } else { "sandbox" };
    let (home, limits) = match storage {
        // The image's root has its home in the image, where nobody can write.
        Storage::Memory => (HOME, translate::enforced_limits(&spec.limits)),
        Storage::Layer => (translate::ROOT_HOME, spec.limits),
    };
    let mut environment = Environment::default();
    for (name, value) in [("HOME", home), ("LANG", "C.UTF-8"), ("PATH", SEARCH_PATH), ("USER", name)] {
        environment.insert(name, value)?;
    }
    for (name, value) in &image.environment {
        environment.insert(name.clone(), value.clone())?;
    }
    if let Some(pass) = pass {
        environment = environment.overlaid_by(&pass.environment);
    }
    Ok(Description {
        id: id.clone(),
        owner: spec.owner.clone(),
        name: spec.name.clone(),
        persistence: spec.persistence,
        limits,
        environment: Some(environment.overlaid_by(&spec.environment)),
        work_directory: works_in(spec, image),
        places: match storage {
            Storage::Memory => places(spec, image)?,
            Storage::Layer => volumes(image),
        },
        storage,
        user,
        image: image.id.clone(),
        attachments: Vec::new(),
        idle: spec.lifetime.idle,
        deadline: spec.lifetime.total.and_then(deadline_after),
        network: spec.network.clone(),
        secrets: spec.secrets.clone(),
        private_hosts: spec.private_hosts.clone(),
        token: random::text(32)?,
        agent: agent::PROGRAM_HASH.to_owned(),
        runtime: None,
    })
}

/// In seconds since 1970.
fn deadline_after(total: Duration) -> Option<u64> {
    let end = SystemTime::now().checked_add(total)?;
    end.duration_since(SystemTime::UNIX_EPOCH).ok().map(|end| end.as_secs())
}

fn works_in(spec: &SandboxSpec, image: &Facts) -> GuestPath {
    let asked = spec.work_directory.as_ref().or(image.work_directory.as_ref());
    asked.cloned().unwrap_or_else(GuestPath::workspace)
}

/// Home, the place that every sandbox has to work in and the one that was asked for, where an image that was saved has
/// files of a sandbox, and where an image asks for volumes. A work directory that is the image's own word is not among them,
/// unless it is not there: it would be hidden.
fn places(spec: &SandboxSpec, image: &Facts) -> Result<Vec<GuestPath>> {
    let mut places = vec![HOME.parse()?, GuestPath::workspace()];
    places.extend(spec.work_directory.clone());
    places.extend(image.trees.iter().cloned());
    places.extend(image.volume_places.iter().filter(|place| translate::is_own_directory(place)).cloned());
    places.extend(image.work_directory.clone().filter(|_| image.lacks_work_directory));
    let temporary: GuestPath = "/tmp".parse()?;
    places.retain(|place| *place != temporary);
    places.sort_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
    places.dedup();
    Ok(places)
}

/// What an image wants to be volumes, which are in memory in every sandbox: a daemon makes others, and bounds none.
fn volumes(image: &Facts) -> Vec<GuestPath> {
    let mut places = image.volume_places.clone();
    places.retain(translate::is_own_directory);
    places.sort_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
    places.dedup();
    places
}

fn already_exists(id: &SandboxId) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("there is a sandbox {id} already"))
}

/// A refusal of the daemon in words of sandboxes, where its reason is known.
fn explained(error: Error, flavour: crate::Flavour) -> Error {
    let said = error.cause().map(|cause| cause.to_string().to_ascii_lowercase()).unwrap_or_default();
    let title = flavour.title();
    let known = if said.contains("no space left") {
        Error::limit_exceeded(format!("the host of the {title} daemon has no room for another sandbox"))
            .with_hint("stop sandboxes that are not needed, or remove images")
    } else if said.contains("runtime") && (said.contains("unknown") || said.contains("not found")) {
        Error::unsupported(format!("the {title} daemon cannot use the runtime that was chosen"))
    } else {
        return error;
    };
    known.with_cause(said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::User;

    #[test]
    fn the_caller_goes_before_the_image_and_the_image_before_us() {
        let image = Facts {
            id: "sha256:00".to_owned(),
            environment: vec![("PATH".to_owned(), "/opt/bin".to_owned()), ("A".to_owned(), "image".to_owned())],
            user: User::SANDBOX,
            volumes: Vec::new(),
            volume_places: Vec::new(),
            trees: Vec::new(),
            work_directory: None,
            lacks_work_directory: false,
            program: ImageProgram::default(),
        };
        let mut spec = SandboxSpec::new(Owner::local());
        spec.environment.insert("A", "caller").unwrap();
        spec.persistence = Persistence::Persistent;
        let described = describe(&SandboxId::random().unwrap(), &spec, &image, None, Kernel::Hosts).unwrap();
        let environment = described.environment.unwrap();
        let value = |name: &str| environment.get(name).map(str::to_owned);
        assert_eq!(value("PATH").as_deref(), Some("/opt/bin"));
        assert_eq!(value("A").as_deref(), Some("caller"));
        assert_eq!(value("HOME").as_deref(), Some(HOME));
    }
}
