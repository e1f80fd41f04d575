//! Making a sandbox.

use std::sync::Arc;
use std::time::Duration;

use sandbox::{
    Environment, Error, ErrorKind, GuestPath, ImageProgram, Made, Network, Owner, Result, Role, SandboxId, SandboxSpec,
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::engine::Shared;
use crate::image::Facts;
use crate::live::Live;
use crate::pool::Kind;
use crate::random;
use crate::record::{self, Description};
use crate::translate::{self, Wanted};

const HOME: &str = "/home/sandbox";
/// Whoever just got a sandbox is about to start something in it, and goes first.
const FILL_AFTER: Duration = Duration::from_millis(50);

const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Shared {
    pub async fn create(self: &Arc<Self>, id: &SandboxId, spec: &SandboxSpec) -> Result<Made> {
        self.check_new(id, spec)?;
        let abandoned = CancellationToken::new();
        let (shared, id, spec, told) = (self.clone(), id.clone(), spec.clone(), abandoned.clone());
        self.keep_made(abandoned, async move { shared.make(&id, &spec, &told).await }).await
    }

    /// A sandbox with the files of another.
    pub async fn branch(self: &Arc<Self>, source: Arc<Live>, new: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        self.check_new(new, spec)?;
        let abandoned = CancellationToken::new();
        let (shared, new, spec, told) = (self.clone(), new.clone(), spec.clone(), abandoned.clone());
        let making = async move {
            let image = shared.image_of(&source.description).await?;
            let mut image = Facts::clone(&*shared.images.facts(&shared.daemon, shared.maker(), image).await?);
            image.trees = source.description.places.clone();
            image.work_directory = Some(source.description.work_directory.clone());
            let (live, _) = shared.build_on(&describe(&new, &spec, &image)?, &image, &told).await?;
            let filled = shared.hand_over(&source, &live).await;
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
        tokio::spawn(async move {
            if let Err(Ok((live, _))) = sender.send(making.await) {
                shared.take_back(&live.container).await;
            }
        });
        let ended = |cause| Error::internal("the making of a sandbox ended unexpectedly").with_cause(cause);
        let (live, program) = receiver.await.map_err(ended)??;
        let work_directory = live.description.work_directory.clone();
        match self.keep(live) {
            None => Ok(Made { work_directory, program }),
            // Two have asked for one id, and spares do not have it in their names.
            Some(second) => {
                self.take_back(&second.container).await;
                Err(already_exists(second.id()))
            }
        }
    }

    /// The sandbox, unless what was done to it afterwards has failed.
    async fn unless_failed(&self, live: Live, done: Result<()>) -> Result<Live> {
        match done {
            Ok(()) => Ok(live),
            Err(error) => {
                self.take_back(&live.container).await;
                Err(error)
            }
        }
    }

    /// What must hold before anything of a sandbox is made.
    pub(crate) fn check_new(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        self.check_walls()?;
        spec.limits.check()?;
        let title = self.config.flavour.title();
        if self.knows(id) {
            return Err(already_exists(id));
        }
        match spec.role {
            Role::Guest => {}
            Role::Builder => {
                return Err(Error::unsupported(format!("images are not built in sandboxes of {title}"))
                    .with_hint(format!("use `{} build`", self.config.flavour.as_str())));
            }
        }
        match spec.network {
            Network::None if spec.secrets.is_empty() => {}
            Network::None | Network::Hosts(_) | Network::Internet => {
                return Err(Error::unsupported(format!("sandboxes of {title} have no network"))
                    .with_hint("use the embedded engine (--engine native) for a network that is held to its rules"));
            }
        }
        if !spec.attachments.is_empty() {
            return Err(Error::unsupported(format!("prepared packages cannot be shown in sandboxes of {title}"))
                .with_hint("use an image that has them"));
        }
        Ok(())
    }

    async fn make(
        self: &Arc<Self>,
        id: &SandboxId,
        spec: &SandboxSpec,
        abandoned: &CancellationToken,
    ) -> Result<(Live, ImageProgram)> {
        let image = self.images.find(&self.daemon, self.maker(), spec).await?;
        let description = describe(id, spec, &image)?;
        let kind = Kind::of(spec, &image);
        let spare = kind.as_ref().and_then(|kind| self.pool.take(kind));
        let made = match spare {
            Some(spare) => Ok(spare.for_owner(&description)),
            None => self.build_and_fill(&description, &image, abandoned).await,
        };
        if let Some(kind) = kind.filter(|_| made.is_ok()) {
            self.fill_pool(kind, spec, &image);
        }
        Ok((made?, image.program.clone()))
    }

    /// Make spares in the background. The task holds us weakly: it must not keep an engine alive that nobody uses.
    fn fill_pool(self: &Arc<Self>, kind: Kind, spec: &SandboxSpec, image: &Arc<Facts>) {
        let (wanted, retired) = self.pool.wants(&kind);
        for spare in retired {
            let shared = self.clone();
            tokio::spawn(async move { shared.take_back(&spare.container).await });
        }
        if !wanted {
            return;
        }
        let (shared, image) = (Arc::downgrade(self), image.clone());
        let mut spec = SandboxSpec { owner: Owner::local(), ..spec.clone() };
        // Given to a spare when it becomes somebody's.
        spec.environment = Environment::default();
        tokio::spawn(async move {
            tokio::time::sleep(FILL_AFTER).await;
            while let Some(shared) = shared.upgrade() {
                match shared.make_spare(&spec, &image).await {
                    Ok(live) => match shared.pool.put(&kind, live) {
                        Ok(true) => {}
                        Ok(false) => return,
                        Err(spare) => return shared.take_back(&spare.container).await,
                    },
                    Err(error) => {
                        tracing::debug!(?error, "no spare sandbox could be made");
                        return shared.pool.give_up(&kind);
                    }
                }
            }
        });
    }

    async fn make_spare(&self, spec: &SandboxSpec, image: &Facts) -> Result<Live> {
        let description = describe(&SandboxId::random()?, spec, image)?;
        self.build_and_fill(&description, image, &CancellationToken::new()).await
    }

    /// With what the image has where the sandbox can write.
    async fn build_and_fill(
        &self,
        description: &Description,
        image: &Facts,
        abandoned: &CancellationToken,
    ) -> Result<Live> {
        let (live, mut trees) = self.build_on(description, image, abandoned).await?;
        trees.extend(image.trees.iter().filter(|tree| !trees.contains(tree)).cloned().collect::<Vec<_>>());
        if trees.is_empty() {
            return Ok(live);
        }
        let filled = self.put_back(&live, &trees).await;
        self.unless_failed(live, filled).await
    }

    /// Build it, empty; and say which of its places are in the image too.
    async fn build_on(
        &self,
        description: &Description,
        image: &Facts,
        abandoned: &CancellationToken,
    ) -> Result<(Live, Vec<GuestPath>)> {
        let made = match self.build(description, image, abandoned).await {
            // Process 1 is not at the daemon yet, or was removed behind our back. To look every time would cost more.
            Err(error) if is_without_program(&error) => {
                self.agent.fill(&self.daemon, self.maker(), &image.id).await?;
                self.build(description, image, abandoned).await
            }
            made => made,
        };
        made.map_err(|error| explained(error, self.config.flavour))
    }

    async fn build(
        &self,
        description: &Description,
        image: &Facts,
        abandoned: &CancellationToken,
    ) -> Result<(Live, Vec<GuestPath>)> {
        let body = translate::container(&Wanted {
            flavour: self.config.flavour,
            maker: self.maker(),
            description,
            agent_volume: &self.agent.name,
            volumes: &image.volumes,
            runtime: self.config.runtime.as_deref(),
        });
        let name = record::container_name(&description.id);
        let container = self.daemon.create(&name, body).await.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => already_exists(&description.id),
            _ => error,
        })?;
        let started = async {
            // Before it is started, when nothing is mounted over them.
            let trees = self.images.places_in(&self.daemon, &container, description).await?;
            if abandoned.is_cancelled() {
                return Err(Error::unavailable("nobody waits for the sandbox any more"));
            }
            self.daemon.start(&container).await?;
            let live = Live::reach(&self.daemon, container.clone(), description.clone()).await?;
            Ok((live, trees))
        };
        match started.await {
            Ok(made) => Ok(made),
            Err(error) => {
                self.take_back(&container).await;
                Err(error)
            }
        }
    }

    /// Undo a creation that failed or that nobody waits for.
    async fn take_back(&self, container: &str) {
        if let Err(error) = self.daemon.remove(container).await {
            tracing::warn!(?error, container, "a container that nobody wants stays until somebody looks around");
        }
    }
}

