//! The `host` image: the system tree of this machine, read-only, without anything that belongs to anybody.
//!
//! Its `/etc`, some hundred small files and links, is put together once in the store of images and shown from there,
//! so that a sandbox costs one more bind, and the next call only has to see that nothing has changed.

use std::path::{Path, PathBuf};

use images::Store;
use images::stamp::{self, Stamps};
use sandbox::{Error, Result};
use serde::{Deserialize, Serialize};

use super::interpreters::{self, Interpreters};
use super::prefix::Private;
use super::users::User;
use super::{Bind, RootTree, SEARCH_PATH, environment, etc, guest_path, image_error};
use crate::collect;

/// In the root of a merged system links into `/usr`, otherwise directories of their own.
const BESIDE_USR: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Places that programs expect, besides mount points.
const EMPTY: [&str; 6] = ["/home", "/opt", "/root", "/run", "/srv", "/sys"];

/// The host's tree. `cache_directory` is a store of its own; the answer, and what it took to find it, are kept there.
///
/// The first call after a change of the host asks its interpreters where they live and may take seconds: it belongs on
/// a thread that may block. Every other call takes about a hundred stats.
pub fn host_tree(cache_directory: &Path) -> Result<RootTree> {
    if let Some(tree) = known_host_tree(cache_directory) {
        return tree;
    }
    let (found, stamps) = Found::look(Path::new("/"), cache_directory)?;
    keep(&cache_directory.join("host.json"), &stamps, &found);
    found.into_tree()
}

/// The host's tree when an earlier call has found it and nothing has changed: quick enough for any thread.
pub fn known_host_tree(cache_directory: &Path) -> Option<Result<RootTree>> {
    let found = stamp::load::<Found>(&cache_directory.join("host.json"))?;
    collect::keep(&found.etc);
    found.etc.is_dir().then(|| found.into_tree())
}

/// What of the host is shown.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    etc: PathBuf,
    /// Names beside `/usr` in the root that are links, and what they say.
    links: Vec<(String, String)>,
    /// Names beside `/usr` in the root that are directories.
    directories: Vec<String>,
    interpreters: Interpreters,
}

impl Found {
    fn look(root: &Path, cache_directory: &Path) -> Result<(Self, Stamps)> {
        if !root.join("usr").is_dir() {
            return Err(Error::unsupported("this host has no /usr to make sandboxes from")
                .with_hint("use an image: dir:/path/to/root or tar:/path/to/root.tar"));
        }
        let store = Store::open(cache_directory).map_err(image_error)?;
        let FoundInterpreters { mut stamps, found: interpreters } = find_interpreters(cache_directory);
        let etc = etc::describe(root, &mut stamps)?;
        let etc = store.get_or_make(etc.digest(), |directory| etc.write(directory)).map_err(image_error)?;
        let (mut links, mut directories) = (Vec::new(), Vec::new());
        for name in BESIDE_USR {
            let path = root.join(name);
            stamps.path(&path);
            match path.read_link().map(|target| target.into_os_string().into_string()) {
                Ok(Ok(target)) => links.push((format!("/{name}"), target)),
                Ok(Err(_)) => {}
                Err(_) if path.is_dir() => directories.push(format!("/{name}")),
                Err(_) => {}
            }
        }
        Ok((Self { etc, links, directories, interpreters }, stamps))
    }

