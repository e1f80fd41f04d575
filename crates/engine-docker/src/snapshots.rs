//! Sandboxes as images of the daemon, and sandboxes from sandboxes.
//!
//! What programs write is in memory, where no commit sees it. So a save puts the trees of the sandbox over its image, in a
//! container that is never started, and makes an image of that; and a sandbox of such an image begins by having them put
//! back into its memory. Programs that are root write to the container's own layer, which is committed first ([`committed`]).
//!
//! [`committed`]: crate::committed

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bollard::models::{ImageConfig, ImageInspect};
use sandbox::{
    Error, FileKind, Files, GuestPath, ListOptions, Owner, Result, SandboxId, SandboxSpec, SavedImage, SavedName,
    Snapshots, WriteFile,
};
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio_util::io::SyncIoBridge;

use crate::bounded::{Allowance, Bounded};
use crate::carrier::Carrier;
use crate::engine::{DockerEngine, Shared};
use crate::image::{self, TREES, WORK_DIRECTORY};
use crate::layer::{Known, LayerWriter, Summary};
use crate::live::Live;
use crate::names::Held;
use crate::plain_archive;
use crate::random;
use crate::record::{Description, Storage, User};

const BYTES: &str = "org.sandpen.saved.bytes";
const LEFT_OUT: &str = "org.sandpen.saved.left-out";
const SAVED_AT: &str = "org.sandpen.saved.at";

/// Entries of a sandbox that are put over its image: each is listed before.
const MOST_ENTRIES: usize = 250_000;

/// Between the sandbox and the daemon.
const BUFFER: usize = 256 << 10;

#[async_trait]
impl Snapshots for DockerEngine {
    async fn save(&self, id: &SandboxId, name: &SavedName) -> Result<SavedImage> {
        let shared = &self.shared;
        let live = shared.live(id).await?;
        drop(shared.inside(&live).await?);
        // Files come from the sandbox and go to the daemon: whichever of the two stalls, the reason is one.
        let saved = shared.daemon.unless_hanging(shared.save(&live, name)).await;
        shared.settled(&live, saved).await
    }

    async fn saved(&self, owner: &Owner) -> Result<Vec<SavedImage>> {
        let repository = image::saved_repository(&self.shared.places.installation, owner);
        let mut found = Vec::new();
        for image in self.shared.daemon.images().await? {
            for tag in &image.repo_tags {
                let name = tag.strip_prefix(&repository).and_then(|rest| rest.strip_prefix(':'));
                if let Some(name) = name.and_then(|name| name.parse().ok()) {
                    found.push(described(name, &image.id, &image.labels));
                }
            }
        }
        found.sort_by(|one: &SavedImage, other| one.name.cmp(&other.name));
        Ok(found)
    }

    async fn forget(&self, owner: &Owner, name: &SavedName) -> Result<bool> {
        let place = image::saved_name(&self.shared.places.installation, owner, name);
        let Some(retired) = self.shared.retire(&place).await? else { return Ok(false) };
        self.shared.daemon.remove_image(&place).await?;
        self.shared.drop_retired(retired.name()).await;
        Ok(true)
    }

    async fn fork(&self, id: &SandboxId, new: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        let source = self.shared.live(id).await?;
        drop(self.shared.inside(&source).await?);
        let branched = self.shared.branch(source.clone(), new, spec).await;
        self.shared.settled(&source, branched).await
    }
}

impl Shared {
    async fn save(&self, live: &Live, name: &SavedName) -> Result<SavedImage> {
        let description = &live.description;
        let base = self.image_of(description).await?;
        let files = live.connection.files();
        // Held until there is an image over it.
        let committed = match description.storage {
            Storage::Memory => None,
            Storage::Layer => Some(self.commit_in_passing(live).await?),
        };
        let below = committed.as_ref().map_or(description.image.as_str(), |committed| committed.id.as_str());
        let (mut left_out, mut room) = (0, MOST_ENTRIES);
        for tree in description.trees() {
            let listing = files.list(&tree, ListOptions { recursive: true, max_entries: room }).await?;
            if listing.truncated {
                return Err(Error::limit_exceeded(format!("the sandbox has more than {MOST_ENTRIES} files to save"))
                    .with_hint("remove those that are not needed, or pack them into one"));
            }
            room -= listing.entries.len();
            left_out += listing.entries.iter().filter(|entry| entry.stat.kind == FileKind::Other).count() as u64;
        }
        let carrier = Carrier::make(&self.daemon, self.maker(), below).await?;
        let mut summary = self.put_over(&carrier, files.as_ref(), description).await?;
        summary.left_out += left_out;
        summary.bytes += committed.as_ref().map_or(0, |committed| committed.bytes);
        let mut labels = labels(description, summary);
        labels.extend(self.ancestry(live, &base).await?.labels());
        let installation = &self.places.installation;
        let repository = image::saved_repository(installation, &description.owner);
        let place = image::saved_name(installation, &description.owner, name);
        // The one that has this name now loses it by the commit, and would be nobody's.
        let retired = self.retire(&place).await?;
        let instructions = instructions(&base.config.unwrap_or_default(), &labels);
        let id = self.daemon.commit(&carrier.id, &repository, name.as_str(), &instructions).await?;
        // The image is there. Many files take a daemon long to remove, and it goes on with that by itself.
        if let Err(error) = carrier.end().await {
            tracing::debug!(?error, "a container that a sandbox was saved by is still being removed");
        }
        if let Some(committed) = committed {
            committed.end().await;
        }
        if let Some(retired) = retired {
            self.drop_retired(retired.name()).await;
        }
        Ok(described(name.clone(), &id, &labels))
    }

