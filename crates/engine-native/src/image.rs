//! What a sandbox's root is made of, as data: the plan turns it into mounts, and nothing here mounts anything.

mod ask;
mod belongings;
mod etc;
mod host;
mod interpreters;
mod layers;
mod named;
mod places;
mod prefix;
mod saved;
mod tree;
mod users;
mod work;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use images::Digest;
use sandbox::{Environment, Error, GuestPath, Image, Result, Role};
use serde::{Deserialize, Serialize};

use crate::ids::ImageIds;
use crate::skeleton::RootLayout;
use host::{host_tree, known_host_tree};

pub use belongings::{Belongings, find as find_belongings, restore as restore_belongings};
pub use named::{hold, names_root};
pub use places::check as check_places;
pub use saved::{BASE_LABEL, HOST_BASE, LAYERS_LABEL, modes as saved_modes, own_layers};
pub use users::User;
pub use work::{GIVEN, Ground, WorkDirectory};

/// An image of the store, in use: not collected as long as this is kept, or a copy of its descriptor in process 1.
pub type Hold = Arc<images::Image>;

/// The root tree of an image, which the caller holds if it is one of the store. What it takes to make it is kept below
/// `state_directory`.
///
/// The first time it may take as long as unpacking an archive or starting every interpreter of the host, so it belongs
/// on a thread that may block; after that some hundred microseconds.
///
/// With `owners`, the image's files belong to these ids, as which a sandbox can have them.
pub fn resolve(
    image: &Image,
    held: Option<&images::Image>,
    state_directory: &Path,
    owners: Option<ImageIds>,
    role: Role,
) -> Result<RootTree> {
    match (image, held) {
        (Image::Host, _) => host_tree(&state_directory.join("host")),
        (Image::Directory(path), _) => tree::directory_tree(path, state_directory, role),
        (Image::Archive(path), _) => tree::archive_tree(path, state_directory, &state_directory.join("images"), role),
        (Image::Named(_), Some(held)) => owned(named::tree(held, role)?, held, state_directory, owners),
        (Image::Saved(_), Some(held)) => {
            owned(saved::tree(held, state_directory, owners, role)?, held, state_directory, owners)
        }
        (Image::Named(_) | Image::Saved(_), None) => {
            Err(Error::internal(format!("the image {image} was not looked up")))
        }
    }
}

/// The same tree with the layers that have owners.
fn owned(tree: RootTree, held: &images::Image, state_directory: &Path, owners: Option<ImageIds>) -> Result<RootTree> {
    if owners.is_none() {
        return Ok(tree);
    }
    let store = images::Store::open(&state_directory.join("images")).map_err(image_error)?;
    let mut lowers = Vec::with_capacity(tree.lowers.len());
    for lower in &tree.lowers {
        let layer = held.layers.iter().find(|layer| layer.path == *lower);
        let layer = layer.ok_or_else(|| Error::internal("a tree of the image is none of its layers"))?;
        lowers.push(store.apart(layer).map_err(image_error)?);
    }
    Ok(RootTree { lowers, image_ids: owners, ..tree })
}

/// The same, when it takes no waiting.
pub fn known(image: &Image, state_directory: &Path) -> Option<Result<RootTree>> {
    match image {
        Image::Host => known_host_tree(&state_directory.join("host")),
        Image::Directory(_) | Image::Archive(_) | Image::Named(_) | Image::Saved(_) => None,
    }
}

/// Where a root keeps the certificates that it trusts, for programs that would only look at a list of their own.
pub fn trusted_roots(root: &RootLayout) -> Result<Environment> {
    const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
    let mut environment = Environment::default();
    // Of another image's tree nothing is known, and a variable that names no file would break what works without.
    if !root.binds.is_empty() && Path::new(BUNDLE).exists() {
        for name in ["NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE"] {
            environment.insert(name, BUNDLE)?;
        }
    }
    Ok(environment)
}

