//! A stack of layers as one map: names, attributes and digests. Contents pass through and are not kept.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

use tar::{Entry, EntryType};
use tokio_util::sync::CancellationToken;

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::meter::Stream;
use crate::store::{ImageLayer, Store};
use crate::unpack::Limits;

const REMOVED: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// What there is to know of a file besides its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub kind: Kind,
    /// Without the bits that no sandbox takes over.
    pub mode: u32,
    pub user: u64,
    pub group: u64,
    /// In seconds since 1970. Two builds of the same thing do not have it in common, so it is not compared.
    pub modified: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory,
    File(Digest),
    Link(Vec<u8>),
    /// Devices and FIFOs, which are not compared any further.
    Special,
}

/// Paths have no slash at either end; the root is empty.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: BTreeMap<Vec<u8>, Node>,
}

#[derive(Debug)]
enum Node {
    There { facts: Facts, is_opaque: bool, origin: Origin },
    Gone,
}

/// Where the contents of a file are: in which layer of the stack, under which of its names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    pub layer: usize,
    pub path: Vec<u8>,
}

/// What of a stack is of interest.
#[derive(Clone, Copy, Debug)]
pub enum Interest<'a> {
    All,
    /// These, and everything below those.
    Only {
        paths: &'a BTreeSet<Vec<u8>>,
        below: &'a BTreeSet<Vec<u8>>,
    },
}

impl Interest<'_> {
    fn covers(self, path: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Only { paths, below } => paths.contains(path) || ancestors(path).any(|one| below.contains(one)),
        }
    }

    /// Whether something of interest can be below a path: what is no directory takes that away.
    fn is_below(self, path: &[u8]) -> bool {
        let start = [path, b"/"].concat();
        let has =
            |set: &BTreeSet<Vec<u8>>| set.range(start.clone()..).next().is_some_and(|one| one.starts_with(&start));
        match self {
            Self::All => true,
            Self::Only { paths, below } => has(paths) || below.contains(path) || has(below),
        }
    }
}

impl Tree {
    /// The lowest layer first.
    pub fn read(
        store: &Store,
        layers: &[ImageLayer],
        interest: Interest<'_>,
        cancel: &CancellationToken,
    ) -> Result<Self> {
        let mut tree = Self::default();
        for (number, layer) in layers.iter().enumerate() {
            let mut wanted = BTreeSet::new();
            let read = match interest {
                Interest::All => Layer::read(store, layer, interest, cancel)?,
                Interest::Only { paths, below } => {
                    let first = Layer::read(store, layer, interest, cancel)?;
                    if first.targets.is_empty() {
                        first
                    } else {
                        // A name of interest is a second one of something that was passed over.
                        wanted.extend(paths.iter().cloned().chain(first.targets));
                        Layer::read(store, layer, Interest::Only { paths: &wanted, below }, cancel)?
                    }
                }
            };
            tree.put(read, number);
        }
        Ok(tree)
    }

    pub fn paths(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.nodes.keys()
    }

    /// Directories through which nothing of lower stacks is seen.
    pub fn opaque(&self) -> impl Iterator<Item = &Vec<u8>> {
        let is_opaque = |node: &Node| matches!(node, Node::There { is_opaque: true, .. });
        self.nodes.iter().filter(move |(_, node)| is_opaque(node)).map(|(path, _)| path)
    }

    /// Everything that is there.
    pub fn entries(&self) -> impl Iterator<Item = (&Vec<u8>, &Facts, &Origin)> {
        self.nodes.iter().filter_map(|(path, node)| match node {
            Node::There { facts, origin, .. } => Some((path, facts, origin)),
            Node::Gone => None,
        })
    }

    pub fn get(&self, path: &[u8]) -> Option<&Facts> {
        match self.nodes.get(path)? {
            Node::There { facts, .. } => Some(facts),
            Node::Gone => None,
        }
    }

    /// What is taken away from lower stacks by name.
    pub fn removed(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.nodes.iter().filter(|(_, node)| matches!(node, Node::Gone)).map(|(path, _)| path)
    }

    pub fn mentions(&self, path: &[u8]) -> bool {
        self.nodes.contains_key(path)
    }

    /// What is at a path when this lies on `below`.
    pub fn over<'a>(&'a self, below: &'a Self, path: &[u8]) -> Option<&'a Facts> {
        match self.nodes.get(path) {
            Some(Node::There { facts, .. }) => Some(facts),
            Some(Node::Gone) => None,
            None if self.hides(path) => None,
            None => match below.nodes.get(path) {
                Some(Node::There { facts, .. }) => Some(facts),
                Some(Node::Gone) | None => None,
            },
        }
    }

    fn hides(&self, path: &[u8]) -> bool {
        ancestors(path).any(|one| match self.nodes.get(one) {
            Some(Node::Gone) => true,
            Some(Node::There { facts, is_opaque, .. }) => *is_opaque || facts.kind != Kind::Directory,
            None => false,
        })
    }

