//! What an export as a Dockerfile needs of a daemon: what a sandbox has over an image, whole trees to compare, and a build.
//!
//! Nothing of a sandbox runs in such a build: a daemon builds outside of the walls of sandboxes. So what is built here only
//! copies, and images that have something done whenever they are built upon are not built upon.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bollard::models::ImageInspect;
use sandbox::{ChangeKind, Error, ErrorKind, GuestPath, ImageName, Result, SandboxId};
use tar::{Archive, Builder, Entry, EntryType, Header};
use tokio_util::io::SyncIoBridge;

use crate::Flavour;
use crate::altered::Altered;
use crate::ancestry::{self, Ancestry, layers};
use crate::bounded::{Allowance, Bounded};
use crate::carrier::Carrier;
use crate::engine::{DockerEngine, Shared};
use crate::image::SAVED;
use crate::layer::{Known, LayerWriter, Tops};
use crate::live::Live;
use crate::record::{Description, Storage, User};
use crate::reference::Reference;
use crate::snapshots::too_large;

/// Images that are looked at in search of one that another was made from.
const MOST_LOOKED_AT: usize = 256;

/// An image that others can have too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportBase {
    /// As it stands behind `FROM`.
    pub name: String,
    /// Of the registry that it came from.
    pub digest: Option<String>,
    /// `NAME=value`.
    pub environment: Vec<String>,
    /// It has something done whenever it is built upon.
    pub has_triggers: bool,
    id: String,
}

impl ExportBase {
    /// What stands behind `FROM` for this image and no other, whatever its name means later. Without the kind of its digest,
    /// which builders would take for a name.
    pub fn id(&self) -> &str {
        self.id.strip_prefix("sha256:").unwrap_or(&self.id)
    }
}

/// A sandbox as it is now.
#[derive(Debug)]
pub struct ExportSource {
    live: Arc<Live>,
}

impl ExportSource {
    /// Whom its programs run as.
    pub fn user(&self) -> (u32, u32) {
        let User { id, group } = self.live.description.user;
        (id, group)
    }
}

impl DockerEngine {
    pub async fn export_source(&self, id: &SandboxId) -> Result<ExportSource> {
        let live = self.shared.live(id).await?;
        drop(self.shared.inside(&live).await?);
        Ok(ExportSource { live })
    }

