//! What a request came to, on disk: a small file per request, named by its digest. Its time of change is its last use.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::prepared::SearchPath;
use super::{Prepared, ResolvedPackage};
use crate::error::{Error, Result};
use crate::package::PackageLanguage;
use crate::system::{is_at, private_directory, private_file};
use crate::tree::{Attachment, TreeName};

const VERSION: u32 = 1;
const MAX_BYTES: u64 = 4 << 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// Each part with its length before it, so that no two lists of parts are the same text.
pub(in crate::service) fn digest<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hashing = Sha256::new();
    for part in parts {
        hashing.update((part.len() as u64).to_le_bytes());
        hashing.update(part.as_bytes());
    }
    hashing.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub language: PackageLanguage,
    pub image: String,
    pub requirements: Vec<String>,
    pub tree: TreeName,
    pub resolved: Vec<ResolvedPackage>,
    /// What the image has in these variables.
    pub path: String,
    pub python_path: String,
}

impl Record {
    pub fn prepared(self) -> Prepared {
        let place = self.language.place();
        let modules = match self.language {
            PackageLanguage::Python => Some(place.to_string()),
            PackageLanguage::JavaScript => None,
        };
        let mut paths = Vec::new();
        // Where the image's own programs are is not known then, and they matter more.
        if !self.path.is_empty() {
            paths.push(SearchPath { name: "PATH", ours: self.language.programs(), rest: self.path });
        }
        if let Some(ours) = modules {
            paths.push(SearchPath { name: "PYTHONPATH", ours, rest: self.python_path });
        }
        let attachments = vec![Attachment { tree: self.tree, at: place }];
        Prepared { language: self.language, attachments, resolved: self.resolved, paths }
    }
}

pub(super) struct Records {
    directory: PathBuf,
}

/// Held by whoever installs for a request, over all processes. Its file goes with it: there are more requests than a disk
/// should have to remember.
pub(super) struct Turn {
    _file: File,
    path: PathBuf,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Still locked, so that whoever waits for this file finds it without a name, and takes another.
        let _ = fs::remove_file(&self.path);
    }
}

