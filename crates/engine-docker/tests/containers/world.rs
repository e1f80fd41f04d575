//! An installation of ours on the daemon, and the hands of its operator, who can do anything there.

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::{Duration, Instant};

use bollard::models::{ContainerConfig, ContainerSummary, HostConfig};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CommitContainerOptionsBuilder, CreateContainerOptionsBuilder,
    ListContainersOptionsBuilder, ListVolumesOptions, RemoveContainerOptionsBuilder, RemoveImageOptionsBuilder,
    UploadToContainerOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, Docker, body_full};
use engine_docker::{DockerConfig, DockerEngine, Flavour};
use futures_util::StreamExt;
use sandbox::{Engine, ExecRequest, Insistence, Owner, Role, SandboxId, SandboxSpec};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::sync::Mutex;

use crate::support::Place;

pub type Done = Pin<Box<dyn Future<Output = ()>>>;

/// Images of several tests have layers with the same content. Podman makes one upon what another has just removed, and then
/// says that it does not know the layer.
static IMAGES: Mutex<()> = Mutex::const_new(());

pub struct World {
    pub place: Place,
    pub state: TempDir,
    pub docker: Docker,
}

impl World {
    pub async fn new(place: Place) -> Self {
        let path = place.address.strip_prefix("unix://").expect("the test's daemon has a socket");
        let docker = Docker::connect_with_unix(path, 60, API_DEFAULT_VERSION).unwrap();
        let docker = docker.negotiate_version().await.unwrap();
        Self { place, state: tempfile::tempdir().unwrap(), docker }
    }

    pub fn config(&self) -> DockerConfig {
        self.place.config(self.state.path())
    }

    pub async fn engine(&self) -> DockerEngine {
        DockerEngine::start(self.config()).await.unwrap()
    }

    /// An image that is the test's with further instructions of a Dockerfile. Removed by [`World::remove_image`].
    pub async fn image(&self, name: &str, instructions: &str) -> String {
        self.image_with(name, instructions, None, ContainerConfig::default()).await
    }

    /// The same, with more files at its root and with settings that no instruction could say.
    pub async fn image_with(
        &self,
        name: &str,
        instructions: &str,
        files: Option<Vec<u8>>,
        settings: ContainerConfig,
    ) -> String {
        let body = bollard::models::ContainerCreateBody {
            image: Some(self.place.image.clone()),
            cmd: Some(vec!["/nothing".to_owned()]),
            ..Default::default()
        };
        let made = self.docker.create_container(None, body).await.unwrap();
        if let Some(files) = files {
            let options = UploadToContainerOptionsBuilder::default().path("/").build();
            self.docker.upload_to_container(&made.id, Some(options), body_full(files.into())).await.unwrap();
        }
        let options = CommitContainerOptionsBuilder::default().container(&made.id).repo(name).tag("1");
        let options = options.pause(false).changes(instructions).build();
        let alone = IMAGES.lock().await;
        self.docker.commit_container(options, settings).await.unwrap();
        drop(alone);
        self.remove(&made.id).await;
        format!("{name}:1")
    }

    pub async fn remove_image(&self, name: &str) {
        let options = RemoveImageOptionsBuilder::default().force(false).build();
        let _alone = IMAGES.lock().await;
        self.docker.remove_image(name, Some(options), None).await.unwrap();
    }

    pub async fn remove(&self, container: &str) {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        self.docker.remove_container(container, Some(options)).await.unwrap();
    }

    /// A container of somebody else's, with these labels, which does not run.
    pub async fn bystander(&self, name: &str, labels: &[(&str, &str)]) -> String {
        let body = bollard::models::ContainerCreateBody {
            image: Some(self.place.image.clone()),
            cmd: Some(vec!["/nothing".to_owned()]),
            labels: Some(labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect()),
            ..Default::default()
        };
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        self.docker.create_container(Some(options), body).await.unwrap().id
    }

