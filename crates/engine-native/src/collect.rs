//! What the engine keeps because making it takes time: roots, the host's `/etc`, process 1's program. Each is made anew when
//! it is missing, so what nobody has used for a week, and no process has mounted, is removed. Images are kept by their names
//! and by those who use them.
//!
//! Several processes share these directories and do not know of each other. Whoever uses a tree keeps its time of change
//! young; whoever removes one takes its name away first and looks at that time once more.

use std::fs::{self, File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use images::Local;

use crate::places::Places;

/// Unused for this long is forgotten.
const AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How old a tree in use may look; well below [`AGE`], and not one write for each sandbox.
const YOUNG: Duration = Duration::from_secs(24 * 60 * 60);
const EVERY: Duration = Duration::from_secs(60 * 60);

/// Prefix of trees on their way out.
const REMOVED: &str = "old-";

/// Says when it is time.
#[derive(Debug, Default)]
pub struct Collector(Mutex<Option<Instant>>);

impl Collector {
    /// Collect if that has not been done for an hour. Blocks while it removes trees.
    pub fn collect_in_time(&self, places: &Places) {
        let due = self.0.lock().is_ok_and(|mut last| {
            let due = last.is_none_or(|last| last.elapsed() > EVERY);
            if due {
                *last = Some(Instant::now());
            }
            due
        });
        if due {
            collect(places);
        }
    }
}

/// Somebody is about to use this tree.
pub fn keep(tree: &Path) {
    if let Ok(found) = fs::metadata(tree)
        && age(&found) > YOUNG
    {
        let times = FileTimes::new().set_modified(SystemTime::now());
        // One that cannot be kept young is made again some day.
        let _ = File::open(tree).and_then(|tree| tree.set_times(times));
    }
}

fn collect(places: &Places) {
    for store in [&places.images, &places.host].into_iter().filter(|store| store.is_dir()) {
        if let Err(error) = images::Store::open(store).and_then(|store| store.sweep()) {
            tracing::debug!(?error, "unfinished trees stay in the store");
        }
    }
    // What was copied for a fork has a name for a moment only.
    if places.images.is_dir()
        && let Err(error) = images::Store::open(&places.images).and_then(|store| forget_copies(&store))
    {
        tracing::debug!(?error, "copies of dead forks stay in the store");
    }
    // What lost its name while a sandbox used it.
    if places.images.is_dir()
        && let Err(error) = images::Store::open(&places.images).and_then(|store| store.collect())
    {
        tracing::debug!(?error, "unused layers stay in the store");
    }
    let kept = [places.skeletons.clone(), places.host.join("roots"), places.programs.clone()];
    let old: Vec<PathBuf> = kept.iter().flat_map(|directory| old_trees(directory)).collect();
    if old.is_empty() {
        return;
    }
    // What cannot be seen may be in use.
    let Ok(mounted) = mounted_roots() else { return };
    for tree in old {
        let name = tree.file_name().unwrap_or_default().to_string_lossy();
        if mounted.iter().any(|root| root.contains(&*name)) {
            continue;
        }
        if let Err(error) = remove(&tree) {
            tracing::debug!(%error, tree = %tree.display(), "an unused tree stays");
        }
    }
}

fn forget_copies(store: &images::Store) -> images::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    for named in store.names()?.iter().filter(|named| Local::of(&named.reference) == Some(Local::Fork)) {
        if now.saturating_sub(Duration::from_secs(named.added)) > EVERY {
            store.remove_name(&named.reference)?;
        }
    }
    Ok(())
}

fn age(found: &fs::Metadata) -> Duration {
    found.modified().ok().and_then(|time| time.elapsed().ok()).unwrap_or_default()
}

/// Directories only: what else is there, locks among them, is small and has its own rules.
fn old_trees(directory: &Path) -> Vec<PathBuf> {
    let is_old = |entry: &fs::DirEntry| entry.metadata().is_ok_and(|found| found.is_dir() && age(&found) > AGE);
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(is_old).map(|entry| entry.path()).collect()
}

/// The part of its file system that each mount of each process shows.
fn mounted_roots() -> io::Result<Vec<String>> {
    let mut roots = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        if !entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        match fs::read_to_string(entry.path().join("mountinfo")) {
            Ok(table) => roots.extend(table.lines().filter_map(|line| line.split(' ').nth(3)).map(str::to_owned)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            // It ended meanwhile.
            Err(_) => {}
        }
    }
    roots.sort_unstable();
    roots.dedup();
    Ok(roots)
}

fn remove(tree: &Path) -> io::Result<()> {
    let name = tree.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with(REMOVED) {
        return fs::remove_dir_all(tree);
    }
    let removed = tree.with_file_name(format!("{REMOVED}{}-{name}", std::process::id()));
    fs::rename(tree, &removed)?;
    if fs::metadata(&removed).is_ok_and(|found| age(&found) <= AGE) {
        // Somebody has just begun to use it, and has its name.
        return fs::rename(&removed, tree);
    }
    fs::remove_dir_all(&removed)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use egress::{Gateway, GatewaySettings};
    use sandbox::{Engine, InstanceId};

    use super::*;
    use crate::{NativeConfig, NativeEngine};

    fn tree(directory: &Path, name: &str, age: Duration) -> PathBuf {
        let tree = directory.join(name);
        fs::create_dir_all(tree.join("below")).unwrap();
        let times = FileTimes::new().set_modified(SystemTime::now() - age);
        File::open(&tree).unwrap().set_times(times).unwrap();
        tree
    }

    #[tokio::test]
    async fn an_engine_that_looks_around_removes_what_nobody_uses() {
        let state = tempfile::tempdir().unwrap();
        let state_dir = state.path().to_owned();
        let skeletons = state_dir.join("skeletons");
        let (long_ago, lately) = (AGE * 2, AGE / 2);
        let unused = [
            tree(&skeletons, "0123456789abcdef", long_ago),
            tree(&skeletons, "new-1-0", long_ago),
            tree(&state_dir.join("host/roots"), "sha256-00", long_ago),
            tree(&state_dir.join("programs"), "fedcba9876543210", long_ago),
        ];
        let used = [
            tree(&skeletons, "0123456789abcdee", lately),
            tree(&state_dir.join("images/roots"), "sha256-11", long_ago),
        ];
        let gateway = Arc::new(Gateway::new(GatewaySettings::default()));
        let config = NativeConfig::new(state_dir, InstanceId::random().unwrap(), gateway);
        let engine = NativeEngine::start(config).await.unwrap();
        engine.list().await.unwrap();
        for tree in unused {
            assert!(!tree.exists(), "{} is still there", tree.display());
        }
        for tree in used {
            assert!(tree.join("below").exists(), "{} is gone", tree.display());
        }
        assert_eq!(fs::read_dir(&skeletons).unwrap().count(), 1);
    }

    #[test]
    fn what_is_used_stays_young() {
        let place = tempfile::tempdir().unwrap();
        let used = tree(place.path(), "used", AGE * 2);
        keep(&used);
        assert!(old_trees(place.path()).is_empty());
        assert!(age(&fs::metadata(&used).unwrap()) < YOUNG);
    }

    #[test]
    fn mounts_of_every_process_are_seen() {
        assert!(mounted_roots().unwrap().iter().any(|root| root == "/"));
    }
}
