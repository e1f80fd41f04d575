//! The fake's file tree: directories, files, links and FIFOs in memory, with the rules of a real one.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, ErrorKind, Result};
use crate::file::{DirectoryEntry, FileKind, FileStat, ListOptions, Listing};
use crate::path::GuestPath;

/// As in Linux.
const MAX_LINKS: usize = 40;
/// Where the sandbox's user may write; everything else belongs to the image.
const WRITABLE: [&[u8]; 2] = [b"tmp", b"workspace"];

/// What images have, and keep to themselves.
const READ_ONLY: [&[u8]; 4] = [b"app", b"bin", b"etc", b"usr"];

pub(super) type Names = Vec<Vec<u8>>;
type Children = BTreeMap<Vec<u8>, Node>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Directory { children: Children, modified_ns: i128 },
    File { bytes: Vec<u8>, mode: u32, modified_ns: i128 },
    Link { target: Vec<u8>, modified_ns: i128 },
    Fifo { modified_ns: i128 },
}

impl Node {
    pub fn directory() -> Self {
        Self::Directory { children: BTreeMap::new(), modified_ns: now_ns() }
    }

    pub fn file(bytes: Vec<u8>, mode: u32) -> Self {
        Self::File { bytes, mode: mode & 0o777, modified_ns: now_ns() }
    }

    pub fn link(target: Vec<u8>) -> Self {
        Self::Link { target, modified_ns: now_ns() }
    }

    pub fn fifo() -> Self {
        Self::Fifo { modified_ns: now_ns() }
    }

    pub fn stat(&self) -> FileStat {
        let (kind, bytes, mode, modified_ns) = match self {
            Self::Directory { modified_ns, .. } => (FileKind::Directory, 0, 0o755, *modified_ns),
            Self::File { bytes, mode, modified_ns } => (FileKind::Regular, bytes.len() as u64, *mode, *modified_ns),
            Self::Link { target, modified_ns } => (FileKind::Link, target.len() as u64, 0o777, *modified_ns),
            Self::Fifo { modified_ns } => (FileKind::Other, 0, 0o644, *modified_ns),
        };
        FileStat { kind, bytes, mode, modified_ns, changed_ns: modified_ns }
    }

    pub fn size(&self) -> u64 {
        match self {
            Self::Directory { children, .. } => children.values().map(Node::size).sum(),
            Self::File { bytes, .. } => bytes.len() as u64,
            Self::Link { .. } | Self::Fifo { .. } => 0,
        }
    }
}

fn now_ns() -> i128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128)
}

/// What the last component of a path means when it is a link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LastLink {
    Follow,
    Keep,
}

/// Who changes a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    User,
    Root,
}

#[derive(Debug)]
pub(super) struct Tree {
    root: Node,
    disk: u64,
    /// Whose doing the next change is. Set by whoever takes the lock.
    pub writer: Writer,
    /// Where trees of others are seen, with their bytes, which are nobody's here.
    attached: Vec<(Names, u64)>,
    /// The work directory, if it is the user's.
    own: Option<Names>,
    /// Of the image, on nobody's disk either.
    image_bytes: u64,
}

impl Tree {
    pub fn new(root: Node, disk: u64, image_bytes: u64) -> Self {
        Self { root, disk, writer: Writer::User, attached: Vec::new(), own: None, image_bytes }
    }

    /// What every image of the fake has.
    pub fn image() -> Node {
        let mut tree = Self::new(Node::directory(), u64::MAX, 0);
        for name in ["bin", "etc", "usr"] {
            tree.insert_unchecked(&[name.as_bytes().to_vec()], Node::directory());
        }
        tree.insert_unchecked(
            &[b"etc".to_vec(), b"passwd".to_vec()],
            Node::file(b"user:x:1000:1000::/:\n".to_vec(), 0o644),
        );
        tree.root
    }

    /// The same with a directory where nothing but its own programs may be.
    pub fn app_image() -> Node {
        let mut tree = Self::new(Self::image(), u64::MAX, 0);
        tree.insert_unchecked(&[b"app".to_vec()], Node::directory());
        tree.root
    }

