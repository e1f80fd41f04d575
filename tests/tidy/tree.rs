//! A source tree as the rules see it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Paths from the root of the repository, with their text.
pub struct Tree(BTreeMap<String, String>);

#[derive(Clone, Copy)]
pub struct Rule {
    pub name: &'static str,
    /// One line per breach, naming the file.
    pub check: fn(&Tree) -> Vec<String>,
    pub broken_by: &'static [(&'static str, &'static str)],
    pub kept_by: &'static [(&'static str, &'static str)],
}

impl Tree {
    pub fn of_the_repository() -> Self {
        let mut files = BTreeMap::new();
        read(&root(), &root(), &mut files);
        Self(files)
    }

    pub fn of_samples(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect())
    }

    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Rust sources, except the rules themselves: they must name what they forbid.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs") && !path.starts_with("tests/tidy/"))
    }

    pub fn manifests(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with("Cargo.toml"))
    }

    pub fn get(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    /// Whether a file or a directory is there.
    pub fn has(&self, path: &str) -> bool {
        let below = format!("{}/", path.trim_end_matches('/'));
        self.0.contains_key(path) || self.0.keys().any(|present| present.starts_with(&below))
    }

    /// Directories that hold a file at any depth, down to `depth` components.
    pub fn directories(&self, depth: usize) -> Vec<String> {
        let mut found: Vec<String> = self
            .0
            .keys()
            .filter_map(|path| path.rsplit_once('/'))
            .flat_map(|(directory, _)| {
                let components: Vec<&str> = directory.split('/').collect();
                (1..=components.len().min(depth)).map(move |count| components[..count].join("/"))
            })
            .collect();
        found.sort();
        found.dedup();
        found
    }
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the repository").to_owned()
}

/// What the repository does not hold: build products and other people's state.
const SKIPPED: &[&str] = &[".git", "target", "corpus", "artifacts", "node_modules"];

fn read(root: &Path, directory: &Path, files: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(directory).expect("the tree can be read").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let kind = entry.file_type().expect("the tree can be read");
        if kind.is_dir() && !SKIPPED.iter().any(|skipped| name == *skipped) {
            read(root, &path, files);
        } else if kind.is_file()
            && name != ".git"
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            let relative = path.strip_prefix(root).expect("found below the root");
            files.insert(relative.to_string_lossy().into_owned(), text);
        }
    }
}
