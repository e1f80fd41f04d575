//! Engine and service from settings: the only place that knows all of their types.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use egress::{Gateway, GatewaySettings, SecretSource, SecretsFile};
use engine_docker::{DockerConfig, DockerEngine, Fetch, Flavour, Logins, PullWatcher, Wish};
use images::{Credentials, Login};
use sandbox::{
    Engine, Error, EventBus, HostRule, ImageName, ImageRunners, InstanceId, Limits, PackageSettings, Ports, Powers,
    Recovery, Result, Runners, SandboxService, SecretName, ServiceSettings,
};
use tools::{Ceiling, ImageSource, Policy, Secret};

use crate::attach::Screen;
use crate::commands::image::{PullBars, image_error};
use crate::config::{Config, EngineChoice, GatewayConfig, Pull};
use crate::embedded;
use crate::output::reason;
use crate::packages::{self, Machine};
use crate::pulls::DaemonPulls;

/// Run `work` with a service, and end what belongs to this process alone whatever comes of it.
pub fn with_service<T, F>(config: &Config, work: impl FnOnce(SandboxService) -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    block_on(async {
        let service = service(config).await?;
        let done = work(service.clone()).await;
        let shut_down = service.shutdown().await;
        done.and_then(|value| shut_down.map(|()| value))
    })
}

/// The same for work that wants to know where the images are.
pub fn with_service_and_images<T, F>(
    config: &Config,
    work: impl FnOnce(SandboxService, packages::Images) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    block_on(async {
        let Served { service, places, .. } = start(config, &Outlet::new(config)?, 0, Recovery::InBackground).await?;
        let done = work(service.clone(), places).await;
        let shut_down = service.shutdown().await;
        done.and_then(|value| shut_down.map(|()| value))
    })
}

/// Run `work` with a service whose sandboxes nobody will ask for again: they end with this process, which does not wait
/// for it. The launcher sees our end and clears them away in the next millisecond, as it would if we were killed.
pub fn with_passing_service<T, F>(config: &Config, work: impl FnOnce(SandboxService) -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let runtime = runtime()?;
    let done = runtime.block_on(async { work(service(config).await?).await });
    match &done {
        // The process is about to end, which frees all of this at once.
        Ok(_) => std::mem::forget(runtime),
        // Perhaps there is no launcher yet that would clear up after us.
        Err(_) => runtime.shutdown_background(),
    }
    done
}

/// One thread: a command waits far more than it works, and threads cost time at the start.
pub fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = runtime()?;
    let done = runtime.block_on(work);
    // A blocking read of a file that never ends must not hold the process back.
    runtime.shutdown_background();
    done
}

/// What the operator set is what a call gets that does not ask, and never more than what one may ask for. The secrets are
/// left to who has read them.
pub fn policy(config: &Config) -> Result<Policy> {
    let (sandbox, server) = (&config.sandbox, &config.server);
    let (limits, ceiling) = (sandbox.limits, &server.ceiling);
    let timeout = sandbox.timeout(Screen::Streams);
    let defaults = Policy::default();
    Ok(Policy {
        image: sandbox.image.clone(),
        images: server.images.clone(),
        packages: config.packages.allowed,
        limits,
        ceiling: Ceiling {
            cpu_millis: ceiling.cpu_millis.max(limits.cpu_millis),
            memory: ceiling.memory.max(limits.memory),
            processes: ceiling.processes.max(limits.processes),
            disk: ceiling.disk.max(limits.disk),
            network: ceiling.network.or(&sandbox.network)?,
        },
        network: sandbox.network.clone(),
        role: sandbox.role(),
        secrets: Vec::new(),
        lifetime: sandbox.lifetime,
        longest_unused: config.quota.idle_lifetime,
        environment: sandbox.environment()?,
        passed_through: sandbox.passed_through().map(str::to_owned).collect(),
        timeout,
        longest_timeout: defaults.longest_timeout.max(timeout),
        wait: defaults.wait,
        languages: runners(config)?.iter().map(|runner| runner.name.clone()).collect(),
        roots: server.opened.iter().map(ToString::to_string).collect(),
    })
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| Error::internal("the async runtime cannot start").with_cause(cause))
}

/// The languages that are built in, overlaid by the person's own.
pub fn runners(config: &Config) -> Result<Runners> {
    overlaid(config, Runners::built_in())
}

fn overlaid(config: &Config, built_in: Runners) -> Result<Runners> {
    let Some(path) = &config.runners else {
        return Ok(built_in);
    };
    let text = std::fs::read_to_string(path).map_err(|cause| {
        Error::invalid_input(format!("the languages in {} cannot be read: {}", path.display(), reason(&cause)))
    })?;
    built_in.overlaid_by(&text)
}

/// The way out of all sandboxes of this process, and what is told of them.
#[derive(Clone, Debug)]
pub struct Outlet {
    pub gateway: Arc<Gateway>,
    pub events: EventBus,
    secrets: SecretSource,
}

