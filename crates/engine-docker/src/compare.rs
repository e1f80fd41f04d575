//! Trees compared while they pass, in the order of their paths: what is held in memory does not grow with them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};

use agent::stream::{self, About, Entry, Moment};
use sandbox::{Change, ChangeKind, Changes, FileKind, GuestPath};
use sha2::{Digest, Sha256};
use tar::{Archive, EntryType};

use crate::plain_archive::is_left;

/// Contents are compared in such blocks; those that are empty count as holes.
const BLOCK: usize = 4096;

/// Files with several names that are remembered, and entries of an image.
const MOST_REMEMBERED: usize = 200_000;

/// How long the names of an image's entries may be together. Each may have four thousand bytes.
const MOST_NAMES: usize = 64 << 20;

/// Entries of one tree. Programs that run may move what was walked to where the walk comes next.
const MOST_WALKED: usize = 4_000_000;

/// One entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub path: Key,
    pub what: What,
    /// In nanoseconds since 1970; 0 when that is not known.
    pub changed_ns: i128,
}

/// A path that is ordered part by part, as directories are walked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub Vec<u8>);

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.split(|byte| *byte == b'/').cmp(other.0.split(|byte| *byte == b'/'))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Without a mode, any is the same.
    Directory {
        mode: Option<u32>,
    },
    File {
        mode: u32,
        bytes: u64,
        digest: [u8; 32],
    },
    Link {
        target: Vec<u8>,
    },
    /// A FIFO, a socket or a device.
    Other,
}

impl What {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Directory { mode: one }, Self::Directory { mode: other }) => {
                one.zip(*other).is_none_or(|(one, other)| one == other)
            }
            (one, other) => one == other,
        }
    }
}

/// The entries of a stream of ours.
#[derive(Debug)]
pub struct Walk<R> {
    input: R,
    /// Files that may come again under other names, by digests of their first: names may be long.
    linked: HashMap<[u8; 32], (What, i128)>,
    last: Option<Key>,
    left: usize,
    is_over: bool,
}

impl<R: Read> Walk<R> {
    pub fn new(mut input: R) -> io::Result<Self> {
        stream::check_beginning(&mut input)?;
        Ok(Self { input, linked: HashMap::new(), last: None, left: MOST_WALKED, is_over: false })
    }

    fn advance(&mut self) -> io::Result<Option<Item>> {
        let (path, what, changed_ns) = loop {
            match stream::get(&mut self.input)? {
                Entry::Directory { path, about } => {
                    break (path, What::Directory { mode: Some(about.mode & 0o777) }, nanoseconds(about.changed));
                }
                Entry::File { path, bytes, is_linked, about } => {
                    let found = (self.file(bytes, about)?, nanoseconds(about.changed));
                    if is_linked {
                        if self.linked.len() == MOST_REMEMBERED {
                            return Err(too_large("the sandbox has too many files with several names"));
                        }
                        self.linked.insert(Sha256::digest(&path).into(), found.clone());
                    }
                    break (path, found.0, found.1);
                }
                Entry::Again { path, first } => {
                    let first: [u8; 32] = Sha256::digest(&first).into();
                    let (what, changed) = self.linked.get(&first).cloned().ok_or(io::ErrorKind::InvalidData)?;
                    break (path, what, changed);
                }
                Entry::Link { path, target, about } => break (path, What::Link { target }, nanoseconds(about.changed)),
                Entry::Fifo { path, about } => break (path, What::Other, nanoseconds(about.changed)),
                Entry::Other { path } => break (path, What::Other, 0),
                Entry::Left { .. } => {}
                Entry::Piece { .. } => return Err(io::ErrorKind::InvalidData.into()),
                Entry::End => return Ok(None),
            }
        };
        let path = Key(path);
        let too_many = || too_large("the sandbox has too many files to be compared");
        self.left = self.left.checked_sub(1).ok_or_else(too_many)?;
        if self.last.as_ref().is_some_and(|last| *last >= path) {
            return Err(io::Error::other("the entries of a tree are out of order"));
        }
        self.last = Some(path.clone());
        Ok(Some(Item { path, what, changed_ns }))
    }

