//! The sandbox that packages are installed in: of the image that they are for, with a way to the index and to nothing else.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;

use super::words::LineSplitter;
use super::{PackageSettings, Request};
use crate::engine::Files;
use crate::error::{Error, ErrorKind, Result};
use crate::event::StopReason;
use crate::exec::{ExecRequest, ExecStatus};
use crate::file::ByteRange;
use crate::id::{Owner, SandboxId};
use crate::image::Image;
use crate::network::{Network, Refusal};
use crate::output::{CappedOutput, OutputCaps};
use crate::path::GuestPath;
use crate::service::core::Core;
use crate::service::create::Origin;
use crate::service::files::HeldFiles;
use crate::service::run::write_whole;
use crate::spec::{Environment, Lifetime, SandboxSpec};

/// Of each stream of the package manager, for its last words.
const CAPS: OutputCaps = OutputCaps { head: 16 * 1024, tail: 64 * 1024 };

const CERTIFICATES: &str = "certificates.pem";

pub(super) struct Builder {
    core: Arc<Core>,
    owner: Owner,
    pub id: SandboxId,
    /// Where all its work is done: named by chance, so no image can have anything there beforehand.
    place: GuestPath,
    patience: Duration,
    environment: Environment,
}

/// What became of a command in the builder.
#[derive(Debug)]
pub(super) struct Ran {
    pub status: ExecStatus,
    pub stdout: String,
    pub stderr: String,
    pub refused: Vec<Refusal>,
}

impl Ran {
    pub fn is_success(&self) -> bool {
        self.status == ExecStatus::Exited(0)
    }
}

impl Builder {
    pub async fn start(core: &Arc<Core>, request: &Request, settings: &PackageSettings) -> Result<Self> {
        let index = &request.index;
        // Whoever saved it decides what runs in it, and could spend the login as they like.
        if let (Image::Saved(_), false) = (&request.image, index.secrets.is_empty()) {
            return Err(Error::denied("the package index has a login, which no saved image may use")
                .with_hint("use the image that it was saved from"));
        }
        let owner: Owner = format!("packages@{}", core.settings.instance).parse()?;
        let mut environment = Environment::default();
        // An index on this machine's loopback is to be reached through the proxy, because inside it is another loopback.
        for name in ["NO_PROXY", "no_proxy"] {
            environment.insert(name, "")?;
        }
        let spec = SandboxSpec {
            image: request.image.clone(),
            image_owner: Some(request.owner.clone()),
            limits: settings.limits,
            network: Network::hosts(index.hosts.iter().cloned())?,
            private_hosts: index.private_hosts.clone(),
            secrets: index.secrets.clone(),
            lifetime: Lifetime { idle: settings.patience, total: Some(settings.patience + Duration::from_secs(60)) },
            environment,
            ..SandboxSpec::new(owner.clone())
        };
        let sandbox = core.create(spec, Origin::Image).await?;
        let mut builder = Self {
            core: Arc::clone(core),
            owner,
            place: GuestPath::resolve(&GuestPath::workspace(), sandbox.id.as_str().as_bytes())?,
            id: sandbox.id,
            patience: settings.patience,
            environment: Environment::default(),
        };
        // For hosts of secrets the gateway shows a certificate of its own, and has said where that is.
        let certificates = index.certificates.as_ref().filter(|_| index.secrets.is_empty());
        if let Err(error) = builder.furnish(certificates).await {
            builder.end().await;
            return Err(error);
        }
        Ok(builder)
    }

    /// A home and caches of its own: what lies in those of an image could be code.
    async fn furnish(&mut self, certificates: Option<&Vec<u8>>) -> Result<()> {
        for (variable, name) in [("HOME", "home"), ("UV_CACHE_DIR", "uv"), ("npm_config_cache", "npm")] {
            self.make_directory(name).await?;
            self.environment.insert(variable, self.path(name)?.to_string_lossy())?;
        }
        match certificates {
            Some(certificates) => self.trust(certificates).await,
            None => Ok(()),
        }
    }

    async fn trust(&mut self, certificates: &[u8]) -> Result<()> {
        self.write(CERTIFICATES, certificates).await?;
        let path = self.path(CERTIFICATES)?.to_string_lossy().into_owned();
        for name in ["PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "npm_config_cafile", "NODE_EXTRA_CA_CERTS"] {
            self.environment.insert(name, path.as_str())?;
        }
        Ok(())
    }

    /// `None` when there is no such program.
    pub async fn try_run(
        &self,
        argv: &[&str],
        variables: &Environment,
        directory: Option<&str>,
        mut on_line: impl FnMut(&str) + Send,
    ) -> Result<Option<Ran>> {
        let mut request = ExecRequest::new(argv.iter().copied(), self.patience)?;
        request.environment = self.environment.clone().overlaid_by(variables);
        request.work_directory = Some(self.path(directory.unwrap_or("."))?);
        let execution = match self.core.exec(&self.owner, &self.id, &request).await {
            Ok(execution) => execution,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.core.locate(&self.owner, &self.id)?;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let (mut stdout, mut stderr) = (CappedOutput::new(CAPS), CappedOutput::new(CAPS));
        let mut lines = LineSplitter::default();
        let on_stdout = |bytes: &[u8]| {
            stdout.push(bytes);
            lines.push(bytes, &mut on_line);
        };
        let outcome = execution.read(on_stdout, |bytes| stderr.push(bytes)).await?;
        Ok(Some(Ran {
            status: outcome.status,
            stdout: stdout.to_text(),
            stderr: stderr.to_text(),
            refused: outcome.network.refused,
        }))
    }

    pub async fn write(&self, name: &str, contents: &[u8]) -> Result<()> {
        write_whole(&self.files(), &self.path(name)?, contents, true).await
    }

    pub async fn read(&self, name: &str, most: usize) -> Result<Vec<u8>> {
        let range = ByteRange { offset: 0, length: Some(most as u64 + 1) };
        let mut file = self.files().read(&self.path(name)?, range).await?;
        let mut bytes = Vec::new();
        let broken = |cause| Error::unavailable("a file of the package manager could not be read").with_cause(cause);
        (&mut file.stream).take(most as u64 + 1).read_to_end(&mut bytes).await.map_err(broken)?;
        if bytes.len() > most {
            return Err(Error::limit_exceeded("the list of packages is too long"));
        }
        Ok(bytes)
    }

    pub async fn make_directory(&self, name: &str) -> Result<()> {
        self.files().make_directory(&self.path(name)?).await
    }

    pub async fn end(self) {
        if let Err(error) = self.core.end(&self.id, StopReason::Asked).await {
            tracing::warn!(id = %self.id, ?error, "the builder of packages could not be ended");
        }
    }

    pub fn path(&self, name: &str) -> Result<GuestPath> {
        GuestPath::resolve(&self.place, name.as_bytes())
    }

    fn files(&self) -> HeldFiles {
        HeldFiles::new(&self.core, &self.owner, &self.id)
    }
}
