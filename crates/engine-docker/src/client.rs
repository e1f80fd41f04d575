//! The daemon: one method per question, each with a time-out and typed errors. No decisions are made here.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::errors::Error as ClientError;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerStatsResponse, ContainerSummary, ExecConfig,
    FilesystemChange, SystemInfo,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptionsBuilder, ListContainersOptionsBuilder,
    RemoveContainerOptionsBuilder, StatsOptionsBuilder, WaitContainerOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use bytes::Bytes;
use futures_util::StreamExt;
use sandbox::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::io::StreamReader;

use crate::connect::{self, Candidate, Endpoint, Surroundings, Wish};
use crate::names::Names;
use crate::{Flavour, podman};

mod attach;
mod events;
mod identity;
mod images;
mod plain;
mod podman_host;
mod pulse;
mod refusals;
mod same;
mod volumes;

pub(crate) use volumes::Removal;

pub(crate) use images::{BETWEEN_LOOKS, LOOKS, credentials};
use refusals::reason;
pub(crate) use refusals::shortened;
use same::Heard;

/// How long a daemon may take to answer a question. Half a minute is promised, and something is done around it.
const PATIENCE: Duration = Duration::from_secs(25);
/// How long it may work on what takes time by its nature: images.
const LONG_PATIENCE: Duration = Duration::from_secs(60 * 60);
/// Longer than anything runs.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// How long one of several usual places may take to say that it is there.
const GREETING: Duration = Duration::from_secs(5);

/// More than any host has. Each is a line of what a container is made of.
const MOST_PROCESSORS: u32 = 8192;

/// A daemon that has answered once.
#[derive(Clone, Debug)]
pub struct Daemon {
    flavour: Flavour,
    docker: Docker,
    facts: Arc<Mutex<Arc<DaemonFacts>>>,
    identity: String,
    endpoint: Endpoint,
    /// For its own client.
    arguments: Arc<[String]>,
    names: Names,
    heard: Heard,
}

/// What a daemon says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonFacts {
    pub place: String,
    pub version: String,
    pub kernel: String,
    pub system: String,
    pub architecture: String,
    pub storage: String,
    pub cgroup_version: Option<u8>,
    pub runtimes: BTreeSet<String>,
    pub default_runtime: Option<String>,
    /// Its containers' root is an ordinary user of its host.
    pub rootless: bool,
    /// Its containers' root is a user of its host that nobody else is.
    pub user_namespaces: bool,
    pub seccomp: bool,
    pub memory_limit: bool,
    pub swap_limit: bool,
    pub process_limit: bool,
    pub cpu_limit: bool,
    pub processors: u32,
}

/// The two directions of a program's streams.
pub type Streams = (Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>);

impl Daemon {
    /// The first that answers of the places where it may be.
    pub async fn connect(flavour: Flavour, wish: &Wish) -> Result<Self> {
        let candidates = candidates(flavour, wish)?;
        let mut tried = Vec::new();
        // The only place may take its time; of several, one that is silent must not hide the next.
        let patience = if candidates.len() == 1 { PATIENCE } else { GREETING };
        for candidate in &candidates {
            match Self::greet(flavour, candidate, patience).await {
                Ok(daemon) => return Ok(daemon),
                Err(cause) => tried.push(format!("{} ({}): {cause}", candidate.endpoint, candidate.because)),
            }
        }
        let title = flavour.title();
        let message = format!("no {title} daemon answers; tried {}", tried.join("; "));
        let hint = refusals::remedy(flavour, &message).unwrap_or(connect::how_to_start(flavour));
        Err(Error::unavailable(message).with_hint(hint))
    }

    async fn greet(flavour: Flavour, candidate: &Candidate, patience: Duration) -> std::result::Result<Self, String> {
        let seconds = PATIENCE.as_secs();
        let docker = match &candidate.endpoint {
            Endpoint::Local(path) => Docker::connect_with_local(&path.to_string_lossy(), seconds, API_DEFAULT_VERSION),
            Endpoint::Plain { address } => Docker::connect_with_http(address, seconds, API_DEFAULT_VERSION),
            Endpoint::Tls { address, files } => Docker::connect_with_ssl(
                address,
                &files.key,
                &files.certificate,
                &files.authority,
                seconds,
                API_DEFAULT_VERSION,
            ),
        };
        let greeting = async {
            let docker = docker?;
            // Together, because a daemon asks other programs for either. Copies share what they agree upon.
            tokio::try_join!(docker.clone().negotiate_version(), docker.info())
        };
        let own = podman_host::ask(flavour, &candidate.endpoint);
        let (greeted, host) = tokio::join!(tokio::time::timeout(patience, greeting), own);
        let (docker, info) = match greeted {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(reason(&error)),
            Err(_) => return Err(format!("no answer within {} s", patience.as_secs())),
        };
        let facts = facts(flavour, candidate.endpoint.to_string(), &info, host.as_ref());
        let (names, heard) = (Names::default(), Heard::now());
        let identity = identity::identity(&candidate.endpoint, &info);
        let endpoint = candidate.endpoint.clone();
        let arguments = candidate.client.clone().into();
        let facts = Arc::new(Mutex::new(Arc::new(facts)));
        Ok(Self { flavour, docker, facts, identity, endpoint, arguments, names, heard })
    }

    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// What tells it from every other daemon.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// What the daemon's own client must be told, so that it speaks to this daemon.
    pub fn client_arguments(&self) -> &[String] {
        &self.arguments
    }

