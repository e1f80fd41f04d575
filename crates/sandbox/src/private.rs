//! A small file of ours with what nobody else may read: read as a whole, replaced as a whole, by one writer at a time.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::system::{self, Exposure, private_directory, private_file};

const MAX_BYTES: u64 = 4 << 20;

/// One that may not exist yet.
#[derive(Clone, Debug)]
pub struct PrivateFile {
    path: PathBuf,
}

/// Tells one state of a file from the next, without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
}

impl PrivateFile {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is in it; nothing if there is no file.
    pub fn read_if_there(&self) -> Result<Option<String>> {
        match self.open() {
            Ok(file) => self.read_from(file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.unreadable(error)),
        }
    }

    /// What is in it, which somebody said there is.
    pub fn read(&self) -> Result<String> {
        self.open().map_err(|error| self.unreadable(error)).and_then(|file| self.read_from(file))
    }

    /// Read, change and write, while nobody else does the same. Nothing is written when the change is refused.
    pub fn change<T>(&self, change: impl FnOnce(Option<String>) -> Result<(String, T)>) -> Result<T> {
        let unwritable = |error: io::Error| {
            Error::unavailable(format!("{} cannot be written", self.path.display())).with_cause(error)
        };
        let directory = self.path.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
        private_directory().create(directory).map_err(unwritable)?;
        // The file itself is replaced with each change, so whoever waits for a lock on it would wait for the wrong one.
        let lock = private_file().write(true).create(true).truncate(false).open(self.beside("lock"));
        let lock = lock.map_err(unwritable)?;
        lock.lock().map_err(unwritable)?;
        let (text, result) = change(self.read_if_there()?)?;
        self.write(&text, directory).map_err(unwritable)?;
        Ok(result)
    }

    /// `None` when there is no file.
    pub fn stamp(&self) -> Result<Option<Stamp>> {
        match std::fs::metadata(&self.path) {
            Ok(metadata) => Ok(Some(Stamp { modified: metadata.modified().ok(), bytes: metadata.len() })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.unreadable(error)),
        }
    }

    fn write(&self, text: &str, directory: &Path) -> io::Result<()> {
        let new = self.beside("new");
        // One from a writer that died; the lock says that there is no other.
        let _ = std::fs::remove_file(&new);
        let mut file = private_file().write(true).create_new(true).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        system::sync_directory(directory)
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".");
        name.push(ending);
        name.into()
    }

    fn open(&self) -> io::Result<File> {
        system::file_of_another().read(true).open(&self.path)
    }

    fn unreadable(&self, error: io::Error) -> Error {
        let message = match error.kind() {
            io::ErrorKind::NotFound => format!("there is no file {}", self.path.display()),
            _ => format!("{} cannot be read", self.path.display()),
        };
        Error::invalid_input(message).with_cause(error)
    }

    fn read_from(&self, file: File) -> Result<String> {
        let shown = self.path.display();
        let metadata = file.metadata().map_err(|error| self.unreadable(error))?;
        if !metadata.is_file() {
            return Err(Error::invalid_input(format!("{shown} is not a file")));
        }
        match system::exposure(&metadata) {
            None => {}
            Some(Exposure::OfAnother { user }) => {
                return Err(Error::denied(format!("{shown} belongs to another user"))
                    .with_hint(format!("make it yours: chown {user} '{shown}'")));
            }
            Some(Exposure::Open) => {
                return Err(Error::denied(format!("{shown} is open to other users"))
                    .with_hint(format!("keep it to yourself: chmod 600 '{shown}'")));
            }
        }
        let mut text = String::new();
        file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|error| self.unreadable(error))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(Error::limit_exceeded(format!("{shown} is larger than {MAX_BYTES} bytes")));
        }
        Ok(text)
    }
}