/// Whether a made-up file says where one is, which no image can know, and not who.
pub fn is_of_this_machine(path: &GuestPath) -> bool {
    tree::ALWAYS.iter().any(|always| always.as_bytes() == path.as_bytes())
}

/// The user that programs run as, and its names in the made-up `/etc`.
pub const USER_ID: u32 = 1000;
pub const USER_NAME: &str = "sandbox";
pub const HOME: &str = "/home/sandbox";
pub const HOST_NAME: &str = "sandbox";

/// Where programs are looked for when an image says nothing else.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A root tree before any sandbox has written to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RootTree {
    /// The image's own directories, below everything and never written to. The highest first.
    pub lowers: Vec<PathBuf>,
    /// What the writable layer begins with.
    pub fill: Vec<Fill>,
    /// What of the image belongs to the user, where that has to be copied.
    pub belongings: Option<Belongings>,
    /// Modes that its first directories have had before.
    pub modes: Vec<(String, u32)>,
    /// Of the host; an image has none.
    pub binds: Vec<Bind>,
    /// Whose the image's files are on disk, where they have owners and are an ordinary user's.
    pub image_ids: Option<ImageIds>,
    /// Where, and what they say. These, the files and the directories lie over the image.
    pub links: Vec<(GuestPath, String)>,
    pub files: Vec<SyntheticFile>,
    /// Empty directories, open to all.
    pub directories: Vec<GuestPath>,
    /// The directories that the image has in its root.
    pub top: Vec<String>,
    /// Whom programs run as.
    pub user: User,
    /// `PATH` of every exec.
    pub search_path: String,
    /// What else every exec starts with; whatever a caller says goes before it.
    pub environment: Vec<(String, String)>,
}

/// A file or directory of the host that is seen in the sandbox, read-only, with what is mounted below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bind {
    pub source: PathBuf,
    #[serde(with = "recorded_path")]
    pub target: GuestPath,
}

/// A layer as an archive that is not compressed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fill {
    pub path: PathBuf,
    pub digest: Digest,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SyntheticFile {
    pub path: GuestPath,
    pub contents: Vec<u8>,
    pub mode: u32,
}

/// Paths of the domain in records of ours.
mod recorded_path {
    use sandbox::GuestPath;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(path: &GuestPath, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&path.to_string_lossy())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GuestPath, D::Error> {
        let text = String::deserialize(deserializer)?;
        GuestPath::resolve(&GuestPath::root(), text.as_bytes()).map_err(de::Error::custom)
    }
}

/// Text is UTF-8 in every image; a program that finds no such locale falls back to `C`.
pub fn environment() -> Vec<(String, String)> {
    vec![("LANG".to_owned(), "C.UTF-8".to_owned())]
}

/// A host path as the same path in a sandbox.
fn guest_path(path: &Path) -> Result<GuestPath> {
    use std::os::unix::ffi::OsStrExt;
    GuestPath::resolve(&GuestPath::root(), path.as_os_str().as_bytes())
}

/// What the store of images says, in the words of the domain. Paths of the host stay in the cause.
pub fn image_error(error: images::Error) -> Error {
    match error {
        images::Error::Refused(ref what) => Error::invalid_input(format!("the image is refused: {what}")),
        images::Error::LimitExceeded(ref what) => Error::limit_exceeded(format!("the image is too large: {what}")),
        images::Error::Unsupported(ref what) => Error::unsupported(what.clone()),
        images::Error::Invalid(ref what) => Error::invalid_input(what.clone()),
        images::Error::NotFound(ref what) => Error::not_found(what.clone()),
        images::Error::Denied(ref what) => Error::denied(what.clone()),
        images::Error::Unavailable(ref what) => Error::unavailable(what.clone()),
        images::Error::Cancelled => Error::unavailable("the image was not wanted any more"),
        images::Error::Io { .. } => Error::unavailable("the store of images cannot be used").with_cause(error),
    }
}
