//! Steps that were done before. A layer is kept in the store under a name that says what it was made from and how.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use images::digest::Hasher;
use images::{Descriptor, Digest, ImageConfig, Named, Reference, Store, Work, Writing};
use sandbox::{Result, TreeName};

use super::image_error;

/// Where kept trees are in the store: no registry is ever called like that.
pub const REGISTRY: &str = "trees.sandpen.invalid";

/// What the names of build steps begin with.
pub const PREFIX: &str = "build/";

/// What the names of images begin with that are being built.
pub const UNFINISHED: &str = "building/";

/// No command may run for so long.
const LONGEST_STEP: Duration = Duration::from_secs(24 * 60 * 60);

/// What a step is done from. The order of what is added counts.
#[derive(Clone, Debug)]
pub struct Key(Hasher);

impl Key {
    /// Of a kind of step. A change in how steps are done takes a new word.
    pub fn of(kind: &str) -> Self {
        Self(Hasher::default()).with(kind)
    }

    #[must_use]
    pub fn with(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        self.0.update(&(part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    pub fn name(self) -> Result<TreeName> {
        format!("{PREFIX}{}", self.0.finish().digits()).parse()
    }
}

/// A layer that is kept, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub layer: (Digest, Descriptor),
    /// Seconds since 1970.
    pub since: u64,
}

pub fn reference(name: &TreeName) -> Result<Reference> {
    format!("{REGISTRY}/{name}:latest").parse().map_err(image_error)
}

/// What is kept under a name. One whose parts are damaged is as good as none.
pub fn look_up(store: &Store, name: &TreeName) -> Result<Option<Kept>> {
    let Some(named) = store.find(&reference(name)?).map_err(image_error)? else { return Ok(None) };
    Ok(describe(store, &named))
}

fn describe(store: &Store, named: &Named) -> Option<Kept> {
    let (manifest, config) = store.describe(&named.manifest).ok()?;
    match (&manifest.layers[..], &config.rootfs.diff_ids[..]) {
        ([blob], [diff_id]) if store.has_blob(blob.digest).ok()? => {
            Some(Kept { layer: (*diff_id, blob.clone()), since: named.added })
        }
        _ => None,
    }
}

/// Keeps a plain layer that is in the store as a blob.
pub fn keep(writing: &Writing, name: &TreeName, blob: &Descriptor) -> images::Result<Kept> {
    let reference: Reference = format!("{REGISTRY}/{name}:latest").parse()?;
    let work = Work::default();
    let config = ImageConfig::bare(vec![blob.digest]);
    let image = writing.assemble(config, vec![blob.clone()], &work.limits)?;
    let named = writing.name(&reference, &image)?;
    Ok(Kept { layer: (blob.digest, blob.clone()), since: named.added })
}

/// Whether a name of the store is one of these, and so nothing that people gave a name.
pub fn is_internal(reference: &Reference) -> bool {
    reference.registry() == REGISTRY
}

/// Forgets images of builds that were killed, which nobody can be building any more.
pub fn forget_unfinished(store: &Store) -> images::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    for named in store.names()? {
        let is_old = now.saturating_sub(named.added) > LONGEST_STEP.as_secs();
        if is_internal(&named.reference) && named.reference.repository().starts_with(UNFINISHED) && is_old {
            store.remove_name(&named.reference)?;
        }
    }
    Ok(())
}

/// Forgets all steps, and images that builds left behind that were killed. What they held is collected later.
pub fn forget(store: &Store) -> Result<usize> {
    let mut forgotten = 0;
    for named in store.names().map_err(image_error)? {
        let repository = named.reference.repository();
        if is_internal(&named.reference) && (repository.starts_with(PREFIX) || repository.starts_with(UNFINISHED)) {
            forgotten += usize::from(store.remove_name(&named.reference).map_err(image_error)?);
        }
    }
    Ok(forgotten)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_key_do_not_run_into_each_other() {
        let name = |parts: &[&str]| parts.iter().fold(Key::of("run"), |key, part| key.with(part)).name().unwrap();
        assert_eq!(name(&["a", "b"]), name(&["a", "b"]));
        assert_ne!(name(&["a", "b"]), name(&["ab", ""]));
        assert_ne!(name(&["a", "b"]), name(&["b", "a"]));
    }
}
