//! What an ordinary user cannot do with own rights: let files belong to somebody else, and remove those that do.
//!
//! Nothing here has such rights. A program that can act with ids that its user was given lends its hands to the store, and
//! the store asks for them by descriptor; without any, nothing is ever unpacked that would need them.

use std::fmt;
use std::fs::File;
use std::sync::OnceLock;

use tokio_util::sync::CancellationToken;

use crate::confined::Directory;
use crate::digest::Digest;
use crate::error::Result;
use crate::unpack::{Limits, Summary};

/// What the tree is called that hands unpack into a directory which stays the caller's.
pub const TREE: &str = "tree";

/// Hands with other ids than the caller's.
pub trait Hands: fmt::Debug + Send + Sync {
    /// Which ids files get, as part of a file name: trees made for others are of no use. `None` if the caller was given none.
    fn ids(&self) -> Option<String>;

    /// Unpacks a layer into [`TREE`], a new directory in `place`, which is open to all. Files have the owners of the layer
    /// as those ids.
    fn unpack(
        &self,
        blob: File,
        diff_id: Digest,
        place: &Directory,
        limits: &Limits,
        cancel: &CancellationToken,
    ) -> Result<Summary>;

    /// Removes all that is in `place`, which is open to all.
    fn clear(&self, place: &Directory) -> Result<()>;
}

static LENT: OnceLock<Box<dyn Hands>> = OnceLock::new();

/// For all stores of this process. The first ones stay.
pub fn lend(hands: Box<dyn Hands>) {
    let _ = LENT.set(hands);
}

pub(crate) fn lent() -> Option<&'static dyn Hands> {
    LENT.get().map(|hands| &**hands)
}
