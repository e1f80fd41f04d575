//! Trees that outlive what made them: saved as images, branched, taken back, kept as layers. Powers that an engine may have
//! besides making sandboxes; the service is given those that it has.
//!
//! ```text
//! sandbox ──save──▶ saved:NAME ──create──▶ sandbox
//!    │ │
//!    │ └──fork──▶ sandbox with the same files
//!    └──checkpoint──▶ … changes … ──restore──▶ the files of that moment
//! ```
//!
//! All of it is about files: running programs are not saved, branched or taken back.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::file::FileKind;
use crate::id::{Owner, SandboxId};
use crate::path::GuestPath;
use crate::port::Connections;
use crate::spec::SandboxSpec;

/// What the service's engine can do besides.
#[derive(Clone, Default)]
pub struct Powers {
    pub snapshots: Option<Arc<dyn Snapshots>>,
    pub checkpoints: Option<Arc<dyn Checkpoints>>,
    pub trees: Option<Arc<dyn KeptTrees>>,
    pub connections: Option<Arc<dyn Connections>>,
}

impl fmt::Debug for Powers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Powers")
            .field("snapshots", &self.snapshots.is_some())
            .field("checkpoints", &self.checkpoints.is_some())
            .field("trees", &self.trees.is_some())
            .field("connections", &self.connections.is_some())
            .finish()
    }
}

/// Sandboxes as images, and sandboxes from sandboxes.
#[async_trait]
pub trait Snapshots: Send + Sync + 'static {
    /// Keep the whole tree, work directory too, as the image `saved:NAME` of the sandbox's owner. It appears whole or not
    /// at all, and takes the place of one that had this name; sandboxes made from that one stay as they are. Commands that
    /// run meanwhile go on; a file that changes while it is read fails the save.
    ///
    /// Must fail when the sandbox is gone (`NotFound`), when its tree holds more than images may (`LimitExceeded`).
    async fn save(&self, id: &SandboxId, name: &SavedName) -> Result<SavedImage>;

    /// All saved images of an owner, by name.
    async fn saved(&self, owner: &Owner) -> Result<Vec<SavedImage>>;

    /// Whether there was one. Sandboxes made from it stay as they are.
    async fn forget(&self, owner: &Owner, name: &SavedName) -> Result<bool>;

    /// Make the sandbox `new`, as [`Engine::create`] would, with all files of `id` in place of its image's; `spec` says
    /// the rest, its image is that of `id`, and so is its work directory where it names none. What one of them writes afterwards the other does not see. Files are shared,
    /// not copied, where the host can do that and no command runs in `id`.
    ///
    /// Must fail as `create` does, and when `id` is gone (`NotFound`).
    ///
    /// [`Engine::create`]: crate::Engine::create
    async fn fork(&self, id: &SandboxId, new: &SandboxId, spec: &SandboxSpec) -> Result<()>;
}

/// Moments of a sandbox's files that it can go back to.
#[async_trait]
pub trait Checkpoints: Send + Sync + 'static {
    /// Remember all files as they are now. When nothing has changed since the last one, that one is the answer.
    ///
    /// Must fail when a command runs (`WrongState`), when there are too many (`LimitExceeded`).
    async fn checkpoint(&self, id: &SandboxId) -> Result<Checkpoint>;

    /// What is different now from what it was then; from what it started with when no checkpoint is named. At most
    /// `most` entries, in byte order of their paths.
    ///
    /// Must fail when there is no such checkpoint (`NotFound`).
    async fn changes(&self, id: &SandboxId, since: Option<Checkpoint>, most: usize) -> Result<Changes>;

    /// Put all files back to what they were then. Later checkpoints are gone, this one stays.
    ///
    /// Must fail when there is no such checkpoint (`NotFound`), when a command runs (`WrongState`).
    async fn restore(&self, id: &SandboxId, to: Checkpoint) -> Result<()>;

    /// Bytes that the checkpoints of an owner take; `None` where they are within the disk limits of its sandboxes.
    async fn checkpoint_bytes(&self, _owner: &Owner) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// Trees that were made once and are shared, read-only, by sandboxes that ask for them by name.
#[async_trait]
pub trait KeptTrees: Send + Sync + 'static {
    /// Keep what is below `path` under a name; of `/`, all that is different from what the sandbox started with, removals
    /// too. One that has this name already stays, and is the answer.
    async fn keep(&self, id: &SandboxId, path: &GuestPath, name: &TreeName) -> Result<KeptTree>;

    async fn kept(&self, name: &TreeName) -> Result<Option<KeptTree>>;

    /// All whose names begin so, by name.
    async fn list_kept(&self, prefix: &str) -> Result<Vec<KeptTree>>;

    /// Whether there was one. Sandboxes that use it stay as they are.
    async fn drop_kept(&self, name: &TreeName) -> Result<bool>;
}

/// A moment of one sandbox's files; later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Checkpoint(pub u32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedImage {
    pub name: SavedName,
    /// Of the whole image, as registries know it.
    pub digest: String,
    /// What it holds beyond the image that the sandbox was made from.
    pub bytes: u64,
    pub saved_at: SystemTime,
    /// FIFOs, sockets and devices, which no image can hold.
    pub left_out: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptTree {
    pub name: TreeName,
    pub digest: String,
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub entries: Vec<Change>,
    pub truncated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub path: GuestPath,
    pub kind: ChangeKind,
    /// Of what is there now; of a removed one, a regular file stands for all kinds.
    pub file: FileKind,
    pub bytes: u64,
    /// When the kernel saw it, in nanoseconds since 1970; 0 when that is not known.
    pub changed_ns: i128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Modified,
    Removed,
}

/// A kept tree that is to be seen in a sandbox, read-only. Nothing else may be at that path of the image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attachment {
    pub tree: TreeName,
    pub at: GuestPath,
}

/// What a saved image is called by its owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SavedName(String);

impl SavedName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SavedName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.len() <= 63 && is_label(text) {
            return Ok(Self(text.to_owned()));
        }
        let shown: String = text.chars().take(64).collect();
        Err(Error::invalid_input(format!("{shown:?} is not a name for a saved image"))
            .with_hint("use lower-case letters, digits and dashes, at most 63, a letter or digit at both ends"))
    }
}

impl fmt::Display for SavedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a kept tree is called: labels with slashes between, such as `python/3f7a…`. Never chosen by a caller.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeName(String);

impl TreeName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TreeName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text.len() <= 200 && text.split('/').all(is_label) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::internal("a tree was to be kept under a name that is none").with_cause(text.to_owned()))
    }
}

impl fmt::Display for TreeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_label(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|byte| is_word(*byte))
        && bytes.last().is_some_and(|byte| is_word(*byte))
        && bytes.iter().all(|byte| is_word(*byte) || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for text in ["a", "lab-2", "x1"] {
            assert_eq!(text.parse::<SavedName>().unwrap().to_string(), text);
        }
        for text in ["", "-a", "a-", "A", "a/b", "a.b", "a:b", "ä", &"a".repeat(64)] {
            assert!(text.parse::<SavedName>().is_err(), "{text:?}");
        }
        assert!("python/3f7a".parse::<TreeName>().is_ok());
        for text in ["", "/a", "a/", "a//b", "../a"] {
            assert!(text.parse::<TreeName>().is_err(), "{text:?}");
        }
    }
}
