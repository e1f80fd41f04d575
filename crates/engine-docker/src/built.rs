//! Images that the daemon builds so that an export can be compared with them, and their end.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bollard::body_try_stream;
use bollard::models::BuildInfo;
use bollard::query_parameters::BuildImageOptionsBuilder;
use futures_util::StreamExt;
use sandbox::{Error, Result};
use tokio::io::AsyncRead;
use tokio_util::io::ReaderStream;

use crate::client::{BETWEEN_LOOKS, Failure, LOOKS};
use crate::engine::{DockerEngine, Shared};
use crate::image::SAVED;
use crate::random;

/// The label of what is built here. Its value is the installation.
const BUILD: &str = "org.sandpen.build";
/// Of one build, so that no two images are the same one.
const BUILD_NAME: &str = "org.sandpen.build.name";

impl DockerEngine {
    /// Build a context, which holds its Dockerfile, without any network. Whoever waits no longer leaves it to come to its end:
    /// a daemon that is left alone with a build may give its image a name all the same.
    pub async fn build(&self, context: impl AsyncRead + Send + 'static) -> Result<BuiltImage> {
        let shared = Arc::clone(&self.shared);
        let building = tokio::spawn(async move { shared.build_whole(context).await });
        building.await.map_err(|cause| Error::internal("a build ended unexpectedly").with_cause(cause))?
    }
}

/// An image that was built to be compared. Removed when it is dropped, or when somebody looks around.
#[derive(Debug)]
pub struct BuiltImage {
    pub name: String,
    shared: Arc<Shared>,
}

impl BuiltImage {
    fn begin(shared: &Arc<Shared>) -> Result<Self> {
        let name = format!("{}{}-{}", built(shared), shared.config.instance, random::text(8)?);
        shared.builds.lock().insert(name.clone());
        Ok(Self { name, shared: Arc::clone(shared) })
    }

    /// Remove it now, and hear whether that worked.
    pub async fn end(mut self) -> Result<()> {
        self.shared.daemon.remove_image(&self.name).await?;
        self.shared.builds.lock().remove(&std::mem::take(&mut self.name));
        Ok(())
    }
}

impl Drop for BuiltImage {
    fn drop(&mut self) {
        let name = std::mem::take(&mut self.name);
        let is_there = self.shared.builds.lock().remove(&name);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !is_there {
            return;
        }
        let daemon = self.shared.daemon.clone();
        runtime.spawn(async move {
            if let Err(error) = daemon.remove_image(&name).await {
                tracing::debug!(?error, "an image that was built for an export stays until somebody looks around");
            }
        });
    }
}

/// Names of what is being built or compared now.
#[derive(Debug, Default)]
pub(crate) struct Builds(Mutex<BTreeSet<String>>);

impl Builds {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    async fn build_whole(self: &Arc<Self>, context: impl AsyncRead + Send + 'static) -> Result<BuiltImage> {
        let shared = self;
        let built = BuiltImage::begin(shared)?;
        // The name too: what is alike in every other way is one image on Podman, and would be removed as one.
        let labels = HashMap::from([(BUILD, shared.places.installation.as_str()), (BUILD_NAME, built.name.as_str())]);
        let options = BuildImageOptionsBuilder::default()
            .dockerfile("Dockerfile")
            .t(&built.name)
            .labels(&labels)
            .nocache(true)
            .rm(true)
            .forcerm(true)
            .networkmode("none")
            .build();
        let docker = shared.daemon.patient();
        let body = body_try_stream(ReaderStream::with_capacity(context, 64 * 1024));
        let mut said = Box::pin(docker.build_image(options, None, Some(body)));
        let mut last = String::new();
        while let Some(step) = shared.daemon.unless_hanging(async { Ok(said.next().await) }).await? {
            match step {
                Ok(BuildInfo { error_detail: Some(detail), .. }) => {
                    return Err(not_built(&detail.message.unwrap_or_default()));
                }
                Ok(BuildInfo { stream: Some(line), .. }) => last = line,
                Ok(_) => {}
                Err(bollard::errors::Error::DockerStreamError { error }) => return Err(not_built(&error)),
                Err(error) => return Err(shared.daemon.told("build an image", Failure::Client(error))),
            }
        }
        for _ in 0..LOOKS {
            if shared.daemon.image(&built.name).await?.is_some() {
                return Ok(built);
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        Err(not_built(&last))
    }

    /// Remove what was built by processes that are dead, and what this one could not remove when it should have.
    pub(crate) async fn drop_left_builds(&self) -> Result<()> {
        let prefix = built(self);
        let own = self.config.instance.as_str();
        let is_left = |name: &str| {
            let Some((instance, _)) = name.strip_prefix(&prefix).and_then(|rest| rest.rsplit_once('-')) else {
                return false;
            };
            if instance == own { !self.builds.lock().contains(name) } else { !self.places.is_alive(instance) }
        };
        let label = format!("{BUILD}={}", self.places.installation);
        for name in self.daemon.images_labelled(&label).await?.iter().flat_map(|image| &image.repo_tags) {
            if is_left(name)
                && let Err(error) = self.daemon.remove_image(name).await
            {
                tracing::warn!(?error, image = name, "an image that was built for an export cannot be removed");
            }
        }
        Ok(())
    }
}

/// How the names of what this installation has built begin.
fn built(shared: &Shared) -> String {
    format!("{SAVED}/{}/export:", shared.places.installation)
}

fn not_built(said: &str) -> Error {
    // A daemon speaks of its own directories.
    Error::invalid_input("the daemon could not build it").with_hint("its log says why").with_cause(said.to_owned())
}