    /// The directories of our own that programs are used to, and the one that they work in if the image has none.
    pub fn furnish(&mut self, work_directory: &GuestPath) {
        for name in WRITABLE {
            let place = [name.to_vec()];
            if self.get(&place).is_none() {
                self.insert_unchecked(&place, Node::directory());
            }
        }
        let names: Names = work_directory.components().map(<[u8]>::to_vec).collect();
        // What the image does not have cannot be its own.
        let is_open = |top: &Vec<u8>| !READ_ONLY.contains(&top.as_slice()) || self.get(&names[..1]).is_none();
        if names.first().is_some_and(is_open) {
            self.own = Some(names.clone());
        }
        for end in 1..=names.len() {
            if self.get(&names[..end]).is_none() {
                self.insert_unchecked(&names[..end], Node::directory());
            }
        }
    }

    /// Show a tree of somebody else's, read-only.
    pub fn attach(&mut self, at: &GuestPath, node: &Node) -> Result<()> {
        let names: Names = at.components().map(<[u8]>::to_vec).collect();
        if names.is_empty() || self.get(&names).is_some() {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("the image has something at {at}")));
        }
        for end in 1..names.len() {
            if self.get(&names[..end]).is_none() {
                self.insert_unchecked(&names[..end], Node::directory());
            }
        }
        self.insert_unchecked(&names, node.clone());
        self.attached.push((names, node.size()));
        Ok(())
    }

    /// All that is this sandbox's own, to be put elsewhere.
    pub fn own(&self) -> Node {
        let mut own = Self::new(self.root.clone(), self.disk, 0);
        for (names, _) in &self.attached {
            own.take_out(names);
        }
        own.root
    }

    /// Have these files instead, and the same trees of others.
    pub fn become_of(&mut self, root: &Node) {
        let attached: Vec<(Names, Option<Node>)> =
            self.attached.iter().map(|(names, _)| (names.clone(), self.get(names).cloned())).collect();
        self.root = root.clone();
        for (names, node) in attached {
            if let Some(node) = node {
                self.insert_unchecked(&names, node);
            }
        }
    }

    fn take_out(&mut self, names: &[Vec<u8>]) -> Option<Node> {
        self.parent_of(names).and_then(|(name, children)| children.remove(&name))
    }

    /// The names from the root to what `path` means, free of links but for a kept last one. Its parent is a directory;
    /// it itself need not exist.
    pub fn resolve(&self, path: &GuestPath, last: LastLink) -> Result<Names> {
        self.walk(path.components().map(<[u8]>::to_vec).collect(), last, path)
    }

    fn walk(&self, components: Names, last: LastLink, path: &GuestPath) -> Result<Names> {
        let mut todo: Vec<Vec<u8>> = components.into_iter().rev().collect();
        let mut resolved = Names::new();
        let mut links = 0;
        while let Some(name) = todo.pop() {
            match name.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    resolved.pop();
                    continue;
                }
                _ => {}
            }
            match self.get(&resolved) {
                Some(Node::Directory { .. }) => {}
                Some(Node::File { .. } | Node::Fifo { .. } | Node::Link { .. }) => {
                    return Err(Error::invalid_input(format!("a part of {path} is not a directory")));
                }
                None => return Err(missing(path)),
            }
            resolved.push(name);
            let is_last = todo.is_empty();
            if let Some(Node::Link { target, .. }) = self.get(&resolved)
                && (!is_last || last == LastLink::Follow)
            {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Error::invalid_input(format!("{path} goes through too many links")));
                }
                resolved.pop();
                if target.starts_with(b"/") {
                    resolved.clear();
                }
                todo.extend(target.split(|&byte| byte == b'/').rev().map(<[u8]>::to_vec));
            }
        }
        Ok(resolved)
    }

    pub fn get(&self, names: &[Vec<u8>]) -> Option<&Node> {
        names.iter().try_fold(&self.root, |node, name| match node {
            Node::Directory { children, .. } => children.get(name),
            Node::File { .. } | Node::Link { .. } | Node::Fifo { .. } => None,
        })
    }

    pub fn find(&self, path: &GuestPath, last: LastLink) -> Result<&Node> {
        self.get(&self.resolve(path, last)?).ok_or_else(|| missing(path))
    }

    pub fn read(&self, path: &GuestPath) -> Result<(FileStat, Vec<u8>)> {
        match self.find(path, LastLink::Follow)? {
            node @ Node::File { bytes, .. } => Ok((node.stat(), bytes.clone())),
            Node::Directory { .. } => Err(Error::invalid_input(format!("{path} is a directory"))),
            Node::Fifo { .. } | Node::Link { .. } => Err(Error::invalid_input(format!("{path} is not a regular file"))),
        }
    }

    pub fn check_writable(&self, names: &[Vec<u8>], path: &GuestPath) -> Result<()> {
        let is_attached = self.attached.iter().any(|(at, _)| names.starts_with(at) || at.starts_with(names));
        let may = match self.writer {
            Writer::Root => !names.is_empty(),
            Writer::User => {
                let is_own = self.own.as_ref().is_some_and(|own| names.starts_with(own) && names != own);
                is_own || names.len() > 1 && WRITABLE.contains(&names[0].as_slice())
            }
        };
        if may && !is_attached {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Denied, format!("{path} cannot be changed in a sandbox")))
    }

    /// Fails where the parent is missing or not a directory, or the disk is full.
    pub fn insert(&mut self, names: &[Vec<u8>], node: Node, path: &GuestPath) -> Result<()> {
        self.check_writable(names, path)?;
        let replaced = self.get(names).map_or(0, Node::size);
        if (self.disk_used() + node.size()).saturating_sub(replaced) > self.disk {
            return Err(
                Error::limit_exceeded("the sandbox's disk is full").with_hint("remove files that are not needed")
            );
        }
        match self.get(&names[..names.len() - 1]) {
            Some(Node::Directory { .. }) => {}
            Some(Node::File { .. } | Node::Link { .. } | Node::Fifo { .. }) => {
                return Err(Error::invalid_input(format!("a part of {path} is not a directory")));
            }
            None => return Err(missing(path)),
        }
        self.insert_unchecked(names, node);
        Ok(())
    }

    fn insert_unchecked(&mut self, names: &[Vec<u8>], node: Node) {
        if let Some((name, children)) = self.parent_of(names) {
            children.insert(name, node);
        }
    }

    pub fn remove(&mut self, names: &[Vec<u8>], path: &GuestPath) -> Result<Node> {
        self.check_writable(names, path)?;
        self.take_out(names).ok_or_else(|| missing(path))
    }

    fn parent_of(&mut self, names: &[Vec<u8>]) -> Option<(Vec<u8>, &mut Children)> {
        let (name, parents) = names.split_last()?;
        let mut node = &mut self.root;
        for parent in parents {
            match node {
                Node::Directory { children, .. } => node = children.get_mut(parent)?,
                Node::File { .. } | Node::Link { .. } | Node::Fifo { .. } => return None,
            }
        }
        match node {
            Node::Directory { children, .. } => Some((name.clone(), children)),
            Node::File { .. } | Node::Link { .. } | Node::Fifo { .. } => None,
        }
    }

    pub fn make_directories(&mut self, path: &GuestPath) -> Result<()> {
        let mut current = GuestPath::root();
        for component in path.components() {
            current = current.join(component)?;
            let names = self.resolve(&current, LastLink::Follow)?;
            match self.get(&names) {
                Some(Node::Directory { .. }) => {}
                Some(Node::File { .. } | Node::Link { .. } | Node::Fifo { .. }) => {
                    return Err(Error::new(ErrorKind::AlreadyExists, format!("{current} is not a directory")));
                }
                None => self.insert(&names, Node::directory(), &current)?,
            }
        }
        Ok(())
    }

    pub fn list(&self, path: &GuestPath, options: ListOptions) -> Result<Listing> {
        let Node::Directory { children, .. } = self.find(path, LastLink::Follow)? else {
            return Err(Error::invalid_input(format!("{path} is not a directory")));
        };
        let mut listing = Listing::default();
        list_below(children, path, options, &mut listing)?;
        Ok(listing)
    }

    pub fn disk_used(&self) -> u64 {
        let others: u64 = self.attached.iter().map(|(_, bytes)| bytes).sum();
        self.root.size().saturating_sub(others + self.image_bytes)
    }

    pub fn disk_limit(&self) -> u64 {
        self.disk
    }
}

fn list_below(children: &Children, path: &GuestPath, options: ListOptions, listing: &mut Listing) -> Result<()> {
    for (name, node) in children {
        if listing.entries.len() >= options.max_entries {
            listing.truncated = true;
            return Ok(());
        }
        let child = path.join(name)?;
        listing.entries.push(DirectoryEntry { path: child.clone(), stat: node.stat() });
        if let Node::Directory { children, .. } = node
            && options.recursive
        {
            list_below(children, &child, options, listing)?;
        }
    }
    Ok(())
}

fn missing(path: &GuestPath) -> Error {
    Error::not_found(format!("there is no {path} in the sandbox"))
}