impl Outlet {
    pub fn new(config: &Config) -> Result<Self> {
        let GatewayConfig { private_hosts, secrets_file, of_sandbox, of_owner } = config.gateway.clone();
        let of_owners = config.limits_of_owners().into_iter().map(|(owner, limits)| (owner, limits.network)).collect();
        let secrets = match secrets_file {
            Some(path) => SecretSource::File(SecretsFile::new(path)),
            None => SecretSource::UsualFile(SecretsFile::of_state_directory(config.state_dir()?)),
        };
        let events = EventBus::default();
        let settings = GatewaySettings {
            private_hosts,
            secrets: secrets.clone(),
            of_sandbox,
            of_owner,
            of_owners,
            events: events.clone(),
        };
        Ok(Self { gateway: Arc::new(Gateway::new(settings)), events, secrets })
    }

    /// What may be told of the secrets that sandboxes of a server get.
    pub fn secrets(&self, config: &Config) -> Result<Vec<Secret>> {
        if config.sandbox.secrets.is_empty() {
            return Ok(Vec::new());
        }
        let vault = self.secrets.vault()?;
        let told = |name: &SecretName| {
            let secret = vault.get(name).ok_or_else(|| {
                Error::not_found(format!("there is no secret {name}"))
                    .with_hint(format!("keep it first: sandpen secret set {name} --host api.example.com"))
            })?;
            // A secret is never sent without encryption, so a host of one means its port 443 alone.
            let encrypted = |rule: &HostRule| match rule.ports {
                Ports::Web => HostRule { ports: Ports::One(443), ..rule.clone() },
                Ports::One(_) | Ports::Any => rule.clone(),
            };
            Ok(Secret { name: name.clone(), hosts: secret.hosts().iter().map(encrypted).collect() })
        };
        config.sandbox.secrets.iter().map(told).collect()
    }
}

async fn service(config: &Config) -> Result<SandboxService> {
    service_with_spares(config, 0).await
}

/// Sandboxes that are made at once by somebody else, who has a queue too: here it is mostly waiting. One owner gets half.
const DAEMON_CREATES: usize = 32;

/// Enough for a client that makes a few sandboxes at once; each costs about as much memory as an idle one.
const SERVER_SPARES: usize = 2;

/// A service that lives as long as its server: sandboxes are made ahead, and what earlier processes left is in order
/// before the first request.
pub async fn server_service(config: &Config, outlet: &Outlet) -> Result<Served> {
    start(config, outlet, SERVER_SPARES, Recovery::BeforeStart).await
}

/// A service, and who fetches images for it, when anybody may.
pub struct Served {
    pub service: SandboxService,
    pub images: Option<Arc<dyn ImageSource>>,
    /// Where the engine has its images.
    pub places: packages::Images,
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("service", &self.service).finish_non_exhaustive()
    }
}

/// A service that has so many sandboxes made ahead, as a server would.
pub async fn service_with_spares(config: &Config, spares: usize) -> Result<SandboxService> {
    Ok(start(config, &Outlet::new(config)?, spares, Recovery::InBackground).await?.service)
}

async fn start(config: &Config, outlet: &Outlet, spares: usize, recovery: Recovery) -> Result<Served> {
    let instance = InstanceId::random()?;
    let built = engine(config, outlet, &instance, spares, recovery).await?;
    let mut settings = ServiceSettings::new(config.state_dir()?, instance);
    settings.recovery = recovery;
    match config.engine {
        EngineChoice::Native => {}
        EngineChoice::Docker | EngineChoice::Podman | EngineChoice::Kubernetes => {
            settings.create_slots = DAEMON_CREATES
        }
    }
    settings.events = outlet.events.clone();
    settings.powers = built.powers;
    settings.quota = config.quota;
    settings.quota_of = config.limits_of_owners().into_iter().map(|(owner, limits)| (owner, limits.quota)).collect();
    settings.passed_through = config.sandbox.passed_through().map(str::to_owned).collect();
    settings.runners = overlaid(config, settings.runners)?;
    settings.warm = config.server.warm;
    if let Some(images) = &built.image_runners {
        settings.runners = settings.runners.joined_by(&images.list().await?);
    }
    settings.image_runners = built.image_runners;
    settings.packages = Some(package_settings(config, outlet, built.package_images.clone()));
    let images = match config.registries.pull {
        Pull::Missing => built.images,
        Pull::Never => None,
    };
    let service = SandboxService::start(built.engine, settings).await?;
    Ok(Served { service, images, places: built.package_images })
}

