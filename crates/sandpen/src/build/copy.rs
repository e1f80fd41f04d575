//! `COPY`, `ADD` and the directory of `WORKDIR`: a layer over the tree of the image so far.
//!
//! The rules are Docker's: a directory means its contents; a slash at the end makes the destination a directory; what is
//! missing on the way to it is made, open to all, and whose it is `--chown` says; a link that is named is followed, one that is
//! met in a directory is copied.

use std::collections::HashMap;

use images::confined::Name;
use images::dockerfile::Transfer;
use images::layer::{Adding, LayerWriter, is_archive};
use images::overlaid::{Leaf, Meta, Node, Overlaid, Seen};
use images::{Error, Result};
use tokio_util::sync::CancellationToken;

use super::accounts::Accounts;
use super::metadata::joined;
use super::source::{DEEPEST, Item, Source, reading, shown};

/// One instruction, with all that is needed to do it.
#[derive(Clone, Debug)]
pub struct Copying {
    pub transfer: Transfer,
    pub archives: Archives,
    pub work_directory: String,
    /// Seconds since 1970, for what is made on the way.
    pub now: u64,
    pub cancel: CancellationToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Archives {
    Copied,
    Unpacked,
}

/// Makes a directory with all above it, as `WORKDIR` does. One that is there stays as it is.
pub fn make_directory(writer: &mut LayerWriter<'_>, path: &str, owner: (u32, u32), now: u64) -> Result<()> {
    let (path, _) = writer.follow(path.as_bytes())?;
    writer.make_directories(&path, Meta { mode: 0o755, user: owner.0, group: owner.1, modified: now })
}

pub fn copy(writer: &mut LayerWriter<'_>, base: &Overlaid, source: &Source, copying: &Copying) -> Result<()> {
    let transfer = &copying.transfer;
    let owner = transfer.chown.as_ref().map(|word| Accounts::of(base)?.owner(word)).transpose()?;
    let mode = transfer.chmod.as_deref().map(permissions).transpose()?;
    let mut items = Vec::new();
    for word in &transfer.sources {
        items.extend(source.items(word, &copying.cancel)?);
    }
    if items.is_empty() {
        return Err(Error::NotFound(format!(
            "nothing is called like {}",
            shown(transfer.sources.join(" ").as_bytes())
        )));
    }
    let to = joined(&copying.work_directory, &transfer.destination);
    let (user, group) = owner.unwrap_or((0, 0));
    let made = Meta { mode: 0o755, user, group, modified: copying.now };
    let mut task = Task { writer, source, copying, owner, mode, made, links: HashMap::new() };
    let (path, seen) = task.writer.follow(to.as_bytes())?;
    let says_directory = transfer.destination.ends_with('/') || matches!(last_name(&transfer.destination), "." | "..");
    let is_directory = says_directory || seen == Some(Seen::Directory);
    if items.len() > 1 && !is_directory {
        return Err(Error::Invalid(format!(
            "several things are copied to {}, which is no directory; put a slash behind it",
            shown(to.as_bytes())
        )));
    }
    for item in items {
        task.links.clear();
        task.item(item, &path, is_directory)?;
    }
    Ok(())
}

struct Task<'a, 'b> {
    writer: &'a mut LayerWriter<'b>,
    source: &'a Source,
    copying: &'a Copying,
    owner: Option<(u32, u32)>,
    mode: Option<u32>,
    /// Of directories that nobody described.
    made: Meta,
    /// Where a file with several names went first.
    links: HashMap<(u64, u64), Vec<u8>>,
}

impl Task<'_, '_> {
    fn item(&mut self, item: Item, to: &[u8], is_directory: bool) -> Result<()> {
        let Item { path, name, node } = item;
        match node {
            Node::Directory(directory) => {
                self.writer.make_directories(to, self.made)?;
                self.contents(&directory, &path, to, 0)
            }
            Node::File(leaf) => {
                if self.copying.archives == Archives::Unpacked && is_archive(&mut leaf.open().map_err(reading)?)? {
                    self.writer.make_directories(to, self.made)?;
                    let cancel = &self.copying.cancel;
                    let adding = Adding { to, owner: self.owner, missing: self.made, cancel };
                    return self.writer.add_archive(leaf.open().map_err(reading)?, &adding);
                }
                let target = if is_directory { join(to, &name) } else { to.to_vec() };
                self.writer.make_directories(parent(&target), self.made)?;
                self.file(&leaf, &target)
            }
            // Links that are named were followed.
            Node::Link(leaf, _) | Node::Special(leaf) => self.special(&leaf, &path),
        }
    }

