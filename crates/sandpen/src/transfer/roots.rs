//! The places of this machine that a model may copy from and to, because the operator opened them.
//!
//! A path is taken apart against the roots as text first, for a message that helps; what decides is the kernel, which
//! resolves the rest below the root's descriptor and through no link at all. Links that a sandbox planted in an earlier
//! copy therefore lead nowhere.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use async_trait::async_trait;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use sandbox::{Error, ErrorKind, FileKind, Files, GuestPath, Limits, Result};
use tools::{Copied, HostFiles};

use super::host_tree::HostTree;
use super::unpack::Links;
use super::{HostSource, HostTarget, host_error, own_name};

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What an operator writes: a directory, and `:ro` behind it when nothing may be copied there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedPath {
    path: PathBuf,
    access: Access,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    ReadOnly,
    ReadWrite,
}

impl FromStr for OpenedPath {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (path, access) = match text.strip_suffix(":ro") {
            Some(path) => (path, Access::ReadOnly),
            None => (text, Access::ReadWrite),
        };
        // The operator's own links are resolved now, once; later ones are not followed.
        let path = Path::new(path).canonicalize().map_err(|cause| host_error(Path::new(path), &cause))?;
        if path.parent().is_none() {
            return Err(Error::invalid_input("the whole machine cannot be opened to sandboxes")
                .with_hint("name the directory that the work is in"));
        }
        Ok(Self { path, access })
    }
}

impl fmt::Display for OpenedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.access {
            Access::ReadOnly => write!(f, "{} (read only)", self.path.display()),
            Access::ReadWrite => write!(f, "{}", self.path.display()),
        }
    }
}

/// The opened places, by descriptor.
#[derive(Debug)]
pub struct Roots(Vec<Root>);

#[derive(Debug)]
struct Root {
    opened: OpenedPath,
    directory: OwnedFd,
}

impl Roots {
    pub fn open(paths: &[OpenedPath]) -> Result<Self> {
        let open = |opened: &OpenedPath| {
            let directory = rustix::fs::open(&opened.path, DIRECTORY, Mode::empty())
                .map_err(|errno| host_error(&opened.path, &errno.into()))?;
            Ok(Root { opened: opened.clone(), directory })
        };
        paths.iter().map(open).collect::<Result<_>>().map(Self)
    }

    /// The innermost root that a path is below, and the rest of the path.
    fn find<'a>(&self, path: &'a Path) -> Result<(&Root, &'a Path)> {
        let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        let below = |root: &'_ &Root| path.starts_with(&root.opened.path);
        let root = self.0.iter().filter(below).max_by_key(|root| root.opened.path.components().count());
        match root {
            Some(root) if plain => Ok((root, path.strip_prefix(&root.opened.path).unwrap_or(Path::new("")))),
            Some(_) | None => {
                let opened: Vec<_> = self.0.iter().map(|root| root.opened.to_string()).collect();
                Err(Error::new(ErrorKind::Denied, "this path is not below a place that the operator opened")
                    .with_hint(format!("use an absolute path, without .., below {}", opened.join(" or "))))
            }
        }
    }

    fn source(&self, path: &Path) -> Result<HostSource> {
        let (root, rest) = self.find(path)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = root.resolve(rest, flags).map_err(|errno| refused(path, errno))?;
        Ok(HostSource { file: file.into(), path: path.to_owned() })
    }

    fn target(&self, path: &Path, from: &GuestPath) -> Result<HostTarget> {
        let (root, rest) = self.find(path)?;
        match root.opened.access {
            Access::ReadWrite => {}
            Access::ReadOnly => {
                return Err(Error::new(ErrorKind::Denied, "this place is open for reading only"));
            }
        }
        let (directory, shown, name): (_, _, &OsStr) = match root.resolve(rest, DIRECTORY) {
            Ok(directory) => (directory, path, own_name(from)?),
            Err(Errno::NOENT | Errno::NOTDIR) => {
                let name = rest.file_name().ok_or_else(|| refused(path, Errno::NOENT))?;
                let above = rest.parent().unwrap_or(Path::new(""));
                let directory = root.resolve(above, DIRECTORY).map_err(|errno| refused(path, errno))?;
                (directory, path.parent().unwrap_or(path), name)
            }
            Err(errno) => return Err(refused(path, errno)),
        };
        let written = shown.join(name);
        let read_only = |root: &&Root| root.opened.access == Access::ReadOnly && root.opened.path.starts_with(&written);
        if let Some(inside) = self.0.iter().find(read_only) {
            return Err(Error::new(
                ErrorKind::Denied,
                format!("{} is in there, and open for reading only", inside.opened.path.display()),
            ));
        }
        let above = HostTree::from_descriptor(directory, shown.to_owned());
        Ok(HostTarget { above, name: name.to_owned(), links: Links::Inside })
    }
}