    /// As it last said them.
    pub fn facts(&self) -> Arc<DaemonFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Of what we have there.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Our process 1 is a program for one system and one kind of processor.
    pub fn check_platform(&self) -> Result<()> {
        let facts = self.facts();
        let DaemonFacts { system, architecture, .. } = &*facts;
        let ours = std::env::consts::ARCH;
        let same = match architecture.as_str() {
            "amd64" => ours == "x86_64",
            "arm64" => ours == "aarch64",
            other => ours == other,
        };
        if system == "linux" && same {
            return Ok(());
        }
        let title = self.flavour.title();
        Err(Error::unsupported(format!("the {title} daemon is for {system} on {architecture}, and sandpen for {ours}"))
            .with_hint("use a daemon for Linux on the same kind of processor"))
    }

    /// For calls that move data. It counts until the daemon begins to answer, and nothing counts from then on: who uses it
    /// asks whether the daemon hangs.
    pub(crate) fn patient(&self) -> Docker {
        self.docker.clone().with_timeout(LONG_PATIENCE)
    }

    pub(crate) async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<String> {
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let created = self.ask(self.docker.create_container(Some(options), body)).await;
        created.map(|created| created.id).map_err(|failure| match failure.status() {
            Some(409) => Error::new(ErrorKind::AlreadyExists, format!("there is a container {name} already")),
            Some(_) | None => self.told("make a container", failure),
        })
    }

    pub(crate) async fn start(&self, container: &str) -> Result<()> {
        let started = self.ask(self.docker.start_container(container, None)).await;
        match started {
            // It runs already.
            Err(failure) if failure.status() == Some(304) => Ok(()),
            started => started.map_err(|failure| self.told("start a container", failure)),
        }
    }