    fn file(&mut self, bytes: u64, about: About) -> io::Result<What> {
        let mut contents = Contents::default();
        let mut buffer = vec![0; 64 << 10];
        loop {
            match stream::get(&mut self.input)? {
                Entry::Piece { mut offset, bytes } => {
                    let mut left = bytes;
                    while left > 0 {
                        let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                        self.input.read_exact(&mut buffer[..wanted])?;
                        contents.add(offset, &buffer[..wanted]);
                        (offset, left) = (offset + wanted as u64, left - wanted as u64);
                    }
                }
                Entry::Left { .. } => {
                    return Ok(What::File { mode: about.mode & 0o777, bytes, digest: contents.digest() });
                }
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
}

impl<R: Read> Iterator for Walk<R> {
    type Item = io::Result<Item>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let next = self.advance().transpose();
        self.is_over = !matches!(next, Some(Ok(_)));
        next
    }
}

/// What an image has, as its daemon tells it, in no order that could be relied on.
#[derive(Debug, Default)]
pub struct Known {
    entries: BTreeMap<Key, What>,
    /// How long their names are together.
    names: usize,
}

impl Known {
    /// Add a tree, whose names begin below `parent`.
    pub fn read(&mut self, parent: &GuestPath, archive: impl Read) -> io::Result<()> {
        for entry in Archive::new(archive).entries()? {
            let mut entry = entry?;
            if is_left(entry.header().entry_type()) {
                continue;
            }
            let name = entry.path_bytes().into_owned();
            let path = GuestPath::resolve(parent, &name).map_err(io::Error::other)?;
            let what = self.what(parent, &mut entry)?;
            self.names += path.as_bytes().len() + if let What::Link { target } = &what { target.len() } else { 0 };
            if self.entries.len() == MOST_REMEMBERED || self.names > MOST_NAMES {
                return Err(too_large("the image has too many files where the sandbox can write"));
            }
            self.entries.insert(Key(path.as_bytes().to_vec()), what);
        }
        Ok(())
    }

    fn what(&self, parent: &GuestPath, entry: &mut tar::Entry<'_, impl Read>) -> io::Result<What> {
        Ok(match entry.header().entry_type() {
            // What a sandbox makes of its mode is for those to say who mount it.
            EntryType::Directory => What::Directory { mode: None },
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let (mode, bytes) = (entry.header().mode()? & 0o777, entry.size());
                What::File { mode, bytes, digest: digest(entry)? }
            }
            EntryType::Symlink => What::Link { target: entry.link_name_bytes().unwrap_or_default().into_owned() },
            EntryType::Link => {
                let first = entry.link_name_bytes().unwrap_or_default().into_owned();
                let first = GuestPath::resolve(parent, &first).map_err(io::Error::other)?;
                self.entries.get(&Key(first.as_bytes().to_vec())).cloned().unwrap_or(What::Other)
            }
            _ => What::Other,
        })
    }

    pub fn into_items(self) -> impl Iterator<Item = io::Result<Item>> {
        self.entries.into_iter().map(|(path, what)| Ok(Item { path, what, changed_ns: 0 }))
    }
}

/// What is different, at most so much of it, in byte order of the paths. The places themselves never are.
pub fn differences(
    before: impl Iterator<Item = io::Result<Item>>,
    now: impl Iterator<Item = io::Result<Item>>,
    places: &[GuestPath],
    most: usize,
) -> io::Result<Changes> {
    let (mut before, mut now) = (before.peekable(), now.peekable());
    let mut found = Found { entries: BTreeMap::new(), truncated: false, most };
    loop {
        let order = match (before.peek(), now.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(Ok(one)), Some(Ok(other))) => one.path.cmp(&other.path),
            (Some(Err(_)), Some(_)) => Ordering::Less,
            (Some(Ok(_)), Some(Err(_))) => Ordering::Greater,
        };
        let was = if order.is_le() { before.next().transpose()? } else { None };
        let is = if order.is_ge() { now.next().transpose()? } else { None };
        let is_place = |item: &Item| places.iter().any(|place| place.as_bytes() == item.path.0);
        match (was, is) {
            (Some(was), _) if is_place(&was) => {}
            (_, Some(is)) if is_place(&is) => {}
            (Some(was), None) => found.add(&was, ChangeKind::Removed),
            (None, Some(is)) => found.add(&is, ChangeKind::Added),
            (Some(was), Some(is)) if !was.what.is_same(&is.what) => found.add(&is, ChangeKind::Modified),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }
    Ok(Changes { entries: found.entries.into_values().collect(), truncated: found.truncated })
}

struct Found {
    entries: BTreeMap<Vec<u8>, Change>,
    truncated: bool,
    most: usize,
}

impl Found {
    fn add(&mut self, item: &Item, kind: ChangeKind) {
        // Longer than a path may be, and so nothing that anybody could name.
        let Ok(path) = GuestPath::resolve(&GuestPath::root(), &item.path.0) else { return };
        let (file, bytes) = match (&item.what, kind) {
            (_, ChangeKind::Removed) => (FileKind::Regular, 0),
            (What::Directory { .. }, _) => (FileKind::Directory, 0),
            (What::File { bytes, .. }, _) => (FileKind::Regular, *bytes),
            (What::Link { target }, _) => (FileKind::Link, target.len() as u64),
            (What::Other, _) => (FileKind::Other, 0),
        };
        let changed_ns = if kind == ChangeKind::Removed { 0 } else { item.changed_ns };
        self.entries.insert(item.path.0.clone(), Change { path, kind, file, bytes, changed_ns });
        if self.entries.len() > self.most {
            self.entries.pop_last();
            self.truncated = true;
        }
    }
}

/// The contents of a file, wherever its holes are.
#[derive(Default)]
struct Contents {
    digest: Sha256,
    number: u64,
    block: Vec<u8>,
}

impl Contents {
    fn add(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (number, from) = (offset / BLOCK as u64, (offset % BLOCK as u64) as usize);
            if number != self.number {
                self.end_block();
                self.number = number;
            }
            let count = bytes.len().min(BLOCK - from);
            self.block.resize(BLOCK, 0);
            self.block[from..from + count].copy_from_slice(&bytes[..count]);
            (offset, bytes) = (offset + count as u64, &bytes[count..]);
        }
    }

