//! What a sandbox was made from, as others know it, and what it has of its own, as layers.

use std::sync::Arc;

use images::difference::{Interest, Kind, Tree};
use images::{Digest, Image, ImageLayer, Named, Reference, Writing};
use sandbox::{
    ByteRange, Error, Files, GuestPath, History, Image as Origin, ImageName, Owner, Result, SandboxInfo, SavedName,
};
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;

use super::context::inner;
use super::daemon::Side;
use super::{Exports, KnownBases, passing};
use crate::commands::image::{image_error, saved};
use crate::random;

/// Ids of sandboxes whose image says nothing about it.
const SANDBOX_USER: (u64, u64) = (1000, 1000);

/// The label of saved images that lie on the host's own tree.
const BASE_LABEL: &str = "org.sandpen.base";

pub struct Base {
    /// As it stands behind `FROM`.
    pub from: String,
    pub reference: Reference,
    pub digest: Option<String>,
    /// `NAME=value`, as far as the image is here.
    pub environment: Vec<String>,
    pub layers: OwnLayers,
    pub tree: Tree,
    /// Whom programs of the sandbox run as.
    pub user: (u64, u64),
    /// What is known of it at a daemon, if it is there.
    pub daemon: Option<Side>,
}

/// What a sandbox has of its own.
pub enum OwnLayers {
    /// Layers of the sandbox as it was saved, from the first that is not its image's.
    Saved { image: Box<Image>, first: usize },
    /// One that was written for this, kept as long as its store is written to.
    Written { layer: Box<ImageLayer>, _writing: Writing },
}

impl Base {
    pub async fn find(
        exports: &Exports,
        owner: &Owner,
        sandbox: &SandboxInfo,
        history: &History,
        asked: Option<&ImageName>,
    ) -> Result<Self> {
        let asked = asked.map(|name| Asked::new(name, &exports.bases)).transpose()?;
        let saved = save(exports, owner, sandbox).await?;
        let store = Arc::clone(&exports.store);
        let is_on_host = saved.config.config.labels.get(BASE_LABEL).is_some_and(|base| base == "host");
        let origin = if is_on_host { Origin::Host } else { history.image.clone() };
        let known = match &origin {
            Origin::Host => None,
            Origin::Named(_) | Origin::Saved(_) | Origin::Directory(_) | Origin::Archive(_) => {
                below(exports, &saved, &origin)?
            }
        };
        let first_own = known.as_ref().map_or(0, |(_, layers)| *layers);
        let Asked { reference, is_known } = match (asked, &known) {
            (Some(asked), _) => asked,
            (None, Some((named, _))) => Asked { reference: named.reference.clone(), is_known: true },
            (None, None) => return Err(no_base(&*exports.service.files(owner, &sandbox.id)?, &origin).await),
        };
        let named = if is_known { store.find(&reference).map_err(image_error)? } else { None };
        let environment = match &named {
            Some(named) => store.describe(&named.manifest).map_err(image_error)?.1.config.env,
            None => Vec::new(),
        };
        let (saved, tree) = blocking(move || {
            let own = &saved.layers[first_own..];
            let tree = Tree::read(&store, own, Interest::All, &CancellationToken::new())?;
            Ok((saved, tree))
        })
        .await?;
        // Whoever works elsewhere has it too, and elsewhere may belong to somebody else.
        let user = tree.get(inner(&GuestPath::workspace())).filter(|facts| facts.kind == Kind::Directory);
        Ok(Self {
            from: reference.familiar(),
            digest: named.map(|named| named.index.unwrap_or(named.manifest.digest).qualified()),
            reference,
            environment,
            user: user.map_or(SANDBOX_USER, |facts| (facts.user, facts.group)),
            tree,
            layers: OwnLayers::Saved { image: Box::new(saved), first: first_own },
            daemon: None,
        })
    }

    pub fn own_layers(&self) -> &[ImageLayer] {
        match &self.layers {
            OwnLayers::Saved { image, first } => &image.layers[*first..],
            OwnLayers::Written { layer, .. } => std::slice::from_ref(layer),
        }
    }

    /// Where its user is at home, as far as sandboxes give one.
    pub fn home(&self) -> GuestPath {
        "/home/sandbox".parse().expect("it is a path")
    }

    /// Where the code of a run was, which is the work directory if its user may write there.
    pub fn code_directory(&self, work_directory: &GuestPath) -> GuestPath {
        let found = self.tree.get(inner(work_directory)).filter(|facts| facts.kind == Kind::Directory);
        match found {
            Some(facts) if (facts.user, facts.group) == self.user => work_directory.clone(),
            Some(_) | None => GuestPath::scratch(),
        }
    }

    pub fn is_sandbox_user(&self) -> bool {
        self.user == SANDBOX_USER
    }
}

/// An image that is to stand behind `FROM`.
pub(super) struct Asked {
    pub reference: Reference,
    /// Whether what is here of it may be looked at.
    pub is_known: bool,
}