pub(crate) fn describe(id: &SandboxId, spec: &SandboxSpec, image: &Facts) -> Result<Description> {
    let mut environment = Environment::default();
    for (name, value) in [("HOME", HOME), ("LANG", "C.UTF-8"), ("PATH", SEARCH_PATH), ("USER", "sandbox")] {
        environment.insert(name, value)?;
    }
    for (name, value) in &image.environment {
        environment.insert(name.clone(), value.clone())?;
    }
    Ok(Description {
        id: id.clone(),
        owner: spec.owner.clone(),
        name: spec.name.clone(),
        persistence: spec.persistence,
        limits: translate::enforced_limits(&spec.limits),
        environment: environment.overlaid_by(&spec.environment),
        work_directory: works_in(spec, image),
        places: places(spec, image)?,
        user: image.user,
        image: image.id.clone(),
        idle: spec.lifetime.idle,
        token: random::text(32)?,
        agent: agent::PROGRAM_HASH.to_owned(),
    })
}

fn works_in(spec: &SandboxSpec, image: &Facts) -> GuestPath {
    let asked = spec.work_directory.as_ref().or(image.work_directory.as_ref());
    asked.cloned().unwrap_or_else(GuestPath::workspace)
}

/// Home, the place that every sandbox has to work in and the one that was asked for, and where an image that was saved has
/// files of a sandbox. A work directory that is the image's own word is not among them: it would be hidden.
fn places(spec: &SandboxSpec, image: &Facts) -> Result<Vec<GuestPath>> {
    let mut places = vec![HOME.parse()?, GuestPath::workspace()];
    places.extend(spec.work_directory.clone());
    places.extend(image.trees.iter().cloned());
    let temporary: GuestPath = "/tmp".parse()?;
    places.retain(|place| *place != temporary);
    places.sort_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
    places.dedup();
    Ok(places)
}