    /// What a program prints in a container of somebody else's that the daemon makes as it likes, without a network.
    pub async fn printed_by_a_plain_container(&self, argv: &[&str]) -> String {
        let body = bollard::models::ContainerCreateBody {
            image: Some(self.place.image.clone()),
            entrypoint: Some(argv.iter().map(|word| (*word).to_owned()).collect()),
            host_config: Some(HostConfig { network_mode: Some("none".to_owned()), ..Default::default() }),
            attach_stdout: Some(true),
            ..Default::default()
        };
        let made = self.docker.create_container(None, body).await.unwrap();
        let options = AttachContainerOptionsBuilder::default().stdout(true).stream(true).build();
        let attached = self.docker.attach_container(&made.id, Some(options)).await.unwrap();
        self.docker.start_container(&made.id, None).await.unwrap();
        let pieces: Vec<_> = attached.output.collect().await;
        self.remove(&made.id).await;
        pieces.into_iter().map(|piece| String::from_utf8_lossy(&piece.unwrap().into_bytes()).into_owned()).collect()
    }

    /// The names of all containers that begin so, in any state.
    pub async fn containers(&self, prefix: &str) -> Vec<String> {
        let listed = self.listed(&HashMap::new()).await;
        let names = listed.into_iter().flat_map(|container| container.names.unwrap_or_default());
        names.map(|name| name.trim_start_matches('/').to_owned()).filter(|name| name.starts_with(prefix)).collect()
    }

    /// All containers that pass these filters, in any state. Podman has one in passing that the library does not know.
    pub async fn listed(&self, filters: &HashMap<&str, Vec<&str>>) -> Vec<ContainerSummary> {
        let started = Instant::now();
        loop {
            let options = ListContainersOptionsBuilder::default().all(true).filters(filters).build();
            match self.docker.list_containers(Some(options)).await {
                Ok(listed) => return listed,
                Err(error) => assert!(started.elapsed() < Duration::from_secs(30), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The names of all volumes.
    pub async fn volumes(&self) -> Vec<String> {
        let listed = self.docker.list_volumes(None::<ListVolumesOptions>).await.unwrap().volumes;
        listed.unwrap_or_default().into_iter().map(|volume| volume.name).collect()
    }

    /// How the daemon's own client is started for it.
    pub fn client(&self) -> String {
        match self.place.flavour {
            Flavour::Docker => format!("docker --host {}", self.place.address),
            Flavour::Podman => format!("podman --remote --url {}", self.place.address),
        }
    }

    pub fn is_podman(&self) -> bool {
        self.place.flavour == Flavour::Podman
    }

    /// Whether programs speak to another kernel than the host's.
    pub fn is_gvisor(&self) -> bool {
        self.place.is_gvisor()
    }

    /// Where our state is that belongs to sandboxes of this daemon.
    pub fn kept(&self) -> PathBuf {
        let daemons = std::fs::read_dir(self.state.path().join("docker/daemons")).unwrap();
        let mut daemons = daemons.map(|entry| entry.unwrap().path());
        let first = daemons.next().expect("a daemon was used");
        assert_eq!(daemons.next(), None, "a daemon is another one each time");
        first
    }

    pub fn installation(&self) -> String {
        std::fs::read_to_string(self.state.path().join("docker/installation")).unwrap()
    }
}

pub fn spec() -> SandboxSpec {
    SandboxSpec::new(Owner::local())
}

/// One whose programs are whom the image names, which is root for the test's.
pub fn root_spec() -> SandboxSpec {
    SandboxSpec { role: Role::ImageUser(Insistence::Must), ..spec() }
}

pub async fn make(engine: &DockerEngine, spec: &SandboxSpec) -> SandboxId {
    let id = SandboxId::random().unwrap();
    engine.create(&id, spec).await.unwrap();
    id
}

/// What a script printed, on both streams.
pub async fn says(engine: &DockerEngine, id: &SandboxId, script: &str) -> String {
    let request = ExecRequest::shell(&format!("{{ {script}\n}} 2>&1"), Duration::from_secs(30)).unwrap();
    let mut process = engine.start(id, &request).await.unwrap();
    drop(process.stdin.take());
    let mut said = String::new();
    process.stdout.read_to_string(&mut said).await.unwrap();
    process.control.wait().await.unwrap();
    said
}

pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !check().await {
        assert!(started.elapsed() < Duration::from_secs(30), "not within half a minute: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
