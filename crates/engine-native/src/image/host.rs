//! The `host` image: the system tree of this machine, read-only, without anything that belongs to anybody.
//!
//! What is not `/usr` is put together once as a small directory in the store of images: the made-up `/etc`, the links
//! in the root, and a mount point for whatever is shown. So a sandbox costs one overlay and a few binds instead of
//! some hundred small files, and the next call only has to see that nothing has changed.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use images::confined::{Directory, Missing, Name};
use images::{Digest, Store};
use sandbox::{Error, GuestPath, Result};
use serde::{Deserialize, Serialize};

use super::interpreters::{self, Interpreters};
use super::prefix::Private;
use super::stamp::{self, Stamps};
use super::{Bind, HOME, RootTree, SEARCH_PATH, SyntheticFile, etc, guest_path, image_error};

/// In the root of a merged system links into `/usr`, otherwise directories of their own.
const BESIDE_USR: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Mount points and places that programs expect, besides those of what is shown. `/root` is open to all because an
/// interpreter may live below it.
const EMPTY: [(&str, u32); 13] = [
    ("/dev", 0o755),
    ("/home", 0o755),
    ("/mnt", 0o755),
    ("/opt", 0o755),
    ("/proc", 0o555),
    ("/root", 0o755),
    ("/run", 0o755),
    ("/srv", 0o755),
    ("/sys", 0o555),
    ("/tmp", 0o1777),
    ("/usr", 0o755),
    ("/var", 0o755),
    ("/var/tmp", 0o1777),
];

/// The host's tree. `cache_directory` is the store of images; the answer, and what it took to find it, are kept there.
///
/// The first call after a change of the host asks its interpreters where they live and may take seconds: it belongs on
/// a thread that may block. Every other call takes about a hundred stats.
pub fn host_tree(cache_directory: &Path) -> Result<RootTree> {
    let cached = cache_directory.join("host.json");
    let skeleton = match stamp::load::<Skeleton>(&cached) {
        Some(skeleton) if skeleton.directory.is_dir() => skeleton,
        _ => {
            let (skeleton, stamps) = Skeleton::make(cache_directory)?;
            stamp::save(&cached, &stamps, &skeleton);
            skeleton
        }
    };
    skeleton.into_tree()
}

/// The prepared directory, and what is shown in it.
#[derive(Debug, Serialize, Deserialize)]
struct Skeleton {
    directory: PathBuf,
    shown: Vec<(PathBuf, PathBuf)>,
    search_path: String,
}

impl Skeleton {
    fn make(cache_directory: &Path) -> Result<(Self, Stamps)> {
        let store = Store::open(cache_directory).map_err(image_error)?;
        let interpreters = find_interpreters(cache_directory);
        let mut stamps = interpreters.stamps;
        let plan = Plan::new(Path::new("/"), &interpreters.found, &mut stamps)?;
        let directory = store.get_or_make(plan.digest(), |directory| plan.write(directory)).map_err(image_error)?;
        let programs = interpreters.found.program_directories.iter().filter_map(|directory| directory.to_str());
        let search_path = programs.chain([SEARCH_PATH]).collect::<Vec<_>>().join(":");
        Ok((Self { directory, shown: plan.shown, search_path }, stamps))
    }

