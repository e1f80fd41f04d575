//! Layers as archives, written entry by entry.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tar::{Builder, EntryType, Header};

/// One layer on its way. Owners are root's unless said otherwise.
pub struct Layer {
    archive: Builder<Vec<u8>>,
    owner: (u64, u64),
}

impl Layer {
    pub fn new() -> Self {
        Self { archive: Builder::new(Vec::new()), owner: (0, 0) }
    }

    /// Whose the entries after this are.
    pub fn owner(mut self, user: u64, group: u64) -> Self {
        self.owner = (user, group);
        self
    }

    pub fn file(self, path: &str, mode: u32, contents: impl AsRef<[u8]>) -> Self {
        self.entry(EntryType::Regular, path, mode, contents.as_ref())
    }

    pub fn directory(self, path: &str, mode: u32) -> Self {
        self.entry(EntryType::Directory, path, mode, b"")
    }

    pub fn link(mut self, path: &str, target: &str) -> Self {
        let mut header = self.header(EntryType::Symlink, 0o777, 0);
        self.archive.append_link(&mut header, path, target).expect("a link");
        self
    }

    /// Programs of the host with the libraries that they are linked with, at the paths that they have here.
    pub fn programs(mut self, names: &[&str]) -> Self {
        for file in names.iter().flat_map(|name| parts(name)).collect::<BTreeSet<_>>() {
            let contents = std::fs::read(&file).expect("a program or library");
            self = self.file(file.to_str().expect("a path").trim_start_matches('/'), 0o755, contents);
        }
        self
    }

    pub fn finish(self) -> Vec<u8> {
        self.archive.into_inner().expect("an archive in memory")
    }

    fn entry(mut self, kind: EntryType, path: &str, mode: u32, contents: &[u8]) -> Self {
        let mut header = self.header(kind, mode, contents.len() as u64);
        self.archive.append_data(&mut header, path, contents).expect("an entry");
        self
    }

    fn header(&self, kind: EntryType, mode: u32, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(self.owner.0);
        header.set_gid(self.owner.1);
        header.set_size(size);
        header
    }
}

/// A layer that a shell and what the tests ask of it can run in.
pub fn system() -> Vec<u8> {
    static SYSTEM: OnceLock<Vec<u8>> = OnceLock::new();
    let make = || {
        Layer::new().programs(&["sh", "cat", "chmod", "env", "id", "ln", "ls", "mkdir", "rm", "stat", "touch"]).finish()
    };
    SYSTEM.get_or_init(make).clone()
}

/// A program below `/bin` and the files that its loader opens.
fn parts(name: &str) -> Vec<PathBuf> {
    let program = Path::new("/bin").join(name);
    let output = Command::new("ldd").arg(&program).output().expect("ldd");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let libraries = text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
    libraries.chain([program]).collect()
}
