//! A layer that is written entry by entry over an image, as a build copies files into it.
//!
//! Paths are followed through the links of the image and of what was written before, and never lead out of it. Each
//! directory on the way is described as the image has it: one that is only passed through would become root's.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek};

use tar::{Builder, EntryType, Header};

use crate::confined::Name;
use crate::digest::{Digest, Hasher};
use crate::error::{Error, Result};
use crate::manifest::{Descriptor, OCI_LAYER};
use crate::overlaid::{Leaving, Lost, Meta, Node, Overlaid, Seen, resolve};
use crate::pack::{Counting, as_path, doing};
use crate::store::Writing;
use crate::unpack::Limits;

pub use self::archive::{Adding, is_archive};
use self::once::each_once;

mod archive;
mod once;

pub struct LayerWriter<'a> {
    base: &'a Overlaid,
    /// What this layer has, by its path from the root.
    written: HashMap<Vec<u8>, Seen>,
    builder: Builder<Counting<BufWriter<File>>>,
    key: Hasher,
    entries: u64,
    /// As a layer may have when it is unpacked.
    most_entries: u64,
    /// For the layer without what was described again, if there is such.
    spare: File,
    repeats: bool,
}

/// What was written, before it is anywhere.
#[derive(Debug)]
pub struct WrittenLayer {
    file: File,
    pub descriptor: Descriptor,
    /// The same for layers that differ in nothing but the times of their files.
    pub key: Digest,
    pub entries: u64,
}

impl<'a> LayerWriter<'a> {
    /// Over an image whose tree this is.
    pub fn new(writing: &Writing, base: &'a Overlaid) -> Result<Self> {
        let file = writing.store().nameless_file()?;
        let counting = Counting { inner: BufWriter::with_capacity(1 << 20, file), hasher: Hasher::default(), size: 0 };
        let (written, key) = (HashMap::new(), Hasher::default());
        let spare = writing.store().nameless_file()?;
        let (builder, most_entries) = (Builder::new(counting), Limits::default().entries);
        Ok(Self { base, written, builder, key, entries: 0, most_entries, spare, repeats: false })
    }

    /// What is at a path in which no link is followed.
    pub fn look(&self, path: &[u8]) -> io::Result<Option<Seen>> {
        if path.is_empty() {
            return Ok(Some(Seen::Directory));
        }
        if let Some(seen) = self.written.get(path) {
            return Ok(Some(seen.clone()));
        }
        Ok(self.base.find(path)?.as_ref().map(Seen::from))
    }

    /// Where a path leads to, with all links followed.
    pub fn follow(&self, path: &[u8]) -> Result<(Vec<u8>, Option<Seen>)> {
        resolve(path, Leaving::StaysAtRoot, |path| self.look(path)).map_err(|lost| lost_at(path, lost))
    }

    /// Makes what is missing of the directories to a path that was followed. Those that exist stay as they are.
    pub fn make_directories(&mut self, path: &[u8], meta: Meta) -> Result<()> {
        for length in ends_of_names(path) {
            let part = &path[..length];
            match self.look(part).map_err(doing(part))? {
                Some(Seen::Directory) => {}
                Some(Seen::Link(_) | Seen::Other) => return Err(lost_at(part, Lost::NoDirectory)),
                None => self.directory(part, meta)?,
            }
        }
        Ok(())
    }

    /// A directory with this mode and owner, whether it is there or not.
    pub fn directory(&mut self, path: &[u8], meta: Meta) -> Result<()> {
        if path.is_empty() {
            return Ok(());
        }
        if let Some(Seen::Link(_) | Seen::Other) = self.look(path).map_err(doing(path))? {
            return Err(Error::Invalid(format!("{} is no directory, and a directory is copied there", shown(path))));
        }
        self.describe_parents(path)?;
        let mut header = header(meta, EntryType::Directory);
        self.note(b"directory", path, meta, b"");
        self.append(&mut header, &[path, b"/"].concat(), io::empty())?;
        self.remember(path, Seen::Directory);
        Ok(())
    }

