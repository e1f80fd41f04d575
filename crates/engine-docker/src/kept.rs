//! Trees that are made once, by a sandbox, and seen read-only by others: volumes of the daemon.
//!
//! ```text
//! sandpen-tree-INSTALLATION-NAME           empty; its labels say which tree this is and where its files are
//! sandpen-tree-INSTALLATION-NAME-RANDOM    the files
//! ```
//!
//! Volumes are not renamed, and one that is being filled looks like any other. So files go to a volume with a name of its own,
//! and the one with the tree's name is made when all of them are there: a daemon makes it once, whoever asks. Whose a volume
//! is is said by its labels, never by its name.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bollard::models::Volume;
use sandbox::{Error, ErrorKind, FileKind, GuestPath, KeptTree, KeptTrees, Result, SandboxId, TreeName};
use sha2::{Digest, Sha256};
use tokio_util::io::SyncIoBridge;

use crate::carrier::Carrier;
use crate::client::Removal;
use crate::engine::{DockerEngine, Shared};
use crate::live::Live;
use crate::random;
use crate::record::{INSTALLATION, INSTANCE};
use crate::translate::AGENT_DIRECTORY;
use crate::tree_archive::{self, Bounds, Written};

const NAME: &str = "org.sandpen.tree.name";
/// Which volume has the files, said by the one that has the tree's name.
const FILES: &str = "org.sandpen.tree.files";
const DIGEST: &str = "org.sandpen.tree.digest";
const BYTES: &str = "org.sandpen.tree.bytes";

/// Between the sandbox and the daemon.
const BUFFER: usize = 256 << 10;

/// What an engine remembers of kept trees.
#[derive(Debug)]
pub struct Trees {
    filling: Mutex<Fillings>,
    /// There may be volumes with files of no tree.
    orphaned: AtomicBool,
    /// Places of images that nothing is at, by digest.
    pub(crate) free: Mutex<BTreeSet<(String, String)>>,
}

impl Trees {
    pub fn new() -> Self {
        // An earlier process may have left some.
        Self { filling: Mutex::default(), orphaned: AtomicBool::new(true), free: Mutex::default() }
    }

    fn filling(&self) -> MutexGuard<'_, Fillings> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What this process fills.
#[derive(Clone, Debug, Default)]
struct Fillings {
    volumes: BTreeSet<String>,
    begun: u64,
}

impl Fillings {
    /// Whether a volume was perhaps being filled at this moment, or at any between it and now.
    fn may_have(&self, volume: &str, now: &Self) -> bool {
        self.volumes.contains(volume) || self.begun != now.begun
    }
}

/// A tree that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub tree: KeptTree,
    /// The volume with its files.
    pub files: String,
}

#[async_trait]
impl KeptTrees for DockerEngine {
    async fn keep(&self, id: &SandboxId, path: &GuestPath, name: &TreeName) -> Result<KeptTree> {
        let shared = &self.shared;
        let live = shared.live(id).await?;
        if let Some(found) = shared.kept_tree(name).await? {
            return Ok(found.tree);
        }
        drop(shared.inside(&live).await?);
        let kept = shared.daemon.unless_hanging(shared.keep_tree(&live, path, name)).await;
        shared.settled(&live, kept).await
    }

    async fn kept(&self, name: &TreeName) -> Result<Option<KeptTree>> {
        Ok(self.shared.kept_tree(name).await?.map(|found| found.tree))
    }

    async fn list_kept(&self, prefix: &str) -> Result<Vec<KeptTree>> {
        let installation = &self.shared.places.installation;
        let volumes = self.shared.daemon.volumes(INSTALLATION, installation).await?;
        let has_files = |found: &Found| volumes.iter().any(|volume| holds(volume, installation, found));
        let whole = volumes.iter().filter_map(|volume| said_by(volume, installation)).filter(has_files);
        let mut trees: Vec<KeptTree> =
            whole.map(|found| found.tree).filter(|tree| tree.name.as_str().starts_with(prefix)).collect();
        trees.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(trees)
    }

    async fn drop_kept(&self, name: &TreeName) -> Result<bool> {
        self.shared.drop_tree(name).await
    }
}

impl Shared {
    /// The tree of this name, if all of it is there.
    pub(crate) async fn kept_tree(&self, name: &TreeName) -> Result<Option<Found>> {
        let installation = &self.places.installation;
        let Some(volume) = self.daemon.volume(&name_of(installation, name)).await? else { return Ok(None) };
        let Some(found) = said_by(&volume, installation).filter(|found| found.tree.name == *name) else {
            return Ok(None);
        };
        Ok(self.has_files(&found).await?.then_some(found))
    }

    /// Whether the volume with a tree's files is the one that was filled. One that is mounted and not there is made by the
    /// daemon, empty and without a word of whose it is.
    pub(crate) async fn has_files(&self, found: &Found) -> Result<bool> {
        let volume = self.daemon.volume(&found.files).await?;
        Ok(volume.is_some_and(|volume| holds(&volume, &self.places.installation, found)))
    }

