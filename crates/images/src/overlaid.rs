//! Trees over each other, seen as an overlay shows them, without a mount.
//!
//! Whoever filled the trees is not trusted. They are gone through from descriptor to name; what a link says is worked out
//! here, name by name from the top, and never by the kernel.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{FileType, Stat};

use crate::confined::{Directory, Name, is_directory, is_whiteout};
use crate::pack::{Shift, owner_note};

/// As many as the kernel follows in one path.
const MOST_LINKS: usize = 40;

/// A directory of such trees, which may be their root.
#[derive(Debug)]
pub struct Overlaid {
    /// The highest first, and never none: it is the one whose mode and owner count.
    trees: Vec<Directory>,
    owned: Owned,
}

/// Whose the files are said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    /// Of layers that this caller unpacked: whom their images name.
    AsUnpacked,
    /// Whoever owns them here is of no interest there.
    ByRoot,
}

/// What there is to know of an entry besides what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Permissions, with the set-id and sticky bits.
    pub mode: u32,
    pub user: u32,
    pub group: u32,
    /// Seconds since 1970.
    pub modified: u64,
}

#[derive(Debug)]
pub enum Node {
    Directory(Overlaid),
    File(Leaf),
    Link(Leaf, Vec<u8>),
    /// A device, FIFO or socket.
    Special(Leaf),
}

/// Something that is no directory, with where it lies.
#[derive(Debug)]
pub struct Leaf {
    parent: Directory,
    name: Vec<u8>,
    stat: Stat,
    owned: Owned,
}

/// Where a path leads to once all links are followed.
#[derive(Debug)]
pub struct Place {
    /// Names from the root, with slashes between and none in front. Nothing on the way to it is a link.
    pub path: Vec<u8>,
    /// `None` if nothing is there; then some of its last names may not be there either.
    pub node: Option<Node>,
}

/// What becomes of a path or link that climbs above the root, or of a link that begins there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// There is nothing above the root of a system.
    StaysAtRoot,
    /// The root is a directory of somebody's, and what is outside is not meant.
    Refused,
}

/// Why a path leads nowhere.
#[derive(Debug)]
pub enum Lost {
    Outside,
    TooManyLinks,
    /// It goes through something that is not a directory.
    NoDirectory,
    Io(io::Error),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Overlaid {
    /// One directory that the caller trusts to be the root.
    pub fn of_directory(path: &Path) -> io::Result<Self> {
        Ok(Self { trees: vec![Directory::open(path)?], owned: Owned::ByRoot })
    }

    /// Roots of unpacked layers, the highest first.
    pub fn of_layers(trees: Vec<Directory>) -> Self {
        Self { trees: until_opaque(trees), owned: Owned::AsUnpacked }
    }

    /// Of the root of no layers at all there is nothing to know.
    pub fn meta(&self) -> io::Result<Meta> {
        match self.trees.first() {
            Some(tree) => Ok(meta(&rustix::fs::fstat(tree)?, owner_note(tree), self.owned)),
            None => Ok(Meta { mode: 0o755, user: 0, group: 0, modified: 0 }),
        }
    }

    /// In byte order.
    pub fn names(&self) -> io::Result<BTreeSet<Vec<u8>>> {
        let mut names = BTreeSet::new();
        for tree in &self.trees {
            names.extend(tree.names()?);
        }
        Ok(names)
    }

    pub fn child(&self, name: Name<'_>) -> io::Result<Option<Node>> {
        let mut directories = Vec::new();
        for tree in &self.trees {
            let Some(stat) = tree.stat(name)? else { continue };
            if is_directory(&stat) {
                let entered = tree.enter(name)?;
                let is_last = entered.is_opaque();
                directories.push(entered);
                if is_last {
                    break;
                }
                continue;
            }
            if directories.is_empty() && !is_whiteout(&stat) {
                return self.leaf(tree, name, stat).map(Some);
            }
            break;
        }
        let owned = self.owned;
        Ok((!directories.is_empty()).then(|| Node::Directory(Self { trees: directories, owned })))
    }

    /// Without following a link anywhere.
    pub fn find(&self, path: &[u8]) -> io::Result<Option<Node>> {
        let mut found = Node::Directory(self.again()?);
        for name in path.split(|byte| *byte == b'/') {
            let Some(name) = Name::new(name) else { continue };
            let Node::Directory(directory) = found else { return Ok(None) };
            match directory.child(name)? {
                Some(child) => found = child,
                None => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    /// Where a path leads to, with all links followed, the last one too.
    pub fn follow(&self, path: &[u8], leaving: Leaving) -> Result<Place, Lost> {
        let look = |path: &[u8]| Ok(self.find(path)?.as_ref().map(Seen::from));
        let (path, seen) = resolve(path, leaving, look)?;
        let node = if seen.is_some() { self.find(&path)? } else { None };
        Ok(Place { path, node })
    }

    /// A second view of the same.
    pub fn again(&self) -> io::Result<Self> {
        let trees = self.trees.iter().map(Directory::try_clone).collect::<io::Result<_>>()?;
        Ok(Self { trees, owned: self.owned })
    }

    fn leaf(&self, tree: &Directory, name: Name<'_>, stat: Stat) -> io::Result<Node> {
        let leaf = Leaf { parent: tree.try_clone()?, name: name.as_bytes().to_vec(), stat, owned: self.owned };
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Node::File(leaf),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(tree, name.as_os_str(), Vec::new())?;
                Node::Link(leaf, target.into_bytes())
            }
            _ => Node::Special(leaf),
        })
    }
}

impl Leaf {
    pub fn meta(&self) -> Meta {
        let note = match (self.owned, FileType::from_raw_mode(self.stat.st_mode)) {
            (Owned::AsUnpacked, FileType::RegularFile) => self.open().ok().and_then(owner_note),
            _ => None,
        };
        meta(&self.stat, note, self.owned)
    }