    pub fn file(&mut self, path: &[u8], meta: Meta, contents: &mut dyn Read, size: u64) -> Result<()> {
        self.make_room(path)?;
        let mut header = header(meta, EntryType::Regular);
        header.set_size(size);
        self.note(b"file", path, meta, &size.to_le_bytes());
        self.count()?;
        let mut noting = Noting { inner: contents, key: &mut self.key, left: size };
        self.builder.append_data(&mut header, as_path(path), &mut noting).map_err(doing(path))?;
        if noting.left > 0 {
            return Err(Error::Refused(format!("{} became shorter while it was copied", shown(path))));
        }
        self.remember(path, Seen::Other);
        Ok(())
    }

    pub fn link(&mut self, path: &[u8], meta: Meta, target: &[u8]) -> Result<()> {
        self.make_room(path)?;
        let mut header = header(Meta { mode: 0o777, ..meta }, EntryType::Symlink);
        self.note(b"link", path, Meta { mode: 0o777, ..meta }, target);
        self.count()?;
        self.builder.append_link(&mut header, as_path(path), as_path(target)).map_err(doing(path))?;
        self.remember(path, Seen::Link(target.to_vec()));
        Ok(())
    }

    /// A further name for a file that this layer has.
    pub fn hard_link(&mut self, path: &[u8], meta: Meta, first: &[u8]) -> Result<()> {
        if path == first {
            return Ok(());
        }
        self.make_room(path)?;
        let mut header = header(meta, EntryType::Link);
        self.note(b"hard link", path, meta, first);
        self.count()?;
        self.builder.append_link(&mut header, as_path(path), as_path(first)).map_err(doing(path))?;
        self.remember(path, Seen::Other);
        Ok(())
    }

    /// What this layer itself has at a path in which no link is followed.
    pub fn written(&self, path: &[u8]) -> Option<&Seen> {
        self.written.get(path)
    }

    pub fn finish(self) -> Result<WrittenLayer> {
        let writing = || Error::io("writing a layer");
        let Self { builder, key, mut entries, spare, repeats, .. } = self;
        let mut counting = builder.into_inner().map_err(writing())?;
        let into_file = |buffer: BufWriter<File>| buffer.into_inner().map_err(|error| writing()(error.into_error()));
        let mut file = into_file(counting.inner)?;
        if repeats {
            let once = each_once(&mut file, spare)?;
            (file, entries) = (into_file(once.counting.inner)?, once.entries);
            (counting.hasher, counting.size) = (once.counting.hasher, once.counting.size);
        }
        file.rewind().map_err(writing())?;
        let descriptor = Descriptor::new(OCI_LAYER, counting.hasher.finish(), counting.size);
        Ok(WrittenLayer { file, descriptor, key: key.finish(), entries })
    }

    fn remember(&mut self, path: &[u8], seen: Seen) {
        self.repeats |= self.written.insert(path.to_vec(), seen).is_some();
    }

    /// A place for something that is no directory.
    fn make_room(&mut self, path: &[u8]) -> Result<()> {
        match self.look(path).map_err(doing(path))? {
            Some(Seen::Directory) => {
                Err(Error::Invalid(format!("{} is a directory, and something else is copied there", shown(path))))
            }
            Some(Seen::Link(_) | Seen::Other) | None => self.describe_parents(path),
        }
    }

    fn describe_parents(&mut self, path: &[u8]) -> Result<()> {
        let names = path.split(|byte| *byte == b'/').collect::<Vec<_>>();
        if names.iter().any(|name| Name::new(name).is_none_or(|name| name.as_bytes().starts_with(b".wh."))) {
            return Err(Error::Unsupported(format!("no layer can have a file that is called {}", shown(path))));
        }
        let parents: Vec<usize> = ends_of_names(path).filter(|length| *length < path.len()).collect();
        for part in parents.into_iter().map(|length| &path[..length]) {
            if self.written.contains_key(part) {
                continue;
            }
            let meta = match self.base.find(part).map_err(doing(part))? {
                Some(Node::Directory(directory)) => directory.meta().map_err(doing(part))?,
                Some(Node::File(_) | Node::Link(..) | Node::Special(_)) => {
                    return Err(lost_at(part, Lost::NoDirectory));
                }
                None => Meta { mode: 0o755, user: 0, group: 0, modified: 0 },
            };
            self.note(b"on the way", part, meta, b"");
            self.append(&mut header(meta, EntryType::Directory), &[part, b"/"].concat(), io::empty())?;
            self.written.insert(part.to_vec(), Seen::Directory);
        }
        Ok(())
    }

