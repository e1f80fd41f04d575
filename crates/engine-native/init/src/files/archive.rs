//! Directories as tar streams, out of the sandbox and into it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};

use super::{as_path, convert, make_directories, open};
use crate::identity::{self, Role};
use crate::wire::{FileFailure, Kind, Stat};

/// Write `path` and all below it to the pipe. `ready` is called when it is known that there is something to send.
pub fn pack(path: &[u8], pipe: OwnedFd, ready: impl FnOnce() -> Result<(), FileFailure>) -> Result<(), FileFailure> {
    let top = rustix::fs::fstat(open(path, OFlags::PATH | OFlags::NOFOLLOW)?)?;
    ready()?;
    let name = as_path(path).file_name().map_or_else(|| PathBuf::from("."), PathBuf::from);
    let mut archive = Builder::new(io::BufWriter::with_capacity(256 << 10, File::from(pipe)));
    let mut pending = vec![(path.to_vec(), name, top)];
    while let Some((path, name, stat)) = pending.pop() {
        let (mut header, stat) = (header_of(&stat), convert(&stat));
        match stat.kind {
            Kind::Directory => {
                archive.append_data(&mut header, name.join(""), io::empty())?;
                let Ok(directory) = open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW) else {
                    continue;
                };
                for entry in Dir::read_from(&directory)? {
                    let entry = entry?;
                    let child = entry.file_name().to_bytes();
                    if matches!(child, b"." | b"..") {
                        continue;
                    }
                    if let Ok(stat) = rustix::fs::statat(&directory, child, AtFlags::SYMLINK_NOFOLLOW) {
                        let path = [&path, b"/".as_slice(), child].concat();
                        pending.push((path, name.join(as_path(child)), stat));
                    }
                }
            }
            Kind::Link => {
                if let Ok(target) = std::fs::read_link(as_path(&path)) {
                    archive.append_link(&mut header, &name, target)?;
                }
            }
            Kind::Regular => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW;
                if let Ok(file) = open(&path, flags) {
                    archive.append_data(&mut header, &name, Exactly { file: File::from(file), left: stat.bytes })?;
                }
            }
            // FIFOs, sockets and devices mean nothing outside of this sandbox.
            Kind::Other => {}
        }
    }
    archive.into_inner()?.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(())
}

fn header_of(raw: &rustix::fs::Stat) -> Header {
    let stat: Stat = convert(raw);
    let mut header = Header::new_gnu();
    header.set_mode(stat.mode);
    match identity::role() {
        Role::Guest | Role::Root => {}
        // What one stage of a build hands to the next.
        Role::Builder => {
            header.set_mode(raw.st_mode & 0o7777);
            header.set_uid(raw.st_uid.into());
            header.set_gid(raw.st_gid.into());
        }
    }
    header.set_mtime(stat.modified_seconds.max(0) as u64);
    header.set_size(0);
    header.set_entry_type(match stat.kind {
        Kind::Directory => EntryType::Directory,
        Kind::Link => EntryType::Symlink,
        Kind::Regular | Kind::Other => EntryType::Regular,
    });
    if stat.kind == Kind::Regular {
        header.set_size(stat.bytes);
    }
    header
}

/// As many bytes as the header says, whatever the file does meanwhile; otherwise the rest of the archive is garbage.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let mut count = self.file.read(&mut buffer[..wanted])?;
        if count == 0 {
            buffer[..wanted].fill(0);
            count = wanted;
        }
        self.left -= count as u64;
        Ok(count)
    }
}

/// Write the contents of a tar stream below `path`. Names that lead outside, and kinds that are not files, directories
/// or links, make the whole stream wrong. In a builder, entries have the owners, modes and times that the stream says.
pub fn unpack(path: &[u8], pipe: OwnedFd, ready: impl FnOnce() -> Result<(), FileFailure>) -> Result<(), FileFailure> {
    make_directories(path)?;
    let top = open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    ready()?;
    let mut archive = tar::Archive::new(io::BufReader::with_capacity(256 << 10, File::from(pipe)));
    let mut directories = Vec::new();
    for entry in archive.entries().map_err(bad_archive)? {
        let mut entry = entry.map_err(bad_archive)?;
        let name = inside(&entry.path().map_err(bad_archive)?)?;
        let mode = Mode::from_raw_mode(entry.header().mode().unwrap_or(0o644) & 0o777);
        let stated = match identity::role() {
            Role::Guest | Role::Root => None,
            Role::Builder => Some(Stated::by(entry.header()).map_err(bad_archive)?),
        };
        if name.as_os_str().is_empty() {
            continue;
        }
        match entry.header().entry_type() {
            EntryType::Directory => {
                let directory = directory_at(&top, &name)?;
                if let Some(stated) = stated {
                    stated.give_to(&directory)?;
                    directories.push((name, stated.times));
                }
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let (parent, name) = place_for(&top, &name)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let mut file = File::from(rustix::fs::openat(&parent, &name, flags, mode)?);
                io::copy(&mut entry, &mut file)?;
                if let Some(stated) = stated {
                    stated.give_to(&OwnedFd::from(file))?;
                }
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().ok_or(FileFailure::BadArchive)?.into_owned();
                let (parent, name) = place_for(&top, &name)?;
                rustix::fs::symlinkat(target, &parent, &name)?;
                if let Some(stated) = stated {
                    stated.give_to_link(&parent, &name)?;
                }
            }
            EntryType::Link => {
                let target = inside(&entry.link_name().map_err(bad_archive)?.ok_or(FileFailure::BadArchive)?)?;
                let file = confined(&top, &target, OFlags::PATH | OFlags::NOFOLLOW)?;
                let (parent, name) = place_for(&top, &name)?;
                let held = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
                rustix::fs::linkat(CWD, held.as_str(), &parent, &name, AtFlags::SYMLINK_FOLLOW)?;
            }
            EntryType::XGlobalHeader => {}
            _ => return Err(FileFailure::BadArchive),
        }
    }
    // Only now: what is made in a directory changes its time.
    for (name, times) in directories {
        // One that a later entry replaced is not there any more.
        if let Ok(directory) = confined(&top, &name, OFlags::RDONLY | OFlags::DIRECTORY) {
            rustix::fs::futimens(&directory, &times)?;
        }
    }
    // Whatever follows the end mark: the sender must be able to finish.
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    Ok(())
}

