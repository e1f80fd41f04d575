//! Unpacks a tar archive that nobody has looked at, into a directory that it cannot leave.
//!
//! Every limit is checked against what the archive says before anything is written, and again against what really
//! comes. The first violation refuses the whole archive: one that tries to climb out once is not worth its other
//! files. Extended attributes, set-id bits and device nodes are not taken over, owners only from layers.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};

use rustix::fs::{Mode, Stat, Timespec, Timestamps};
use serde::{Deserialize, Serialize};
use tar::{Entry, EntryType, Header};

use self::owner::Owner;
pub use self::owner::{OWNER_ATTRIBUTE, Owners};
use self::path::{Place, Shown, parse, stays_inside};
use crate::confined::{Directory, Name, is_directory, is_regular, is_symlink};
use crate::digest::Digest;
use crate::error::{Error, Result};
pub use crate::limits::Limits;
use crate::meter::{Meter, Stream};

mod owner;
pub(crate) mod path;
mod whiteout;

/// What may be a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Any text: the tree becomes a root, and what a link says is resolved in there.
    Any,
    /// Only what stays inside wherever the tree lies; other links are left out. For trees that people open.
    Inside,
}

/// What an archive came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// Unpacks a tar archive, plain or compressed by gzip or zstd, into `destination`.
pub fn unpack(reader: impl Read, destination: &Directory, limits: &Limits, links: Links) -> Result<Summary> {
    unpack_as(Kind::Tree(links), &mut Stream::new(reader, limits.ratio)?, destination, limits)
}

/// Unpacks a layer of an image into `destination`, in the form in which an overlay takes it.
///
/// What the layer removes from those below it becomes a whiteout: a character device 0/0, which everybody may make. A
/// directory that hides what is below gets the attribute `user.overlay.opaque`, so the overlay must be mounted with
/// `userxattr`. A directory that a path goes through but that the layer itself does not describe is root's, open to all.
///
/// `diff_id` is the digest of the archive without its compression. What came may be used only if this returns no error.
pub fn unpack_layer(
    reader: impl Read,
    diff_id: Digest,
    destination: &Directory,
    limits: &Limits,
    owners: Owners,
) -> Result<Summary> {
    let mut stream = Stream::hashing(reader, limits.ratio)?;
    let summary = unpack_as(Kind::Layer(owners), &mut stream, destination, limits)?;
    if stream.finish()? != diff_id {
        return Err(Error::Refused("a layer does not have the contents that the image says".to_owned()));
    }
    Ok(summary)
}

/// What the archive is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tree(Links),
    Layer(Owners),
}

