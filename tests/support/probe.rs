//! The C program that is run inside: compiled once per test program, static, so that any root tree can run it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;

const SOURCES: &[(&str, &str)] = &[
    ("probe.h", include_str!("../escape/probe/probe.h")),
    ("probe.c", include_str!("../escape/probe/probe.c")),
    ("files.c", include_str!("../escape/probe/files.c")),
    ("process.c", include_str!("../escape/probe/process.c")),
    ("kernel.c", include_str!("../escape/probe/kernel.c")),
    ("resources.c", include_str!("../escape/probe/resources.c")),
    ("network.c", include_str!("../escape/probe/network.c")),
    ("fetch.c", include_str!("../escape/probe/fetch.c")),
    ("listen.c", include_str!("../escape/probe/listen.c")),
];

/// Compiles the probe into `directory` and answers where it is.
pub fn compile(directory: &Path) -> Result<PathBuf> {
    for (name, text) in SOURCES {
        fs::write(directory.join(name), text)?;
    }
    let program = directory.join("probe");
    let files = SOURCES.iter().map(|(name, _)| *name).filter(|name| name.ends_with(".c"));
    let output = Command::new("cc")
        .current_dir(directory)
        .args(["-static", "-O1", "-Wall", "-Wextra", "-pthread", "-o", "probe"])
        .args(files)
        .output()
        .map_err(|error| format!("cc does not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("the probe does not compile: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(program)
}

/// What the probe said: items with what was found, in order.
#[derive(Clone, Debug, Default)]
pub struct Findings(pub Vec<(String, String)>);

impl Findings {
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(|line| line.split_once('\t')).map(|(a, b)| (a.to_owned(), b.to_owned())).collect())
    }

    pub fn get(&self, item: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == item).map(|(_, found)| found.as_str())
    }

    pub fn all<'a>(&'a self, item: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(name, _)| name == item).map(|(_, found)| found.as_str())
    }

    pub fn number(&self, item: &str) -> Option<i64> {
        self.get(item)?.split_whitespace().next()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Run without a sandbox, the probe must see what a sandbox hides: it is the measure of all checks.
    #[test]
    fn without_walls_the_probe_sees_everything() {
        let directory = tempfile::tempdir().unwrap();
        let program = compile(directory.path()).unwrap();
        let canary = directory.path().join("canary");
        fs::write(&canary, "secret").unwrap();
        let output = Command::new(program).arg("canary").arg(&canary).output().unwrap();
        let findings = Findings::parse(&String::from_utf8_lossy(&output.stdout));
        assert!(findings.all("seen").any(|seen| seen.ends_with("secret")), "{findings:?}");
    }
}
