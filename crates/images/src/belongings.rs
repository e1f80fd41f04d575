//! What of an image belongs to one of its users, as a layer of its own.
//!
//! Where the owners of an image's files cannot be shown by a mount, a copy of these lies over the image: then its user may
//! write where it could elsewhere. There are bounds on that, because every sandbox begins with it. Directories go first,
//! because in a directory of its own a user can replace what it cannot change. One that is closed to others is copied with
//! all that is in it or not at all: nobody could look below it.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};

use tar::{Builder, EntryType, Header};

use crate::confined::Name;
use crate::digest::{Digest, Hasher};
use crate::error::{Error, Result};
use crate::overlaid::{Meta, Node, Overlaid};
use crate::pack::{Counting, as_path};

/// How much is copied at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub entries: u64,
    /// Of all files together.
    pub bytes: u64,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Belongings {
    pub digest: Digest,
    pub entries: u64,
    /// Of files.
    pub bytes: u64,
    /// What there was no room for.
    pub left_out: u64,
}

/// Who it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub user: u32,
    pub group: u32,
}

/// Writes what belongs to a user of the image of this tree to `file`, as a layer that is not compressed: what the user owns,
/// what its group may do more with than everybody, and what everybody may write to.
pub fn write(tree: &Overlaid, account: Account, bounds: Bounds, file: &File) -> Result<Belongings> {
    let found = Found::of(tree, account).map_err(Error::io("looking for what belongs to the image's user"))?;
    let counting = Counting { inner: BufWriter::new(file), hasher: Hasher::default(), size: 0 };
    let described = BTreeSet::new();
    let builder = Builder::new(counting);
    let mut writing = Writing { tree, bounds, described, builder, entries: 0, bytes: 0, left_out: 0 };
    for path in found.directories {
        writing.directory(&path)?;
    }
    for path in found.closed {
        writing.closed(&path)?;
    }
    for path in found.files {
        writing.file(&path)?;
    }
    let Writing { builder, entries, bytes, left_out, .. } = writing;
    let doing = || Error::io("writing what belongs to the image's user");
    let mut counting = builder.into_inner().map_err(doing())?;
    counting.flush().map_err(doing())?;
    Ok(Belongings { digest: counting.hasher.finish(), entries, bytes, left_out })
}

impl Account {
    fn has(self, meta: &Meta) -> bool {
        let more_than_others = meta.mode >> 3 & !meta.mode & 0o7 != 0;
        meta.user == self.user || meta.group == self.group && more_than_others || meta.mode & 0o002 != 0
    }
}

/// Whether somebody who is nobody to a directory can neither list it nor go through it.
fn is_closed(meta: &Meta) -> bool {
    meta.mode & 0o005 != 0o005
}

/// Paths, those that are far up first.
#[derive(Default)]
struct Found {
    directories: Vec<Vec<u8>>,
    closed: Vec<Vec<u8>>,
    files: Vec<Vec<u8>>,
}

impl Found {
    fn of(tree: &Overlaid, account: Account) -> io::Result<Self> {
        let mut found = Self::default();
        // Only paths wait, for there may be more directories than descriptors.
        let mut ahead = VecDeque::from([Vec::new()]);
        while let Some(path) = ahead.pop_front() {
            let Some(Node::Directory(directory)) = tree.find(&path)? else { continue };
            for name in directory.names()? {
                let Some(name) = Name::new(&name) else { continue };
                let below = joined(&path, name);
                match directory.child(name)? {
                    Some(Node::Directory(child)) => {
                        let meta = child.meta()?;
                        match (account.has(&meta), is_closed(&meta)) {
                            (true, true) => found.closed.push(below),
                            (true, false) => {
                                found.directories.push(below.clone());
                                ahead.push_back(below);
                            }
                            (false, false) => ahead.push_back(below),
                            // Nobody could get to what is in it.
                            (false, true) => {}
                        }
                    }
                    Some(Node::File(leaf)) if account.has(&leaf.meta()) => found.files.push(below),
                    Some(Node::File(_) | Node::Link(..) | Node::Special(_)) | None => {}
                }
            }
        }
        Ok(found)
    }
}

struct Writing<'a> {
    tree: &'a Overlaid,
    bounds: Bounds,
    /// Directories that were written.
    described: BTreeSet<Vec<u8>>,
    builder: Builder<Counting<BufWriter<&'a File>>>,
    entries: u64,
    bytes: u64,
    left_out: u64,
}