    /// The image that a sandbox was made from.
    pub(crate) async fn image_of(&self, description: &Description) -> Result<ImageInspect> {
        let gone = || Error::not_found("the image that the sandbox was made from is not there any more");
        self.daemon.image(&description.image).await?.ok_or_else(gone)
    }

    /// The trees of a sandbox, over those of its image, in a container that does not run.
    async fn put_over(&self, carrier: &Carrier, files: &dyn Files, description: &Description) -> Result<Summary> {
        let known = self.known_trees(carrier, &description.trees(), None).await?;
        let (ours, theirs) = tokio::io::duplex(BUFFER);
        let mut packed = Vec::new();
        let trees = description.trees();
        let allowance = Allowance::of_places(&description.limits, trees.len());
        for tree in trees {
            let archive = SyncIoBridge::new(files.pack(&tree).await?);
            packed.push((parent(&tree), Bounded::new(archive, allowance.clone())));
        }
        let user = description.user;
        let output = SyncIoBridge::new(ours);
        let writing = in_background(move || {
            let mut layer = LayerWriter::new(output, &known, user);
            for (parent, archive) in packed {
                layer.add(&parent, archive)?;
            }
            let (mut output, summary) = layer.finish()?;
            output.shutdown()?;
            Ok(summary)
        });
        let (written, sent) = tokio::join!(writing, self.daemon.upload_stream(&carrier.id, "/", theirs));
        // When one of them fails the other sees its stream end; what the sandbox said is the reason.
        let summary = written?;
        sent?;
        Ok(summary)
    }

    /// What an image has where a sandbox can write.
    pub(crate) async fn known_trees(
        &self,
        carrier: &Carrier,
        trees: &[GuestPath],
        owner: Option<User>,
    ) -> Result<Known> {
        let mut known = Known::default();
        for tree in trees {
            let place = tree.to_string_lossy().into_owned();
            if self.daemon.file_size(&carrier.id, &place).await?.is_none() {
                continue;
            }
            let archive = SyncIoBridge::new(self.daemon.download(&carrier.id, &place));
            let parent = parent(tree);
            known = in_background(move || known.read(&parent, archive, owner).map(|()| known)).await?;
        }
        Ok(known)
    }

    /// Fill a new sandbox with what its image has of the one that it was saved from.
    pub(crate) async fn put_back(&self, live: &Live, trees: &[GuestPath]) -> Result<()> {
        let carrier = Carrier::make(&self.daemon, self.maker(), &live.description.image).await?;
        let files = live.connection.files();
        for tree in trees {
            let place = tree.to_string_lossy().into_owned();
            if self.daemon.file_size(&carrier.id, &place).await?.is_some() {
                copy_of_image(self.daemon.download(&carrier.id, &place), files.as_ref(), tree).await?;
            }
        }
        carrier.end().await
    }

    /// Give an image another name, so that it is not lost when it loses this one. `None` when there is none.
    pub(crate) async fn retire(&self, place: &str) -> Result<Option<Held>> {
        if self.daemon.image(place).await?.is_none() {
            return Ok(None);
        }
        let repository = self.retired_repository();
        // Who else looks around must not take it for left behind: until the other name is gone this one would be lost first.
        let tag = format!("{}-{}", self.config.instance, random::text(8)?);
        let held = self.daemon.names().hold(&format!("{repository}:{tag}"));
        // Whoever waits for it may go away before it is removed.
        self.retired.store(true, Ordering::Relaxed);
        self.daemon.tag_image(place, &repository, &tag).await?;
        Ok(Some(held))
    }

    pub(crate) fn retired_repository(&self) -> String {
        format!("{}/{}/retired", image::SAVED, self.places.installation)
    }

    /// Remove one that was retired, unless a sandbox or another image stands on it: then a later look does it.
    pub(crate) async fn drop_retired(&self, name: &str) {
        if let Err(error) = self.daemon.remove_image(name).await {
            self.retired.store(true, Ordering::Relaxed);
            tracing::debug!(?error, name, "an image that was forgotten is still in use");
        }
    }

