//! Whose sandboxes the checks are about: the embedded engine's, or those of a daemon that the environment names.

use std::path::Path;
use std::sync::Arc;

use egress::{Gateway, GatewaySettings};
use engine_docker::{DockerConfig, DockerEngine};
use sandbox::{Engine, Layer, SandboxSpec};
use sandpen_tests::daemon::Given;
use sandpen_tests::lab::{self, Sandbox};
use sandpen_tests::{Result, Trouble, images};
use tempfile::TempDir;

/// What the image is called that trusts who the world trusts.
pub const IMAGE: &str = "network:test";

/// The daemon that the environment names, with the image that trusts who the world trusts.
pub fn daemon() -> Result<Option<Given>> {
    Ok(Given::of_environment()?.map(|daemon| Given { image: IMAGE.to_owned(), ..daemon }))
}

/// An image with programs that people use, which trusts the certificates of the world, as the embedded engine's sandboxes do
/// by having the host's.
pub fn load_image(daemon: &Given, certificates: &Path) -> Result<()> {
    daemon.docker(&["import", &images::debian_for_networks()?.to_string_lossy(), IMAGE])?;
    let container = daemon.docker(&["create", "--network", "none", IMAGE, "nothing"])?;
    let container = container.trim();
    let bundle = certificates.join("ca-certificates.crt");
    daemon.docker(&["cp", &bundle.to_string_lossy(), &format!("{container}:/etc/ssl/certs/ca-certificates.crt")])?;
    daemon.docker(&["commit", container, IMAGE])?;
    daemon.docker(&["rm", container]).map(drop)
}

/// An engine with a gateway of its own, on either.
pub struct Lab {
    pub engine: Arc<dyn Engine>,
    pub gateway: Arc<Gateway>,
    native: Option<lab::Lab>,
    _state: Option<TempDir>,
}

impl Lab {
    pub async fn start(without: &[Layer], settings: GatewaySettings) -> Result<Self> {
        let Some(daemon) = daemon()? else {
            let native = lab::Lab::with_gateway(without, settings).await?;
            let (engine, gateway) = (native.engine.clone(), native.gateway.clone());
            return Ok(Self { engine, gateway, native: Some(native), _state: None });
        };
        if !without.is_empty() {
            return Err(Trouble(format!("a daemon builds its walls itself: {without:?} cannot be left out")));
        }
        let state = tempfile::Builder::new().prefix("sandpen-test-").tempdir()?;
        let gateway = Arc::new(Gateway::new(settings));
        let config = DockerConfig { gateway: gateway.clone(), ..daemon.config(state.path())? };
        let engine = Arc::new(DockerEngine::start(config).await?);
        Ok(Self { engine, gateway, native: None, _state: Some(state) })
    }

    /// Whether it builds the walls itself, so that it can leave one out.
    pub fn has_own_walls(&self) -> bool {
        self.native.is_some()
    }

    pub async fn sandbox_of(&self, spec: SandboxSpec) -> Result<Sandbox> {
        Sandbox::with_probe(self.engine.clone(), spec).await
    }
}

/// Whether sandboxes have this program.
pub fn is_installed(program: &str) -> bool {
    match Given::of_environment() {
        Ok(Some(_)) => images::NETWORK_PROGRAMS.contains(&program),
        Ok(None) | Err(_) => {
            ["/usr/local/bin", "/usr/bin", "/bin"].iter().any(|place| Path::new(place).join(program).is_file())
        }
    }
}