    /// Kill and remove, with the anonymous volumes that its image asked for. Returns when the daemon says that it is gone.
    pub(crate) async fn remove(&self, container: &str) -> Result<()> {
        let options = || RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let removing = self.docker.remove_container(container, Some(options()));
            let failure = match self.ask_until(deadline, removing).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            match failure.status() {
                Some(404) => return Ok(()),
                // Somebody else removes it, the daemon itself perhaps: wait for it to be gone.
                Some(409 | 500) if Instant::now() < deadline => {}
                _ => return Err(self.told("remove a container", failure)),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Wait until a container does not run any more. When nobody can say, that is never.
    pub(crate) async fn end_of(&self, container: &str) {
        let options = WaitContainerOptionsBuilder::default().condition("not-running").build();
        let docker = self.docker.clone().with_timeout(FOR_EVER);
        match docker.wait_container(container, Some(options)).next().await {
            Some(Ok(_) | Err(ClientError::DockerContainerWaitError { .. })) => {}
            Some(Err(ClientError::DockerResponseServerError { status_code: 404, .. })) => {}
            Some(Err(_)) | None => {
                self.heard.doubt();
                std::future::pending().await
            }
        }
    }

    pub(crate) async fn inspect(&self, container: &str) -> Result<Option<ContainerInspectResponse>> {
        let found = self.once_settled(|| self.docker.inspect_container(container, None)).await;
        self.perhaps("look at a container", found)
    }

    /// How much a container has in its own layer, in bytes; `None` when it is not there.
    pub(crate) async fn layer_bytes(&self, container: &str) -> Result<Option<u64>> {
        let options = InspectContainerOptionsBuilder::default().size(true).build();
        let found = self.once_settled(|| self.docker.inspect_container(container, Some(options.clone()))).await;
        let found = self.perhaps("measure the layer of a container", found)?;
        Ok(found.map(|found| found.size_rw.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)))
    }

    /// What a container's own layer has over its image.
    pub(crate) async fn changes(&self, container: &str) -> Result<Vec<FilesystemChange>> {
        let told = self.ask(self.docker.container_changes(container)).await;
        told.map(Option::unwrap_or_default).map_err(|failure| self.told("compare a container with its image", failure))
    }

    /// Containers in any state that have this label, or whose name begins so.
    pub(crate) async fn list(&self, filter: &str, value: &str) -> Result<Vec<ContainerSummary>> {
        let filters = HashMap::from([(filter, vec![value])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let listed = self.once_settled(|| self.docker.list_containers(Some(options.clone()))).await;
        listed.map_err(|failure| self.told("list containers", failure))
    }

    /// An answer about containers that are not in between two states.
    async fn once_settled<T, A>(&self, question: impl Fn() -> A) -> std::result::Result<T, Failure>
    where
        A: Future<Output = std::result::Result<T, ClientError>>,
    {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.ask_until(deadline, question()).await {
                Err(Failure::Client(error)) if podman::is_passing(&error) && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                answer => return answer,
            }
        }
    }

    pub(crate) async fn stats(&self, container: &str) -> Result<Option<ContainerStatsResponse>> {
        let options = StatsOptionsBuilder::default().stream(false).one_shot(true).build();
        let mut stats = Box::pin(self.docker.stats(container, Some(options)));
        let first = async {
            match stats.next().await {
                Some(answer) => answer.map(Some),
                None => Ok(None),
            }
        };
        let measured = self.ask(first).await;
        self.perhaps("measure a container", measured).map(Option::flatten)
    }

    /// Start a program in a container, with streams and without a terminal.
    pub(crate) async fn exec(&self, container: &str, argv: &[&str]) -> Result<Streams> {
        let config = ExecConfig {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(argv.iter().map(|word| (*word).to_owned()).collect()),
            user: Some("0:0".to_owned()),
            working_dir: Some("/".to_owned()),
            ..ExecConfig::default()
        };
        let starting = async {
            let made = self.docker.create_exec(container, config).await?;
            let options = StartExecOptions { output_capacity: Some(64 * 1024), ..StartExecOptions::default() };
            self.docker.start_exec(&made.id, Some(options)).await
        };
        match self.ask(starting).await.map_err(|failure| self.told("enter a container", failure))? {
            StartExecResults::Attached { output, input } => {
                let bytes = Box::pin(output.filter_map(|piece| async { piece_of_stdout(piece) }));
                Ok((Box::new(StreamReader::new(bytes)), Box::new(input)))
            }
            StartExecResults::Detached => Err(Error::internal("the daemon gave no streams of a program")),
        }
    }

    pub(crate) async fn ask<T>(
        &self,
        question: impl Future<Output = std::result::Result<T, ClientError>>,
    ) -> std::result::Result<T, Failure> {
        self.ask_until(Instant::now() + PATIENCE, question).await
    }

    /// One of several questions that have a time together.
    async fn ask_until<T>(
        &self,
        deadline: Instant,
        question: impl Future<Output = std::result::Result<T, ClientError>>,
    ) -> std::result::Result<T, Failure> {
        match tokio::time::timeout_at(deadline, question).await {
            Ok(answer) => answer.map_err(Failure::Client),
            Err(_) => Err(Failure::Slow),
        }
    }

    /// `None` for what is not there.
    pub(crate) fn perhaps<T>(&self, doing: &str, answer: std::result::Result<T, Failure>) -> Result<Option<T>> {
        match answer {
            Ok(found) => Ok(Some(found)),
            Err(failure) if failure.status() == Some(404) => Ok(None),
            Err(failure) => Err(self.told(doing, failure)),
        }
    }

    pub(crate) fn told(&self, doing: &str, failure: Failure) -> Error {
        let title = self.flavour.title();
        let failure_status = failure.status().unwrap_or_default();
        let Failure::Client(error) = failure else {
            self.heard.doubt();
            let message = format!("the {title} daemon did not answer within {} s", PATIENCE.as_secs());
            return Error::unavailable(message).with_hint("look at the daemon's log");
        };
        match &error {
            ClientError::DockerResponseServerError { message, .. } => {
                let kind = match failure_status {
                    400 => ErrorKind::InvalidInput,
                    403 => ErrorKind::Denied,
                    404 => ErrorKind::NotFound,
                    409 => ErrorKind::WrongState,
                    503 => ErrorKind::Unavailable,
                    _ => ErrorKind::Internal,
                };
                Error::new(kind, format!("the {title} daemon refused to {doing}")).with_cause(shortened(message))
            }
            ClientError::DockerStreamError { .. } | ClientError::JsonDataError { .. } => {
                Error::internal(format!("the {title} daemon could not {doing}")).with_cause(reason(&error))
            }
            _ => {
                self.heard.doubt();
                Error::unavailable(format!("the {title} daemon does not answer"))
                    .with_hint(connect::how_to_start(self.flavour))
                    .with_cause(reason(&error))
            }
        }
    }
}

/// Why a question has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    Client(ClientError),
    Slow,
}

impl Failure {
    pub(crate) fn status(&self) -> Option<u16> {
        match self {
            Self::Client(ClientError::DockerResponseServerError { status_code, message }) => {
                Some(if podman::is_absence(*status_code, message) { 404 } else { *status_code })
            }
            Self::Client(_) | Self::Slow => None,
        }
    }
}

/// Where to look, as the surroundings of this process have it.
fn candidates(flavour: Flavour, wish: &Wish) -> Result<Vec<Candidate>> {
    let variable = |name: &str| std::env::var(name).ok();
    let read = |path: &Path| std::fs::read(path).ok();
    let runtime = connect::runtime::of_process();
    connect::candidates(flavour, wish, &Surroundings { variable: &variable, read: &read, runtime: runtime.as_deref() })
}

fn piece_of_stdout(piece: std::result::Result<LogOutput, ClientError>) -> Option<std::io::Result<Bytes>> {
    match piece {
        Ok(LogOutput::StdOut { message }) => Some(Ok(message)),
        Ok(LogOutput::StdErr { message }) => {
            tracing::debug!(said = %String::from_utf8_lossy(&message), "a program of ours complains");
            None
        }
        Ok(LogOutput::StdIn { .. }) => None,
        Ok(LogOutput::Console { .. }) => Some(Err(std::io::Error::other("the daemon's stream has no frames"))),
        Err(error) => Some(Err(std::io::Error::other(error))),
    }
}

/// `host` is what Podman says besides.
fn facts(flavour: Flavour, place: String, info: &SystemInfo, host: Option<&podman_host::Host>) -> DaemonFacts {
    let said = said(place, info);
    match flavour {
        Flavour::Docker => said,
        Flavour::Podman => podman_host::completed(said, host),
    }
}

fn said(place: String, info: &SystemInfo) -> DaemonFacts {
    let options = info.security_options.iter().flatten();
    let has = |name: &str| options.clone().any(|option| is_on(option, name));
    DaemonFacts {
        place,
        version: info.server_version.clone().unwrap_or_default(),
        kernel: info.kernel_version.clone().unwrap_or_default(),
        system: info.os_type.clone().unwrap_or_default(),
        architecture: info.architecture.clone().unwrap_or_default(),
        storage: info.driver.clone().unwrap_or_default(),
        cgroup_version: info.cgroup_version.and_then(|version| version.to_string().parse().ok()),
        runtimes: info.runtimes.iter().flatten().map(|(name, _)| name.clone()).collect(),
        default_runtime: info.default_runtime.clone(),
        rootless: has("rootless"),
        user_namespaces: has("userns") || has("rootless"),
        seccomp: has("seccomp"),
        memory_limit: info.memory_limit.unwrap_or(false),
        swap_limit: info.swap_limit.unwrap_or(false),
        process_limit: info.pids_limit.unwrap_or(false),
        cpu_limit: info.cpu_cfs_quota.unwrap_or(false),
        processors: info.ncpu.and_then(|count| u32::try_from(count).ok()).unwrap_or(0).min(MOST_PROCESSORS),
    }
}

/// A daemon whose profile lets everything pass names seccomp all the same.
fn is_on(option: &str, name: &str) -> bool {
    let mut parts = option.split(',');
    parts.clone().any(|part| part.strip_prefix("name=") == Some(name))
        && !parts.any(|part| part == "profile=unconfined")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_that_lets_everything_pass_is_no_seccomp() {
        let told = |option: &str| {
            let info = SystemInfo { security_options: Some(vec![option.to_owned()]), ..SystemInfo::default() };
            said(String::new(), &info)
        };
        for option in ["name=seccomp,profile=builtin", "name=seccomp,profile=default", "name=seccomp"] {
            assert!(told(option).seccomp, "{option}");
        }
        for option in ["name=seccomp,profile=unconfined", "name=apparmor", "seccomp"] {
            assert!(!told(option).seccomp, "{option}");
        }
        assert!(told("name=rootless").rootless);
    }

    #[test]
    fn numbers_of_processors_that_cannot_be_are_not_believed() {
        for (said_so, count) in [(Some(4), 4), (Some(-1), 0), (None, 0), (Some(i64::MAX), 0), (Some(1 << 20), 8192)] {
            let info = SystemInfo { ncpu: said_so, ..SystemInfo::default() };
            assert_eq!(said(String::new(), &info).processors, count, "{said_so:?}");
        }
    }
}
