//! Things of the host that no sandbox may see or change.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sandpen_tests::Result;
use sandpen_tests::lab::readable;
use sandpen_tests::random::unique;
use tempfile::TempDir;

/// Files with a secret in them, in the places that people and programs keep files. Removed when dropped.
pub struct Canaries {
    pub paths: Vec<String>,
    pub secret: String,
}

impl Canaries {
    pub fn plant(also_in: &Path) -> Result<Self> {
        let secret = unique("secret");
        let name = unique("sandpen-canary");
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let places = [Some(PathBuf::from("/")), home, Some(std::env::temp_dir()), Some(also_in.to_owned())];
        let mut paths = Vec::new();
        for place in places.into_iter().flatten() {
            let path = place.join(&name);
            // An ordinary user cannot plant one at the root; the other places remain.
            if fs::write(&path, &secret).is_ok() {
                readable(&path, 0o644)?;
                paths.push(path.to_string_lossy().into_owned());
            }
        }
        if paths.is_empty() {
            return Err("no canary could be planted".into());
        }
        Ok(Self { paths, secret })
    }
}

impl Drop for Canaries {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = fs::remove_file(path);
        }
    }
}

/// A directory that anybody may read, with a file in it, and a record of all that can be changed about them.
pub struct CanaryDirectory {
    directory: TempDir,
    pub file: PathBuf,
    pub secret: String,
    before: BTreeMap<PathBuf, String>,
}

impl CanaryDirectory {
    pub fn new() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("sandpen-canary-").tempdir()?;
        readable(directory.path(), 0o755)?;
        let secret = unique("secret");
        let file = directory.path().join("canary");
        fs::write(&file, &secret)?;
        readable(&file, 0o644)?;
        for name in ["pts", "shm", "null", "self"] {
            fs::create_dir(directory.path().join(name))?;
        }
        let before = record(directory.path())?;
        Ok(Self { directory, file, secret, before })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// What is different from when it was made.
    pub fn changes(&self) -> Result<Vec<String>> {
        let now = record(self.path())?;
        let paths: std::collections::BTreeSet<_> = self.before.keys().chain(now.keys()).collect();
        Ok(paths
            .into_iter()
            .filter(|path| self.before.get(*path) != now.get(*path))
            .map(|path| format!("{} was {:?} and is {:?}", path.display(), self.before.get(path), now.get(path)))
            .collect())
    }
}

/// Owner, mode, times and content of a directory and all below it.
fn record(path: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    let mut open = vec![path.to_owned()];
    while let Some(next) = open.pop() {
        let stat = fs::symlink_metadata(&next)?;
        let content = if stat.is_file() { fs::read(&next)? } else { Vec::new() };
        if stat.is_dir() {
            open.extend(fs::read_dir(&next)?.flatten().map(|entry| entry.path()));
        }
        let line = format!(
            "{}:{} {:o} {}.{} {}.{} {}",
            stat.uid(),
            stat.gid(),
            stat.mode(),
            stat.mtime(),
            stat.mtime_nsec(),
            stat.ctime(),
            stat.ctime_nsec(),
            content.escape_ascii()
        );
        found.insert(next, line);
    }
    Ok(found)
}