    fn put(&mut self, layer: Layer, number: usize) {
        for path in layer.removed {
            self.clear_below(&path);
            self.nodes.insert(path, Node::Gone);
        }
        for path in &layer.opaque {
            self.clear_below(path);
        }
        for (path, (facts, first)) in layer.entries {
            let was_hidden = matches!(self.nodes.get(&path), Some(Node::Gone));
            let was_opaque = matches!(self.nodes.get(&path), Some(Node::There { is_opaque: true, .. }));
            if facts.kind != Kind::Directory {
                self.clear_below(&path);
            }
            let is_opaque = facts.kind == Kind::Directory && (was_hidden || was_opaque || layer.opaque.contains(&path));
            let origin = Origin { layer: number, path: first };
            self.nodes.insert(path, Node::There { facts, is_opaque, origin });
        }
    }

    fn clear_below(&mut self, path: &[u8]) {
        let below: Vec<Vec<u8>> = match path {
            [] => self.nodes.keys().filter(|one| !one.is_empty()).cloned().collect(),
            path => {
                let start = [path, b"/"].concat();
                self.nodes
                    .range(start.clone()..)
                    .take_while(|(one, _)| one.starts_with(&start))
                    .map(|(one, _)| one.clone())
                    .collect()
            }
        };
        for one in below {
            self.nodes.remove(&one);
        }
    }
}

/// All directories above a path, the root last.
pub fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = path.iter().enumerate().rev().filter(|(_, byte)| **byte == b'/').map(|(end, _)| &path[..end]);
    ends.chain((!path.is_empty()).then_some(&path[..0]))
}

#[derive(Default)]
struct Layer {
    /// With the name under which the contents are, which for a hard link is another.
    entries: BTreeMap<Vec<u8>, (Facts, Vec<u8>)>,
    removed: Vec<Vec<u8>>,
    opaque: BTreeSet<Vec<u8>>,
    /// Of hard links whose first name was passed over.
    targets: Vec<Vec<u8>>,
}

impl Layer {
    fn read(store: &Store, layer: &ImageLayer, interest: Interest<'_>, cancel: &CancellationToken) -> Result<Self> {
        let limits = Limits::default();
        let mut stream = Stream::new(io::BufReader::new(store.open_blob(layer.blob.digest)?), limits.ratio)?;
        let meter = stream.meter();
        let mut archive = tar::Archive::new(&mut stream);
        let mut read = Self::default();
        let mut entries = archive.entries().map_err(|error| meter.explain(error))?;
        loop {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            meter.expect_header();
            let Some(entry) = entries.next() else { return Ok(read) };
            let mut entry = entry.map_err(|error| meter.explain(error))?;
            meter.expect_contents(entry.size());
            if entry.header().entry_type() != EntryType::XGlobalHeader {
                read.add(&mut entry, interest).map_err(|error| meter.explain(error))?;
            }
            // What is passed over is contents all the same, and no part of the next header.
            io::copy(&mut entry, &mut io::sink()).map_err(|error| meter.explain(error))?;
            if read.entries.len() as u64 > limits.entries {
                return Err(Error::LimitExceeded(format!("it has more than {} entries", limits.entries)));
            }
        }
    }

    fn add<R: Read>(&mut self, entry: &mut Entry<'_, R>, interest: Interest<'_>) -> io::Result<()> {
        let path = plain(&entry.path_bytes());
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&path[..0], &path[..]),
        };
        if name == OPAQUE {
            self.opaque.insert(parent.to_vec());
            return Ok(());
        }
        if let Some(name) = name.strip_prefix(REMOVED) {
            self.removed.push(if parent.is_empty() { name.to_vec() } else { [parent, b"/", name].concat() });
            return Ok(());
        }
        let header = entry.header();
        let is_in_the_way = header.entry_type() != EntryType::Directory && interest.is_below(&path);
        if !interest.covers(&path) && !is_in_the_way {
            return Ok(());
        }
        let mode = header.mode()?;
        let (user, group, modified) = (header.uid()?, header.gid()?, header.mtime()?);
        let kind = match header.entry_type() {
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Link(entry.link_name_bytes().unwrap_or_default().into_owned()),
            EntryType::Link => {
                let target = plain(&entry.link_name_bytes().unwrap_or_default());
                match self.entries.get(&target) {
                    Some(first) => {
                        let first = first.clone();
                        self.entries.insert(path, first);
                    }
                    None => self.targets.push(target),
                }
                return Ok(());
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => Kind::Special,
            _ => Kind::File(Digest::of_reader(entry)?),
        };
        let mode = match kind {
            Kind::Directory => mode & 0o1777,
            Kind::File(_) => mode & 0o777,
            Kind::Link(_) | Kind::Special => 0,
        };
        self.entries.insert(path.clone(), (Facts { kind, mode, user, group, modified }, path));
        Ok(())
    }
}

/// Without `./`, doubled slashes and slashes at the ends.
pub(super) fn plain(path: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    parts.join(&b'/')
}