impl Records {
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// One that makes no sense is as good as none: it is written anew.
    pub fn read(&self, key: &str) -> Result<Option<Record>> {
        let file = match File::open(self.path(key, "json")) {
            Ok(file) => file,
            Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unusable(error)),
        };
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(unusable)?;
        let record = serde_json::from_slice::<Written>(&bytes).ok().and_then(|written| written.into_record().ok());
        if record.is_none() {
            tracing::warn!(%key, "a record of packages cannot be read, and is made anew");
        }
        Ok(record)
    }

    /// Whole or not at all.
    pub fn write(&self, key: &str, record: &Record) -> Result<()> {
        self.make_directory()?;
        let text = serde_json::to_vec(&Written::of(record))
            .map_err(|cause| Error::internal("a record of packages cannot be written down").with_cause(cause))?;
        let unfinished = self.path(key, "new");
        let written = || -> std::io::Result<()> {
            let mut file = private_file().write(true).create(true).truncate(true).open(&unfinished)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&unfinished, self.path(key, "json"))
        };
        written().map_err(unusable)
    }

    /// Only for people who look what is old, so a failure is nobody's concern.
    pub fn used(&self, key: &str) {
        if let Ok(file) = OpenOptions::new().append(true).open(self.path(key, "json")) {
            let _ = file.set_modified(SystemTime::now());
        }
    }

    pub fn remove(&self, key: &str) -> Result<()> {
        match fs::remove_file(self.path(key, "json")) {
            Err(error) if error.kind() != IoErrorKind::NotFound => Err(unusable(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// With their keys, and when they were last used.
    pub fn all(&self) -> Result<Vec<(String, Record, SystemTime)>> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unusable(error)),
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry.map_err(unusable)?;
            let name = entry.file_name();
            let Some(key) = name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
            let used = entry.metadata().and_then(|metadata| metadata.modified());
            if let (Some(record), Ok(used)) = (self.read(key)?, used) {
                all.push((key.to_owned(), record, used));
            }
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(all)
    }

    /// Waits for another process that installs for the same request.
    pub async fn turn(&self, key: &str) -> Result<Turn> {
        self.make_directory()?;
        let path = self.path(key, "lock");
        loop {
            let file = private_file().write(true).create(true).truncate(false).open(&path).map_err(unusable)?;
            match file.try_lock() {
                Ok(()) if is_at(&file, &path).map_err(unusable)? => return Ok(Turn { _file: file, path }),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => tokio::time::sleep(BETWEEN_TRIES).await,
                Err(TryLockError::Error(error)) => return Err(unusable(error)),
            }
        }
    }

    fn make_directory(&self) -> Result<()> {
        private_directory().create(&self.directory).map_err(unusable)
    }

    fn path(&self, key: &str, extension: &str) -> PathBuf {
        self.directory.join(format!("{key}.{extension}"))
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    language: String,
    image: String,
    requirements: Vec<String>,
    tree: String,
    resolved: Vec<(String, String)>,
    path: String,
    python_path: String,
}

impl Written {
    fn of(record: &Record) -> Self {
        Self {
            version: VERSION,
            language: record.language.as_str().to_owned(),
            image: record.image.clone(),
            requirements: record.requirements.clone(),
            tree: record.tree.to_string(),
            resolved: record.resolved.iter().map(|one| (one.name.clone(), one.version.clone())).collect(),
            path: record.path.clone(),
            python_path: record.python_path.clone(),
        }
    }

    fn into_record(self) -> Result<Record> {
        if self.version != VERSION {
            return Err(Error::invalid_input("the record is of another version"));
        }
        Ok(Record {
            language: self.language.parse()?,
            image: self.image,
            requirements: self.requirements,
            tree: self.tree.parse()?,
            resolved: self.resolved.into_iter().map(|(name, version)| ResolvedPackage { name, version }).collect(),
            path: self.path,
            python_path: self.python_path,
        })
    }
}

fn unusable(error: std::io::Error) -> Error {
    Error::unavailable("the records of packages cannot be used").with_cause(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            language: PackageLanguage::Python,
            image: "host".to_owned(),
            requirements: vec!["six".to_owned()],
            tree: "python/00ff".parse().unwrap(),
            resolved: vec![ResolvedPackage { name: "six".to_owned(), version: "1.17.0".to_owned() }],
            path: "/usr/bin".to_owned(),
            python_path: String::new(),
        }
    }

    #[test]
    fn parts_are_told_apart() {
        assert_ne!(digest(["ab", "c"]), digest(["a", "bc"]));
        assert_ne!(digest(["a"]), digest(["a", ""]));
        assert_eq!(digest(["a", "b"]).len(), 64);
    }

    #[test]
    fn what_is_written_reads_back_and_garbage_is_nothing() {
        let state = tempfile::tempdir().unwrap();
        let records = Records::new(state.path());
        assert_eq!(records.read("k").unwrap(), None);
        assert_eq!(records.all().unwrap(), []);
        records.write("k", &record()).unwrap();
        assert_eq!(records.read("k").unwrap(), Some(record()));
        records.used("k");
        assert_eq!(records.all().unwrap().len(), 1);
        fs::write(state.path().join("k.json"), "{").unwrap();
        assert_eq!(records.read("k").unwrap(), None);
        records.remove("k").unwrap();
        records.remove("k").unwrap();
        assert_eq!(records.all().unwrap(), []);
    }

    #[test]
    fn programs_of_the_image_are_found_whatever_it_says() {
        let prepare = |record: Record| {
            let mut spec = crate::spec::SandboxSpec::new(crate::id::Owner::local());
            record.prepared().attach_to(&mut spec).unwrap();
            ["PATH", "PYTHONPATH"].map(|name| spec.environment.get(name).map(str::to_owned))
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(prepare(record()), [some("/packages/python/bin:/usr/bin"), some("/packages/python")]);
        assert_eq!(prepare(Record { path: String::new(), ..record() }), [None, some("/packages/python")]);
        let javascript = Record { language: PackageLanguage::JavaScript, ..record() };
        assert_eq!(prepare(javascript), [some("/node_modules/.bin:/usr/bin"), None]);
    }

    #[tokio::test]
    async fn one_at_a_time_has_its_turn() {
        let state = tempfile::tempdir().unwrap();
        let (one, other) = (Records::new(state.path()), Records::new(state.path()));
        let turn = one.turn("k").await.unwrap();
        let waiting = other.turn("k");
        assert!(tokio::time::timeout(Duration::from_millis(120), waiting).await.is_err());
        drop(turn);
        drop(other.turn("k").await.unwrap());
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0, "requests leave nothing by themselves");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn turns_that_come_and_go_are_never_two() {
        let state = std::sync::Arc::new(tempfile::tempdir().unwrap());
        let inside = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let (state, inside) = (state.clone(), inside.clone());
                tokio::spawn(async move {
                    let records = Records::new(state.path());
                    for _ in 0..20 {
                        let _turn = records.turn("k").await.unwrap();
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
}