impl Writing<'_> {
    /// With those above it, as the image has them: one that is only passed through would become open to all. Whether there
    /// was room.
    fn directory(&mut self, path: &[u8]) -> Result<bool> {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(index, _)| index);
        for end in ends.chain([path.len()]).filter(|end| *end > 0) {
            let part = &path[..end];
            if self.described.contains(part) {
                continue;
            }
            if self.entries >= self.bounds.entries {
                self.left_out += 1;
                return Ok(false);
            }
            let Some(Node::Directory(found)) = self.tree.find(part).map_err(doing(part))? else { return Ok(false) };
            let mut header = header(found.meta().map_err(doing(part))?, EntryType::Directory, 0);
            self.append(&mut header, &[part, b"/"].concat(), io::empty())?;
            self.described.insert(part.to_vec());
        }
        Ok(true)
    }

    /// All of a directory, and nothing of what lies below it.
    fn closed(&mut self, path: &[u8]) -> Result<()> {
        let Some(all) = self.all_below(path).map_err(doing(path))? else {
            self.left_out += 1;
            return Ok(());
        };
        if !self.directory(path)? {
            return Ok(());
        }
        let mut mark = header(Meta { mode: 0o600, user: 0, group: 0, modified: 0 }, EntryType::Regular, 0);
        self.append(&mut mark, &[path, b"/.wh..wh..opq"].concat(), io::empty())?;
        for path in all {
            match self.tree.find(&path).map_err(doing(&path))? {
                Some(Node::Directory(_)) => drop(self.directory(&path)?),
                Some(Node::File(_)) => self.file(&path)?,
                Some(Node::Link(leaf, target)) => {
                    let mut header = header(leaf.meta(), EntryType::Symlink, 0);
                    self.entries += 1;
                    self.builder.append_link(&mut header, as_path(&path), as_path(&target)).map_err(doing(&path))?;
                }
                Some(Node::Special(_)) | None => {}
            }
        }
        Ok(())
    }

    /// What is in a directory, parents first; `None` if there is no room for it, or something that cannot be copied.
    fn all_below(&self, path: &[u8]) -> io::Result<Option<Vec<Vec<u8>>>> {
        let (mut all, mut bytes) = (Vec::new(), self.bytes);
        let mut ahead = VecDeque::from([path.to_vec()]);
        // The directory itself, those above it, and its mark.
        let own = path.iter().filter(|byte| **byte == b'/').count() as u64 + 2;
        while let Some(path) = ahead.pop_front() {
            let Some(Node::Directory(directory)) = self.tree.find(&path)? else { continue };
            for name in directory.names()? {
                let Some(name) = Name::new(&name) else { continue };
                let below = joined(&path, name);
                match directory.child(name)? {
                    Some(Node::Directory(_)) => ahead.push_back(below.clone()),
                    Some(Node::File(leaf)) => match readable(leaf.open())? {
                        Some(file) => bytes = bytes.saturating_add(file.metadata()?.len()),
                        None => return Ok(None),
                    },
                    Some(Node::Link(..)) => {}
                    Some(Node::Special(_)) | None => continue,
                }
                all.push(below);
                if bytes > self.bounds.bytes || self.entries + own + all.len() as u64 > self.bounds.entries {
                    return Ok(None);
                }
            }
        }
        Ok(Some(all))
    }

    fn file(&mut self, path: &[u8]) -> Result<()> {
        let Some(Node::File(leaf)) = self.tree.find(path).map_err(doing(path))? else { return Ok(()) };
        let Some(file) = readable(leaf.open()).map_err(doing(path))? else {
            self.left_out += 1;
            return Ok(());
        };
        let size = file.metadata().map_err(doing(path))?.len();
        let parent = path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |end| &path[..end]);
        if self.bytes + size > self.bounds.bytes || !self.directory(parent)? || self.entries >= self.bounds.entries {
            self.left_out += 1;
            return Ok(());
        }
        self.bytes += size;
        let mut header = header(leaf.meta(), EntryType::Regular, size);
        self.append(&mut header, path, file.take(size))
    }

    fn append(&mut self, header: &mut Header, path: &[u8], contents: impl Read) -> Result<()> {
        self.entries += 1;
        self.builder.append_data(header, as_path(path), contents).map_err(doing(path))
    }
}

/// An image may have files that their owner cannot read either, and then neither can we.
fn readable<F>(opened: io::Result<F>) -> io::Result<Option<F>> {
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(error),
    }
}

fn joined(path: &[u8], name: Name<'_>) -> Vec<u8> {
    if path.is_empty() { name.as_bytes().to_vec() } else { [path, b"/", name.as_bytes()].concat() }
}

fn header(meta: Meta, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(meta.mode);
    header.set_uid(u64::from(meta.user));
    header.set_gid(u64::from(meta.group));
    header.set_mtime(meta.modified);
    header.set_size(size);
    header
}

fn doing(path: &[u8]) -> impl FnOnce(io::Error) -> Error + use<> {
    Error::io(format!("copying \"{}\"", path[..path.len().min(128)].escape_ascii()))
}

#[cfg(test)]
#[path = "belongings_tests.rs"]
mod tests;
