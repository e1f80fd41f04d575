//! The inverse of unpacking a layer: what a sandbox changed, as its overlay kept it, to an archive that others read.
//!
//! Whoever filled the directory is not trusted: it is gone through from descriptor to name, and no link is followed. Where
//! other files than regular ones, directories and links are, they are left out, and so are names that would mean the
//! removal of something.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, Stat};
use tar::{Builder, EntryType, Header};
use tokio_util::sync::CancellationToken;

use crate::confined::{Directory, Name};
use crate::digest::{Digest, Hasher};
use crate::error::{Error, Result};
use crate::manifest::{Descriptor, OCI_LAYER};
use crate::store::Writing;
use crate::unpack::{OWNER_ATTRIBUTE, Owners};

/// How the numbers of owners on disk became those inside the sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shift {
    /// The number on disk that was 0 inside.
    pub first_user: u32,
    pub first_group: u32,
    /// How many there were; 0 is no end. Whatever is outside becomes root's.
    pub count: u32,
}

impl Shift {
    /// Of trees that this caller unpacked: none for root; to others everything is theirs that should be root's.
    pub fn of_layers() -> Self {
        match Owners::for_caller() {
            Owners::Kept => Self::default(),
            Owners::Noted => Self {
                first_user: rustix::process::geteuid().as_raw(),
                first_group: rustix::process::getegid().as_raw(),
                count: 1,
            },
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Of the archive, which is plain, so this is its diff-id too.
    pub digest: Digest,
    pub size: u64,
    pub entries: u64,
    /// Devices, FIFOs, sockets, and names that would remove something.
    pub left_out: u64,
}

/// Writes a layer to an archive. The same tree gives the same bytes.
pub fn pack(tree: &Directory, shift: Shift, writer: impl Write, cancel: &CancellationToken) -> Result<Packed> {
    let counting = Counting { inner: writer, hasher: Hasher::default(), size: 0 };
    let mut packing =
        Packing { builder: Builder::new(counting), shift, links: HashMap::new(), entries: 0, left_out: 0, cancel };
    packing.directory(tree, &mut Vec::new())?;
    let Packing { builder, entries, left_out, .. } = packing;
    let mut counting = builder.into_inner().map_err(Error::io("writing a layer"))?;
    counting.flush().map_err(Error::io("writing a layer"))?;
    Ok(Packed { digest: counting.hasher.finish(), size: counting.size, entries, left_out })
}

impl Writing {
    /// Packs a tree and keeps it as a layer for an image that is going to be assembled.
    pub fn pack(&self, tree: &Directory, shift: Shift, cancel: &CancellationToken) -> Result<(Descriptor, Packed)> {
        let mut file = self.store().nameless_file()?;
        let packed = pack(tree, shift, io::BufWriter::with_capacity(1 << 20, &mut file), cancel)?;
        io::Seek::rewind(&mut file).map_err(Error::io("reading a layer"))?;
        let descriptor = Descriptor::new(OCI_LAYER, packed.digest, packed.size);
        self.put(file, &descriptor, cancel)?;
        Ok((descriptor, packed))
    }
}

struct Packing<'a, W: Write> {
    builder: Builder<Counting<W>>,
    shift: Shift,
    /// Where a file with several names was first.
    links: HashMap<(u64, u64), Vec<u8>>,
    entries: u64,
    left_out: u64,
    cancel: &'a CancellationToken,
}

impl<W: Write> Packing<'_, W> {
    fn directory(&mut self, directory: &Directory, path: &mut Vec<u8>) -> Result<()> {
        if directory.is_opaque() {
            self.mark(path, b".wh..wh..opq")?;
        }
        let mut names = directory.names().map_err(doing(path))?;
        names.sort();
        for bytes in &names {
            if self.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let Some(name) = Name::new(bytes) else { continue };
            let Some(found) = directory.stat(name).map_err(doing(path))? else { continue };
            let length = path.len();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(bytes);
            self.entry(directory, name, &found, path, length)?;
            path.truncate(length);
        }
        Ok(())
    }