    async fn keep_tree(&self, live: &Live, path: &GuestPath, name: &TreeName) -> Result<KeptTree> {
        if path.is_root() {
            return Err(Error::unsupported("all that a sandbox changed cannot be kept as a tree here")
                .with_hint("save the sandbox instead"));
        }
        if live.connection.files().stat(path).await?.kind != FileKind::Directory {
            return Err(Error::invalid_input(format!("{path} is not a directory")));
        }
        let installation = &self.places.installation;
        let place = name_of(installation, name);
        let files = format!("{place}-{}", random::text(8)?);
        let _filling = Filling::begin(&self.trees, &files);
        let labels =
            [(INSTALLATION, installation.as_str()), (INSTANCE, self.config.instance.as_str()), (NAME, name.as_str())];
        self.daemon.make_volume(&files, owned(&labels)).await?;
        match self.fill_tree(live, path, name, &place, &files).await {
            Ok(found) if found.files == files => Ok(found.tree),
            // Somebody else was faster.
            Ok(found) => self.remove_files(&files).await.map(|()| found.tree),
            Err(error) => {
                if let Err(error) = self.remove_files(&files).await {
                    tracing::warn!(
                        ?error,
                        volume = files,
                        "a volume that was half filled stays until somebody looks around"
                    );
                }
                Err(error)
            }
        }
    }

    async fn fill_tree(
        &self,
        live: &Live,
        path: &GuestPath,
        name: &TreeName,
        place: &str,
        files: &str,
    ) -> Result<Found> {
        let carrier = Carrier::make_with_volume(&self.daemon, self.maker(), &live.description.image, files).await?;
        let written = self.send_tree(&carrier, live, path).await;
        // Before anything else: it holds the volume, which is not to stay when it could not be filled.
        let ended = carrier.end().await;
        let written = written?;
        ended?;
        // One whose files were taken from under it is no tree any more, and would stay in the way.
        if let Some(volume) = self.daemon.volume(place).await?
            && let Some(found) = said_by(&volume, &self.places.installation)
            && !self.has_files(&found).await?
        {
            self.daemon.remove_volume(place).await?;
        }
        let labels = [
            (INSTALLATION, self.places.installation.as_str()),
            (NAME, name.as_str()),
            (FILES, files),
            (DIGEST, &written.digest),
            (BYTES, &written.bytes.to_string()),
        ];
        self.daemon.make_volume(place, owned(&labels)).await?;
        self.kept_tree(name).await?.ok_or_else(|| {
            Error::new(ErrorKind::AlreadyExists, "a volume that is somebody else's has the name of a tree")
                .with_hint(format!("remove the volume {place} of the daemon"))
        })
    }

    /// The files, from the sandbox through us to the daemon.
    async fn send_tree(&self, carrier: &Carrier, live: &Live, path: &GuestPath) -> Result<Written> {
        let archive = SyncIoBridge::new(live.connection.files().pack(path).await?);
        let (ours, theirs) = tokio::io::duplex(BUFFER);
        let (user, limits) = (live.description.user, live.description.limits);
        let bounds = Bounds { bytes: limits.disk.bytes(), entries: limits.inodes };
        let output = SyncIoBridge::new(ours);
        let writing = tokio::task::spawn_blocking(move || {
            let (mut output, written) = tree_archive::copy(archive, output, user, bounds)?;
            output.shutdown()?;
            Ok(written)
        });
        let (written, sent) = tokio::join!(writing, self.daemon.upload_stream(&carrier.id, AGENT_DIRECTORY, theirs));
        let written: std::io::Result<Written> =
            written.map_err(|cause| Error::internal("the keeping of a tree ended unexpectedly").with_cause(cause))?;
        let written = written.map_err(|cause| match cause.kind() {
            std::io::ErrorKind::FileTooLarge => {
                Error::limit_exceeded(format!("{path} says that it holds more than its sandbox may"))
            }
            _ => Error::unavailable("the files of the sandbox could not be kept").with_cause(cause),
        });
        // When one of them fails the other sees its stream end; what the sandbox said is the reason.
        let written = written?;
        sent?;
        Ok(written)
    }

    async fn drop_tree(&self, name: &TreeName) -> Result<bool> {
        let installation = &self.places.installation;
        let place = name_of(installation, name);
        let Some(volume) = self.daemon.volume(&place).await? else { return Ok(false) };
        let Some(found) = said_by(&volume, installation).filter(|found| found.tree.name == *name) else {
            return Ok(false);
        };
        // The name first: what has none is used by nobody new.
        match self.daemon.remove_volume(&place).await? {
            Removal::Removed => self.remove_files(&found.files).await.map(|()| true),
            Removal::WasNotThere => Ok(false),
            Removal::InUse => Err(Error::new(ErrorKind::WrongState, "a container of somebody else's holds the tree")
                .with_hint(format!("remove the containers that use the volume {place} of the daemon"))),
        }
    }