    fn into_tree(self) -> Result<RootTree> {
        let bind = |(source, target): (PathBuf, PathBuf)| Ok(Bind { target: guest_path(&target)?, source });
        Ok(RootTree {
            lower: Some(self.directory),
            binds: self.shown.into_iter().map(bind).collect::<Result<_>>()?,
            links: Vec::new(),
            files: Vec::new(),
            directories: vec![HOME.parse()?],
            search_path: self.search_path,
            environment: vec![("LANG".to_owned(), "C.UTF-8".to_owned())],
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct FoundInterpreters {
    stamps: Stamps,
    found: Interpreters,
}

/// Kept apart from the rest: an edit of `/etc` is no reason to start every interpreter again.
fn find_interpreters(cache_directory: &Path) -> FoundInterpreters {
    let cached = cache_directory.join("interpreters.json");
    if let Some(known) = stamp::load::<FoundInterpreters>(&cached) {
        return known;
    }
    let private = Private { homes: homes(), state: cache_directory.canonicalize().unwrap_or_default() };
    let mut stamps = Stamps::default();
    let found = interpreters::find(&private, &mut stamps);
    let known = FoundInterpreters { stamps: stamps.clone(), found };
    stamp::save(&cached, &stamps, &known);
    known
}

fn homes() -> Vec<PathBuf> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of_users = passwd.lines().filter_map(|line| line.split(':').nth(5)).map(PathBuf::from);
    let own = std::env::var_os("HOME").map(PathBuf::from);
    of_users.chain(own).filter_map(|home| home.canonicalize().ok()).collect()
}

/// Everything that will be in the prepared directory, and what will be mounted on it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    directories: Vec<(GuestPath, u32)>,
    links: Vec<(GuestPath, Vec<u8>)>,
    files: Vec<SyntheticFile>,
    shown: Vec<(PathBuf, PathBuf)>,
}

impl Plan {
    fn new(root: &Path, interpreters: &Interpreters, stamps: &mut Stamps) -> Result<Self> {
        if !root.join("usr").is_dir() {
            return Err(Error::unsupported("this host has no /usr to make sandboxes from")
                .with_hint("use an image: dir:/path/to/root or tar:/path/to/root.tar"));
        }
        let mut plan = Self { shown: vec![(root.join("usr"), PathBuf::from("/usr"))], ..Self::default() };
        for (path, mode) in EMPTY {
            plan.directories.push((path.parse()?, mode));
        }
        for name in BESIDE_USR {
            let (real, path) = (root.join(name), Path::new("/").join(name));
            stamps.path(&real);
            if let Ok(target) = real.read_link() {
                plan.links.push((guest_path(&path)?, target.as_os_str().as_bytes().to_vec()));
            } else if real.is_dir() {
                plan.directories.push((guest_path(&path)?, 0o755));
                plan.shown.push((real, path));
            }
        }
        let etc = etc::describe(root, stamps)?;
        plan.directories.extend(etc.directories.into_iter().map(|path| (path, 0o755)));
        plan.links.extend(etc.links);
        plan.files.extend(etc.files);
        for (source, target) in &interpreters.shown {
            let place = guest_path(target)?;
            if source.is_dir() {
                plan.directories.push((place, 0o755));
            } else {
                plan.files.push(SyntheticFile { path: place, contents: Vec::new(), mode: 0o755 });
            }
            plan.shown.push((source.clone(), target.clone()));
        }
        Ok(plan)
    }

    /// Named after all that is in it, so that two ways to the same tree meet.
    fn digest(&self) -> Digest {
        let mut all = Vec::new();
        let mut part = |kind: u8, mode: u32, path: &GuestPath, contents: &[u8]| {
            all.push(kind);
            all.extend(mode.to_le_bytes());
            for bytes in [path.as_bytes(), contents] {
                all.extend((bytes.len() as u64).to_le_bytes());
                all.extend(bytes);
            }
        };
        self.directories.iter().for_each(|(path, mode)| part(b'd', *mode, path, b""));
        self.links.iter().for_each(|(path, target)| part(b'l', 0, path, target));
        self.files.iter().for_each(|file| part(b'f', file.mode, &file.path, &file.contents));
        Digest::of(&all)
    }

    fn write(&self, root: &Directory) -> images::Result<()> {
        for (path, mode) in &self.directories {
            let doing = || images::Error::io(format!("making {path}"));
            let names = path.components().filter_map(Name::new);
            let directory = root.descend(names, Missing::Create).map_err(doing())?;
            directory.set_mode(*mode).map_err(doing())?;
        }
        for (path, target) in &self.links {
            within(root, path, |parent, name| parent.symlink(name, target))?;
        }
        for file in &self.files {
            within(root, &file.path, |parent, name| {
                let mut written = parent.create_file(name, file.mode)?;
                written.write_all(&file.contents)
            })?;
        }
        Ok(())
    }
}

/// Does something to the last component of a path in the directory that holds it.
fn within(
    root: &Directory,
    path: &GuestPath,
    act: impl FnOnce(&Directory, Name<'_>) -> std::io::Result<()>,
) -> images::Result<()> {
    let doing = || images::Error::io(format!("making {path}"));
    let mut names: Vec<Name<'_>> = path.components().filter_map(Name::new).collect();
    let Some(last) = names.pop() else { return Ok(()) };
    let parent = root.descend(names, Missing::Create).map_err(doing())?;
    act(&parent, last).map_err(doing())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::Instant;

    use super::*;

    fn plan(root: &Path) -> Plan {
        Plan::new(root, &Interpreters::default(), &mut Stamps::default()).unwrap()
    }

    #[test]
    fn merged_and_unmerged_systems_look_alike_inside() {
        let merged = tempfile::tempdir().unwrap();
        fs::create_dir_all(merged.path().join("usr/bin")).unwrap();
        symlink("usr/bin", merged.path().join("bin")).unwrap();
        let merged_plan = plan(merged.path());
        assert_eq!(merged_plan.shown.len(), 1);
        assert!(merged_plan.links.contains(&("/bin".parse().unwrap(), b"usr/bin".to_vec())));

        let unmerged = tempfile::tempdir().unwrap();
        fs::create_dir_all(unmerged.path().join("usr/bin")).unwrap();
        fs::create_dir_all(unmerged.path().join("bin")).unwrap();
        let targets: Vec<PathBuf> = plan(unmerged.path()).shown.into_iter().map(|(_, target)| target).collect();
        assert_eq!(targets, [PathBuf::from("/usr"), PathBuf::from("/bin")]);
    }

    #[test]
    fn a_host_without_a_system_tree_says_so() {
        let empty = tempfile::tempdir().unwrap();
        let error = Plan::new(empty.path(), &Interpreters::default(), &mut Stamps::default()).unwrap_err();
        assert_eq!(error.kind(), sandbox::ErrorKind::Unsupported);
    }

    #[test]
    fn this_host_gives_a_complete_tree_and_gives_it_fast_again() {
        let cache = tempfile::tempdir().unwrap();
        let first = host_tree(cache.path()).unwrap();
        let lower = first.lower.clone().unwrap();
        for place in ["etc/passwd", "etc/hosts", "etc/resolv.conf", "dev", "proc", "tmp", "usr", "home"] {
            assert!(lower.join(place).exists(), "{place}");
        }
        for bind in &first.binds {
            assert!(bind.source.exists(), "{bind:?}");
            let place = lower.join(bind.target.to_string().trim_start_matches('/'));
            assert_eq!(place.is_dir(), bind.source.is_dir(), "{bind:?}");
            for closed in ["/", "/home", "/root", "/var", "/run", "/etc", "/srv"] {
                assert_ne!(bind.source, Path::new(closed));
            }
        }
        assert!(first.search_path.ends_with(SEARCH_PATH));

        let fastest = (0..20)
            .map(|_| {
                let start = Instant::now();
                assert_eq!(host_tree(cache.path()).unwrap(), first);
                start.elapsed()
            })
            .min()
            .unwrap();
        assert!(fastest.as_micros() < 5_000, "a warm call takes {fastest:?}");
    }

    #[test]
    fn a_spoiled_cache_is_made_anew() {
        let cache = tempfile::tempdir().unwrap();
        let first = host_tree(cache.path()).unwrap();
        fs::write(cache.path().join("host.json"), "{").unwrap();
        fs::write(cache.path().join("interpreters.json"), "garbage").unwrap();
        assert_eq!(host_tree(cache.path()).unwrap(), first);
        fs::remove_dir_all(first.lower.as_ref().unwrap()).unwrap();
        assert_eq!(host_tree(cache.path()).unwrap(), first);
        assert!(first.lower.unwrap().join("etc/passwd").exists());
    }

    #[test]
    fn the_host_s_interpreters_are_reached() {
        let cache = tempfile::tempdir().unwrap();
        let tree = host_tree(cache.path()).unwrap();
        let visible = |path: &Path| tree.binds.iter().any(|bind| path.starts_with(bind.target.to_string()));
        for program in ["python3", "node"] {
            let here = std::env::split_paths(&tree.search_path)
                .map(|directory| directory.join(program))
                .find(|path| path.exists());
            if let Some(found) = here {
                assert!(visible(&found.canonicalize().unwrap()), "{}", found.display());
            }
        }
    }
}
