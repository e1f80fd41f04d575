//! What a sandbox's root is made of, as data: the plan turns it into mounts, and nothing here mounts anything.

mod ask;
mod etc;
mod host;
mod interpreters;
mod prefix;
mod stamp;

use std::path::{Path, PathBuf};

use sandbox::{Error, GuestPath, Result};

pub use host::host_tree;

/// The user that programs run as, and its names in the made-up `/etc`.
pub const USER_ID: u32 = 1000;
pub const USER_NAME: &str = "sandbox";
pub const HOME: &str = "/home/sandbox";
pub const HOST_NAME: &str = "sandbox";

/// Where programs are looked for when an image says nothing else.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A root tree before any sandbox has written to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootTree {
    /// The directory at the bottom, never written to. Mount points for all of `binds` are in it.
    pub lower: Option<PathBuf>,
    pub binds: Vec<Bind>,
    /// Links to make in the writable layer: where, and what they say.
    pub links: Vec<(GuestPath, String)>,
    /// Files to write to the writable layer, owned by root.
    pub files: Vec<SyntheticFile>,
    /// Directories to make in the writable layer, owned by the sandbox's user.
    pub directories: Vec<GuestPath>,
    /// `PATH` of every exec.
    pub search_path: String,
    /// What else every exec starts with; whatever a caller says goes before it.
    pub environment: Vec<(String, String)>,
}

/// A file or directory of the host that is seen in the sandbox, read-only, with what is mounted below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bind {
    pub source: PathBuf,
    pub target: GuestPath,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticFile {
    pub path: GuestPath,
    pub contents: Vec<u8>,
    pub mode: u32,
}

/// A host path as the same path in a sandbox.
fn guest_path(path: &Path) -> Result<GuestPath> {
    use std::os::unix::ffi::OsStrExt;
    GuestPath::resolve(&GuestPath::root(), path.as_os_str().as_bytes())
}

/// What the store of images says, in the words of the domain. Paths of the host stay in the cause.
fn image_error(error: images::Error) -> Error {
    match error {
        images::Error::Refused(ref what) => Error::invalid_input(format!("the image is refused: {what}")),
        images::Error::LimitExceeded(ref what) => Error::limit_exceeded(format!("the image is too large: {what}")),
        images::Error::Unsupported(ref what) => Error::unsupported(what.clone()),
        images::Error::Io { .. } => Error::unavailable("the store of images cannot be used").with_cause(error),
    }
}