    fn note(&mut self, kind: &[u8], path: &[u8], meta: Meta, more: &[u8]) {
        for part in [kind, path, more] {
            self.key.update(&(part.len() as u64).to_le_bytes());
            self.key.update(part);
        }
        for number in [meta.mode, meta.user, meta.group] {
            self.key.update(&number.to_le_bytes());
        }
    }

    fn append(&mut self, header: &mut Header, path: &[u8], contents: impl Read) -> Result<()> {
        self.count()?;
        self.builder.append_data(header, as_path(path), contents).map_err(doing(path))
    }

    fn count(&mut self) -> Result<()> {
        self.entries += 1;
        if self.entries > self.most_entries {
            return Err(Error::LimitExceeded(format!("a layer would have more than {} entries", self.most_entries)));
        }
        Ok(())
    }
}

impl WrittenLayer {
    /// Keeps it as a blob for an image that is going to be assembled.
    pub fn store(self, writing: &Writing, cancel: &tokio_util::sync::CancellationToken) -> Result<Descriptor> {
        writing.put(self.file, &self.descriptor, cancel)?;
        Ok(self.descriptor)
    }
}

fn header(meta: Meta, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(meta.mode);
    header.set_uid(meta.user.into());
    header.set_gid(meta.group.into());
    header.set_mtime(meta.modified);
    header.set_size(0);
    header
}

fn ends_of_names(path: &[u8]) -> impl Iterator<Item = usize> + use<> {
    let mut ends: Vec<usize> = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).collect();
    if !path.is_empty() {
        ends.push(path.len());
    }
    ends.into_iter()
}

fn lost_at(path: &[u8], lost: Lost) -> Error {
    let path_shown = shown(path);
    match lost {
        Lost::Outside => Error::Invalid(format!("{path_shown} leads outside")),
        Lost::TooManyLinks => Error::Invalid(format!("{path_shown} goes through too many links")),
        Lost::NoDirectory => Error::Invalid(format!("{path_shown} goes through something that is no directory")),
        Lost::Io(error) => doing(path)(error),
    }
}

fn shown(path: &[u8]) -> String {
    format!("\"/{}\"", path[..path.len().min(128)].escape_ascii())
}

/// Digests a file's contents on their way.
struct Noting<'a> {
    inner: &'a mut dyn Read,
    key: &'a mut Hasher,
    left: u64,
}

impl Read for Noting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.inner.read(&mut buffer[..most])?;
        self.key.update(&buffer[..count]);
        self.left -= count as u64;
        Ok(count)
    }
}

impl std::fmt::Debug for LayerWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayerWriter").field("entries", &self.entries).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::Store;

    #[test]
    fn entries_of_every_kind_are_counted() {
        let place = tempfile::tempdir().unwrap();
        let writing = Writing::begin(&Arc::new(Store::open(place.path()).unwrap())).unwrap();
        let base = Overlaid::of_layers(Vec::new());
        let meta = Meta { mode: 0o755, user: 0, group: 0, modified: 0 };
        type Add = fn(&mut LayerWriter<'_>, Meta) -> Result<()>;
        let kinds: [Add; 4] = [
            |writer, meta| writer.directory(b"d", meta),
            |writer, meta| writer.file(b"f", meta, &mut io::empty(), 0),
            |writer, meta| writer.link(b"l", meta, b"to"),
            |writer, meta| writer.hard_link(b"h", meta, b"first"),
        ];
        for add in kinds {
            let mut writer = LayerWriter::new(&writing, &base).unwrap();
            writer.most_entries = 1;
            writer.file(b"first", meta, &mut io::empty(), 0).unwrap();
            assert!(matches!(add(&mut writer, meta), Err(Error::LimitExceeded(_))));
        }
    }
}