impl Root {
    fn resolve(&self, rest: &Path, flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
        let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
        rustix::fs::openat2(&self.directory, rest, flags, Mode::empty(), RESOLVE)
    }
}

fn refused(path: &Path, errno: Errno) -> Error {
    match errno {
        Errno::LOOP | Errno::XDEV => Error::new(ErrorKind::Denied, format!("{} leads through a link", path.display()))
            .with_hint("name the file by the path without links"),
        errno => host_error(path, &errno.into()),
    }
}

#[async_trait]
impl HostFiles for Roots {
    async fn copy_in(&self, host: &str, files: &dyn Files, guest: &GuestPath) -> Result<Copied> {
        super::send(files, self.source(Path::new(host))?, guest).await.map(Into::into)
    }

    async fn copy_out(&self, files: &dyn Files, guest: &GuestPath, host: &str, limits: Limits) -> Result<Copied> {
        let kind: FileKind = files.stat(guest).await?.kind;
        let target = self.target(Path::new(host), guest)?;
        super::fetch(files, guest, kind, target, limits.into()).await.map(Into::into)
    }
}

impl From<super::Copied> for Copied {
    fn from(copied: super::Copied) -> Self {
        Self { files: copied.files, bytes: copied.bytes, skipped: copied.skipped }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    struct Place {
        directory: tempfile::TempDir,
        roots: Roots,
    }

    impl Place {
        fn new(suffix: &str) -> Self {
            let directory = tempfile::tempdir().unwrap();
            fs::create_dir_all(directory.path().join("open/inner")).unwrap();
            fs::write(directory.path().join("secret"), "no").unwrap();
            fs::write(directory.path().join("open/file"), "yes").unwrap();
            symlink("../secret", directory.path().join("open/link")).unwrap();
            symlink("..", directory.path().join("open/up")).unwrap();
            symlink("inner", directory.path().join("open/in")).unwrap();
            let opened: OpenedPath = format!("{}/open{suffix}", directory.path().display()).parse().unwrap();
            Self { roots: Roots::open(&[opened]).unwrap(), directory }
        }

        fn path(&self, below: &str) -> PathBuf {
            self.directory.path().canonicalize().unwrap().join(below)
        }

        fn reads(&self, below: &str) -> bool {
            self.roots.source(&self.path(below)).is_ok()
        }

        fn writes(&self, below: &str) -> bool {
            self.roots.target(&self.path(below), &GuestPath::workspace()).is_ok()
        }
    }

    #[test]
    fn only_what_is_below_a_root_is_reached() {
        let place = Place::new("");
        assert!(place.reads("open/file") && place.reads("open") && place.reads("open/inner"));
        assert!(place.writes("open") && place.writes("open/new") && place.writes("open/inner/new"));
        for outside in ["secret", "open/../secret", "open/link", "open/up/secret", "open/in/x", "opened", ""] {
            assert!(!place.reads(outside), "{outside:?} was read");
        }
        for outside in ["secret", "new", "open/../new", "open/up/new", "open/in/new", "open/none/new"] {
            assert!(!place.writes(outside), "{outside:?} was written");
        }
        assert!(place.roots.source(Path::new("open/file")).is_err(), "a relative path was taken");
    }

    #[test]
    fn a_place_for_reading_is_not_written() {
        let place = Place::new(":ro");
        assert!(place.reads("open/file") && !place.writes("open/new"));
    }

    /// Neither by the name that the sandbox gives a copy, nor by a name below that.
    #[test]
    fn a_place_for_reading_inside_one_for_writing_is_not_written() {
        let place = Place::new("");
        let open = |below: &str| format!("{}{below}", place.path("open").display()).parse::<OpenedPath>().unwrap();
        let roots = Roots::open(&[open(""), open("/inner:ro")]).unwrap();
        let target = |host: &str, guest: &str| roots.target(&place.path(host), &guest.parse().unwrap()).is_ok();
        assert!(target("open", "/workspace/other"));
        assert!(
            !target("open", "/workspace/inner")
                && !target("open/inner", "/workspace/x")
                && !target("open/inner/x", "/x")
        );
        fs::create_dir(place.path("open/inner/deep")).unwrap();
        let roots = Roots::open(&[open(""), open("/inner/deep:ro")]).unwrap();
        assert!(roots.target(&place.path("open"), &"/workspace/inner".parse().unwrap()).is_err());
    }

    #[test]
    fn the_whole_machine_is_no_place() {
        assert!("/".parse::<OpenedPath>().is_err());
        assert!("/..".parse::<OpenedPath>().is_err());
    }
}
