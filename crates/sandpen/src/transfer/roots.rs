//! The places of this machine that a model may copy from and to, because the operator opened them.
//!
//! A path is taken apart against the roots as text first, for a message that helps; what decides is the kernel, by which
//! the rest is resolved below the root's descriptor and through no link at all. Links that a sandbox planted in an earlier
//! copy therefore lead nowhere.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use async_trait::async_trait;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sandbox::{ByteRange, Error, ErrorKind, FileKind, Files, GuestPath, Limits, Result};
use tools::{Copied, HostEntry, HostFiles};

use super::host_tree::HostTree;
use super::links::Links;
use super::resolve::resolve;
use super::{HostSource, HostTarget, host_error, own_name};

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

    /// The same for what is to be written.
    fn find_writable<'a>(&self, path: &'a Path) -> Result<(&Root, &'a Path)> {
        let (root, rest) = self.find(path)?;
        match root.opened.access {
            Access::ReadWrite => Ok((root, rest)),
            Access::ReadOnly => Err(Error::new(ErrorKind::Denied, "this place is open for reading only")),
        }
    }

    /// What is open for reading only must not be replaced together with what it lies in.
    fn admit(&self, written: &Path) -> Result<()> {
        let read_only = |root: &&Root| root.opened.access == Access::ReadOnly && root.opened.path.starts_with(written);
        match self.0.iter().find(read_only) {
            Some(inside) => Err(Error::new(
                ErrorKind::Denied,
                format!("{} is in there, and open for reading only", inside.opened.path.display()),
            )),
            None => Ok(()),
        }
    }

    fn target(&self, path: &Path, from: &GuestPath) -> Result<HostTarget> {
        let (root, rest) = self.find_writable(path)?;
        let (directory, shown, name): (_, _, OsString) = match root.resolve(rest, DIRECTORY) {
            Ok(directory) => (directory, path, own_name(from)?),
            Err(Errno::NOENT | Errno::NOTDIR) => {
                let name = rest.file_name().ok_or_else(|| refused(path, Errno::NOENT))?;
                let above = rest.parent().unwrap_or(Path::new(""));
                let directory = root.resolve(above, DIRECTORY).map_err(|errno| refused(path, errno))?;
                (directory, path.parent().unwrap_or(path), name.to_owned())
            }
            Err(errno) => return Err(refused(path, errno)),
        };
        self.admit(&shown.join(&name))?;
        let above = HostTree::from_descriptor(directory, shown.to_owned());
        Ok(HostTarget { above, name, links: Links::Inside })
    }

    /// Under exactly this name. Directories above it are made, from descriptor to name and through no link.
    fn exact_target(&self, path: &Path) -> Result<HostTarget> {
        let (root, rest) = self.find_writable(path)?;
        let name = rest.file_name().ok_or_else(|| {
            Error::invalid_input(format!("{} is a directory", path.display())).with_hint("name a file in it")
        })?;
        self.admit(path)?;
        let top = root.directory.try_clone().map_err(|cause| host_error(&root.opened.path, &cause))?;
        let above: Vec<&OsStr> = rest.parent().into_iter().flatten().collect();
        let directory = HostTree::from_descriptor(top, root.opened.path.clone()).directory(&above)?;
        let above = HostTree::from_descriptor(directory, path.parent().unwrap_or(path).to_owned());
        Ok(HostTarget { above, name: name.to_owned(), links: Links::Inside })
    }
}

impl Root {
    fn resolve(&self, rest: &Path, flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
        resolve(&self.directory, rest, flags)
    }
}

