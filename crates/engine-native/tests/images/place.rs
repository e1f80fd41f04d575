//! An engine with a store of images of its own.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use egress::{Gateway, GatewaySettings};
use engine_native::{NativeConfig, NativeEngine};
use images::manifest::OCI_LAYER;
use images::{Descriptor, Digest, ImageConfig, ImageLimits, Reference, RunConfig, Store, Writing};
use sandbox::{
    Engine, ExecRequest, ExecStatus, Image, InstanceId, Layer, Owner, Persistence, Result, SandboxId, SandboxSpec,
};
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;

pub struct Place {
    directory: PathBuf,
    /// Removed with this value.
    _owned: Option<tempfile::TempDir>,
    pub store: Arc<Store>,
}

pub struct Sandbox {
    pub engine: Arc<NativeEngine>,
    pub id: SandboxId,
}

impl Place {
    pub fn new() -> std::io::Result<Self> {
        let owned = tempfile::tempdir()?;
        let mut place = Self::at(owned.path().to_owned())?;
        place._owned = Some(owned);
        Ok(place)
    }

    /// One that another process has made.
    pub fn at(directory: PathBuf) -> std::io::Result<Self> {
        let store = Store::open(&directory.join("state/images")).map_err(std::io::Error::other)?;
        Ok(Self { directory, _owned: None, store: Arc::new(store) })
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.directory.join(below)
    }

    /// An image of these layers, the lowest first.
    pub fn image(&self, name: &str, layers: Vec<Vec<u8>>, run: RunConfig) {
        self.add(name, layers, |config| config.config = run);
    }

    pub fn image_for(&self, name: &str, architecture: &str, layers: Vec<Vec<u8>>) {
        self.add(name, layers, |config| config.platform.architecture = architecture.to_owned());
    }

    fn add(&self, name: &str, layers: Vec<Vec<u8>>, describe: impl FnOnce(&mut ImageConfig)) {
        let (cancel, limits) = (CancellationToken::new(), ImageLimits::default());
        let writing = Writing::begin(&self.store).expect("a store");
        let mut descriptors = Vec::new();
        for layer in &layers {
            let descriptor = Descriptor::new(OCI_LAYER, Digest::of(layer), layer.len() as u64);
            writing.put(&layer[..], &descriptor, &cancel).expect("a blob");
            descriptors.push(descriptor);
        }
        let diff_ids = layers.iter().map(|layer| Digest::of(layer)).collect();
        let mut config = ImageConfig::bare(diff_ids);
        describe(&mut config);
        let image = writing.assemble(config, descriptors, &limits).expect("an image");
        writing.unpack_all(&image, &limits, &cancel).expect("layers");
        writing.name(&reference(name), &image).expect("a name");
    }

    pub async fn engine(&self) -> Arc<NativeEngine> {
        self.engine_with_spares(0).await
    }

    pub async fn engine_with_spares(&self, spares: usize) -> Arc<NativeEngine> {
        let allowed = std::env::var("SANDPEN_TEST_ALLOW_MISSING").unwrap_or_default();
        let allow_missing: BTreeSet<Layer> =
            allowed.split(',').filter(|name| !name.is_empty()).map(|name| name.parse().expect("a layer")).collect();
        let gateway = Arc::new(Gateway::new(GatewaySettings::default()));
        let instance = InstanceId::random().expect("random numbers");
        let config = NativeConfig { allow_missing, spares, ..NativeConfig::new(self.path("state"), instance, gateway) };
        Arc::new(NativeEngine::start(config).await.expect("an engine"))
    }

    pub async fn sandbox(&self, image: &str) -> Sandbox {
        create(self.engine().await, image, Persistence::Ephemeral).await.expect("a sandbox")
    }
}

/// Trees whose files have owners are not the user's to remove; the store does it.
impl Drop for Place {
    fn drop(&mut self) {
        if self._owned.is_none() {
            return;
        }
        for named in self.store.names().unwrap_or_default() {
            let _ = self.store.remove_name(&named.reference);
        }
        // Whoever used an image may still be ending.
        for _ in 0..50 {
            match self.store.collect() {
                Ok(collected) if !collected.postponed && self.store.size().is_ok_and(|bytes| bytes == 0) => break,
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// The directory of an image of the store is closed to others.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn reference(name: &str) -> Reference {
    name.parse().expect("a name")
}

pub async fn create(engine: Arc<NativeEngine>, image: &str, persistence: Persistence) -> Result<Sandbox> {
    let mut spec = SandboxSpec::new(Owner::local());
    spec.image = image.parse::<Image>()?;
    spec.persistence = persistence;
    let id = SandboxId::random()?;
    engine.create(&id, &spec).await?;
    Ok(Sandbox { engine, id })
}

impl Sandbox {
    /// What a program writes to both of its outputs, and how it ends.
    pub async fn run(&self, argv: &[&str]) -> Result<(String, ExecStatus)> {
        let request = ExecRequest::new(argv.iter().copied(), Duration::from_secs(30))?;
        let mut process = self.engine.start(&self.id, &request).await?;
        drop(process.stdin.take());
        let mut text = String::new();
        process.stdout.read_to_string(&mut text).await.expect("text");
        process.stderr.read_to_string(&mut text).await.expect("text");
        let outcome = process.control.wait().await?;
        Ok((text, outcome.status))
    }

    /// What a script says, whose success is expected.
    pub async fn says(&self, script: &str) -> String {
        let (text, status) = self.run(&["sh", "-c", script]).await.expect("a run");
        assert_eq!(status, ExecStatus::Exited(0), "{script}: {text}");
        text
    }

    pub async fn destroy(self) {
        self.engine.destroy(&self.id).await.expect("its end");
    }
}