    /// Remove all that were retired and are not used any more.
    pub(crate) async fn drop_all_retired(&self) -> Result<()> {
        if !self.retired.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let repository = self.retired_repository();
        let images = self.daemon.images().await.inspect_err(|_| self.retired.store(true, Ordering::Relaxed))?;
        for name in images.iter().flat_map(|image| &image.repo_tags) {
            let Some(tag) = name.strip_prefix(&repository).and_then(|rest| rest.strip_prefix(':')) else { continue };
            let instance = tag.rsplit_once('-').map_or("", |(instance, _)| instance);
            let is_held = match instance == self.config.instance.as_str() {
                true => self.daemon.names().is_held(name),
                false => self.places.is_alive(instance),
            };
            match is_held {
                // Its holder removes it, or may die before that.
                true => self.retired.store(true, Ordering::Relaxed),
                false => self.drop_retired(name).await,
            }
        }
        Ok(())
    }

    /// Copy trees from one sandbox to another.
    pub(crate) async fn hand_over(&self, source: &Live, new: &Live) -> Result<()> {
        let (from, to) = (source.connection.files(), new.connection.files());
        for tree in source.description.trees() {
            copy(from.pack(&tree).await?, to.as_ref(), &tree).await?;
        }
        Ok(())
    }
}

/// An archive that begins with the last part of `tree`, put where that is.
async fn copy(mut archive: Box<dyn AsyncRead + Send + Unpin>, files: &dyn Files, tree: &GuestPath) -> Result<()> {
    let above = tree.parent().unwrap_or_else(GuestPath::root);
    let mut place: Box<dyn WriteFile> = files.unpack(&above).await?;
    let copied = tokio::io::copy(&mut archive, &mut place).await;
    let ended = place.shutdown().await;
    // Whoever unpacks says best what was wrong; a stream can only say that it broke.
    place.commit().await?;
    let broken = |cause: std::io::Error| Error::unavailable("files could not be copied").with_cause(cause);
    copied.map_err(broken)?;
    ended.map_err(broken)
}

/// The same with an archive of an image, which may have what no sandbox can.
async fn copy_of_image(archive: Box<dyn AsyncRead + Send + Unpin>, files: &dyn Files, tree: &GuestPath) -> Result<()> {
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let (input, output) = (SyncIoBridge::new(archive), SyncIoBridge::new(ours));
    let reading = tokio::task::spawn_blocking(move || plain_archive::copy(input, output)?.shutdown());
    let (read, copied) = tokio::join!(reading, copy(Box::new(theirs), files, tree));
    copied?;
    let unreadable = |cause: String| Error::unavailable("the files of the image cannot be read").with_cause(cause);
    read.map_err(|cause| unreadable(cause.to_string()))?.map_err(|cause| unreadable(cause.to_string()))
}

/// The directory that a tree's archive begins in, as archives name it.
fn parent(tree: &GuestPath) -> PathBuf {
    let above = tree.parent().unwrap_or_else(GuestPath::root);
    Path::new(above.to_string_lossy().trim_start_matches('/')).to_owned()
}

async fn in_background<T: Send + 'static>(work: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> Result<T> {
    let ended = |cause: String| Error::unavailable("the files of the sandbox could not be saved").with_cause(cause);
    match tokio::task::spawn_blocking(work).await {
        Ok(Err(cause)) if cause.kind() == std::io::ErrorKind::FileTooLarge => Err(too_large(&cause)),
        Ok(done) => done.map_err(|cause| ended(cause.to_string())),
        Err(cause) => Err(ended(cause.to_string())),
    }
}

/// More than what holds it may have, or than we can remember.
pub(crate) fn too_large(cause: &std::io::Error) -> Error {
    let otherwise = || "the sandbox says that it holds more than it may".to_owned();
    Error::limit_exceeded(cause.get_ref().map_or_else(otherwise, ToString::to_string))
}

fn labels(description: &Description, summary: Summary) -> HashMap<String, String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    [
        (TREES, image::tree_list(&description.trees())),
        (WORK_DIRECTORY, image::tree_list(std::slice::from_ref(&description.work_directory))),
        (BYTES, summary.bytes.to_string()),
        (LEFT_OUT, summary.left_out.to_string()),
        (SAVED_AT, now.as_millis().to_string()),
    ]
    .into_iter()
    .map(|(label, value)| (label.to_owned(), value))
    .collect()
}

fn described(name: SavedName, id: &str, labels: &HashMap<String, String>) -> SavedImage {
    let number = |label: &str| labels.get(label).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    let hex = id.strip_prefix("sha256:").unwrap_or(id);
    SavedImage {
        name,
        digest: format!("sha256:{hex}"),
        bytes: number(BYTES),
        saved_at: SystemTime::UNIX_EPOCH + Duration::from_millis(number(SAVED_AT)),
        left_out: number(LEFT_OUT),
    }
}

/// What makes the new image say of itself what the old one says, and what we must know of it.
fn instructions(base: &ImageConfig, labels: &HashMap<String, String>) -> Vec<String> {
    let mut lines: Vec<String> = labels.iter().map(|(label, value)| format!("LABEL {label}={value}")).collect();
    lines.sort();
    // That of the container names a program which is not there.
    let command = base.cmd.clone().unwrap_or_default();
    lines.push(format!("CMD {}", serde_json::to_string(&command).unwrap_or_default()));
    lines
}
