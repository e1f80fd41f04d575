//! Engine and service from settings: the only place that knows all of their types.

use std::future::Future;
use std::sync::Arc;

use egress::{Gateway, GatewaySettings, SecretSource, SecretsFile};
use engine_docker::{DockerConfig, DockerEngine, Flavour, Logins, Wish};
use engine_native::{NativeConfig, NativeEngine, Reopen};
use images::registry::{Credentials, Login};
use sandbox::{
    Engine, Error, EventBus, HostRule, ImageRunners, InstanceId, Limits, PackageSettings, Ports, Powers, Recovery,
    Result, Runners, SandboxService, SecretName, ServiceSettings,
};
use tools::{Ceiling, Policy, Secret};

use crate::attach::Screen;
use crate::commands::image::image_error;
use crate::config::{Config, ContainerUser, EngineChoice, GatewayConfig};
use crate::output::reason;
use crate::packages::Machine;

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
        secrets: Vec::new(),
        lifetime: sandbox.lifetime,
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
        let secrets = match secrets_file {
            Some(path) => SecretSource::File(SecretsFile::new(path)),
            None => SecretSource::UsualFile(SecretsFile::of_state_directory(config.state_dir()?)),
        };
        let events = EventBus::default();
        let settings =
            GatewaySettings { private_hosts, secrets: secrets.clone(), of_sandbox, of_owner, events: events.clone() };
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

/// Enough for a client that makes a few sandboxes at once; each costs about as much memory as an idle one.
const SERVER_SPARES: usize = 2;

/// A service that lives as long as its server: sandboxes are made ahead, and what earlier processes left is in order
/// before the first request.
pub async fn server_service(config: &Config, outlet: &Outlet) -> Result<SandboxService> {
    start(config, outlet, SERVER_SPARES, Recovery::BeforeStart).await
}

/// A service that has so many sandboxes made ahead, as a server would.
pub async fn service_with_spares(config: &Config, spares: usize) -> Result<SandboxService> {
    start(config, &Outlet::new(config)?, spares, Recovery::InBackground).await
}

async fn start(config: &Config, outlet: &Outlet, spares: usize, recovery: Recovery) -> Result<SandboxService> {
    let instance = InstanceId::random()?;
    let built = engine(config, outlet, &instance, spares, recovery).await?;
    let mut settings = ServiceSettings::new(config.state_dir()?, instance);
    settings.recovery = recovery;
    settings.events = outlet.events.clone();
    settings.powers = built.powers;
    settings.quota = config.quota;
    settings.passed_through = config.sandbox.passed_through().map(str::to_owned).collect();
    settings.runners = overlaid(config, settings.runners)?;
    if let Some(images) = &built.image_runners {
        settings.runners = settings.runners.joined_by(&images.list().await?);
    }
    settings.image_runners = built.image_runners;
    settings.packages = match config.engine {
        EngineChoice::Native => Some(package_settings(config, outlet)?),
        EngineChoice::Docker | EngineChoice::Podman | EngineChoice::Kubernetes => None,
    };
    SandboxService::start(built.engine, settings).await
}

/// A builder gets what a client may ask for at most. Its files are memory, so there is no use for more room than that.
fn package_settings(config: &Config, outlet: &Outlet) -> Result<PackageSettings> {
    let settings = PackageSettings::new(Arc::new(Machine::new(config, &outlet.gateway)?));
    let ceiling = &config.server.ceiling;
    let limits = Limits {
        cpu_millis: ceiling.cpu_millis,
        memory: ceiling.memory,
        processes: ceiling.processes,
        disk: ceiling.disk.min(ceiling.memory),
        ..settings.limits
    };
    Ok(PackageSettings { limits, ..settings })
}

/// An engine, and what it can do besides making sandboxes.
struct Built {
    engine: Arc<dyn Engine>,
    powers: Powers,
    image_runners: Option<Arc<dyn ImageRunners>>,
}

async fn engine(
    config: &Config,
    outlet: &Outlet,
    instance: &InstanceId,
    spares: usize,
    recovery: Recovery,
) -> Result<Built> {
    match config.engine {
        EngineChoice::Native => {
            let gateway = Arc::clone(&outlet.gateway);
            let native = NativeConfig {
                allow_missing: config.allow_missing.clone(),
                spares,
                reopen: match recovery {
                    Recovery::BeforeStart => Reopen::WhenListed,
                    Recovery::InBackground => Reopen::AtFirstStart,
                },
                ..NativeConfig::new(config.state_dir()?.to_owned(), instance.clone(), gateway)
            };
            let engine = Arc::new(NativeEngine::start(native).await?);
            let powers = Powers {
                snapshots: Some(engine.clone()),
                checkpoints: Some(engine.clone()),
                trees: Some(engine.clone()),
            };
            Ok(Built { engine, powers, image_runners: None })
        }
        EngineChoice::Docker => on_daemon(config, Flavour::Docker, instance, spares).await,
        EngineChoice::Podman => on_daemon(config, Flavour::Podman, instance, spares).await,
        EngineChoice::Kubernetes => Err(not_driven(config.engine)),
    }
}

async fn on_daemon(config: &Config, flavour: Flavour, instance: &InstanceId, spares: usize) -> Result<Built> {
    let engine = Arc::new(docker_engine(config, flavour, instance.clone(), spares).await?);
    let powers = Powers { snapshots: Some(engine.clone()), ..Powers::default() };
    let image_runners = Some(engine.runners());
    Ok(Built { engine, powers, image_runners })
}

/// The engine itself, for those who want its images.
pub async fn docker_engine(
    config: &Config,
    flavour: Flavour,
    instance: InstanceId,
    spares: usize,
) -> Result<DockerEngine> {
    let docker = DockerConfig {
        wish: wish(config),
        user: match config.daemon.user {
            ContainerUser::Sandbox => engine_docker::ContainerUser::Sandbox,
            ContainerUser::Image => engine_docker::ContainerUser::Image,
        },
        runtime: config.daemon.runtime.clone(),
        default_image: Some(config.daemon.image.to_string()),
        spares,
        allow_missing: config.allow_missing.clone(),
        logins: Some(Arc::new(DockerLogins(Credentials::of_docker()))),
        ..DockerConfig::new(flavour, config.state_dir()?.to_owned(), instance)
    };
    DockerEngine::start(docker).await
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
    Error::unsupported(format!("the {} engine is not in this version", engine.as_str()))
        .with_hint("leave --engine out to use the native engine, which needs no daemon")
}

/// Where the operator says that the daemon is.
pub fn wish(config: &Config) -> Wish {
    Wish { host: config.daemon.host.clone(), context: config.daemon.context.clone() }
}
