//! Secrets on disk: one TOML table for each, readable by its owner only.

use std::path::{Path, PathBuf};

use sandbox::{Error, PrivateFile, Result};
use serde::Deserialize;
use toml::Spanned;

use super::value::SecretValue;
use super::vault::{Secret, Vault};

/// A file of secrets, which may not exist yet.
#[derive(Clone, Debug)]
pub struct SecretsFile {
    file: PrivateFile,
}

impl SecretsFile {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { file: PrivateFile::new(path) }
    }

    /// Where `sandpen secret` keeps them.
    pub fn of_state_directory(directory: &Path) -> Self {
        Self::new(directory.join("secrets.toml"))
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The secrets in it; none if there is no file.
    pub fn read_if_there(&self) -> Result<Vault> {
        self.understand(&self.file.read_if_there()?.unwrap_or_default())
    }

    /// The secrets in it, which somebody said there are.
    pub fn read(&self) -> Result<Vault> {
        self.understand(&self.file.read()?)
    }

    /// Read, change and write, while nobody else does the same. Nothing is written when the change is refused.
    pub fn change<T>(&self, change: impl FnOnce(&mut Vault) -> Result<T>) -> Result<T> {
        self.file.change(|text| {
            let mut vault = self.understand(&text.unwrap_or_default())?;
            let result = change(&mut vault)?;
            Ok((written(&vault), result))
        })
    }

    fn understand(&self, text: &str) -> Result<Vault> {
        let line_of = |offset: usize| 1 + text.bytes().take(offset).filter(|&byte| byte == b'\n').count();
        let wrong = |offset: usize, why: &str| {
            Error::invalid_input(format!("{} line {}: {why}", self.path().display(), line_of(offset)))
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
