//! Kept trees in sandboxes: which volume goes where, and that nothing else is there.

use std::sync::PoisonError;

use sandbox::{Attachment, Error, ErrorKind, GuestPath, Result, TreeName};
use serde::{Deserialize, Serialize};

use crate::carrier::Carrier;
use crate::client::{Daemon, Removal};
use crate::engine::Shared;
use crate::image::Facts;
use crate::record::{Description, INSTALLATION};
use crate::translate;

/// Each is a mount of its sandbox.
const MOST_ATTACHMENTS: usize = 16;
/// Places of images that are remembered.
const MOST_KNOWN: usize = 256;

/// A tree where a sandbox sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    pub tree: String,
    /// The volume with its files.
    pub volume: String,
    pub at: String,
}

impl Shared {
    /// The trees that a sandbox is to see.
    pub(crate) async fn attached(
        &self,
        wanted: &[Attachment],
        description: &Description,
        image: &Facts,
    ) -> Result<Vec<Attached>> {
        if wanted.len() > MOST_ATTACHMENTS {
            return Err(Error::limit_exceeded(format!("at most {MOST_ATTACHMENTS} trees can be attached")));
        }
        let mut attached = Vec::new();
        for (index, Attachment { tree, at }) in wanted.iter().enumerate() {
            let others = wanted[..index].iter().map(|other| other.at.clone());
            check_place(at, others.chain(description.trees()).chain(places_of(image)))?;
            let found = self.kept_tree(tree).await?.ok_or_else(|| not_kept(tree.as_str()))?;
            attached.push(Attached {
                tree: tree.to_string(),
                volume: found.files,
                at: at.to_string_lossy().into_owned(),
            });
        }
        self.check_free(&attached, image).await?;
        Ok(attached)
    }

    /// That the volumes of a container are the ones that were filled. From here on they stay: a volume that a container has is
    /// not removed.
    pub(crate) async fn check_attached(&self, attached: &[Attached]) -> Result<()> {
        for Attached { tree, volume, .. } in attached {
            let name: TreeName = tree.parse()?;
            match self.kept_tree(&name).await? {
                Some(found) if found.files == *volume => {}
                Some(_) | None => return Err(not_kept(tree)),
            }
        }
        Ok(())
    }

    /// Remove volumes that the daemon made because a container asked for some that were gone.
    pub(crate) async fn drop_made_up(&self, attached: &[Attached]) {
        for Attached { volume, .. } in attached {
            let removed = async {
                match self.daemon.volume(volume).await? {
                    Some(found) if !found.labels.contains_key(INSTALLATION) => self.daemon.remove_volume(volume).await,
                    Some(_) | None => Ok(Removal::WasNotThere),
                }
            };
            if let Err(error) = removed.await {
                tracing::warn!(?error, volume, "an empty volume stays at the daemon");
            }
        }
    }

    /// Seen in a container without the volumes, into which daemons would look.
    async fn check_free(&self, attached: &[Attached], image: &Facts) -> Result<()> {
        let key = |place: &str| (image.id.clone(), place.to_owned());
        let is_known =
            |place: &str| self.trees.free.lock().unwrap_or_else(PoisonError::into_inner).contains(&key(place));
        let unknown: Vec<&str> =
            attached.iter().map(|attached| attached.at.as_str()).filter(|place| !is_known(place)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let carrier = Carrier::make_as_root(&self.daemon, self.maker(), &image.id).await?;
        for place in &unknown {
            if !is_free(&self.daemon, &carrier.id, place).await? {
                return Err(Error::new(
                    ErrorKind::AlreadyExists,
                    format!("the image has something at {place} already"),
                )
                .with_hint("use an image without it"));
            }
        }
        carrier.end().await?;
        let mut free = self.trees.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() >= MOST_KNOWN {
            free.clear();
        }
        free.extend(unknown.into_iter().map(key));
        Ok(())
    }
}

/// Nothing may be there, and what is above it must be directories: a link would lead the mount elsewhere.
async fn is_free(daemon: &Daemon, container: &str, place: &str) -> Result<bool> {
    let ends = place.match_indices('/').map(|(end, _)| end).filter(|end| *end > 0);
    for end in ends {
        let above = &place[..end];
        if daemon.file_size(container, above).await?.is_none() {
            return Ok(true);
        }
        if !daemon.is_free_for_a_mount(container, above).await? {
            return Ok(false);
        }
    }
    Ok(daemon.file_size(container, place).await?.is_none())
}

fn check_place(at: &GuestPath, taken: impl IntoIterator<Item = GuestPath>) -> Result<()> {
    let overlaps = |other: &GuestPath| other.contains(at) || at.contains(other);
    if !translate::is_own_directory(at)
        || std::str::from_utf8(at.as_bytes()).is_err()
        || taken.into_iter().any(|other| overlaps(&other))
    {
        return Err(Error::invalid_input(format!("no tree can be attached at {at}")));
    }
    Ok(())
}

fn places_of(image: &Facts) -> impl Iterator<Item = GuestPath> {
    image.volumes.iter().filter_map(|place| place.parse().ok())
}

fn not_kept(tree: &str) -> Error {
    Error::not_found(format!("the tree {tree} is not kept here"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_goes_where_nothing_of_the_sandbox_is() {
        let taken = || ["/workspace", "/tmp", "/packages/python"].map(|place| place.parse().unwrap());
        for (place, fits) in [
            ("/node_modules", true),
            ("/packages/other", true),
            ("/packages", false),
            ("/packages/python", false),
            ("/packages/python/lib", false),
            ("/workspace/lib", false),
            ("/", false),
            ("/proc/x", false),
            ("/run/x", false),
            ("/.sandpen", false),
        ] {
            assert_eq!(check_place(&place.parse().unwrap(), taken()).is_ok(), fits, "{place}");
        }
    }
}
