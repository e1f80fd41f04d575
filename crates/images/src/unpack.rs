//! Unpacks a tar archive that nobody has looked at, into a directory that it cannot leave.
//!
//! Every limit is checked against what the archive says before anything is written, and again against what really
//! comes. The first violation refuses the whole archive: one that tries to climb out once is not worth its other
//! files. Owners, extended attributes, set-id bits and device nodes are not taken over.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};

use rustix::fs::{Stat, Timespec, Timestamps};
use tar::{Entry, EntryType};

use crate::confined::{Directory, Name, is_directory, is_regular};
use crate::error::{Error, Result};
use crate::meter::{Meter, Stream};

/// How much one archive may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of all files together, once unpacked.
    pub bytes: u64,
    pub entries: u64,
    /// How many bytes one compressed byte may stand for.
    pub ratio: u64,
    /// Of one whole path.
    pub path_bytes: usize,
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 16 << 30, entries: 500_000, ratio: 200, path_bytes: 4095, depth: 128 }
    }
}

/// What may be a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Any text: the tree becomes a root, and what a link says is resolved in there.
    Any,
    /// Only what stays inside wherever the tree lies; other links are left out. For trees that people open.
    Inside,
}

/// What an archive came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub entries: u64,
    pub bytes: u64,
    /// Devices, FIFOs, and links that lead outside if those are not wanted.
    pub left_out: u64,
}

/// Unpacks into a directory that people will open, such as one that `cp` was told to fill.
///
/// Files that are in the way are replaced, never written through; directories that exist keep their mode. On an error
/// the files before it stay: whoever wants all or nothing passes an empty directory and removes it.
pub fn extract(reader: impl Read, destination: &Directory, limits: &Limits) -> Result<Summary> {
    unpack(reader, destination, limits, Links::Inside)
}

/// Unpacks a plain or gzip-compressed tar archive into `destination`.
pub fn unpack(reader: impl Read, destination: &Directory, limits: &Limits, links: Links) -> Result<Summary> {
    let stream = Stream::new(reader, limits.ratio)?;
    let meter = stream.meter();
    let mut archive = tar::Archive::new(stream);
    let mut unpacking = Unpacking {
        destination,
        limits,
        links,
        made: HashSet::new(),
        summary: Summary::default(),
        meter: meter.clone(),
        buffer: vec![0; 128 * 1024],
    };
    let mut entries = archive.entries().map_err(|error| meter.explain(error))?;
    loop {
        meter.expect_header();
        match entries.next() {
            Some(entry) => unpacking.add(entry.map_err(|error| meter.explain(error))?)?,
            // The format has an end mark, and a stream that was cut off between two files has none.
            None if meter.at_end() => return Err(Error::Refused("the archive is cut off".to_owned())),
            None => return Ok(unpacking.summary),
        }
    }
}

/// A path in an archive, component by component. Empty stands for the root itself.
fn parse<'a>(path: &'a [u8], limits: &Limits) -> Result<Vec<Name<'a>>> {
    let refuse = |why: &str| Err(Error::Refused(format!("{} {why}", Shown(path))));
    if path.len() > limits.path_bytes {
        return Err(Error::LimitExceeded(format!("a path has {} bytes", path.len())));
    }
    if path.first() == Some(&b'/') {
        return refuse("is an absolute path");
    }
    let mut names = Vec::new();
    for component in path.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => return refuse("goes up"),
            name => match Name::new(name) {
                Some(name) => names.push(name),
                None => return refuse("is not a path"),
            },
        }
    }
    if names.len() > limits.depth {
        return Err(Error::LimitExceeded(format!("a path is {} directories deep", names.len())));
    }
    Ok(names)
}

struct Unpacking<'a> {
    destination: &'a Directory,
    limits: &'a Limits,
    links: Links,
    /// Device and inode of what this archive made. A hard link may lead nowhere else, whatever else lies there.
    made: HashSet<(u64, u64)>,
    summary: Summary,
    meter: Meter,
    buffer: Vec<u8>,
}