    fn contents(&mut self, directory: &Overlaid, from: &[u8], to: &[u8], depth: usize) -> Result<()> {
        if depth > DEEPEST {
            return Err(Error::LimitExceeded(format!("{} is too deep", shown(from))));
        }
        for bytes in directory.names().map_err(reading)? {
            if self.copying.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let Some(name) = Name::new(&bytes) else { continue };
            let (path, target) = (join(from, &bytes), join(to, &bytes));
            let is_out = self.source.leaves_out(&path);
            let Some(node) = directory.child(name).map_err(reading)? else { continue };
            match node {
                Node::Directory(_) if is_out && !self.source.has_exceptions() => {}
                Node::Directory(child) => {
                    // One that is left out itself is there only for what is kept of it.
                    if !is_out || self.keeps_some(&child, &path, depth)? {
                        let meta = self.changed(child.meta().map_err(reading)?);
                        self.writer.directory(&target, meta)?;
                        self.contents(&child, &path, &target, depth + 1)?;
                    }
                }
                _ if is_out => {}
                Node::File(leaf) => self.file(&leaf, &target)?,
                Node::Link(leaf, text) => self.writer.link(&target, self.changed(leaf.meta()), &text)?,
                Node::Special(leaf) => self.special(&leaf, &path)?,
            }
        }
        Ok(())
    }

    fn keeps_some(&self, directory: &Overlaid, path: &[u8], depth: usize) -> Result<bool> {
        if depth > DEEPEST {
            return Ok(false);
        }
        for bytes in directory.names().map_err(reading)? {
            let Some(name) = Name::new(&bytes) else { continue };
            let below = join(path, &bytes);
            if !self.source.leaves_out(&below) {
                return Ok(true);
            }
            if let Some(Node::Directory(child)) = directory.child(name).map_err(reading)?
                && self.keeps_some(&child, &below, depth + 1)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn file(&mut self, leaf: &Leaf, target: &[u8]) -> Result<()> {
        let meta = self.changed(leaf.meta());
        if let Some(first) = leaf.identity().and_then(|identity| self.links.get(&identity)) {
            let first = first.clone();
            return self.writer.hard_link(target, meta, &first);
        }
        let mut file = leaf.open().map_err(reading)?;
        let size = file.metadata().map_err(reading)?.len();
        self.writer.file(target, meta, &mut file, size)?;
        if let Some(identity) = leaf.identity() {
            self.links.insert(identity, target.to_vec());
        }
        Ok(())
    }

    /// Sockets are left behind by programs that run, and are nothing to others.
    fn special(&self, leaf: &Leaf, path: &[u8]) -> Result<()> {
        if leaf.is_socket() {
            return Ok(());
        }
        Err(Error::Refused(format!("{} is a device or FIFO, which no image can hold", shown(path))))
    }

    fn changed(&self, meta: Meta) -> Meta {
        let (user, group) = self.owner.unwrap_or((meta.user, meta.group));
        Meta { mode: self.mode.unwrap_or(meta.mode), user, group, ..meta }
    }
}

fn permissions(word: &str) -> Result<u32> {
    let octal = word.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let number = u32::from_str_radix(word, 8).ok().filter(|number| octal && *number <= 0o7777);
    number.ok_or_else(|| {
        Error::Invalid(format!("--chmod={} is not a mode in octal digits such as 755", shown(word.as_bytes())))
    })
}

fn last_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |end| &path[..end])
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}