    fn into_tree(self) -> Result<RootTree> {
        let mut binds = vec![
            Bind { source: PathBuf::from("/usr"), target: "/usr".parse()? },
            Bind { source: self.etc, target: "/etc".parse()? },
        ];
        for path in self.directories {
            binds.push(Bind { target: path.parse()?, source: PathBuf::from(path) });
        }
        for (source, target) in self.interpreters.shown {
            binds.push(Bind { source, target: guest_path(&target)? });
        }
        let mut links = vec![("/var/tmp".parse()?, "/tmp".to_owned())];
        for (path, target) in self.links {
            links.push((path.parse()?, target));
        }
        let programs = self.interpreters.program_directories.iter().filter_map(|directory| directory.to_str());
        Ok(RootTree {
            fill: Vec::new(),
            modes: Vec::new(),
            lowers: Vec::new(),
            image_ids: None,
            belongings: None,
            binds,
            links,
            files: Vec::new(),
            directories: EMPTY.iter().map(|path| path.parse()).collect::<Result<_>>()?,
            top: Vec::new(),
            user: User::SANDBOX,
            search_path: programs.chain([SEARCH_PATH]).collect::<Vec<_>>().join(":"),
            environment: environment(),
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
    keep(&cached, &stamps, &known);
    known
}

fn homes() -> Vec<PathBuf> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of_users = passwd.lines().filter_map(|line| line.split(':').nth(5)).map(PathBuf::from);
    let own = std::env::var_os("HOME").map(PathBuf::from);
    of_users.chain(own).filter_map(|home| home.canonicalize().ok()).collect()
}

/// That an answer cannot be kept costs time the next time, and nothing else.
fn keep<T: Serialize>(path: &Path, stamps: &Stamps, answer: &T) {
    if let Err(error) = stamp::save(path, stamps, answer) {
        tracing::debug!(%error, path = %path.display(), "what was found on the host cannot be kept");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::Instant;

    use super::*;

    fn look(root: &Path) -> Result<Found> {
        let cache = tempfile::tempdir().unwrap();
        Found::look(root, cache.path()).map(|(found, _)| found)
    }

    #[test]
    fn merged_and_unmerged_systems_look_alike_inside() {
        let merged = tempfile::tempdir().unwrap();
        fs::create_dir_all(merged.path().join("usr/bin")).unwrap();
        symlink("usr/bin", merged.path().join("bin")).unwrap();
        let found = look(merged.path()).unwrap();
        assert_eq!(found.links, [("/bin".to_owned(), "usr/bin".to_owned())]);
        assert_eq!(found.directories, Vec::<String>::new());

        let unmerged = tempfile::tempdir().unwrap();
        fs::create_dir_all(unmerged.path().join("usr/bin")).unwrap();
        fs::create_dir_all(unmerged.path().join("bin")).unwrap();
        let found = look(unmerged.path()).unwrap();
        assert_eq!(found.links, []);
        assert_eq!(found.directories, ["/bin"]);
    }

    #[test]
    fn a_host_without_a_system_tree_says_so() {
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(look(empty.path()).unwrap_err().kind(), sandbox::ErrorKind::Unsupported);
    }

    #[test]
    fn this_host_gives_a_complete_tree_and_gives_it_fast_again() {
        let cache = tempfile::tempdir().unwrap();
        let first = host_tree(cache.path()).unwrap();
        for bind in &first.binds {
            assert!(bind.source.exists(), "{bind:?}");
            for closed in ["/", "/home", "/root", "/var", "/run", "/etc", "/srv"] {
                assert_ne!(bind.source, Path::new(closed));
            }
        }
        for file in ["passwd", "group", "hosts", "resolv.conf", "nsswitch.conf"] {
            let file = etc_of(&first).join(file);
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o644, "{}", file.display());
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

    fn etc_of(tree: &RootTree) -> PathBuf {
        tree.binds.iter().find(|bind| bind.target.as_bytes() == b"/etc").unwrap().source.clone()
    }

    #[test]
    fn a_spoiled_cache_is_made_anew() {
        let cache = tempfile::tempdir().unwrap();
        let first = host_tree(cache.path()).unwrap();
        fs::write(cache.path().join("host.json"), "{").unwrap();
        fs::write(cache.path().join("interpreters.json"), "garbage").unwrap();
        assert_eq!(host_tree(cache.path()).unwrap(), first);
        fs::remove_dir_all(etc_of(&first)).unwrap();
        assert_eq!(host_tree(cache.path()).unwrap(), first);
        assert!(etc_of(&first).join("passwd").exists());
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
