//! Secrets on disk: one TOML table for each, readable by its owner only.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sandbox::system::{self, Exposure, private_directory, private_file};
use sandbox::{Error, Result};
use serde::Deserialize;
use toml::Spanned;

use super::value::SecretValue;
use super::vault::{Secret, Vault};

/// A file of secrets, which may not exist yet.
#[derive(Clone, Debug)]
pub struct SecretsFile {
    path: PathBuf,
}

impl SecretsFile {
    const MAX_BYTES: u64 = 4 << 20;

    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where `sandpen secret` keeps them.
    pub fn of_state_directory(directory: &Path) -> Self {
        Self::new(directory.join("secrets.toml"))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The secrets in it; none if there is no file.
    pub fn read_if_there(&self) -> Result<Vault> {
        match self.open() {
            Ok(file) => self.read_from(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vault::default()),
            Err(error) => Err(self.unreadable(error)),
        }
    }

    /// The secrets in it, which somebody said there are.
    pub fn read(&self) -> Result<Vault> {
        self.open().map_err(|error| self.unreadable(error)).and_then(|file| self.read_from(file))
    }

    /// Read, change and write, while nobody else does the same. Nothing is written when the change is refused.
    pub fn change<T>(&self, change: impl FnOnce(&mut Vault) -> Result<T>) -> Result<T> {
        let unwritable = |error: io::Error| {
            Error::unavailable(format!("{} cannot be written", self.path.display())).with_cause(error)
        };
        let directory = self.path.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
        private_directory().create(directory).map_err(unwritable)?;
        // The file itself is replaced with each change, so whoever waits for a lock on it would wait for the wrong one.
        let lock = private_file().write(true).create(true).truncate(false).open(self.beside("lock"));
        let lock = lock.map_err(unwritable)?;
        lock.lock().map_err(unwritable)?;
        let mut vault = self.read_if_there()?;
        let result = change(&mut vault)?;
        self.write(&vault, directory).map_err(unwritable)?;
        Ok(result)
    }

    fn write(&self, vault: &Vault, directory: &Path) -> io::Result<()> {
        let new = self.beside("new");
        // One from a writer that died; the lock says that there is no other.
        let _ = std::fs::remove_file(&new);
        let mut file = private_file().write(true).create_new(true).open(&new)?;
        file.write_all(written(vault).as_bytes())?;
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

    fn read_from(&self, file: File) -> Result<Vault> {
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
        file.take(Self::MAX_BYTES + 1).read_to_string(&mut text).map_err(|error| self.unreadable(error))?;
        if text.len() as u64 > Self::MAX_BYTES {
            return Err(Error::limit_exceeded(format!("{shown} is larger than {} bytes", Self::MAX_BYTES)));
        }
        self.understand(&text)
    }

    fn understand(&self, text: &str) -> Result<Vault> {
        let line_of = |offset: usize| 1 + text.bytes().take(offset).filter(|&byte| byte == b'\n').count();
        let wrong = |offset: usize, why: &str| {
            Error::invalid_input(format!("{} line {}: {why}", self.path.display(), line_of(offset)))
        };
        // The parser's own message quotes the line, which may hold a value.
        let tables: Tables = toml::from_str(text).map_err(|error| {
            wrong(error.span().map_or(0, |span| span.start), "this is not how a secret is written").with_hint(
                "a secret is a table [NAME] with value = \"…\", hosts = [\"…\"] and perhaps header = \"Name: {}\"",
            )
        })?;
        let mut vault = Vault::default();
        for (name, table) in tables {
            let start = table.span().start;
            let table = table.into_inner();
            let parsed = name.parse().map_err(|_| wrong(start, "this cannot be the name of a secret"))?;
            let at = table.value.span().start;
            let value = SecretValue::new(table.value.into_inner()).map_err(|error| wrong(at, error.message()))?;
            let mut hosts = Vec::new();
            for host in table.hosts {
                let at = host.span().start;
                hosts.push(host.get_ref().parse().map_err(|error: Error| wrong(at, error.message()))?);
            }
            let header = match table.header {
                None => None,
                Some(header) => {
                    let at = header.span().start;
                    Some(header.get_ref().parse().map_err(|error: Error| wrong(at, error.message()))?)
                }
            };
            vault.insert(Secret::new(parsed, value, hosts, header).map_err(|error| wrong(start, error.message()))?);
        }
        Ok(vault)
    }
}

type Tables = std::collections::BTreeMap<String, Spanned<Table>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    value: Spanned<String>,
    hosts: Vec<Spanned<String>>,
    header: Option<Spanned<String>>,
}

fn written(vault: &Vault) -> String {
    let mut text = "# Written by sandpen secret, which keeps no comments. To be read by its owner only.\n".to_owned();
    for secret in vault.iter() {
        let hosts: Vec<String> = secret.hosts().iter().map(|host| quoted(&host.to_string())).collect();
        text += &format!(
            "\n[{}]\nvalue = {}\nhosts = [{}]\n",
            secret.name(),
            quoted(secret.value().expose()),
            hosts.join(", ")
        );
        if let Some(header) = secret.header() {
            text += &format!("header = {}\n", quoted(&header.to_string()));
        }
    }
    text
}

/// A basic string of TOML. Nothing that is written here holds control characters.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
