//! Layers whose files have owners, for ordinary users. Their own trees belong to them as a whole; these were unpacked by
//! other hands, and belong to ids that a sandbox can have.

use std::path::PathBuf;

use tokio_util::sync::CancellationToken;

use super::{ImageLayer, Store};
use crate::confined::{Missing, Name};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::hands::{self, TREE};
use crate::manifest::ImageLimits;
use crate::trees::Trees;

impl Store {
    /// The tree of a layer of an image that is held, with owners; unpacked the first time it is asked for.
    pub fn apart(&self, layer: &ImageLayer) -> Result<PathBuf> {
        let unsupported = || Error::Unsupported("there are no ids that files of an image could belong to".to_owned());
        let hands = hands::lent().ok_or_else(unsupported)?;
        let trees = self.trees_apart(&hands.ids().ok_or_else(unsupported)?)?;
        let tree = trees.get_or_make(layer.diff_id, |place| {
            // What encloses the store keeps others out.
            place.set_mode(0o777).map_err(Error::io(format!("opening {}", layer.diff_id)))?;
            let (blob, limits) = (self.open_blob(layer.blob.digest)?, ImageLimits::default().layer);
            hands.unpack(blob, layer.diff_id, place, &limits, &CancellationToken::new()).map(drop)
        })?;
        let tree = tree.join(TREE);
        // Whoever unpacks has less rights than those who mount what it leaves, and must not lead them anywhere.
        let is_directory = std::fs::symlink_metadata(&tree).is_ok_and(|found| found.is_dir());
        if !is_directory {
            return Err(Error::Invalid(format!("the tree of {} is not a directory", layer.diff_id)));
        }
        Ok(tree)
    }

    /// Those for each set of ids that there has been, with its name.
    pub(super) fn all_apart(&self) -> Result<Vec<(String, Trees)>> {
        let names = self.apart.names().map_err(Error::io("listing the store"))?;
        let names = names.into_iter().filter_map(|name| String::from_utf8(name).ok());
        names.map(|ids| self.trees_apart(&ids).map(|trees| (ids, trees))).collect()
    }

    /// Of all trees that have owners, on disk.
    pub(super) fn size_apart(&self) -> Result<u64> {
        let mut digests: Vec<Digest> = Vec::new();
        for (_, trees) in self.all_apart()? {
            digests.extend(trees.all()?);
        }
        Ok(digests.into_iter().map(|digest| self.layer_size(digest).unwrap_or(0)).sum())
    }

    fn trees_apart(&self, ids: &str) -> Result<Trees> {
        let invalid = || Error::Invalid(format!("{ids} names no ids"));
        let name = Name::new(ids.as_bytes()).ok_or_else(invalid)?;
        let opening = Error::io(format!("opening the trees of {ids}"));
        let directory = self.apart.descend([name], Missing::Create).map_err(opening)?;
        Ok(Trees::new(self.path.join(super::VERSION).join("apart").join(ids), directory))
    }
}

/// What such a tree is called in the trash, where the other tree of the same layer may be as well.
pub(super) fn discarded(ids: &str, digest: Digest) -> String {
    format!("{ids}-{digest}")
}
