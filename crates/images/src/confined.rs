//! The one way into a tree that somebody else filled: a descriptor per directory, one component at a time.
//!
//! A name that the kernel looked up once is never looked up again as text, and no look-up follows a link, so there is
//! no moment in which swapping a directory for a link leads elsewhere. Only the first directory is opened by a path:
//! the caller's own.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// One component of a path: not empty, not `.` or `..`, no slash, no NUL, and not longer than a file name can be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    pub const MAX_BYTES: usize = 255;

    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let valid = !matches!(bytes, b"" | b"." | b"..")
            && bytes.len() <= Self::MAX_BYTES
            && !bytes.iter().any(|byte| matches!(byte, b'/' | 0));
        valid.then_some(Self(bytes))
    }

    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    pub fn as_os_str(self) -> &'a OsStr {
        OsStr::from_bytes(self.0)
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// What to do about a directory on the way that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Fail,
    Create,
}

/// A directory that is open, and through which alone its contents are reached.
#[derive(Debug)]
pub struct Directory(OwnedFd);

impl Directory {
    /// Opens a directory that the caller trusts; links on the way to it are followed.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// A second descriptor for the same directory.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    pub fn enter(&self, name: Name<'_>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.open_child(name, flags, Mode::empty()).map(Self)
    }

    /// Goes down by all of `names`. Directories that it makes can be entered by everybody.
    pub fn descend<'a>(&self, names: impl IntoIterator<Item = Name<'a>>, missing: Missing) -> io::Result<Self> {
        let mut directory = self.try_clone()?;
        for name in names {
            directory = match (directory.enter(name), missing) {
                (Err(error), Missing::Create) if error.kind() == io::ErrorKind::NotFound => {
                    // Somebody else may be making the same directory; entering it shows what it has become.
                    match directory.make_directory(name, 0o755) {
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => directory.enter(name)?,
                        made => {
                            made?;
                            let entered = directory.enter(name)?;
                            entered.set_mode(0o755)?;
                            entered
                        }
                    }
                }
                (entered, _) => entered?,
            };
        }
        Ok(directory)
    }

    pub fn make_directory(&self, name: Name<'_>, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.0, name.as_os_str(), Mode::from_raw_mode(mode))?)
    }

    /// A file that was not there before, open for writing, with that mode whatever the umask says.
    pub fn create_file(&self, name: Name<'_>, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = self.open_child(name, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(file.into())
    }

    /// A regular file for reading. Anything else is refused, and opening it does not wait for a FIFO's other end.
    pub fn open_file(&self, name: Name<'_>) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(self.open_child(name, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(file)
    }

    pub fn symlink(&self, name: Name<'_>, target: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(OsStr::from_bytes(target), &self.0, name.as_os_str())?)
    }

    /// Gives the file `of` in `source` a further name here. A link is not followed but linked itself.
    pub fn hard_link(&self, name: Name<'_>, source: &Directory, of: Name<'_>) -> io::Result<()> {
        Ok(rustix::fs::linkat(&source.0, of.as_os_str(), &self.0, name.as_os_str(), AtFlags::empty())?)
    }

    /// What lies at a name, links not followed; `None` if nothing does.
    pub fn stat(&self, name: Name<'_>) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.0, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(&self.0, Mode::from_raw_mode(mode))?)
    }

    /// Removes anything but a directory.
    pub fn remove_file(&self, name: Name<'_>) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name.as_os_str(), AtFlags::empty())?)
    }

    /// Removes what is there with everything below it. To find nothing is success.
    pub fn remove_tree(&self, name: Name<'_>) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.0, name.as_os_str(), AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => return Ok(()),
            Err(rustix::io::Errno::ISDIR | rustix::io::Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        let directory = self.enter(name)?;
        for entry in directory.names()? {
            if let Some(name) = Name::new(&entry) {
                directory.remove_tree(name)?;
            }
        }
        match rustix::fs::unlinkat(&self.0, name.as_os_str(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The names in this directory, without `.` and `..`, in no order.
    pub fn names(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(name.to_vec());
            }
        }
        Ok(names)
    }

    /// Moves `name` to `new`, where nothing may be, and makes that last.
    pub fn publish(&self, name: Name<'_>, new: Name<'_>) -> io::Result<()> {
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(&self.0, name.as_os_str(), &self.0, new.as_os_str(), flags)?;
        Ok(rustix::fs::fsync(&self.0)?)
    }

    /// Makes everything written to this file system so far last.
    pub fn sync_file_system(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.0)?)
    }

    fn open_child(&self, name: Name<'_>, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat2(&self.0, name.as_os_str(), flags, mode, RESOLVE)?)
    }
}

/// For a directory that the caller has opened by other means than a path.
impl From<OwnedFd> for Directory {
    fn from(directory: OwnedFd) -> Self {
        Self(directory)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

pub fn is_symlink(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Symlink
}

/// Whether it stands for nothing at all in a layer of an overlay.
pub fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

pub fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_name_is_one_component() {
        for text in ["", ".", "..", "a/b", "/", "a\0", &"x".repeat(256)] {
            assert_eq!(Name::new(text.as_bytes()), None, "{text:?} was taken");
        }
        for text in ["...", "~", "a b", "\u{ff0f}", &"x".repeat(255)] {
            assert!(Name::new(text.as_bytes()).is_some(), "{text:?} was not taken");
        }
    }

    #[test]
    fn no_link_is_followed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("canary"), "untouched").unwrap();
        let inside = tempfile::tempdir().unwrap();
        symlink(outside.path(), inside.path().join("directory")).unwrap();
        symlink(outside.path().join("canary"), inside.path().join("file")).unwrap();
        symlink(outside.path().join("missing"), inside.path().join("dangling")).unwrap();
        symlink("/proc/self/root", inside.path().join("magic")).unwrap();
        let directory = Directory::open(inside.path()).unwrap();
        for link in ["directory", "magic"] {
            assert!(directory.enter(name(link)).is_err());
            assert!(directory.descend([name(link), name("x")], Missing::Create).is_err());
        }
        for link in ["file", "dangling"] {
            assert!(directory.open_file(name(link)).is_err());
            assert!(directory.create_file(name(link), 0o644).is_err());
        }
        directory.remove_tree(name("directory")).unwrap();
        assert_eq!(fs::read_to_string(outside.path().join("canary")).unwrap(), "untouched");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_regular_files_are_opened_and_nothing_waits() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let directory = Directory::open(directory.path()).unwrap();
        assert!(directory.open_file(name("fifo")).is_err());
        directory.make_directory(name("directory"), 0o755).unwrap();
        assert!(directory.open_file(name("directory")).is_err());
    }

    #[test]
    fn whole_trees_are_removed() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("tree/a/b")).unwrap();
        fs::write(place.path().join("tree/a/file"), "x").unwrap();
        symlink("/", place.path().join("tree/a/b/root")).unwrap();
        fs::set_permissions(place.path().join("tree/a/b"), fs::Permissions::from_mode(0o500)).unwrap();
        let directory = Directory::open(place.path()).unwrap();
        if !rustix::process::geteuid().is_root() {
            assert!(directory.remove_tree(name("tree")).is_err());
            fs::set_permissions(place.path().join("tree/a/b"), fs::Permissions::from_mode(0o700)).unwrap();
        }
        directory.remove_tree(name("tree")).unwrap();
        directory.remove_tree(name("tree")).unwrap();
        assert_eq!(directory.names().unwrap(), Vec::<Vec<u8>>::new());
    }
}
