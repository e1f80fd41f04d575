//! What is different between two trees that are there as layers over the same others. Both are read as streams; only names,
//! attributes and digests are held.

use std::collections::BTreeSet;

use tokio_util::sync::CancellationToken;

pub use self::pick::pick;
pub use self::tree::{Facts, Interest, Kind, Origin, Tree, ancestors};
use crate::error::Result;
use crate::store::{ImageLayer, Store};

mod pick;
mod tree;

/// Two stacks of layers over one.
#[derive(Clone, Copy, Debug)]
pub struct Sides<'a> {
    /// The lowest first, as everywhere here.
    pub below: &'a [ImageLayer],
    pub wanted: &'a [ImageLayer],
    pub made: &'a [ImageLayer],
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Paths that were compared and are alike.
    pub same: u64,
    /// In byte order of their paths. What is below a directory that is missing or too much is not told again.
    pub differences: Vec<Difference>,
    /// Differences beyond those.
    pub more: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Without a slash at either end.
    pub path: Vec<u8>,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// In what was wanted, not in what was made.
    Missing,
    /// In what was made only.
    Extra,
    /// A directory here, a file there, or the like.
    Kind,
    Contents,
    /// Where a link leads.
    Target,
    Mode,
    Owner,
}

/// Compares what can be seen of both sides; `ignored` says which paths are of no interest, with all below them. At most
/// `most` differences are told.
pub fn compare(
    store: &Store,
    sides: Sides<'_>,
    ignored: &dyn Fn(&[u8]) -> bool,
    most: usize,
    cancel: &CancellationToken,
) -> Result<Comparison> {
    let wanted = Tree::read(store, sides.wanted, Interest::All, cancel)?;
    let made = Tree::read(store, sides.made, Interest::All, cancel)?;
    let mut paths: BTreeSet<Vec<u8>> = wanted.paths().chain(made.paths()).cloned().collect();
    // What only one of them speaks of is in the other as it is below.
    let unsettled: BTreeSet<Vec<u8>> =
        paths.iter().filter(|path| wanted.mentions(path) != made.mentions(path)).cloned().collect();
    let opened: BTreeSet<Vec<u8>> = wanted.opaque().chain(made.opaque()).cloned().collect();
    let below = if unsettled.is_empty() && opened.is_empty() {
        Tree::default()
    } else {
        Tree::read(store, sides.below, Interest::Only { paths: &unsettled, below: &opened }, cancel)?
    };
    paths.extend(below.paths().cloned());
    let mut comparison = Comparison::default();
    let mut told: BTreeSet<Vec<u8>> = BTreeSet::new();
    for path in paths {
        if ignored(&path) || ancestors(&path).any(|one| ignored(one) || told.contains(one)) {
            continue;
        }
        let what = match (wanted.over(&below, &path), made.over(&below, &path)) {
            (None, None) => continue,
            (Some(_), None) => What::Missing,
            (None, Some(_)) => What::Extra,
            (Some(one), Some(other)) => match first_difference(one, other) {
                Some(what) => what,
                None => {
                    comparison.same += 1;
                    continue;
                }
            },
        };
        if matches!(what, What::Missing | What::Extra | What::Kind) {
            told.insert(path.clone());
        }
        if comparison.differences.len() < most {
            comparison.differences.push(Difference { path, what });
        } else {
            comparison.more += 1;
        }
    }
    Ok(comparison)
}

fn first_difference(one: &Facts, other: &Facts) -> Option<What> {
    match (&one.kind, &other.kind) {
        (Kind::Directory, Kind::Directory) | (Kind::Special, Kind::Special) => {}
        (Kind::File(one), Kind::File(other)) if one != other => return Some(What::Contents),
        (Kind::Link(one), Kind::Link(other)) if one != other => return Some(What::Target),
        (Kind::File(_), Kind::File(_)) | (Kind::Link(_), Kind::Link(_)) => {}
        (Kind::Directory | Kind::File(_) | Kind::Link(_) | Kind::Special, _) => return Some(What::Kind),
    }
    if one.mode != other.mode {
        return Some(What::Mode);
    }
    ((one.user, one.group) != (other.user, other.group)).then_some(What::Owner)
}

#[cfg(test)]
#[path = "difference_tests.rs"]
mod tests;
