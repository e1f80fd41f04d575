//! A machine of its own for each test: a context, a store, and a way to see what was built.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{Done, World};

pub struct Place(pub World);

/// An entry of an image: kind, permissions, owner, group, and what it holds or where it leads.
pub type Entry = (char, u32, u64, u64, String);

impl Place {
    pub fn new() -> Self {
        let place = Self(World::new());
        fs::create_dir(place.context()).unwrap();
        place
    }

    pub fn context(&self) -> PathBuf {
        self.0.work().join("context")
    }

    /// A file of the context.
    pub fn file(&self, name: &str, contents: &str) -> &Self {
        self.0.write(&format!("context/{name}"), contents);
        self
    }

    pub fn link(&self, name: &str, target: &str) -> &Self {
        let path = self.context().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
        self
    }

    pub fn mode(&self, name: &str, mode: u32) -> &Self {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(self.context().join(name), fs::Permissions::from_mode(mode)).unwrap();
        self
    }

    /// The result of a build of this Dockerfile as the image `made:1`.
    pub fn try_build(&self, dockerfile: &str, more: &[&str]) -> Done {
        self.0.write("Dockerfile", dockerfile);
        self.0.run(&[&["--json", "image", "build", "-t", "made:1", "-f", "Dockerfile"], more, &["context"]].concat())
    }

    #[track_caller]
    pub fn build(&self, dockerfile: &str) -> Value {
        self.build_with(dockerfile, &[])
    }

    #[track_caller]
    pub fn build_with(&self, dockerfile: &str, more: &[&str]) -> Value {
        let done = self.try_build(dockerfile, more);
        assert_eq!(done.code, Some(0), "{}{}", done.stdout, done.stderr);
        done.json()
    }

    /// The message of a build that must fail.
    #[track_caller]
    pub fn fails(&self, dockerfile: &str, kind: &str, part: &str) {
        self.fails_with(dockerfile, &[], kind, part);
    }

    #[track_caller]
    pub fn fails_with(&self, dockerfile: &str, more: &[&str], kind: &str, part: &str) {
        let done = self.try_build(dockerfile, more);
        assert_eq!(done.code, Some(1), "{}{}", done.stdout, done.stderr);
        let error = &done.json()["error"];
        let message = format!("{} {}", error["message"], error["hint"]);
        assert_eq!(error["kind"], kind, "{message}");
        assert!(message.contains(part), "{part:?} is not in {message}");
    }

    /// How each step was made.
    pub fn made(built: &Value) -> Vec<&str> {
        built["steps"].as_array().unwrap().iter().map(|step| step["made"].as_str().unwrap()).collect()
    }

    /// The layout of an image as others read it.
    fn layout(&self, image: &str) -> (PathBuf, Value, Value) {
        let layout = self.0.work().join("layout");
        let _ = fs::remove_dir_all(&layout);
        let done = self.0.run(&["image", "export", "--directory", image, "layout"]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        let read = |path: PathBuf| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
        let index = read(layout.join("index.json"));
        let manifest = read(blob(&layout, &index["manifests"][0]["digest"]));
        let config = read(blob(&layout, &manifest["config"]["digest"]));
        (layout, manifest, config)
    }

    pub fn config(&self, image: &str) -> Value {
        self.layout(image).2
    }

    /// All entries of all layers over each other, removals applied.
    pub fn tree(&self, image: &str) -> BTreeMap<String, Entry> {
        let (layout, manifest, _) = self.layout(image);
        let mut tree: BTreeMap<String, Entry> = BTreeMap::new();
        for layer in manifest["layers"].as_array().unwrap() {
            let mut archive = tar::Archive::new(fs::File::open(blob(&layout, &layer["digest"])).unwrap());
            for entry in archive.entries().unwrap() {
                let mut entry = entry.unwrap();
                let path =
                    String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").trim_matches('/').to_owned();
                let name = path.rsplit('/').next().unwrap().to_owned();
                if let Some(hidden) = name.strip_prefix(".wh.") {
                    let gone = path.replace(&name, hidden);
                    tree.retain(|path, _| *path != gone && !path.starts_with(&format!("{gone}/")));
                    continue;
                }
                let header = entry.header().clone();
                let link = || String::from_utf8_lossy(&entry.link_name_bytes().unwrap()).into_owned();
                let (kind, holds) = match header.entry_type() {
                    tar::EntryType::Directory => ('d', String::new()),
                    tar::EntryType::Symlink => ('l', link()),
                    tar::EntryType::Link => ('h', link()),
                    _ => {
                        let mut bytes = Vec::new();
                        entry.read_to_end(&mut bytes).unwrap();
                        bytes.truncate(1 << 16);
                        ('f', String::from_utf8_lossy(&bytes).into_owned())
                    }
                };
                let numbers = (header.mode().unwrap(), header.uid().unwrap(), header.gid().unwrap());
                tree.insert(path, (kind, numbers.0, numbers.1, numbers.2, holds));
            }
        }
        tree
    }

    /// An image with a shell and some programs of the host, called `base:1`.
    pub fn import_base(&self) {
        let tree = self.0.work().join("base");
        for program in
            ["sh", "cat", "id", "ls", "mkdir", "rm", "sleep", "chmod", "chown", "ln", "env", "stat", "mv", "touch"]
        {
            let program = Path::new("/bin").join(program);
            let listed = Command::new("ldd").arg(&program).output().unwrap();
            let listed = String::from_utf8(listed.stdout).unwrap();
            let libraries = listed.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new);
            for file in libraries.chain([program.as_path()]) {
                let copy = tree.join(file.strip_prefix("/").unwrap());
                fs::create_dir_all(copy.parent().unwrap()).unwrap();
                fs::copy(file, copy).unwrap();
            }
        }
        fs::create_dir_all(tree.join("etc")).unwrap();
        fs::create_dir_all(tree.join("usr/share/real")).unwrap();
        fs::create_dir_all(tree.join("tmp")).unwrap();
        fs::set_permissions(tree.join("tmp"), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
        std::os::unix::fs::symlink("usr/share/real", tree.join("alias")).unwrap();
        let users = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/var/www:/bin/sh\n";
        fs::write(tree.join("etc/passwd"), users).unwrap();
        fs::write(tree.join("etc/group"), "root:x:0:\nwww:x:34:\nstaff:x:50:\n").unwrap();
        let mut tar = Command::new("tar");
        tar.args(["--owner=0", "--group=0", "-C", "base", "-cf", "base.tar", "."]);
        assert!(tar.current_dir(self.0.work()).status().unwrap().success());
        let imported = self.0.run(&["image", "import", "base.tar", "base:1"]);
        assert_eq!(imported.code, Some(0), "{}", imported.stderr);
    }
}

fn blob(layout: &Path, digest: &Value) -> PathBuf {
    layout.join("blobs").join(digest.as_str().unwrap().replace(':', "/"))
}
