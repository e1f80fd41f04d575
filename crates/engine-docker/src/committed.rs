//! A container's own layer as an image: what programs that are root have made of theirs.
//!
//! Such an image is there in passing, below what is made of it. It has a name that says so, by which it is removed when nothing
//! stands on it any more, also by a later process. Nothing of the sandbox is in what it says of itself: neither the labels, in
//! one of which is the token, nor process 1 as its program.

use std::collections::HashMap;

use bollard::models::{ContainerConfig, ImageConfig, ImageInspect};
use sandbox::{Error, Result};

use crate::Flavour;
use crate::ancestry::Ancestry;
use crate::engine::Shared;
use crate::live::Live;
use crate::names::Held;
use crate::random;
use crate::record::{self, Storage};

/// An image that is held while something is made of it.
#[derive(Debug)]
pub struct Committed<'a> {
    shared: &'a Shared,
    pub id: String,
    /// What is in its layer.
    pub bytes: u64,
    held: Held,
}

impl Committed<'_> {
    pub async fn image(&self) -> Result<ImageInspect> {
        let gone = || Error::unavailable("the image of a sandbox was removed at once").with_hint("try again");
        self.shared.daemon.image(&self.id).await?.ok_or_else(gone)
    }

    /// Remove it now, unless something stands on it.
    pub async fn end(self) {
        self.shared.drop_retired(self.held.name()).await;
    }
}

impl Shared {
    /// Of an image that a save of this sandbox would make, of which `image` is the sandbox's own.
    pub(crate) async fn ancestry(&self, live: &Live, image: &ImageInspect) -> Result<Ancestry> {
        let altered = match live.description.storage {
            Storage::Memory => Vec::new(),
            Storage::Layer => self.altered_tops(live).await?,
        };
        let own = live.description.trees().into_iter().chain(altered.into_iter().map(|altered| altered.path));
        Ok(Ancestry::of(image).and(own))
    }

    /// What a sandbox has made of its image, as an image.
    pub(crate) async fn commit_in_passing(&self, live: &Live) -> Result<Committed<'_>> {
        let image = self.image_of(&live.description).await?;
        let ancestry = self.ancestry(live, &image).await?.labels();
        let base = image.config.unwrap_or_default();
        let (repository, tag) = (self.retired_repository(), format!("{}-{}", self.config.instance, random::text(8)?));
        let held = self.daemon.names().hold(&format!("{repository}:{tag}"));
        self.retired.store(true, std::sync::atomic::Ordering::Relaxed);
        let bytes = self.daemon.layer_bytes(&live.container).await?.unwrap_or(0);
        let instructions = instructions(self.config.flavour, &base, &ancestry);
        let settings = settings(&base, ancestry);
        let id = self.daemon.commit_as(&live.container, &repository, &tag, &instructions, settings).await?;
        Ok(Committed { shared: self, id, bytes, held })
    }
}

/// What Docker takes for what the image is to say. What is missing it takes from the container; an empty list is not missing.
fn settings(base: &ImageConfig, ancestry: HashMap<String, String>) -> ContainerConfig {
    let nothing = record::LABELS.iter().map(|label| ((*label).to_owned(), String::new()));
    let mut labels: HashMap<String, String> = base.labels.clone().unwrap_or_default();
    labels.extend(nothing.chain(ancestry));
    ContainerConfig {
        user: base.user.clone(),
        env: base.env.clone(),
        cmd: Some(base.cmd.clone().unwrap_or_default()),
        entrypoint: Some(base.entrypoint.clone().unwrap_or_default()),
        working_dir: base.working_dir.clone(),
        stop_signal: base.stop_signal.clone(),
        labels: Some(labels),
        ..ContainerConfig::default()
    }
}

/// The same as instructions, for Podman.
fn instructions(flavour: Flavour, base: &ImageConfig, ancestry: &HashMap<String, String>) -> Vec<String> {
    let list = |words: Option<&Vec<String>>| serde_json::to_string(&words.cloned().unwrap_or_default());
    let command = format!("CMD {}", list(base.cmd.as_ref()).unwrap_or_default());
    match flavour {
        Flavour::Docker => vec![command],
        Flavour::Podman => {
            let or = |word: Option<&String>, other: &str| {
                word.filter(|word| !word.is_empty()).cloned().unwrap_or_else(|| other.to_owned())
            };
            let mut lines: Vec<String> = record::LABELS.iter().map(|label| format!("LABEL {label}=\"\"")).collect();
            lines.extend(ancestry.iter().map(|(label, value)| format!("LABEL {label}=\"{value}\"")));
            lines.push(format!("ENTRYPOINT {}", list(base.entrypoint.as_ref()).unwrap_or_default()));
            lines.push(command);
            lines.push(format!("USER {}", or(base.user.as_ref(), "0:0")));
            lines.push(format!("WORKDIR {}", or(base.working_dir.as_ref(), "/")));
            lines.push(format!("STOPSIGNAL {}", or(base.stop_signal.as_ref(), "SIGTERM")));
            lines
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::description;
    use crate::record::{Maker, labels};

    #[test]
    fn nothing_that_a_sandbox_says_of_itself_is_said_by_its_image() {
        let maker = Maker { installation: "one", instance: "in-23456789abcdefgh" };
        let base = ImageConfig {
            labels: Some(HashMap::from([("kept".to_owned(), "1".to_owned())])),
            ..ImageConfig::default()
        };
        let ancestry = HashMap::from([("org.sandpen.saved.altered".to_owned(), "/etc".to_owned())]);
        let said = settings(&base, ancestry.clone()).labels.unwrap();
        for label in labels(maker, &description()).keys() {
            assert_eq!(said.get(label).map(String::as_str), Some(""), "{label}");
            let line = format!("LABEL {label}=\"\"");
            assert!(instructions(Flavour::Podman, &base, &ancestry).contains(&line), "{label}");
        }
        assert_eq!((said["kept"].as_str(), said["org.sandpen.saved.altered"].as_str()), ("1", "/etc"));
        assert_eq!(settings(&base, HashMap::new()).entrypoint, Some(Vec::new()), "and not that of the container");
    }
}