impl Unpacking<'_> {
    fn add<R: Read>(&mut self, mut entry: Entry<'_, R>) -> Result<()> {
        self.summary.entries += 1;
        if self.summary.entries > self.limits.entries {
            return Err(Error::LimitExceeded(format!("it has more than {} entries", self.limits.entries)));
        }
        if entry.header().entry_type() == EntryType::XGlobalHeader {
            return self.skip(entry);
        }
        self.refuse_what_is_not_understood(&mut entry)?;
        let path = entry.path_bytes().into_owned();
        let mut names = parse(&path, self.limits)?;
        let kind = entry.header().entry_type();
        // Archives from before 1988 mark directories by their name alone.
        let is_directory = kind == EntryType::Directory || kind == EntryType::Regular && path.ends_with(b"/");
        let mode = entry.header().mode().map_err(|error| self.meter.explain(error))?;
        if is_directory {
            self.add_directory(&path, &names, mode)?;
            return self.skip(entry);
        }
        let Some(name) = names.pop() else {
            return Err(Error::Refused("the root of the archive is not a directory".to_owned()));
        };
        let place = Place { path: &path, parents: &names, name };
        match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => self.add_file(entry, &place, mode),
            EntryType::Symlink => {
                self.add_symlink(&entry, &place)?;
                self.skip(entry)
            }
            EntryType::Link => {
                self.add_hard_link(&entry, &place)?;
                self.skip(entry)
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                self.summary.left_out += 1;
                self.skip(entry)
            }
            other => {
                Err(Error::Refused(format!("{place} is of a kind that is not known ({:?})", other.as_byte() as char)))
            }
        }
    }

    /// A later form of sparse files keeps its map in the contents; taken for plain ones they would be garbage.
    fn refuse_what_is_not_understood<R: Read>(&self, entry: &mut Entry<'_, R>) -> Result<()> {
        let extensions = entry.pax_extensions().map_err(|error| self.meter.explain(error))?;
        for extension in extensions.into_iter().flatten() {
            let extension = extension.map_err(|error| self.meter.explain(error))?;
            if extension.key_bytes().starts_with(b"GNU.sparse.") {
                return Err(Error::Unsupported("the archive has sparse files in a form that is not read".to_owned()));
            }
        }
        Ok(())
    }

    fn add_directory(&mut self, path: &[u8], names: &[Name<'_>], mode: u32) -> Result<()> {
        let directory = self.enter(path, names)?;
        // Always open to its owner, or an unprivileged one could neither fill nor remove it.
        if !names.is_empty() && self.made.contains(&identity(&directory, path)?) {
            directory.set_mode(mode & 0o1777 | 0o700).map_err(Error::io(format!("making {}", Shown(path))))?;
        }
        Ok(())
    }

    fn add_file<R: Read>(&mut self, mut entry: Entry<'_, R>, place: &Place<'_>, mode: u32) -> Result<()> {
        let size = entry.size();
        let total = self.summary.bytes.saturating_add(size);
        if total > self.limits.bytes {
            return Err(Error::LimitExceeded(format!("its files have more than {} bytes", self.limits.bytes)));
        }
        let parent = self.make_room(place)?;
        let doing = || Error::io(format!("writing {place}"));
        let mut file = parent.create_file(place.name, mode & 0o777).map_err(doing())?;
        self.remember(&rustix::fs::fstat(&file).map_err(|error| doing()(error.into()))?);
        self.meter.expect_contents(size);
        let written = self.copy(&mut entry, &mut file, place)?;
        if written != size {
            return Err(Error::Refused(format!("{place} has {written} bytes where {size} were announced")));
        }
        self.summary.bytes = total;
        let modified = entry.header().mtime().ok().and_then(|seconds| i64::try_from(seconds).ok()).unwrap_or(0);
        let time = Timespec { tv_sec: modified, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::futimens(&file, &times).map_err(|error| doing()(error.into()))
    }

    fn copy<R: Read>(&mut self, entry: &mut Entry<'_, R>, file: &mut File, place: &Place<'_>) -> Result<u64> {
        let mut written = 0;
        loop {
            let count = match entry.read(&mut self.buffer) {
                Ok(0) => return Ok(written),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.meter.explain(error)),
            };
            file.write_all(&self.buffer[..count]).map_err(Error::io(format!("writing {place}")))?;
            written += count as u64;
        }
    }

    fn add_symlink<R: Read>(&mut self, entry: &Entry<'_, R>, place: &Place<'_>) -> Result<()> {
        let target = entry.link_name_bytes().unwrap_or_default();
        if target.is_empty() || target.contains(&0) || target.len() > self.limits.path_bytes {
            return Err(Error::Refused(format!("the link {place} says nothing that a link can say")));
        }
        if self.links == Links::Inside && !stays_inside(&target, place.parents.len()) {
            self.summary.left_out += 1;
            return Ok(());
        }
        let parent = self.make_room(place)?;
        parent.symlink(place.name, &target).map_err(Error::io(format!("making the link {place}")))
    }

    fn add_hard_link<R: Read>(&mut self, entry: &Entry<'_, R>, place: &Place<'_>) -> Result<()> {
        let target = entry.link_name_bytes().unwrap_or_default();
        let refuse = || Error::Refused(format!("the hard link {place} leads to nothing that this archive made"));
        let mut names = parse(&target, self.limits)?;
        let name = names.pop().ok_or_else(refuse)?;
        let source = self.destination.descend(names, crate::confined::Missing::Fail).map_err(|_| refuse())?;
        let found = source.stat(name).ok().flatten().filter(is_regular).ok_or_else(refuse)?;
        if !self.made.contains(&(found.st_dev, found.st_ino)) {
            return Err(refuse());
        }
        let doing = || Error::io(format!("making the hard link {place}"));
        let parent = self.enter(place.path, place.parents)?;
        // A file that is linked to itself must not be removed to make room for itself.
        let there = parent.stat(place.name).map_err(doing())?;
        if there.is_some_and(|there| (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino)) {
            return Ok(());
        }
        let parent = self.make_room(place)?;
        parent.hard_link(place.name, &source, name).map_err(doing())
    }

    /// The directory that the entry goes to, with nothing left at its name: the last of several entries counts.
    fn make_room(&mut self, place: &Place<'_>) -> Result<Directory> {
        let parent = self.enter(place.path, place.parents)?;
        let doing = || Error::io(format!("looking at {place}"));
        match parent.stat(place.name).map_err(doing())? {
            None => {}
            Some(found) if is_directory(&found) => {
                return Err(Error::Refused(format!("{place} is a directory and something else")));
            }
            Some(found) => {
                parent.remove_file(place.name).map_err(doing())?;
                if found.st_nlink == 1 {
                    self.made.remove(&(found.st_dev, found.st_ino));
                }
            }
        }
        Ok(parent)
    }

    /// Goes down by `names`, makes what is missing, and remembers it.
    fn enter(&mut self, path: &[u8], names: &[Name<'_>]) -> Result<Directory> {
        let doing = || Error::io(format!("going to {}", Shown(path)));
        let mut directory = self.destination.try_clone().map_err(doing())?;
        for name in names {
            directory = match directory.enter(*name) {
                Ok(entered) => entered,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    directory.make_directory(*name, 0o700).map_err(doing())?;
                    let made = directory.enter(*name).map_err(doing())?;
                    made.set_mode(0o755).map_err(doing())?;
                    self.made.insert(identity(&made, path)?);
                    made
                }
                Err(error) if is_not_a_directory(&error) => {
                    return Err(Error::Refused(format!("{} goes through something that is no directory", Shown(path))));
                }
                Err(error) => return Err(doing()(error)),
            };
        }
        Ok(directory)
    }

    fn remember(&mut self, stat: &Stat) {
        self.made.insert((stat.st_dev, stat.st_ino));
    }

    /// Reads past contents that are of no interest, within the limits of everything else.
    fn skip<R: Read>(&self, mut entry: Entry<'_, R>) -> Result<()> {
        self.meter.expect_header();
        io::copy(&mut entry, &mut io::sink()).map_err(|error| self.meter.explain(error))?;
        Ok(())
    }
}

