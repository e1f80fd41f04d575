//! The inverse of unpacking a layer: what a sandbox changed, as its overlay kept it, to an archive that others read.
//!
//! Whoever filled the directory is not trusted: it is gone through from descriptor to name, and no link is followed. Where
//! other files than regular ones, directories and links are, they are left out, and so are names that would mean the
//! removal of something. Programs may run in it meanwhile: what goes away is not there, and what changes while it is read
//! is an error.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Stat, StatxFlags};
use tar::{Builder, EntryType, Header};
use tokio_util::sync::CancellationToken;

use crate::confined::{Directory, Name, is_whiteout};
use crate::digest::{Digest, Hasher};
use crate::error::{Error, Result};
use crate::manifest::{Descriptor, OCI_LAYER};
use crate::store::Writing;
use crate::unpack::{Limits, OWNER_ATTRIBUTE, Owners};

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
            Owners::Kept | Owners::Mapped | Owners::Known => Self::default(),
            Owners::Noted => Self {
                first_user: rustix::process::geteuid().as_raw(),
                first_group: rustix::process::getegid().as_raw(),
                count: 1,
            },
        }
    }

    /// Whose something is inside that these numbers have on disk.
    pub fn inside(self, user: u32, group: u32) -> (u32, u32) {
        let inside = |number: u32, first: u32| {
            number.checked_sub(first).filter(|number| self.count == 0 || *number < self.count).unwrap_or(0)
        };
        (inside(user, self.first_user), inside(group, self.first_group))
    }
}

/// What of a tree becomes a layer.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    pub shift: Shift,
    /// The same that whoever unpacks it has.
    pub limits: Limits,
    /// Paths below the top that are no part of it, with all that is below them.
    pub without: &'a [&'a str],
    pub owners: PackedOwners,
}

/// To whom the files of a layer belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedOwners {
    /// To those that a note on them names, or else to their owners. Only for trees that nobody else could write notes to.
    Noted,
    /// To their owners.
    Shifted,
    /// To root, and everybody may read and execute what the owner could: a tree that others only look at.
    Everybody,
}

impl From<Shift> for Rules<'_> {
    fn from(shift: Shift) -> Self {
        Self { shift, limits: Limits::default(), without: &[], owners: PackedOwners::Noted }
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

/// Writes a layer to an archive. The same tree gives the same bytes. What is mounted below the top is not followed.
pub fn pack<'a>(
    tree: &Directory,
    rules: impl Into<Rules<'a>>,
    writer: impl Write,
    cancel: &CancellationToken,
) -> Result<Packed> {
    let counting = Counting { inner: writer, hasher: Hasher::default(), size: 0 };
    let mut packing = Packing {
        builder: Builder::new(counting),
        rules: rules.into(),
        mount: mount_of(tree),
        links: HashMap::new(),
        bytes: 0,
        entries: 0,
        left_out: 0,
        cancel,
    };
    packing.directory(tree, &mut Vec::new(), 0)?;
    let Packing { builder, entries, left_out, .. } = packing;
    let mut counting = builder.into_inner().map_err(Error::io("writing a layer"))?;
    counting.flush().map_err(Error::io("writing a layer"))?;
    Ok(Packed { digest: counting.hasher.finish(), size: counting.size, entries, left_out })
}

impl Writing {
    /// Packs a tree and keeps it as a layer for an image that is going to be assembled.
    pub fn pack(&self, tree: &Directory, shift: Shift, cancel: &CancellationToken) -> Result<(Descriptor, Packed)> {
        let mut blob = self.begin_blob(u64::MAX)?;
        let packed = pack(tree, shift, io::BufWriter::with_capacity(1 << 20, &mut blob), cancel)?;
        Ok((Descriptor::new(OCI_LAYER, self.finish_blob(blob)?, packed.size), packed))
    }
}