    fn entry(
        &mut self,
        parent: &Directory,
        name: Name<'_>,
        found: &Stat,
        path: &mut Vec<u8>,
        parent_length: usize,
    ) -> Result<()> {
        let kind = FileType::from_raw_mode(found.st_mode);
        if kind == FileType::CharacterDevice && found.st_rdev == 0 {
            let mark = [b".wh.", name.as_bytes()].concat();
            let parent = path[..parent_length].to_vec();
            return self.mark(&parent, &mark);
        }
        if name.as_bytes().starts_with(b".wh.") {
            self.left_out += 1;
            return Ok(());
        }
        match kind {
            FileType::Directory => {
                let directory = parent.enter(name).map_err(doing(path))?;
                let mut header = self.header(found, owner_note(&directory), EntryType::Directory);
                self.append(&mut header, &[path.as_slice(), b"/"].concat(), io::empty())?;
                self.directory(&directory, path)
            }
            FileType::RegularFile => self.file(parent, name, found, path),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(parent, name.as_os_str(), Vec::new());
                let target = target.map_err(|error| doing(path)(error.into()))?;
                let mut header = self.header(found, None, EntryType::Symlink);
                self.append_link(&mut header, path, target.as_bytes())
            }
            FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Fifo
            | FileType::Socket
            | FileType::Unknown => {
                self.left_out += 1;
                Ok(())
            }
        }
    }

    fn file(&mut self, parent: &Directory, name: Name<'_>, found: &Stat, path: &[u8]) -> Result<()> {
        let identity = (found.st_dev, found.st_ino);
        if found.st_nlink > 1 {
            if let Some(first) = self.links.get(&identity).cloned() {
                let mut header = self.header(found, None, EntryType::Link);
                return self.append_link(&mut header, path, &first);
            }
            self.links.insert(identity, path.to_vec());
        }
        let file = parent.open_file(name).map_err(doing(path))?;
        let size = file.metadata().map_err(doing(path))?.len();
        let mut header = self.header(found, owner_note(&file), EntryType::Regular);
        header.set_size(size);
        let mut limited = file.take(size);
        self.append(&mut header, path, &mut limited)?;
        if limited.limit() > 0 {
            return Err(Error::Refused("a file became shorter while it was packed".to_owned()));
        }
        Ok(())
    }

    /// An empty file that says what is not there.
    fn mark(&mut self, directory: &[u8], name: &[u8]) -> Result<()> {
        if name.len() > Name::MAX_BYTES {
            return Err(Error::Unsupported("a name is too long for its removal to be written down".to_owned()));
        }
        let path = if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() };
        let mut header = Header::new_gnu();
        header.set_mode(0o600);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        self.append(&mut header, &path, io::empty())
    }

    fn header(&self, found: &Stat, noted: Option<(u32, u32)>, kind: EntryType) -> Header {
        let inside = |number: u32, first: u32| {
            number.checked_sub(first).filter(|number| self.shift.count == 0 || *number < self.shift.count).unwrap_or(0)
        };
        let shifted = (inside(found.st_uid, self.shift.first_user), inside(found.st_gid, self.shift.first_group));
        let (user, group) = noted.unwrap_or(shifted);
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(found.st_mode & 0o1777);
        header.set_uid(user.into());
        header.set_gid(group.into());
        header.set_mtime(u64::try_from(found.st_mtime).unwrap_or(0));
        header.set_size(0);
        header
    }

    fn append(&mut self, header: &mut Header, path: &[u8], contents: impl Read) -> Result<()> {
        self.entries += 1;
        self.builder.append_data(header, as_path(path), contents).map_err(doing(path))
    }

    fn append_link(&mut self, header: &mut Header, path: &[u8], target: &[u8]) -> Result<()> {
        self.entries += 1;
        self.builder.append_link(header, as_path(path), as_path(target)).map_err(doing(path))
    }
}

/// The owner that an unprivileged unpacker wrote down.
fn owner_note(file: impl std::os::fd::AsFd) -> Option<(u32, u32)> {
    let mut value = [0u8; 32];
    let length = rustix::fs::fgetxattr(file, OWNER_ATTRIBUTE, &mut value[..]).ok()?;
    let (user, group) = std::str::from_utf8(&value[..length]).ok()?.split_once(':')?;
    Some((user.parse().ok()?, group.parse().ok()?))
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn doing(path: &[u8]) -> impl FnOnce(io::Error) -> Error + use<> {
    Error::io(format!("packing \"{}\"", path[..path.len().min(128)].escape_ascii()))
}

struct Counting<W> {
    inner: W,
    hasher: Hasher,
    size: u64,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
