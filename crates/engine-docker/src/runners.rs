//! Images of the daemon that say by their labels which language they run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bollard::models::ImageSummary;
use sandbox::{ImageName, ImageRunner, ImageRunners, Result};

use crate::engine::{DockerEngine, Shared};
use crate::image::SAVED;

/// Images that are remembered, those that are no runners included.
const MOST_KNOWN: usize = 256;

impl DockerEngine {
    pub fn runners(&self) -> Arc<dyn ImageRunners> {
        Arc::new(Labelled { shared: Arc::clone(&self.shared), known: Mutex::default() })
    }
}

/// The list of images is short and has the labels, so it is asked for anew each time; what an image starts is not in it, and
/// never changes.
#[derive(Debug)]
struct Labelled {
    shared: Arc<Shared>,
    known: Mutex<HashMap<(String, ImageName), Option<ImageRunner>>>,
}

#[async_trait]
impl ImageRunners for Labelled {
    async fn list(&self) -> Result<Vec<ImageRunner>> {
        let mut images = self.shared.daemon.images().await?;
        let (mark, value) = ImageRunner::MARK;
        images.retain(|image| image.labels.get(mark).is_some_and(|found| found == value));
        // The newest first: whoever builds one means that one.
        images.sort_by(|one, other| (other.created, &other.repo_tags).cmp(&(one.created, &one.repo_tags)));
        let mut found = Vec::new();
        for image in &images {
            if let Some(name) = name(image)
                && let Some(runner) = self.runner(image, name).await?
            {
                found.push(runner);
            }
        }
        Ok(found)
    }
}

impl Labelled {
    async fn runner(&self, image: &ImageSummary, name: ImageName) -> Result<Option<ImageRunner>> {
        let key = (image.id.clone(), name);
        if let Some(known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(known.clone());
        }
        // One that was removed since it was listed is none.
        let Some(inspected) = self.shared.daemon.image(&image.id).await? else { return Ok(None) };
        let config = inspected.config.unwrap_or_default();
        let command = config.entrypoint.into_iter().flatten().chain(config.cmd.into_iter().flatten()).collect();
        let label = |label: &str| image.labels.get(label).map(String::as_str);
        let runner = ImageRunner::from_labels(&key.1, label, command).unwrap_or_else(|error| {
            tracing::warn!(%error, "an image with the label of a runner is left out");
            None
        });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(key, runner.clone());
        Ok(runner)
    }
}

/// The name that it is asked for by. What was saved of a sandbox has the labels of its image, and is its owner's alone.
fn name(image: &ImageSummary) -> Option<ImageName> {
    let is_open = |tag: &&String| !tag.starts_with(SAVED);
    if !image.repo_tags.iter().all(|tag| is_open(&tag)) {
        return None;
    }
    image.repo_tags.iter().min().and_then(|tag| tag.parse().ok())
}