struct Packing<'a, W: Write> {
    builder: Builder<Counting<W>>,
    rules: Rules<'a>,
    mount: Option<u64>,
    /// Where a file with several names was first.
    links: HashMap<(u64, u64), Vec<u8>>,
    /// Of all files together.
    bytes: u64,
    entries: u64,
    left_out: u64,
    cancel: &'a CancellationToken,
}

impl<W: Write> Packing<'_, W> {
    fn directory(&mut self, directory: &Directory, path: &mut Vec<u8>, depth: usize) -> Result<()> {
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
            if !self.rules.without.iter().any(|left_out| left_out.as_bytes() == path.as_slice()) {
                self.entry(directory, name, &found, path, depth)?;
            }
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
        depth: usize,
    ) -> Result<()> {
        if depth >= self.rules.limits.depth {
            return Err(Error::LimitExceeded(format!("a path is more than {depth} directories deep")));
        }
        let kind = FileType::from_raw_mode(found.st_mode);
        if is_whiteout(found) {
            let mark = [b".wh.", name.as_bytes()].concat();
            let above = path.len().saturating_sub(name.as_bytes().len() + 1);
            let parent = path[..above].to_vec();
            return self.mark(&parent, &mark);
        }
        if name.as_bytes().starts_with(b".wh.") {
            self.left_out += 1;
            return Ok(());
        }
        match kind {
            FileType::Directory => {
                let Some(directory) = still(parent.enter(name), path)? else { return Ok(()) };
                if self.is_elsewhere(&directory) {
                    return Ok(());
                }
                let found = stat(&directory, path)?;
                let mut header = self.header(&found, self.owner_note(&directory), EntryType::Directory);
                self.append(&mut header, &[path.as_slice(), b"/"].concat(), io::empty())?;
                self.directory(&directory, path, depth + 1)
            }
            FileType::RegularFile => {
                let Some(file) = still(parent.open_file(name), path)? else { return Ok(()) };
                if self.is_elsewhere(&file) { Ok(()) } else { self.file(file, path) }
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(parent, name.as_os_str(), Vec::new());
                let Some(target) = still(target.map_err(io::Error::from), path)? else { return Ok(()) };
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

    fn file(&mut self, file: File, path: &[u8]) -> Result<()> {
        let before = stat(&file, path)?;
        let identity = (before.st_dev, before.st_ino);
        if before.st_nlink > 1 {
            if let Some(first) = self.links.get(&identity).cloned() {
                let mut header = self.header(&before, None, EntryType::Link);
                return self.append_link(&mut header, path, &first);
            }
            self.links.insert(identity, path.to_vec());
        }
        let size = u64::try_from(before.st_size).unwrap_or(0);
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.rules.limits.bytes {
            return Err(Error::LimitExceeded(format!("its files have more than {} bytes", self.rules.limits.bytes)));
        }
        let mut header = self.header(&before, self.owner_note(&file), EntryType::Regular);
        header.set_size(size);
        let mut limited = Cancelling { inner: file.take(size), cancel: self.cancel };
        self.append(&mut header, path, &mut limited)?;
        let after = stat(limited.inner.get_ref(), path)?;
        let times = |stat: &Stat| (stat.st_mtime, stat.st_mtime_nsec, stat.st_size);
        if limited.inner.limit() > 0 || times(&before) != times(&after) {
            return Err(changed(path));
        }
        Ok(())
    }

    /// Whether it belongs to something that is mounted below the top.
    fn is_elsewhere(&self, file: impl AsFd) -> bool {
        mount_of(file) != self.mount
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
        let shifted = self.rules.shift.inside(found.st_uid, found.st_gid);
        let (user, group) = match self.rules.owners {
            PackedOwners::Noted => noted.unwrap_or(shifted),
            PackedOwners::Shifted => shifted,
            PackedOwners::Everybody => (0, 0),
        };
        let mode = match self.rules.owners {
            PackedOwners::Noted | PackedOwners::Shifted => found.st_mode,
            PackedOwners::Everybody => {
                let owner_s = found.st_mode & 0o500 | if kind == EntryType::Directory { 0o500 } else { 0o400 };
                found.st_mode | owner_s | owner_s >> 3 | owner_s >> 6
            }
        };
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode & 0o1777);
        header.set_uid(user.into());
        header.set_gid(group.into());
        header.set_mtime(u64::try_from(found.st_mtime).unwrap_or(0));
        header.set_size(0);
        header
    }

    fn append(&mut self, header: &mut Header, path: &[u8], contents: impl Read) -> Result<()> {
        self.count(path)?;
        self.builder.append_data(header, as_path(path), contents).map_err(self.doing(path))
    }

    fn append_link(&mut self, header: &mut Header, path: &[u8], target: &[u8]) -> Result<()> {
        self.count(path)?;
        self.builder.append_link(header, as_path(path), as_path(target)).map_err(self.doing(path))
    }

    fn count(&mut self, path: &[u8]) -> Result<()> {
        let limits = &self.rules.limits;
        self.entries += 1;
        if self.entries > limits.entries {
            return Err(Error::LimitExceeded(format!("it has more than {} entries", limits.entries)));
        }
        if path.len() > limits.path_bytes {
            return Err(Error::LimitExceeded(format!("a path has {} bytes", path.len())));
        }
        Ok(())
    }

    fn doing(&self, path: &[u8]) -> impl FnOnce(io::Error) -> Error + use<W> {
        let (cancelled, doing) = (self.cancel.is_cancelled(), doing(path));
        move |error| if cancelled { Error::Cancelled } else { doing(error) }
    }

    /// The owner that an unprivileged unpacker wrote down.
    fn owner_note(&self, file: impl AsFd) -> Option<(u32, u32)> {
        if self.rules.owners == PackedOwners::Noted { owner_note(file) } else { None }
    }
}

fn stat(file: impl AsFd, path: &[u8]) -> Result<Stat> {
    rustix::fs::fstat(file).map_err(|error| doing(path)(error.into()))
}

/// `None` before Linux 5.8, which does not tell.
fn mount_of(file: impl AsFd) -> Option<u64> {
    let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    let told = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
    told.then_some(found.stx_mnt_id)
}

/// `None` for what went away after its directory was listed.
fn still<T>(found: io::Result<T>, path: &[u8]) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if is_something_else(&error) => Err(changed(path)),
        Err(error) => Err(doing(path)(error)),
    }
}