impl Asked {
    pub fn new(name: &ImageName, bases: &KnownBases) -> Result<Self> {
        let reference: Reference = name.as_str().parse().map_err(image_error)?;
        // Those are names of our own, for what is somebody's or half done.
        if reference.is_local() {
            let message = format!("{} is on a host that cannot be", reference.familiar());
            return Err(Error::invalid_input(message).with_hint("name an image that a registry has, like debian:12"));
        }
        Ok(Self { reference, is_known: bases.admits(name.as_str()) })
    }
}

/// Saves it under a name that is taken away at once: the layers stay for as long as the answer is kept.
async fn save(exports: &Exports, owner: &Owner, sandbox: &SandboxInfo) -> Result<Image> {
    let name: SavedName = format!("{}{}", passing::SAVED, random::digits()?).parse()?;
    let (store, reference) = (Arc::clone(&exports.store), saved::reference(owner, &name)?);
    // Also when nobody waits for the export any more.
    let _name = passing::Name::new(&store, reference.clone());
    exports.service.save(owner, &sandbox.id, &name).await?;
    let held = blocking(move || store.resolve(&reference)).await;
    exports.service.forget(owner, &name).await?;
    held?.ok_or_else(|| Error::internal("a sandbox was saved and is not there"))
}

/// The image of the store that these layers begin with, and how many of them are its: the one that is named, or the one
/// that has most of them.
fn below(exports: &Exports, saved: &Image, origin: &Origin) -> Result<Option<(Named, usize)>> {
    let store = &exports.store;
    let own: Vec<Digest> = saved.layers.iter().map(|layer| layer.diff_id).collect();
    let count = |named: &Named| -> Option<usize> {
        let (_, config) = store.describe(&named.manifest).ok()?;
        own.starts_with(&config.rootfs.diff_ids).then_some(config.rootfs.diff_ids.len())
    };
    if let Origin::Named(name) = origin {
        let reference: Reference = name.as_str().parse().map_err(image_error)?;
        if let Some(named) = store.find(&reference).map_err(image_error)?
            && let Some(layers) = count(&named)
        {
            return Ok(Some((named, layers)));
        }
    }
    let is_known = |named: &Named| !named.reference.is_local() && exports.bases.admits(&named.reference.familiar());
    let others = store.names().map_err(image_error)?.into_iter().filter(is_known);
    let counted = others.filter_map(|named| count(&named).filter(|layers| *layers > 0).map(|layers| (named, layers)));
    Ok(counted.max_by_key(|(_, layers)| *layers))
}

pub(super) async fn no_base(files: &dyn Files, origin: &Origin) -> Error {
    let what = match origin {
        Origin::Host => "the sandbox was made from this machine's own programs, which no registry has".to_owned(),
        Origin::Named(name) => format!("the image {name} that the sandbox was made from is not here any more"),
        Origin::Saved(_) | Origin::Directory(_) | Origin::Archive(_) => {
            "the sandbox was made from something that no registry has".to_owned()
        }
    };
    let example = suggestion(files).await.unwrap_or_else(|| "debian:12".to_owned());
    Error::invalid_input(what).with_hint(format!("name an image to build from as base, for example {example}"))
}

/// The image that is most like the system that programs of the sandbox are of.
async fn suggestion(files: &dyn Files) -> Option<String> {
    for path in ["/etc/os-release", "/usr/lib/os-release"] {
        let range = ByteRange { offset: 0, length: Some(16 * 1024) };
        let Ok(mut file) = files.read(&path.parse().ok()?, range).await else { continue };
        let mut text = String::new();
        if file.stream.read_to_string(&mut text).await.is_ok() {
            return image_of(&text);
        }
    }
    None
}

fn image_of(release: &str) -> Option<String> {
    let value = |key: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        let value = line.trim().trim_matches(['"', '\'']);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        (!value.is_empty() && value.bytes().all(is_plain)).then(|| value.to_ascii_lowercase())
    };
    let (id, version) = (value("ID")?, value("VERSION_ID"));
    Some(match (id.as_str(), version) {
        ("alpine", Some(version)) => format!("alpine:{}", version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".")),
        (id, Some(version)) => format!("{id}:{version}"),
        (id, None) => id.to_owned(),
    })
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> images::Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|cause| Error::internal("work on an image ended unexpectedly").with_cause(cause))?.map_err(image_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_suggests_its_own_image() {
        for (release, image) in [
            ("PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nID=debian\n", Some("debian:12")),
            ("ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\n", Some("ubuntu:24.04")),
            ("ID=alpine\nVERSION_ID=3.20.1\n", Some("alpine:3.20")),
            ("ID=arch\n", Some("arch")),
            ("ID=\"x;RUN evil\"\n", None),
            ("", None),
        ] {
            assert_eq!(image_of(release).as_deref(), image, "{release:?}");
        }
    }
}