fn already_exists(id: &SandboxId) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("there is a sandbox {id} already"))
}

/// What a daemon says when the program that it is to start is not there.
fn is_without_program(error: &Error) -> bool {
    let said = error.cause().map(ToString::to_string).unwrap_or_default();
    said.contains(translate::AGENT_PROGRAM) && said.contains("no such file")
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
    use sandbox::Persistence;

    use super::*;
    use crate::record::User;

    #[test]
    fn the_caller_goes_before_the_image_and_the_image_before_us() {
        let image = Facts {
            id: "sha256:00".to_owned(),
            environment: vec![("PATH".to_owned(), "/opt/bin".to_owned()), ("A".to_owned(), "image".to_owned())],
            user: User::SANDBOX,
            volumes: Vec::new(),
            trees: Vec::new(),
            work_directory: None,
            program: ImageProgram::default(),
        };
        let mut spec = SandboxSpec::new(Owner::local());
        spec.environment.insert("A", "caller").unwrap();
        spec.persistence = Persistence::Persistent;
        let described = describe(&SandboxId::random().unwrap(), &spec, &image).unwrap();
        let value = |name: &str| described.environment.get(name).map(str::to_owned);
        assert_eq!(value("PATH").as_deref(), Some("/opt/bin"));
        assert_eq!(value("A").as_deref(), Some("caller"));
        assert_eq!(value("HOME").as_deref(), Some(HOME));
    }
}