    /// A regular file for reading.
    pub fn open(&self) -> io::Result<File> {
        let name = Name::new(&self.name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        self.parent.open_file(name)
    }

    pub fn is_socket(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::Socket
    }

    /// The same for all names of a file that has several; `None` for one that has no other.
    pub fn identity(&self) -> Option<(u64, u64)> {
        (self.stat.st_nlink > 1).then_some((self.stat.st_dev, self.stat.st_ino))
    }
}

/// What is at a path, as far as following one goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Directory,
    Link(Vec<u8>),
    Other,
}

impl From<&Node> for Seen {
    fn from(node: &Node) -> Self {
        match node {
            Node::Directory(_) => Self::Directory,
            Node::Link(_, target) => Self::Link(target.clone()),
            Node::File(_) | Node::Special(_) => Self::Other,
        }
    }
}

/// Follows a path name by name. `look` tells what is at a path in which nothing but the last name can be a link. What comes
/// out has no links in it, and may not be there.
pub fn resolve(
    path: &[u8],
    leaving: Leaving,
    look: impl Fn(&[u8]) -> io::Result<Option<Seen>>,
) -> Result<(Vec<u8>, Option<Seen>), Lost> {
    let split = |path: &[u8]| path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let mut ahead: VecDeque<Vec<u8>> = split(path).into();
    let mut behind: Vec<Vec<u8>> = Vec::new();
    let mut seen = Some(Seen::Directory);
    let mut links = 0;
    while let Some(name) = ahead.pop_front() {
        match name.as_slice() {
            b"" | b"." => continue,
            b".." => {
                if behind.pop().is_none() && leaving == Leaving::Refused {
                    return Err(Lost::Outside);
                }
                seen = look(&behind.join(&b'/'))?;
                continue;
            }
            _ => {}
        }
        let is_missing = match &seen {
            Some(Seen::Directory) => false,
            Some(Seen::Link(_) | Seen::Other) => return Err(Lost::NoDirectory),
            None => true,
        };
        behind.push(name);
        seen = if is_missing { None } else { look(&behind.join(&b'/'))? };
        if let Some(Seen::Link(target)) = &seen {
            links += 1;
            if links > MOST_LINKS {
                return Err(Lost::TooManyLinks);
            }
            behind.pop();
            if target.starts_with(b"/") {
                if leaving == Leaving::Refused {
                    return Err(Lost::Outside);
                }
                behind.clear();
            }
            split(target).into_iter().rev().for_each(|name| ahead.push_front(name));
            seen = Some(Seen::Directory);
        }
    }
    Ok((behind.join(&b'/'), seen))
}

/// What lies below a directory that hides it is not there.
fn until_opaque(mut trees: Vec<Directory>) -> Vec<Directory> {
    if let Some(last) = trees.iter().position(Directory::is_opaque) {
        trees.truncate(last + 1);
    }
    trees
}

fn meta(stat: &Stat, note: Option<(u32, u32)>, owned: Owned) -> Meta {
    let (user, group) = match owned {
        Owned::AsUnpacked => note.unwrap_or_else(|| Shift::of_layers().inside(stat.st_uid, stat.st_gid)),
        Owned::ByRoot => (0, 0),
    };
    let modified = u64::try_from(stat.st_mtime).unwrap_or(0);
    Meta { mode: stat.st_mode & 0o7777, user, group, modified }
}

#[cfg(test)]
#[path = "overlaid_tests.rs"]
mod tests;
