//! Steps that were done before. A layer is kept in the store under a name that says what it was made from and how.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use images::digest::Hasher;
use images::{Descriptor, Digest, ImageConfig, Local, Named, Reference, Store, Work, Writing};
use sandbox::{Result, TreeName};

use super::image_error;
use crate::random;

/// What the names of build steps begin with.
pub const PREFIX: &str = "build/";

/// What the names of images begin with that are being built.
pub const UNFINISHED: &str = "building/";

/// What the names of steps begin with that are nobody else's and end with their build.
const OWN: &str = "exporting/";

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

    /// Among steps that begin with this.
    pub fn name(self, prefix: &str) -> Result<TreeName> {
        format!("{prefix}{}", self.0.finish().digits()).parse()
    }
}

/// A place for the steps of one build, which are gone with this value.
#[derive(Debug)]
pub struct OwnSteps {
    store: Arc<Store>,
    prefix: String,
}

impl OwnSteps {
    pub fn new(store: &Arc<Store>) -> Result<Self> {
        Ok(Self { store: Arc::clone(store), prefix: format!("{OWN}{}/", random::digits()?) })
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl Drop for OwnSteps {
    fn drop(&mut self) {
        // What stays by a fault is forgotten a day later.
        for named in self.store.names().unwrap_or_default() {
            if is_internal(&named.reference) && named.reference.repository().starts_with(&self.prefix) {
                let _ = self.store.remove_name(&named.reference);
            }
        }
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
    Local::Tree.reference(name.as_str()).map_err(image_error)
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
    let reference = Local::Tree.reference(name.as_str())?;
    let work = Work::default();
    let config = ImageConfig::bare(vec![blob.digest]);
    let image = writing.assemble(config, vec![blob.clone()], &work.limits)?;
    let named = writing.name(&reference, &image)?;
    Ok(Kept { layer: (blob.digest, blob.clone()), since: named.added })
}

/// Whether a name of the store is one of these, and so nothing that people gave a name.
pub fn is_internal(reference: &Reference) -> bool {
    Local::of(reference) == Some(Local::Tree)
}

/// Forgets images of builds that were killed, which nobody can be building any more.
pub fn forget_unfinished(store: &Store) -> images::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    for named in store.names()? {
        let is_old = now.saturating_sub(named.added) > LONGEST_STEP.as_secs();
        if is_internal(&named.reference) && is_passing(named.reference.repository()) && is_old {
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
        if is_internal(&named.reference) && (repository.starts_with(PREFIX) || is_passing(repository)) {
            forgotten += usize::from(store.remove_name(&named.reference).map_err(image_error)?);
        }
    }
    Ok(forgotten)
}

/// Whether it ends with its build.
fn is_passing(repository: &str) -> bool {
    repository.starts_with(UNFINISHED) || repository.starts_with(OWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_key_do_not_run_into_each_other() {
        let name = |parts: &[&str]| parts.iter().fold(Key::of("run"), |key, part| key.with(part)).name(PREFIX).unwrap();
        assert_eq!(name(&["a", "b"]), name(&["a", "b"]));
        assert_ne!(name(&["a", "b"]), name(&["ab", ""]));
        assert_ne!(name(&["a", "b"]), name(&["b", "a"]));
    }

    #[test]
    fn steps_of_a_builds_own_end_with_it_and_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(directory.path()).unwrap());
        let (own, another) = (OwnSteps::new(&store).unwrap(), OwnSteps::new(&store).unwrap());
        let writing = Writing::begin(&store).unwrap();
        let bytes = [0; 1024];
        let blob = Descriptor::new(images::manifest::OCI_LAYER, Digest::of(&bytes), bytes.len() as u64);
        writing.put(&bytes[..], &blob, &tokio_util::sync::CancellationToken::new()).unwrap();
        let names = [PREFIX, own.prefix(), another.prefix()].map(|prefix| Key::of("run").name(prefix).unwrap());
        for name in &names {
            keep(&writing, name, &blob).unwrap();
        }
        let are_there = || names.each_ref().map(|name| look_up(&store, name).unwrap().is_some());
        assert_eq!(are_there(), [true, true, true]);
        drop(own);
        assert_eq!(are_there(), [true, false, true]);
    }
}