    /// Remove the files of a tree that is none any more, now or when the last sandbox that sees them has ended.
    async fn remove_files(&self, files: &str) -> Result<()> {
        match self.daemon.remove_volume(files).await? {
            Removal::Removed | Removal::WasNotThere => {}
            Removal::InUse => self.trees.orphaned.store(true, Ordering::Relaxed),
        }
        Ok(())
    }

    /// Remove volumes with files of no tree: those that were dropped while they were used, and those whose filling ended with
    /// its process.
    pub(crate) async fn drop_orphans(&self, is_alive: impl Fn(&str) -> bool) -> Result<()> {
        if !self.trees.orphaned.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let installation = &self.places.installation;
        // Before the volumes are listed: one whose filling ends meanwhile has its name by then, or is in here.
        let before = self.trees.filling().clone();
        let volumes = self.daemon.volumes(INSTALLATION, installation).await;
        // Who is told nothing looks again.
        let volumes = volumes.inspect_err(|_| self.trees.orphaned.store(true, Ordering::Relaxed))?;
        let named: BTreeSet<String> =
            volumes.iter().filter_map(|volume| said_by(volume, installation)).map(|found| found.files).collect();
        for volume in volumes.iter().filter(|volume| is_of_files(volume) && !named.contains(&volume.name)) {
            let filled_by = volume.labels.get(INSTANCE).map_or("", String::as_str);
            let is_filling = if filled_by == self.config.instance.as_str() {
                // As late as can be: one may have begun since, and be listed without its name.
                before.may_have(&volume.name, &self.trees.filling())
            } else {
                is_alive(filled_by)
            };
            if is_filling {
                self.trees.orphaned.store(true, Ordering::Relaxed);
            } else if let Err(error) = self.remove_files(&volume.name).await {
                tracing::warn!(?error, volume = volume.name, "a volume that was left behind cannot be removed");
            }
        }
        Ok(())
    }
}

/// A volume that is being filled is nobody's orphan.
struct Filling<'a> {
    trees: &'a Trees,
    files: String,
}

impl<'a> Filling<'a> {
    fn begin(trees: &'a Trees, files: &str) -> Self {
        let mut filling = trees.filling();
        filling.volumes.insert(files.to_owned());
        filling.begun += 1;
        drop(filling);
        Self { trees, files: files.to_owned() }
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        self.trees.filling().volumes.remove(&self.files);
        // Whoever waited may be gone, and with them the one who would have removed it.
        self.trees.orphaned.store(true, Ordering::Relaxed);
    }
}

/// What the volume with a tree's name is called. Names of trees hold more than those of volumes may.
fn name_of(installation: &str, name: &TreeName) -> String {
    let digest = Sha256::digest(name.as_str().as_bytes());
    let short: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("sandpen-tree-{installation}-{short}")
}

/// What a volume with a tree's name says, if it is ours.
fn said_by(volume: &Volume, installation: &str) -> Option<Found> {
    let label = |name: &str| volume.labels.get(name).map(String::as_str);
    let name: TreeName = label(NAME)?.parse().ok()?;
    let files = label(FILES)?.to_owned();
    let is_ours = label(INSTALLATION) == Some(installation) && volume.name == name_of(installation, &name);
    let is_ours = is_ours && files.starts_with(&format!("{}-", volume.name));
    let tree = KeptTree { digest: label(DIGEST)?.to_owned(), bytes: label(BYTES)?.parse().ok()?, name };
    is_ours.then_some(Found { tree, files })
}

/// Whether a volume has the files of this tree.
fn holds(volume: &Volume, installation: &str, found: &Found) -> bool {
    let label = |name: &str| volume.labels.get(name).map(String::as_str);
    volume.name == found.files
        && label(INSTALLATION) == Some(installation)
        && label(NAME) == Some(found.tree.name.as_str())
        && is_of_files(volume)
}

fn is_of_files(volume: &Volume) -> bool {
    volume.labels.contains_key(NAME) && volume.labels.contains_key(INSTANCE) && !volume.labels.contains_key(FILES)
}

fn owned(labels: &[(&str, &str)]) -> HashMap<String, String> {
    labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sweep_sees_may_have_begun_since_it_looked() {
        let trees = Trees::new();
        let early = Filling::begin(&trees, "early");
        let before = trees.filling().clone();
        drop(early);
        let may_be_filled = |volume: &str| before.may_have(volume, &trees.filling());
        assert!(may_be_filled("early"), "it may have been listed before it had its name");
        assert!(!may_be_filled("orphan"));
        let late = Filling::begin(&trees, "late");
        assert!(may_be_filled("late"));
        drop(late);
        assert!(may_be_filled("late"), "it may have its name by now");
        let next = trees.filling().clone();
        assert!(!next.may_have("orphan", &trees.filling()), "the next sweep removes it");
    }
}