/// A builder gets what a client may ask for at most. Its files are memory, so there is no use for more room than that.
fn package_settings(config: &Config, outlet: &Outlet, images: packages::Images) -> PackageSettings {
    let settings = PackageSettings::new(Arc::new(Machine::new(config, &outlet.gateway, images)));
    let ceiling = &config.server.ceiling;
    let limits = Limits {
        cpu_millis: ceiling.cpu_millis,
        memory: ceiling.memory,
        processes: ceiling.processes,
        disk: ceiling.disk.min(ceiling.memory),
        ..settings.limits
    };
    let records = match config.engine {
        EngineChoice::Native | EngineChoice::Kubernetes => settings.records,
        EngineChoice::Docker => "packages-docker",
        EngineChoice::Podman => "packages-podman",
    };
    PackageSettings { limits, records, ..settings }
}

/// An engine, and what it can do besides making sandboxes.
pub(crate) struct Built {
    pub engine: Arc<dyn Engine>,
    pub powers: Powers,
    pub image_runners: Option<Arc<dyn ImageRunners>>,
    pub images: Option<Arc<dyn ImageSource>>,
    pub package_images: packages::Images,
}

async fn engine(
    config: &Config,
    outlet: &Outlet,
    instance: &InstanceId,
    spares: usize,
    recovery: Recovery,
) -> Result<Built> {
    match config.engine {
        EngineChoice::Native => embedded::engine(config, outlet, instance, spares, recovery).await,
        EngineChoice::Docker => on_daemon(config, outlet, Flavour::Docker, instance, spares, recovery).await,
        EngineChoice::Podman => on_daemon(config, outlet, Flavour::Podman, instance, spares, recovery).await,
        EngineChoice::Kubernetes => Err(not_driven(config.engine)),
    }
}

async fn on_daemon(
    config: &Config,
    outlet: &Outlet,
    flavour: Flavour,
    instance: &InstanceId,
    spares: usize,
    recovery: Recovery,
) -> Result<Built> {
    // A server tells those who call it, and has its log where a command has a terminal.
    let watcher: Option<Arc<dyn PullWatcher>> = match recovery {
        Recovery::BeforeStart => None,
        Recovery::InBackground => Some(Arc::new(PullBars { json: config.json })),
    };
    let docker = DockerConfig {
        spares,
        watcher,
        gateway: Arc::clone(&outlet.gateway),
        reopen: match recovery {
            Recovery::BeforeStart => engine_docker::Reopen::WhenListed,
            Recovery::InBackground => engine_docker::Reopen::AtFirstStart,
        },
        ..docker_config(config, flavour, instance.clone())?
    };
    let engine = Arc::new(DockerEngine::start(docker).await?);
    let powers = Powers {
        snapshots: Some(engine.clone()),
        checkpoints: Some(engine.clone()),
        trees: Some(engine.clone()),
        connections: Some(engine.clone()),
    };
    let patterns = config.daemon.runner_images.clone();
    let is_named = move |name: &ImageName| patterns.iter().any(|pattern| pattern.covers(name));
    let image_runners = Some(engine.runners(is_named));
    let images: Arc<dyn ImageSource> = Arc::new(DaemonPulls(engine.clone()));
    let package_images = packages::Images::Daemon(engine.clone());
    Ok(Built { engine, powers, image_runners, images: Some(images), package_images })
}

/// The engine itself, for those who want its images.
pub async fn docker_engine(config: &Config, flavour: Flavour, instance: InstanceId) -> Result<DockerEngine> {
    DockerEngine::start(docker_config(config, flavour, instance)?).await
}

fn docker_config(config: &Config, flavour: Flavour, instance: InstanceId) -> Result<DockerConfig> {
    Ok(DockerConfig {
        wish: wish(config),
        runtime: config.daemon.runtime.clone(),
        default_image: Some(config.daemon.image.to_string()),
        allow_missing: config.allow_missing.clone(),
        logins: Some(Arc::new(DockerLogins(Credentials::of_docker()))),
        fetch: match config.registries.pull {
            Pull::Missing => Fetch::Missing,
            Pull::Never => Fetch::Never,
        },
        ..DockerConfig::new(flavour, config.state_dir()?.to_owned(), instance)
    })
}

/// The logins of `docker login`.
#[derive(Debug)]
struct DockerLogins(Credentials);

impl Logins for DockerLogins {
    fn find(&self, registry: &str) -> Result<Option<engine_docker::Login>> {
        let found = self.0.find(registry).map_err(image_error)?;
        Ok(found.map(|login| match login {
            Login::Password { user, secret } => engine_docker::Login::Password { user, secret },
            Login::Identity(token) => engine_docker::Login::Identity(token),
        }))
    }
}

pub fn not_driven(engine: EngineChoice) -> Error {
    Error::unsupported(format!("the {} engine is not in this version", engine.as_str())).with_hint(format!(
        "leave it out where it was chosen, by --engine or BACKEND, to use the {} engine",
        EngineChoice::USUAL.as_str()
    ))
}

/// Where the operator says that the daemon is.
pub fn wish(config: &Config) -> Wish {
    Wish { host: config.daemon.host.clone(), context: config.daemon.context.clone() }
}
