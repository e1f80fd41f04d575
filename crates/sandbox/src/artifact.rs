//! Artifacts: files that a run made or changed and its caller should see. Which files count; the service does the looking.
//!
//! # What counts
//!
//! Regular files below the sandbox's work directory that were new or changed since the run began, except
//!
//! - in hidden directories and those that tools keep for themselves (`is_noise`),
//! - the code that the run itself was started from.
//!
//! # How a change is seen
//!
//! By the time of the file's last change, which a program cannot set: what unpacks an archive gives files their old
//! modification times, and a listing before each run would cost more than most runs. Kernels read that time from a clock
//! that ticks every 10 ms at the slowest, so what was changed just before the run began could seem to be changed by it.
//! Where something may have been, the files of that last moment are noted before (`Baseline::note`). The sandbox's clock
//! must be ours, which it is on one kernel; a clock that is set back while a run goes on hides what the run made.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::file::{DirectoryEntry, FileKind};
use crate::path::GuestPath;
use crate::runner::is_code_of_a_run;

/// A file that a run made or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    pub path: GuestPath,
    pub bytes: u64,
}

/// Times of files lag behind the clock by up to this.
const TICK: Duration = Duration::from_millis(10);

/// What two changes must be apart, at least, for their order to be known.
pub(crate) const DOUBT: Duration = Duration::from_millis(25);

/// The files of a sandbox just before a run.
#[derive(Debug)]
pub(crate) struct Baseline {
    since_ns: i128,
    noted: HashMap<GuestPath, (u64, i128)>,
}

impl Baseline {
    /// As of now, for a sandbox in which nothing has happened for a while.
    pub fn now() -> Self {
        let since = (SystemTime::now() - TICK).duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { since_ns: since.as_nanos() as i128, noted: HashMap::new() }
    }

    /// Not changed by the run unless they differ afterwards.
    #[must_use]
    pub fn note(mut self, entries: impl IntoIterator<Item = DirectoryEntry>) -> Self {
        let since_ns = self.since_ns;
        let doubtful = entries.into_iter().filter(|entry| entry.stat.changed_ns >= since_ns);
        self.noted.extend(doubtful.map(|entry| (entry.path, (entry.stat.bytes, entry.stat.changed_ns))));
        self
    }

    fn is_change(&self, entry: &DirectoryEntry) -> bool {
        let stat = &entry.stat;
        stat.changed_ns >= self.since_ns && self.noted.get(&entry.path) != Some(&(stat.bytes, stat.changed_ns))
    }

    /// The artifacts among `entries`, in the order of their paths.
    pub fn artifacts(&self, entries: impl IntoIterator<Item = DirectoryEntry>) -> Vec<Artifact> {
        let changed = entries.into_iter().filter(|entry| {
            let own = entry.path.file_name().is_some_and(is_code_of_a_run);
            entry.stat.kind == FileKind::Regular && !own && self.is_change(entry)
        });
        let mut artifacts: Vec<_> =
            changed.map(|entry| Artifact { path: entry.path, bytes: entry.stat.bytes }).collect();
        artifacts.sort_by(|one, other| one.path.cmp(&other.path));
        artifacts
    }
}

/// Directories whose files nobody asked for: hidden ones, and what interpreters, compilers and package managers keep.
pub(crate) fn is_noise(directory: &[u8]) -> bool {
    directory.starts_with(b".") || matches!(directory, b"__pycache__" | b"node_modules" | b"target" | b"venv")
}

/// Whether `path` lies in a noisy directory below `root`.
pub(crate) fn is_in_noise(root: &GuestPath, path: &GuestPath) -> bool {
    let mut below: Vec<_> = path.components().skip(root.components().count()).collect();
    below.pop();
    below.into_iter().any(is_noise)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::FileStat;

    fn entry(path: &str, kind: FileKind, bytes: u64, changed_ns: i128) -> DirectoryEntry {
        let stat = FileStat { kind, bytes, mode: 0o644, modified_ns: 0, changed_ns };
        DirectoryEntry { path: path.parse().unwrap(), stat }
    }

    fn paths(artifacts: &[Artifact]) -> Vec<String> {
        artifacts.iter().map(|artifact| artifact.path.to_string()).collect()
    }

    #[test]
    fn what_changed_since_is_an_artifact_whatever_its_modification_time_says() {
        let baseline = Baseline { since_ns: 100, noted: HashMap::new() };
        let file = |path, changed| entry(path, FileKind::Regular, 1, changed);
        let found = baseline.artifacts([file("new", 101), file("edge", 100), file("old", 99)]);
        assert_eq!(paths(&found), ["/workspace/edge", "/workspace/new"]);
    }

    #[test]
    fn what_was_noted_counts_only_when_it_differs() {
        let file = |path, bytes, changed| entry(path, FileKind::Regular, bytes, changed);
        let baseline = Baseline { since_ns: 100, noted: HashMap::new() }.note([
            file("same", 1, 105),
            file("longer", 1, 105),
            file("later", 1, 105),
        ]);
        let found = baseline.artifacts([file("same", 1, 105), file("longer", 2, 105), file("later", 1, 106)]);
        assert_eq!(paths(&found), ["/workspace/later", "/workspace/longer"]);
    }

    #[test]
    fn only_regular_files_and_not_the_code_of_a_run() {
        let baseline = Baseline { since_ns: 100, noted: HashMap::new() };
        let found = baseline.artifacts([
            entry("directory", FileKind::Directory, 0, 200),
            entry("link", FileKind::Link, 0, 200),
            entry("fifo", FileKind::Other, 0, 200),
            entry(".run-abc.py", FileKind::Regular, 1, 200),
            entry(".env", FileKind::Regular, 1, 200),
        ]);
        assert_eq!(paths(&found), ["/workspace/.env"]);
    }

    #[test]
    fn noise_is_a_matter_of_directories_below_the_root() {
        let root: GuestPath = "/home/.hidden/target".parse().unwrap();
        let noisy = |path: &str| is_in_noise(&root, &format!("/home/.hidden/target/{path}").parse().unwrap());
        assert!(!noisy("plot.png") && !noisy("a/b/plot.png") && !noisy(".env") && !noisy("target"));
        assert!(noisy(".git/config") && noisy("a/__pycache__/b.pyc") && noisy("node_modules/x/y") && noisy("target/x"));
    }

    #[test]
    fn a_baseline_of_now_allows_for_the_tick() {
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i128;
        let baseline = Baseline::now();
        assert!(baseline.since_ns < before && baseline.since_ns > before - 1_000_000_000);
    }
}
