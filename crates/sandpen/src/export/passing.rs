//! What an export puts aside while it works: gone with it, and a day later if its process was killed.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use images::{Local, Reference, Store, local};
/// What sandboxes are saved as to read their layers, before 32 digits.
pub const SAVED: &str = "export-";

/// No export takes so long.
const OLD: Duration = Duration::from_secs(24 * 60 * 60);

/// A name in the store, which is gone with this value: an image without one could be collected at any moment.
pub struct Name {
    store: Arc<Store>,
    pub reference: Reference,
}

impl Name {
    pub fn new(store: &Arc<Store>, reference: Reference) -> Self {
        Self { store: Arc::clone(store), reference }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        // What stays by a fault goes with a later export.
        let _ = self.store.remove_name(&self.reference);
        // Layers are as large as people make them, and nobody pays for these.
        let store = Arc::clone(&self.store);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || store.collect());
        }
    }
}

/// Removes what exports left behind that were killed, as seen at this moment.
pub fn sweep(store: &Store, directory: &Path, now: SystemTime) -> images::Result<()> {
    let is_old = |since: SystemTime| now.duration_since(since).is_ok_and(|age| age > OLD);
    for named in store.names()? {
        if is_ours(&named.reference) && is_old(UNIX_EPOCH + Duration::from_secs(named.added)) {
            store.remove_name(&named.reference)?;
        }
    }
    let Ok(entries) = std::fs::read_dir(directory) else { return Ok(()) };
    for entry in entries.flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.modified().is_ok_and(is_old) {
            // Another process may be doing the same.
            let _ = match metadata.is_dir() {
                true => std::fs::remove_dir_all(entry.path()),
                false => std::fs::remove_file(entry.path()),
            };
        }
    }
    Ok(())
}

fn is_ours(reference: &Reference) -> bool {
    let is_random = |digits: &str| digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    Local::of(reference) == Some(Local::Export)
        || local::saved_by_anybody(reference).and_then(|name| name.strip_prefix(SAVED)).is_some_and(is_random)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use images::{ImageConfig, Work, Writing};
    use sandbox::Owner;

    use super::*;
    use crate::commands::image::saved;
    use crate::random;

    #[test]
    fn what_killed_exports_left_is_gone_a_day_later_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&place.path().join("images")).unwrap());
        let writing = Writing::begin(&store).unwrap();
        let image = writing.assemble(ImageConfig::bare(Vec::new()), Vec::new(), &Work::default().limits).unwrap();
        let saved = |name: &str| saved::reference(&Owner::local(), &name.parse().unwrap()).unwrap();
        let left = saved(&format!("{SAVED}{}", random::digits().unwrap()));
        let built = Local::Export.reference(&random::digits().unwrap()).unwrap();
        let others = [saved("export-1"), saved("lab"), "debian:12".parse().unwrap()];
        for reference in others.iter().chain([&left, &built]) {
            writing.name(reference, &image).unwrap();
        }
        let directory = place.path().join("exports");
        fs::create_dir_all(directory.join("1f/files")).unwrap();
        fs::write(directory.join("2f.tar"), "x").unwrap();
        let count = || (store.names().unwrap().len(), fs::read_dir(&directory).unwrap().count());

        sweep(&store, &directory, SystemTime::now()).unwrap();
        assert_eq!(count(), (5, 2), "somebody may be at work with it");
        sweep(&store, &directory, SystemTime::now() + OLD + Duration::from_secs(60)).unwrap();
        assert_eq!(count(), (3, 0));
        for reference in &others {
            assert!(store.find(reference).unwrap().is_some(), "{reference}");
        }
    }
}