    /// The image that a sandbox was made from, under this name if that is one of its names; or else one that it was made from
    /// in turn, of those that are admitted.
    pub async fn export_base(
        &self,
        source: &ExportSource,
        called: Option<&str>,
        is_admitted: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<Option<ExportBase>> {
        let image = self.shared.image_of(&source.live.description).await?;
        let called = called.map(Reference::parse).transpose()?;
        let is_called = |name: &&String| called.as_ref().is_some_and(|reference| reference.is_called(name));
        let names: Vec<String> = public_names(&image).cloned().collect();
        if let Some(name) = names.iter().find(is_called).or(names.first()) {
            return Ok(Some(base(name, image)));
        }
        let (layers, ancestry) = (layers(&image), Ancestry::of(&image));
        let mut best: Option<(usize, bool, String, ImageInspect)> = None;
        let listed = self.shared.daemon.images().await?;
        let candidates = listed.into_iter().flat_map(|image| image.repo_tags.into_iter());
        let candidates = candidates.filter(|name| !name.starts_with(SAVED) && is_admitted(name));
        for name in candidates.take(MOST_LOOKED_AT) {
            let Some(other) = self.shared.daemon.image(&name).await? else { continue };
            let count = ancestry::layers(&other).len();
            let is_below = count > 0 && layers.starts_with(ancestry::layers(&other));
            let is_first = ancestry.begins_with(&other);
            if is_below && best.as_ref().is_none_or(|(most, first, ..)| (count, is_first) > (*most, *first)) {
                best = Some((count, is_first, name, other));
            }
        }
        Ok(best.map(|(.., name, image)| base(&name, image)))
    }

    /// An image by its name, if the daemon has it.
    pub async fn export_base_named(&self, name: &ImageName) -> Result<Option<ExportBase>> {
        let reference = Reference::parse(name.as_str())?;
        let found = self.shared.daemon.image(&reference.to_string()).await?;
        // The beginning of a digest is no name, see where sandboxes look for their images.
        let found = found.filter(|image| {
            let names = image.repo_tags.iter().flatten().chain(image.repo_digests.iter().flatten());
            reference.registry() != SAVED && names.into_iter().any(|called| reference.is_called(called))
        });
        Ok(found.map(|image| base(name.as_str(), image)))
    }

    /// Write what a sandbox has over an image, as a layer; over nothing, when there is no image.
    pub async fn export_layer(&self, source: &ExportSource, over: Option<&ExportBase>, file: File) -> Result<()> {
        let written = self.shared.daemon.unless_hanging(self.shared.write_layer(&source.live, over, file)).await;
        self.shared.settled(&source.live, written).await
    }

    /// Write all that a sandbox has where it can write.
    pub async fn export_trees(&self, source: &ExportSource, file: File) -> Result<()> {
        let written = self.shared.daemon.unless_hanging(self.shared.write_trees(&source.live, file)).await;
        self.shared.settled(&source.live, written).await
    }

    /// The same of what an image has there.
    pub async fn export_trees_of(&self, source: &ExportSource, image: &str, file: File) -> Result<()> {
        let shared = &self.shared;
        let carrier = Carrier::make_as_root(&shared.daemon, shared.maker(), image).await?;
        let owner = match shared.config.flavour {
            Flavour::Docker => None,
            // Its archives say of every file that it is root's.
            Flavour::Podman => Some(source.live.description.user),
        };
        let mut output = Builder::new(file);
        for Altered { path: tree, .. } in shared.exported(&source.live).await? {
            let place = tree.to_string_lossy().into_owned();
            if shared.daemon.file_size(&carrier.id, &place).await?.is_some() {
                let archive = SyncIoBridge::new(shared.daemon.download(&carrier.id, &place));
                output = in_background(move || add_tree(output, &tree, archive, owner)).await?;
            }
        }
        in_background(move || output.into_inner().map(drop)).await?;
        carrier.end().await
    }
}

impl Shared {
    /// All that a sandbox can have written to: its places, and what of its own layer is not as its image has it. With what those
    /// had written whose saves its image was made of.
    async fn exported(&self, live: &Live) -> Result<Vec<Altered>> {
        let in_memory = live.description.trees().into_iter().map(|path| Altered { path, kind: ChangeKind::Modified });
        let mut exported: Vec<Altered> = in_memory.collect();
        match live.description.storage {
            Storage::Memory => {}
            Storage::Layer => exported.extend(self.altered_tops(live).await?),
        }
        let inherited = Ancestry::of(&self.image_of(&live.description).await?).altered();
        if inherited.is_empty() {
            return Ok(exported);
        }
        exported.retain(|one| !inherited.iter().any(|above| above != &one.path && above.contains(&one.path)));
        for one in exported.iter_mut().filter(|one| one.kind == ChangeKind::Added) {
            // What is new over a saved image may be in the first one, and have been removed in between.
            one.kind = ChangeKind::Modified;
        }
        let files = live.connection.files();
        for path in inherited {
            if exported.iter().any(|above| above.path.contains(&path)) {
                continue;
            }
            let kind = match files.stat(&path).await {
                Ok(_) => ChangeKind::Modified,
                // The second where a directory above it is something else now.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => {
                    ChangeKind::Removed
                }
                Err(error) => return Err(error),
            };
            exported.push(Altered { path, kind });
        }
        Ok(exported)
    }

    /// A container's own layer is what it has over its image, and what is known of that image's begin goes back to its first one.
    /// Of another nobody can say what it has not.
    async fn check_base(&self, description: &Description, over: Option<&ExportBase>) -> Result<()> {
        if description.storage == Storage::Memory || over.is_some_and(|base| base.id == description.image) {
            return Ok(());
        }
        let base = match over {
            Some(base) => self.daemon.image(&base.id).await?,
            None => None,
        };
        let image = self.image_of(description).await?;
        if base.is_some_and(|base| Ancestry::of(&image).reaches(&image, &base)) {
            return Ok(());
        }
        Err(Error::unsupported(
            "a sandbox whose programs are root can only be exported over the image that it was made from, or the first of those that it \
             was saved from, and that is another one",
        )
        .with_hint("export it without another base, where the daemon still has that image; or save it as an image"))
    }

    async fn write_layer(&self, live: &Live, over: Option<&ExportBase>, file: File) -> Result<()> {
        let description = &live.description;
        self.check_base(description, over).await?;
        let trees = self.exported(live).await?;
        let mut known = Known::default();
        if let Some(base) = over {
            let carrier = Carrier::make_as_root(&self.daemon, self.maker(), &base.id).await?;
            let in_base = trees.iter().filter(|tree| tree.kind != ChangeKind::Added);
            let in_base: Vec<GuestPath> = in_base.map(|tree| tree.path.clone()).collect();
            known = self.known_trees(&carrier, &in_base, Some(description.user)).await?;
            carrier.end().await?;
        }
        let mut packed = Vec::new();
        let allowance = allowance(description, trees.len());
        for Altered { path: tree, .. } in trees.into_iter().filter(|tree| tree.kind != ChangeKind::Removed) {
            let archive = SyncIoBridge::new(live.connection.files().pack(&tree).await?);
            packed.push((above(&tree), Bounded::new(archive, allowance.clone())));
        }
        let user = description.user;
        in_background(move || {
            let mut layer = LayerWriter::new(file, &known, user).with_tops(Tops::Written);
            for (parent, archive) in packed {
                layer.add(&parent, archive)?;
            }
            layer.finish().map(drop)
        })
        .await
    }