fn unpack_as<R: Read>(kind: Kind, stream: &mut Stream<R>, destination: &Directory, limits: &Limits) -> Result<Summary> {
    let meter = stream.meter();
    let mut archive = tar::Archive::new(stream);
    let mut unpacking = Unpacking {
        destination,
        limits,
        kind,
        made: HashSet::new(),
        cleared: HashSet::new(),
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

struct Unpacking<'a> {
    destination: &'a Directory,
    limits: &'a Limits,
    kind: Kind,
    /// Device and inode of what this archive made. A hard link may lead nowhere else, whatever else lies there.
    made: HashSet<(u64, u64)>,
    /// The same of directories in which nothing of layers below is left.
    cleared: HashSet<(u64, u64)>,
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
            return self.look_at_defaults(entry);
        }
        self.refuse_what_is_not_understood(&mut entry)?;
        let path = entry.path_bytes().into_owned();
        let mut names = parse(&path, self.limits)?;
        let kind = entry.header().entry_type();
        let owner = self.owner(entry.header(), &path)?;
        let is_directory = kind == EntryType::Directory || is_directory_by_name(entry.header(), &path);
        refuse_what_readers_disagree_about(&entry, is_directory, &path)?;
        let mode = entry.header().mode().map_err(|error| self.meter.explain(error))?;
        if matches!(self.kind, Kind::Layer(_)) && self.add_whiteout(&path, &names)? {
            return self.skip(entry);
        }
        if is_directory {
            self.add_directory(&path, &names, mode, owner)?;
            return self.skip(entry);
        }
        let Some(name) = names.pop() else {
            return Err(Error::Refused("the root of the archive is not a directory".to_owned()));
        };
        let place = Place { path: &path, parents: &names, name };
        match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.add_file(entry, &place, mode, owner)
            }
            EntryType::Symlink => {
                self.add_symlink(&entry, &place, owner)?;
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

    /// Some readers apply these to all entries that follow, others to none; so only those may be there that change nothing.
    fn look_at_defaults<R: Read>(&self, mut entry: Entry<'_, R>) -> Result<()> {
        self.meter.expect_header();
        // A long name before it would be its own to some readers, and that of the next entry to others.
        if entry.path_bytes() != entry.header().path_bytes()
            || entry.link_name_bytes() != entry.header().link_name_bytes()
        {
            return Err(Error::Refused("it has a long name for something that has none".to_owned()));
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(|error| self.meter.explain(error))?;
        // With its own contents read, what is left are those of a header before it.
        if entry
            .pax_extensions()
            .map_err(|error| self.meter.explain(error))?
            .is_some_and(|mut left| left.next().is_some())
        {
            return Err(Error::Refused("it has a header for a file that does not follow".to_owned()));
        }
        for extension in tar::PaxExtensions::new(&bytes) {
            let extension = extension.map_err(|error| self.meter.explain(error))?;
            if !matches!(extension.key_bytes(), b"comment" | b"mtime" | b"atime" | b"ctime") {
                return Err(Error::Refused("it has a header that speaks of all its files at once".to_owned()));
            }
        }
        Ok(())
    }

    /// Values that readers understand differently are refused; and a later form of sparse files keeps its map in the
    /// contents, which would be garbage if taken for plain ones.
    fn refuse_what_is_not_understood<R: Read>(&self, entry: &mut Entry<'_, R>) -> Result<()> {
        let extensions = entry.pax_extensions().map_err(|error| self.meter.explain(error))?;
        let mut seen = HashSet::new();
        for extension in extensions.into_iter().flatten() {
            let extension = extension.map_err(|error| self.meter.explain(error))?;
            let (key, value) = (extension.key_bytes(), extension.value_bytes());
            if key.starts_with(b"GNU.sparse.") {
                return Err(Error::Unsupported("the archive has sparse files in a form that is not read".to_owned()));
            }
            let is_number = || !value.is_empty() && value.len() < 20 && value.iter().all(u8::is_ascii_digit);
            let understood = match key {
                b"size" | b"uid" | b"gid" => is_number(),
                b"path" | b"linkpath" => !value.is_empty() && !value.contains(&0),
                _ => true,
            };
            if !understood || !seen.insert(key.to_vec()) {
                return Err(Error::Refused(format!("{} of a file is given as {}", Shown(key), Shown(value))));
            }
        }
        Ok(())
    }

    fn add_directory(&mut self, path: &[u8], names: &[Name<'_>], mode: u32, owner: Option<Owner>) -> Result<()> {
        let directory = self.enter(path, names)?;
        if names.is_empty() || !self.lies_over() && !self.made.contains(&identity(&directory, path)?) {
            return Ok(());
        }
        let doing = || Error::io(format!("making {}", Shown(path)));
        if let Some(owner) = owner {
            owner.give(&directory).map_err(doing())?;
        }
        // Open to its owner, or an unprivileged one could neither fill nor remove it. Root needs no such help.
        let opened = match self.kind {
            Kind::Layer(Owners::Kept | Owners::Mapped | Owners::Known) => 0,
            Kind::Layer(Owners::Noted) | Kind::Tree(_) => 0o700,
        };
        directory.set_mode(mode & 0o1777 | opened).map_err(doing())
    }

    fn add_file<R: Read>(
        &mut self,
        mut entry: Entry<'_, R>,
        place: &Place<'_>,
        mode: u32,
        owner: Option<Owner>,
    ) -> Result<()> {
        let size = entry.size();
        let total = self.summary.bytes.saturating_add(size);
        if total > self.limits.bytes {
            return Err(Error::LimitExceeded(format!("its files have more than {} bytes", self.limits.bytes)));
        }
        let parent = self.make_room(place)?;
        let doing = || Error::io(format!("writing {place}"));
        let mut file = parent.create_file(place.name, 0o600).map_err(doing())?;
        // Attributes first: a mode without the right to write forbids them even to whoever has the file open.
        if let Some(owner) = owner {
            owner.give(&file).map_err(doing())?;
        }
        let mode = Mode::from_raw_mode(mode & 0o777);
        rustix::fs::fchmod(&file, mode).map_err(|error| doing()(error.into()))?;
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

    fn add_symlink<R: Read>(&mut self, entry: &Entry<'_, R>, place: &Place<'_>, owner: Option<Owner>) -> Result<()> {
        let target = entry.link_name_bytes().unwrap_or_default();
        if target.is_empty() || target.contains(&0) || target.len() > self.limits.path_bytes {
            return Err(Error::Refused(format!("the link {place} says nothing that a link can say")));
        }
        if self.kind == Kind::Tree(Links::Inside) && !stays_inside(&target, place.parents.len()) {
            self.summary.left_out += 1;
            return Ok(());
        }
        let parent = self.make_room(place)?;
        let doing = || Error::io(format!("making the link {place}"));
        parent.symlink(place.name, &target).map_err(doing())?;
        if let Some(made) = parent.stat(place.name).map_err(doing())? {
            self.remember(&made);
        }
        owner.map_or(Ok(()), |owner| owner.give_link(&parent, place.name)).map_err(doing())
    }

    fn add_hard_link<R: Read>(&mut self, entry: &Entry<'_, R>, place: &Place<'_>) -> Result<()> {
        let target = entry.link_name_bytes().unwrap_or_default();
        let refuse = || Error::Refused(format!("the hard link {place} leads to nothing that this archive made"));
        let mut names = parse(&target, self.limits)?;
        let name = names.pop().ok_or_else(refuse)?;
        let source = self.destination.descend(names, crate::confined::Missing::Fail).map_err(|_| refuse())?;
        // A link that has several names is rare, but layers of real images have it. It is linked itself, not followed.
        let may_be = |found: &Stat| is_regular(found) || matches!(self.kind, Kind::Layer(_)) && is_symlink(found);
        let found = source.stat(name).ok().flatten().filter(may_be).ok_or_else(refuse)?;
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
            Some(found) if self.is_below(&found) => parent.remove_tree(place.name).map_err(doing())?,
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
                    self.make_directory(&directory, *name, path)?
                }
                Err(error) if is_not_a_directory(&error) && self.is_whiteout(&directory, *name) => {
                    self.replace_whiteout(&directory, *name, path)?
                }
                Err(error) if is_not_a_directory(&error) && self.clear(&directory, *name).map_err(doing())? => {
                    self.make_directory(&directory, *name, path)?
                }
                Err(error) if is_not_a_directory(&error) => {
                    return Err(Error::Refused(format!("{} goes through something that is no directory", Shown(path))));
                }
                Err(error) => return Err(doing()(error)),
            };
        }
        Ok(directory)
    }

    fn make_directory(&mut self, parent: &Directory, name: Name<'_>, path: &[u8]) -> Result<Directory> {
        let doing = || Error::io(format!("making {}", Shown(path)));
        parent.make_directory(name, 0o700).map_err(doing())?;
        let made = parent.enter(name).map_err(doing())?;
        made.set_mode(0o755).map_err(doing())?;
        self.made.insert(identity(&made, path)?);
        Ok(made)
    }

    /// Whether the layer is put over others in the same directory, and takes what is in its way for theirs.
    fn lies_over(&self) -> bool {
        self.kind == Kind::Layer(Owners::Mapped)
    }

    fn is_below(&self, found: &Stat) -> bool {
        self.lies_over() && !self.made.contains(&(found.st_dev, found.st_ino))
    }

    /// Removes what a layer below has at a name; whether there was something.
    fn clear(&self, parent: &Directory, name: Name<'_>) -> io::Result<bool> {
        let is_there = parent.stat(name)?.is_some_and(|found| self.is_below(&found));
        if is_there {
            parent.remove_tree(name)?;
        }
        Ok(is_there)
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

/// Archives from before 1988 mark directories by their name alone.
fn is_directory_by_name(header: &Header, path: &[u8]) -> bool {
    header.as_old().linkflag == [0] && path.ends_with(b"/") && header.path_bytes().ends_with(b"/")
}

/// A long name stands before its header, which has the beginning of it, cut anywhere. Readers go by the end of a header's own
/// name only where the header does not say what it is of.
fn is_cut(header: &Header, path: &[u8]) -> bool {
    let name = &header.as_old().name;
    header.as_old().linkflag != [0] && path.len() > name.len() && path.starts_with(name)
}

/// What follows a header that announces contents where there can be none is a part of it to some readers, and the next
/// header to others.
fn refuse_what_readers_disagree_about<R: Read>(entry: &Entry<'_, R>, is_directory: bool, path: &[u8]) -> Result<()> {
    let kind = entry.header().entry_type();
    let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
    if (is_directory || is_link) && entry.size() > 0 {
        return Err(Error::Refused(format!("{} has contents and is no file", Shown(path))));
    }
    // A name may be given twice, and either may be the one that is looked at.
    let header_says_so = entry.header().path_bytes().ends_with(b"/") && !is_cut(entry.header(), path);
    if kind != EntryType::Directory && (path.ends_with(b"/") || header_says_so) != is_directory {
        return Err(Error::Refused(format!("{} is no directory and is called like one", Shown(path))));
    }
    Ok(())
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

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