/// What the kernel, or our own look at it, says of another kind of file than there was.
fn is_something_else(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::LOOP | Errno::NOTDIR | Errno::NXIO)) || error.kind() == io::ErrorKind::InvalidInput
}

fn changed(path: &[u8]) -> Error {
    Error::Unavailable(format!("\"{}\" changed while it was read", path[..path.len().min(128)].escape_ascii()))
}

/// The owner that an unprivileged unpacker wrote down.
pub fn owner_note(file: impl AsFd) -> Option<(u32, u32)> {
    let mut value = [0u8; 32];
    let length = rustix::fs::fgetxattr(file, OWNER_ATTRIBUTE, &mut value[..]).ok()?;
    let (user, group) = std::str::from_utf8(&value[..length]).ok()?.split_once(':')?;
    Some((user.parse().ok()?, group.parse().ok()?))
}

pub(crate) fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

pub(crate) fn doing(path: &[u8]) -> impl FnOnce(io::Error) -> Error + use<> {
    Error::io(format!("packing \"{}\"", path[..path.len().min(128)].escape_ascii()))
}

/// Ends with an error as soon as the work is not wanted any more.
struct Cancelling<'a, R> {
    inner: R,
    cancel: &'a CancellationToken,
}

impl<R: Read> Read for Cancelling<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other("cancelled"));
        }
        self.inner.read(buffer)
    }
}

pub(crate) struct Counting<W> {
    pub inner: W,
    pub hasher: Hasher,
    pub size: u64,
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