    async fn write_trees(&self, live: &Live, file: File) -> Result<()> {
        let description = &live.description;
        let (user, trees) = (description.user, self.exported(live).await?);
        let allowance = allowance(description, trees.len());
        let mut output = Builder::new(file);
        for Altered { path: tree, .. } in trees.into_iter().filter(|tree| tree.kind != ChangeKind::Removed) {
            let archive = SyncIoBridge::new(live.connection.files().pack(&tree).await?);
            let archive = Bounded::new(archive, allowance.clone());
            output = in_background(move || add_tree(output, &tree, archive, Some(user))).await?;
        }
        in_background(move || output.into_inner().map(drop)).await
    }
}

fn allowance(description: &Description, places: usize) -> Allowance {
    match description.storage {
        Storage::Memory => Allowance::of_places(&description.limits, places),
        Storage::Layer => Allowance::of_layer(&description.limits),
    }
}

/// Entries of one tree as both sides of a comparison have them: directories, files and links, with the rights that images of
/// sandboxes keep. Process 1 does not say whose they are, because all are its user's.
fn add_tree<W: Write>(
    mut output: Builder<W>,
    tree: &GuestPath,
    archive: impl Read,
    owner: Option<User>,
) -> io::Result<Builder<W>> {
    let parent = above(tree);
    for entry in Archive::new(archive).entries()? {
        let mut entry = entry?;
        let path = parent.join(plain_name(&entry)?);
        let said = entry.header();
        let mut header = Header::new_gnu();
        let (user, group) = match owner {
            Some(owner) => (owner.id.into(), owner.group.into()),
            None => (said.uid()?, said.gid()?),
        };
        header.set_uid(user);
        header.set_gid(group);
        header.set_mode(said.mode()? & 0o777);
        header.set_mtime(said.mtime()?);
        header.set_size(0);
        header.set_entry_type(said.entry_type());
        match said.entry_type() {
            EntryType::Directory => output.append_data(&mut header, path.join(""), io::empty())?,
            EntryType::Regular | EntryType::Continuous => {
                header.set_size(entry.size());
                output.append_data(&mut header, path, &mut entry)?;
            }
            EntryType::Symlink => {
                header.set_mode(0o777);
                let target = entry.link_name()?.unwrap_or_default().into_owned();
                output.append_link(&mut header, path, target)?;
            }
            // Another name of a file that was there before.
            EntryType::Link => {
                let target = parent.join(entry.link_name()?.unwrap_or_default());
                output.append_link(&mut header, path, target)?;
            }
            _ => {}
        }
    }
    Ok(output)
}

fn plain_name<R: Read>(entry: &Entry<'_, R>) -> io::Result<PathBuf> {
    let path = entry.path()?;
    let downwards = |part: std::path::Component<'_>| matches!(part, std::path::Component::Normal(_));
    if !path.components().all(downwards) {
        return Err(io::Error::other("a name in an archive leads elsewhere"));
    }
    Ok(path.components().collect())
}

/// The directory that a tree's archive begins in, as archives name it.
fn above(tree: &GuestPath) -> PathBuf {
    let above = tree.parent().unwrap_or_else(GuestPath::root);
    Path::new(above.to_string_lossy().trim_start_matches('/')).to_owned()
}

async fn in_background<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|cause| Error::internal("the export of files ended unexpectedly").with_cause(cause))?;
    done.map_err(|cause| match cause.kind() {
        io::ErrorKind::FileTooLarge => too_large(&cause),
        _ => Error::unavailable("the files of the sandbox could not be written down").with_cause(cause),
    })
}

fn base(name: &str, image: ImageInspect) -> ExportBase {
    let reference = Reference::parse(name).ok();
    let repository = reference.as_ref().map(|reference| reference.repository.as_str());
    let digest = image.repo_digests.iter().flatten().find_map(|found| {
        let (place, digest) = found.split_once('@')?;
        let place = Reference::parse(place).ok()?;
        (Some(place.repository.as_str()) == repository).then(|| digest.to_owned())
    });
    let config = image.config.unwrap_or_default();
    ExportBase {
        name: name.to_owned(),
        digest,
        environment: config.env.unwrap_or_default(),
        has_triggers: config.on_build.is_some_and(|triggers| !triggers.is_empty()),
        id: image.id.unwrap_or_default(),
    }
}

/// Names that mean something to others.
fn public_names(image: &ImageInspect) -> impl Iterator<Item = &String> {
    image.repo_tags.iter().flatten().filter(|name| !name.starts_with(SAVED) && *name != "<none>:<none>")
}