/// Relative paths start where this process does. What `..` means is decided by the text: links are not followed anyhow.
fn anchored(path: &str) -> Result<PathBuf> {
    let path = Path::new(path);
    let whole = match path.is_absolute() {
        true => path.to_owned(),
        false => std::env::current_dir()
            .map_err(|cause| Error::unavailable("the server's own directory is not known").with_cause(cause))?
            .join(path),
    };
    let mut plain = PathBuf::new();
    for part in whole.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(part),
        }
    }
    Ok(plain)
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

    fn open(&self, host: &str) -> Result<Box<dyn HostEntry>> {
        let source = self.source(&anchored(host)?)?;
        let metadata = source.file.metadata().map_err(|cause| host_error(&source.path, &cause))?;
        let kind = match metadata.file_type() {
            kind if kind.is_dir() => FileKind::Directory,
            kind if kind.is_file() => FileKind::Regular,
            _ => FileKind::Other,
        };
        Ok(Box::new(Entry { source, kind }))
    }

    async fn copy_file_out(&self, files: &dyn Files, guest: &GuestPath, host: &str, limits: Limits) -> Result<Copied> {
        match files.stat(guest).await?.kind {
            FileKind::Regular | FileKind::Link => {}
            FileKind::Directory => return Err(Error::invalid_input(format!("{guest} is a directory, not a file"))),
            FileKind::Other => return Err(Error::invalid_input(format!("{guest} is not a regular file"))),
        }
        let source = files.read(guest, ByteRange::default()).await?;
        // Now, so that what cannot be read leaves no directories behind.
        let target = self.exact_target(&anchored(host)?)?;
        super::fetch_file(source, guest, target, limits.into()).await.map(Into::into)
    }
}

struct Entry {
    source: HostSource,
    kind: FileKind,
}

#[async_trait]
impl HostEntry for Entry {
    fn kind(&self) -> FileKind {
        self.kind
    }

    async fn copy_to(self: Box<Self>, files: &dyn Files, guest: &GuestPath) -> Result<Copied> {
        super::send_as(files, self.source, guest).await.map(Into::into)
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
    fn an_exact_target_has_its_directories_made_below_the_root_alone() {
        let place = Place::new("");
        let exact = |below: &str| place.roots.exact_target(&place.path(below)).map(|target| target.name);
        assert_eq!(exact("open/a/b/new").unwrap(), "new");
        assert!(place.path("open/a/b").is_dir());
        assert_eq!(exact("open/inner").unwrap(), "inner", "not into it");
        assert_eq!(exact("open/link").unwrap(), "link", "which is replaced, not followed");
        for outside in ["new", "open", "open/../new", "open/up/new", "open/up/a/new", "open/in/new", "open/file/new"] {
            assert!(exact(outside).is_err(), "{outside:?} was written");
        }
        assert!(!place.path("a").exists() && !place.path("new").exists());
        assert!(Place::new(":ro").roots.exact_target(&place.path("open/new")).is_err());
    }

    #[test]
    fn a_place_for_reading_is_not_replaced_by_a_file() {
        let place = Place::new("");
        let open = |below: &str| format!("{}{below}", place.path("open").display()).parse::<OpenedPath>().unwrap();
        let roots = Roots::open(&[open(""), open("/inner:ro")]).unwrap();
        assert!(roots.exact_target(&place.path("open/inner")).is_err());
        assert!(roots.exact_target(&place.path("open/inner/a/new")).is_err());
        assert!(!place.path("open/inner/a").exists());
    }

    #[test]
    fn paths_that_are_not_whole_start_where_the_server_does() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(anchored("a/./b").unwrap(), here.join("a/b"));
        assert_eq!(anchored("../x").unwrap(), here.parent().unwrap().join("x"));
        assert_eq!(anchored("/a/../../b/").unwrap(), Path::new("/b"));
        assert_eq!(anchored("/..").unwrap(), Path::new("/"));
    }

    #[test]
    fn what_is_opened_tells_its_kind() {
        let place = Place::new("");
        let kind = |below: &str| place.roots.open(&place.path(below).display().to_string()).map(|entry| entry.kind());
        assert_eq!(kind("open/file").unwrap(), FileKind::Regular);
        assert_eq!(kind("open/inner/..").unwrap(), FileKind::Directory);
        assert!(kind("open/link").is_err() && kind("open/../secret").is_err() && kind("open/none").is_err());
    }

    #[test]
    fn the_whole_machine_is_no_place() {
        assert!("/".parse::<OpenedPath>().is_err());
        assert!("/..".parse::<OpenedPath>().is_err());
    }
}