/// Where an entry goes.
struct Place<'a> {
    path: &'a [u8],
    parents: &'a [Name<'a>],
    name: Name<'a>,
}

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&Shown(self.path), f)
    }
}

/// A name from an archive, shortened, and unable to drive a terminal.
struct Shown<'a>(&'a [u8]);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0[..self.0.len().min(128)].escape_ascii())
    }
}

fn identity(directory: &Directory, path: &[u8]) -> Result<(u64, u64)> {
    let stat =
        rustix::fs::fstat(directory).map_err(|error| Error::io(format!("looking at {}", Shown(path)))(error.into()))?;
    Ok((stat.st_dev, stat.st_ino))
}

/// What the kernel says when a link or a file is in the place of a directory.
fn is_not_a_directory(error: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    matches!(errno, Some(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR | rustix::io::Errno::XDEV))
}

/// Whether a link that lies `depth` directories below the top can only lead to what is below the top.
///
/// `..` may only stand at the beginning, where it goes up real directories; after a name it would go up from wherever
/// that name leads, and `a/..` is not `.` if `a` is a link itself.
fn stays_inside(target: &[u8], depth: usize) -> bool {
    let mut components = target.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).peekable();
    let mut up = 0;
    while components.next_if(|part| *part == b"..").is_some() {
        up += 1;
    }
    target.first() != Some(&b'/') && up <= depth && components.all(|part| part != b"..")
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
