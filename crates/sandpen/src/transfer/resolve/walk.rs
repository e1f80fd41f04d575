//! A path below a directory, through no link at all, name by name: for kernels that do not resolve it so by themselves.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// `rest` has plain names only.
pub fn resolve(directory: &OwnedFd, rest: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut names = rest.iter();
    let Some(last) = names.next_back() else {
        return rustix::fs::openat(directory, ".", flags | OFlags::NOFOLLOW, Mode::empty());
    };
    let mut current: Option<OwnedFd> = None;
    for name in names {
        let above = current.as_ref().unwrap_or(directory);
        current = Some(
            rustix::fs::openat(above, name, DIRECTORY, Mode::empty()).map_err(|errno| is_link(above, name, errno))?,
        );
    }
    let above = current.as_ref().unwrap_or(directory);
    let opened = rustix::fs::openat(above, last, flags | OFlags::NOFOLLOW, Mode::empty());
    opened.map_err(|errno| is_link(above, last, errno))
}

/// A link that is in the place of a directory is called no directory.
fn is_link(above: &OwnedFd, name: &std::ffi::OsStr, errno: Errno) -> Errno {
    match rustix::fs::readlinkat(above, name, Vec::new()) {
        Ok(_) => Errno::LOOP,
        Err(_) => errno,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_link_is_followed_wherever_it_stands() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("a/b")).unwrap();
        fs::write(place.path().join("a/b/file"), "x").unwrap();
        symlink("b", place.path().join("a/link")).unwrap();
        symlink("file", place.path().join("a/b/link")).unwrap();
        let root = rustix::fs::open(place.path(), DIRECTORY, Mode::empty()).unwrap();
        let open = |path: &str, flags| resolve(&root, Path::new(path), flags).map(drop);
        let file = OFlags::RDONLY | OFlags::CLOEXEC;
        assert_eq!(open("a/b/file", file), Ok(()));
        assert_eq!(open("", DIRECTORY), Ok(()));
        assert_eq!(open("a/link/file", file), Err(Errno::LOOP));
        assert_eq!(open("a/b/link", file), Err(Errno::LOOP));
        assert_eq!(open("a/link", DIRECTORY), Err(Errno::LOOP));
        assert_eq!(open("a/b/file", DIRECTORY), Err(Errno::NOTDIR));
        assert_eq!(open("a/none", file), Err(Errno::NOENT));
    }
}
