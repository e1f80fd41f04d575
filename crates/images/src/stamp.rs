//! Answers that are kept until something they were derived from changes, which one stat per thing shows.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What a path led to; nothing, if nothing was there. The change time is one that no ordinary user can set back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }

    fn changed_at(&self) -> SystemTime {
        let (seconds, nanoseconds) = self.changed;
        let seconds = Duration::from_secs(seconds.try_into().unwrap_or(0));
        SystemTime::UNIX_EPOCH + seconds + Duration::from_nanos(nanoseconds.try_into().unwrap_or(0))
    }
}

/// Everything that an answer was derived from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamps {
    variables: BTreeMap<String, Option<OsString>>,
    paths: BTreeMap<PathBuf, Option<Identity>>,
    /// Something had only just changed when it was looked at, or there was no telling.
    unsettled: bool,
}

/// Clocks of file systems tick every few milliseconds, and a second change within one tick cannot be seen.
const TICK: Duration = Duration::from_millis(20);

impl Stamps {
    /// Must be called before the thing is looked at, so that a change in between is noticed the next time.
    pub fn path(&mut self, path: impl Into<PathBuf>) {
        self.path_at(path.into(), SystemTime::now());
    }

    fn path_at(&mut self, path: PathBuf, now: SystemTime) {
        let identity = Identity::of(&path);
        self.unsettled |= identity.as_ref().is_some_and(|identity| identity.changed_at() + TICK > now);
        self.paths.entry(path).or_insert(identity);
    }

    /// Something could not be found out this time, so the answer is good for now and no longer.
    pub fn doubt(&mut self) {
        self.unsettled = true;
    }

    pub fn variable(&mut self, name: &str) {
        self.variables.insert(name.to_owned(), std::env::var_os(name));
    }

    pub fn still_hold(&self) -> bool {
        self.variables.iter().all(|(name, value)| std::env::var_os(name) == *value)
            && self.paths.iter().all(|(path, identity)| Identity::of(path) == *identity)
    }
}

/// A cached answer. One that cannot be read, or that another version wrote, is as good as none.
pub fn load<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let entry: Entry<T> = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    (entry.version == env!("CARGO_PKG_VERSION") && entry.stamps.still_hold()).then_some(entry.answer)
}

/// Keeps an answer, whole or not at all. One about things that have only just changed is not kept.
pub fn save<T: Serialize>(path: &Path, stamps: &Stamps, answer: &T) -> io::Result<()> {
    static SAVED: AtomicU64 = AtomicU64::new(0);
    if stamps.unsettled {
        return Ok(());
    }
    let entry = EntryRef { version: env!("CARGO_PKG_VERSION"), stamps, answer };
    let bytes = serde_json::to_vec(&entry).map_err(io::Error::other)?;
    let unique = format!("{}-{}.new", std::process::id(), SAVED.fetch_add(1, Ordering::Relaxed));
    let temporary = path.with_extension(unique);
    let saved = std::fs::write(&temporary, &bytes).and_then(|()| std::fs::rename(&temporary, path));
    if saved.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    saved
}

#[derive(Deserialize)]
struct Entry<T> {
    version: String,
    stamps: Stamps,
    answer: T,
}

#[derive(Serialize)]
struct EntryRef<'a, T> {
    version: &'a str,
    stamps: &'a Stamps,
    answer: &'a T,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_kept_until_something_changes() {
        let place = tempfile::tempdir().unwrap();
        let (watched, absent) = (place.path().join("watched"), place.path().join("absent"));
        let cache = place.path().join("cache.json");
        std::fs::write(&watched, "1").unwrap();
        let keep = || {
            std::thread::sleep(2 * TICK);
            let mut stamps = Stamps::default();
            stamps.path(&watched);
            stamps.path(&absent);
            stamps.variable("PATH");
            save(&cache, &stamps, &"answer".to_owned()).unwrap();
            assert_eq!(load::<String>(&cache).as_deref(), Some("answer"));
        };
        keep();
        std::fs::write(&watched, "12").unwrap();
        assert_eq!(load::<String>(&cache), None);
        keep();
        std::fs::write(&absent, "").unwrap();
        assert_eq!(load::<String>(&cache), None);
        keep();
        assert_eq!(load::<u32>(&cache), None, "an answer of another shape");
        std::fs::write(&watched, "123").unwrap();
        let changed = Identity::of(&watched).unwrap().changed_at();
        let (mut early, mut in_doubt) = (Stamps::default(), Stamps::default());
        early.path_at(watched.clone(), changed + TICK / 2);
        in_doubt.doubt();
        for stamps in [early, in_doubt] {
            save(&cache, &stamps, &"too early".to_owned()).unwrap();
            assert_eq!(load::<String>(&cache), None);
        }
        for garbage in ["", "{", "null", "[]"] {
            std::fs::write(&cache, garbage).unwrap();
            assert_eq!(load::<String>(&cache), None, "{garbage:?}");
        }
    }
}