    fn end_block(&mut self) {
        if self.block.iter().any(|byte| *byte != 0) {
            self.digest.update(self.number.to_le_bytes());
            self.digest.update(&self.block);
        }
        self.block.clear();
    }

    fn digest(mut self) -> [u8; 32] {
        self.end_block();
        self.digest.finalize().into()
    }
}

fn digest(input: &mut impl Read) -> io::Result<[u8; 32]> {
    let mut contents = Contents::default();
    let mut buffer = vec![0; 64 << 10];
    let mut offset = 0;
    loop {
        let count = input.read(&mut buffer)?;
        if count == 0 {
            return Ok(contents.digest());
        }
        contents.add(offset, &buffer[..count]);
        offset += count as u64;
    }
}

fn too_large(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, why)
}

fn nanoseconds(moment: Moment) -> i128 {
    i128::from(moment.seconds) * 1_000_000_000 + i128::from(moment.nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: About = {
        let moment = Moment { seconds: 1, nanoseconds: 2 };
        About { mode: 0o644, modified: moment, changed: moment }
    };

    fn file(path: &str, pieces: &[(u64, &[u8])], bytes: u64) -> Vec<u8> {
        let path = path.as_bytes().to_vec();
        let mut output = Vec::new();
        let entry = Entry::File { path: path.clone(), bytes, is_linked: false, about: ABOUT };
        stream::put(&mut output, &entry).unwrap();
        for (offset, contents) in pieces {
            let entry = Entry::Piece { offset: *offset, bytes: contents.len() as u64 };
            stream::put(&mut output, &entry).unwrap();
            output.extend_from_slice(contents);
        }
        stream::put(&mut output, &Entry::Left { path, about: ABOUT }).unwrap();
        output
    }

    fn whole(parts: &[Vec<u8>]) -> Vec<u8> {
        let mut output = Vec::new();
        stream::begin(&mut output).unwrap();
        parts.iter().for_each(|part| output.extend_from_slice(part));
        stream::put(&mut output, &Entry::End).unwrap();
        output
    }

    fn told(before: &[Vec<u8>], now: &[Vec<u8>], most: usize) -> (String, bool) {
        let (before, now) = (whole(before), whole(now));
        let changes = differences(Walk::new(&before[..]).unwrap(), Walk::new(&now[..]).unwrap(), &[], most).unwrap();
        let shown = changes.entries.iter().map(|change| format!("{:?} {}", change.kind, change.path));
        (shown.collect::<Vec<_>>().join(", "), changes.truncated)
    }

    #[test]
    fn holes_and_zeros_are_the_same() {
        let zeros = vec![0; 8192];
        let full = [&zeros[..], b"end"].concat();
        let (sparse, dense) = (file("/a", &[(8192, b"end")], 8195), file("/a", &[(0, &full)], 8195));
        assert_eq!(told(std::slice::from_ref(&sparse), &[dense], 10), (String::new(), false));
        assert_eq!(told(&[sparse], &[file("/a", &[(8192, b"fin")], 8195)], 10).0, "Modified /a");
    }

    #[test]
    fn the_first_in_byte_order_are_told() {
        let now: Vec<Vec<u8>> = ["/a", "/a/b", "/a-b", "/c"].map(|path| file(path, &[], 0)).into();
        assert_eq!(told(&[], &now, 10).0, "Added /a, Added /a-b, Added /a/b, Added /c");
        assert_eq!(told(&[], &now, 2), ("Added /a, Added /a-b".to_owned(), true));
        assert_eq!(told(&now[1..], &now[..3], 10).0, "Added /a, Removed /c");
    }

    #[test]
    fn a_file_is_the_same_by_each_of_its_names() {
        let (first, second) = (b"/a".to_vec(), b"/b".to_vec());
        let mut linked = Vec::new();
        let entry = Entry::File { path: first.clone(), bytes: 0, is_linked: true, about: ABOUT };
        stream::put(&mut linked, &entry).unwrap();
        stream::put(&mut linked, &Entry::Left { path: first.clone(), about: ABOUT }).unwrap();
        stream::put(&mut linked, &Entry::Again { path: second, first }).unwrap();
        assert_eq!(told(&[file("/a", &[], 0), file("/b", &[], 0)], &[linked], 10).0, "");
    }

    #[test]
    fn a_walk_without_an_end_is_given_up() {
        let bytes = whole(&["/a", "/b", "/c"].map(|path| file(path, &[], 0)));
        let walked = |left: usize| -> io::Result<Vec<Item>> {
            let mut walk = Walk::new(&bytes[..]).unwrap();
            walk.left = left;
            walk.collect()
        };
        assert_eq!(walked(3).unwrap().len(), 3);
        assert_eq!(walked(2).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }

    /// Headers of files whose names have four thousand bytes, made while they are read.
    struct LongNames(u64, Vec<u8>);

    impl Read for LongNames {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.1.is_empty() {
                let name = format!("top/{}{:08}", format!("{}/", "d".repeat(249)).repeat(16), self.0);
                let mut header = tar::Header::new_gnu();
                header.set_size(0);
                header.set_mode(0o644);
                let mut archive = tar::Builder::new(Vec::new());
                archive.append_data(&mut header, name, io::empty())?;
                self.1 = std::mem::take(archive.get_mut());
                self.0 += 1;
            }
            let count = buffer.len().min(self.1.len());
            buffer[..count].copy_from_slice(&self.1[..count]);
            self.1.drain(..count);
            Ok(count)
        }
    }

    #[test]
    fn names_of_an_image_are_bounded_by_their_length_too() {
        let mut known = Known::default();
        let read = known.read(&GuestPath::root(), LongNames(0, Vec::new()));
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert!(known.entries.len() < MOST_REMEMBERED / 10, "{}", known.entries.len());
    }

    #[test]
    fn entries_out_of_order_are_an_error() {
        let bytes = whole(&[file("/b", &[], 0), file("/a", &[], 0)]);
        let walked: io::Result<Vec<Item>> = Walk::new(&bytes[..]).unwrap().collect();
        assert!(walked.is_err());
    }
}