/// What a stream says of an entry besides its contents.
struct Stated {
    user: Uid,
    group: Gid,
    mode: Mode,
    times: Timestamps,
}

impl Stated {
    fn by(header: &Header) -> io::Result<Self> {
        let id = |number: u64| u32::try_from(number).map_err(io::Error::other);
        let modified = Timespec { tv_sec: i64::try_from(header.mtime()?).unwrap_or(i64::MAX), tv_nsec: 0 };
        Ok(Self {
            user: Uid::from_raw(id(header.uid()?)?),
            group: Gid::from_raw(id(header.gid()?)?),
            mode: Mode::from_raw_mode(header.mode()? & 0o7777),
            times: Timestamps { last_access: modified, last_modification: modified },
        })
    }

    fn give_to(&self, file: &OwnedFd) -> rustix::io::Result<()> {
        rustix::fs::fchown(file, Some(self.user), Some(self.group))?;
        // After its owner: a change of that takes set-id bits away.
        rustix::fs::fchmod(file, self.mode)?;
        rustix::fs::futimens(file, &self.times)
    }

    fn give_to_link(&self, parent: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
        let link = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(parent, name, Some(self.user), Some(self.group), link)?;
        rustix::fs::utimensat(parent, name, &self.times, link)
    }
}

fn bad_archive(_: io::Error) -> FileFailure {
    FileFailure::BadArchive
}

fn inside(name: &Path) -> Result<PathBuf, FileFailure> {
    let mut clean = PathBuf::new();
    for component in name.components() {
        match component {
            Component::Normal(part) => clean.push(part),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => return Err(FileFailure::BadArchive),
        }
    }
    Ok(clean)
}

/// Resolve below `top` without following any link: one that came earlier in the stream must not redirect what follows.
fn confined(top: &OwnedFd, name: &Path, flags: OFlags) -> Result<OwnedFd, FileFailure> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(top, name, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
        Err(Errno::LOOP | Errno::XDEV) => Err(FileFailure::BadArchive),
        // Kernels that are programs themselves may not know the call (gVisor).
        Err(Errno::NOSYS) => confined_by_steps(top, name, flags),
        result => Ok(result?),
    }
}

/// The same from directory to name. Each is held before it is looked at, because `O_DIRECTORY` makes gVisor follow a link
/// whatever else it is told.
fn confined_by_steps(top: &OwnedFd, name: &Path, flags: OFlags) -> Result<OwnedFd, FileFailure> {
    let holds = flags.contains(OFlags::PATH);
    let mut at = top.try_clone()?;
    let mut parts = name.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(part) = part else { return Err(FileFailure::BadArchive) };
        at = rustix::fs::openat(&at, part, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let is_wanted = holds && parts.peek().is_none();
        if !is_wanted && convert(&rustix::fs::fstat(&at)?).kind == Kind::Link {
            return Err(FileFailure::BadArchive);
        }
    }
    if holds { Ok(at) } else { Ok(rustix::fs::openat(&at, ".", flags | OFlags::CLOEXEC, Mode::empty())?) }
}

fn directory_at(top: &OwnedFd, name: &Path) -> Result<OwnedFd, FileFailure> {
    let mut directory = top.try_clone()?;
    for part in name.components() {
        let part = Path::new(part.as_os_str());
        match rustix::fs::mkdirat(&directory, part, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        directory = confined(&directory, part, OFlags::RDONLY | OFlags::DIRECTORY)?;
    }
    Ok(directory)
}

/// The open parent and the free name for a new entry; a file or link that is in the way is replaced.
fn place_for(top: &OwnedFd, name: &Path) -> Result<(OwnedFd, Vec<u8>), FileFailure> {
    let last = name.file_name().ok_or(FileFailure::BadArchive)?.as_bytes().to_vec();
    let parent = directory_at(top, name.parent().unwrap_or(Path::new("")))?;
    match rustix::fs::unlinkat(&parent, &last, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok((parent, last)),
        Err(Errno::ISDIR) => Err(FileFailure::IsDirectory),
        Err(error) => Err(error.into()),
    }
}
