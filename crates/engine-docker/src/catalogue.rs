//! The images of a daemon, for people who want to see them.

use bollard::models::ImageSummary;
use sandbox::{Error, Result};

use crate::client::Daemon;
use crate::image::SAVED;
use crate::reference::Reference;

/// An image under one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonImage {
    pub name: String,
    /// Of its configuration, which always means the same.
    pub id: String,
    pub bytes: u64,
    /// Seconds since 1970.
    pub created: u64,
}

impl Daemon {
    /// All that have a name, in the order of the names. What was saved of sandboxes is left out: it is their owners'.
    pub async fn catalogue(&self) -> Result<Vec<DaemonImage>> {
        let mut found = Vec::new();
        for image in self.images().await? {
            for name in image.repo_tags.iter().filter(|name| !name.starts_with(SAVED) && *name != "<none>:<none>") {
                found.push(described(name.clone(), &image));
            }
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// One under the name that it was asked for by.
    pub(crate) async fn described(&self, reference: &Reference, id: &str) -> Result<DaemonImage> {
        let image = self.images().await?.into_iter().find(|image| image.id == id);
        let image = image.ok_or_else(|| Error::not_found(format!("the image {reference} was removed meanwhile")))?;
        Ok(described(reference.to_string(), &image))
    }
}

fn described(name: String, image: &ImageSummary) -> DaemonImage {
    DaemonImage {
        name,
        id: image.id.clone(),
        bytes: u64::try_from(image.size).unwrap_or(0),
        created: u64::try_from(image.created).unwrap_or(0),
    }
}
