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
    /// The image of a build that is to come.
    pub fn begin_build(&self) -> Result<BuiltImage> {
        BuiltImage::begin(&self.shared)
    }

    /// Build a context, which holds its Dockerfile, without any network. Whoever waits no longer leaves it to come to its end:
    /// a daemon that is left alone with a build may give its image a name all the same.
    pub async fn build(&self, built: BuiltImage, context: impl AsyncRead + Send + 'static) -> Result<BuiltImage> {
        let building = tokio::spawn(build_whole(built, context));
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

    /// `dockerfile` with a first step by which whatever is left of the build is found: Docker makes an image of every step, and
    /// leaves the last one there when a build is broken off.
    pub fn marked(&self, dockerfile: &str) -> String {
        let Some(end) = end_of_first_step(dockerfile) else { return dockerfile.to_owned() };
        let (first, rest) = dockerfile.split_at(end);
        let labels = self.labels().map(|(label, value)| format!("{label}=\"{value}\"")).join(" ");
        format!("{first}LABEL {labels}\n{rest}")
    }

    fn labels(&self) -> [(&'static str, &str); 2] {
        // The name too: what is alike in every other way is one image on Podman, and would be removed as one.
        [(BUILD, self.shared.places.installation.as_str()), (BUILD_NAME, self.name.as_str())]
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

/// Behind the line that begins with `FROM`.
fn end_of_first_step(dockerfile: &str) -> Option<usize> {
    let mut end = 0;
    for line in dockerfile.split_inclusive('\n') {
        end += line.len();
        if line.starts_with("FROM ") {
            return line.ends_with('\n').then_some(end);
        }
    }
    None
}

async fn build_whole(built: BuiltImage, context: impl AsyncRead + Send + 'static) -> Result<BuiltImage> {
    let shared = &Arc::clone(&built.shared);
    let labels = HashMap::from(built.labels());
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

impl Shared {
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
        for image in self.daemon.images_labelled(&label).await? {
            let names = image.repo_tags.iter().filter(|name| name.as_str() != "<none>:<none>").map(|name| (name, name));
            // What is left of one that was broken off has no name but its label's.
            let unnamed = image.labels.get(BUILD_NAME).map(|name| (name, &image.id));
            let is_named = names.clone().next().is_some();
            for (name, place) in names.chain(unnamed.filter(|_| !is_named)) {
                if is_left(name)
                    && let Err(error) = self.daemon.remove_image(place).await
                {
                    tracing::warn!(?error, image = name, "an image that was built for an export cannot be removed");
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_ends_with_its_line() {
        let after = |dockerfile: &str| end_of_first_step(dockerfile).map(|end| dockerfile[end..].to_owned());
        assert_eq!(after("# syntax\nFROM debian\nCOPY files /\n").as_deref(), Some("COPY files /\n"));
        assert_eq!(after("FROM debian\n").as_deref(), Some(""));
        assert_eq!(after("COPY files /\n"), None);
    }
}
