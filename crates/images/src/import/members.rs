//! The files in an archive or directory, by name, each readable as often as needed.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use rustix::fs::{Mode, OFlags};
use tar::EntryType;

use crate::confined::{Directory, Missing, Name};
use crate::error::{Error, Result};
use crate::manifest::MAX_DOCUMENT;
use crate::meter::{Compression, Stream};
use crate::store::Store;
use crate::work::Work;

/// What a file turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    Layout,
    Docker,
    Tree,
}

pub trait Members {
    fn open(&self, path: &str) -> Result<Option<Member>>;
}

/// One file, or a part of one.
#[derive(Debug)]
pub struct Member {
    file: File,
    offset: u64,
    position: u64,
    size: u64,
}

impl Member {
    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn read_small(mut self, path: &str) -> Result<Vec<u8>> {
        if self.size > MAX_DOCUMENT {
            return Err(Error::LimitExceeded(format!("{path:?} has more than 4 MiB")));
        }
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes).map_err(Error::io(format!("reading {path:?}")))?;
        Ok(bytes)
    }
}

impl Read for Member {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.size - self.position).unwrap_or(usize::MAX);
        let length = buffer.len().min(left);
        let count = self.file.read_at(&mut buffer[..length], self.offset + self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for Member {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        let wanted = match position {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
            SeekFrom::End(offset) => self.size.checked_add_signed(offset),
        };
        self.position = wanted.filter(|wanted| *wanted <= self.size).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

/// A directory that somebody else filled. No link in it is followed.
#[derive(Debug)]
pub struct DirectoryMembers(Directory);

impl DirectoryMembers {
    pub fn new(directory: Directory) -> Self {
        Self(directory)
    }
}

impl Members for DirectoryMembers {
    fn open(&self, path: &str) -> Result<Option<Member>> {
        let refuse = || Error::Refused(format!("{path:?} is not a file, or behind a link"));
        let names: Option<Vec<Name<'_>>> = path.split('/').map(|part| Name::new(part.as_bytes())).collect();
        let (last, parents) = names.as_deref().and_then(<[_]>::split_last).ok_or_else(refuse)?;
        let found = self.0.descend(parents.iter().copied(), Missing::Fail).and_then(|parent| parent.open_file(*last));
        match found {
            Ok(file) => {
                let size = file.metadata().map_err(Error::io(format!("looking at {path:?}")))?.len();
                Ok(Some(Member { file, offset: 0, position: 0, size }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(_) => Err(refuse()),
        }
    }
}

/// A plain tar archive of which only the places of its files are known.
#[derive(Debug)]
pub struct TarMembers {
    file: File,
    places: HashMap<String, (u64, u64)>,
    links: HashMap<String, String>,
}

impl TarMembers {
    /// The archive itself, from its beginning.
    pub fn into_file(mut self) -> Result<File> {
        self.file.rewind().map_err(Error::io("reading the archive"))?;
        Ok(self.file)
    }
}

impl Members for TarMembers {
    fn open(&self, path: &str) -> Result<Option<Member>> {
        // Old versions of Docker wrote a layer that is there twice as a link the second time.
        let path = self.links.get(path).map_or(path, String::as_str);
        let Some(&(offset, size)) = self.places.get(path) else { return Ok(None) };
        let file = self.file.try_clone().map_err(Error::io("reading the archive"))?;
        Ok(Some(Member { file, offset, position: 0, size }))
    }
}

/// Finds out what a file is, and where the parts of it are. One that is compressed as a whole and has parts is
/// decompressed to a file without a name first.
pub fn look_into(store: &Store, mut file: File, work: &Work) -> Result<(Contents, TarMembers)> {
    let mut start = [0; 4];
    let count = file.read_at(&mut start, 0).map_err(Error::io("reading the archive"))?;
    let compression = Compression::of(&start[..count])?;
    let found = scan(&file, work)?;
    let rewound = file.rewind();
    rewound.map_err(Error::io("reading the archive"))?;
    if compression == Compression::None || found.contents == Contents::Tree {
        return Ok((found.contents, TarMembers { file, places: found.places, links: found.links }));
    }
    let doing = || Error::io("decompressing the archive");
    let mut plain = store.nameless_file()?;
    let mut stream = Stream::new(work.watch(&file), work.limits.layer.ratio)?;
    stream.meter().expect_contents(work.limits.transfer_bytes);
    io::copy(&mut stream, &mut plain).map_err(|error| stream.meter().explain(error))?;
    plain.rewind().map_err(doing())?;
    Ok((found.contents, TarMembers { file: plain, places: found.places, links: found.links }))
}

impl Store {
    /// Room on the store's disk that is given back when the file is closed, however that happens.
    pub(crate) fn nameless_file(&self) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        rustix::fs::open(self.directory(), flags, Mode::RUSR | Mode::WUSR)
            .map(File::from)
            .map_err(|error| Error::io("making a file in the store")(error.into()))
    }
}

struct Found {
    contents: Contents,
    places: HashMap<String, (u64, u64)>,
    links: HashMap<String, String>,
}

/// More parts than any image has layers.
const MOST_MEMBERS: usize = 10_000;

fn scan(file: &File, work: &Work) -> Result<Found> {
    let stream = Stream::new(work.watch(file), work.limits.layer.ratio)?;
    let meter = stream.meter();
    let mut archive = tar::Archive::new(stream);
    let mut found = Found { contents: Contents::Tree, places: HashMap::new(), links: HashMap::new() };
    let mut entries = archive.entries().map_err(|error| meter.explain(error))?;
    let mut seen = false;
    loop {
        meter.expect_header();
        let Some(entry) = entries.next() else { break };
        seen = true;
        let entry = entry.map_err(|error| meter.explain(error))?;
        let path = entry.path_bytes();
        let path =
            std::str::from_utf8(&path).unwrap_or_default().trim_start_matches("./").trim_end_matches('/').to_owned();
        if !is_part(&path) || found.places.len() >= MOST_MEMBERS {
            return Ok(Found { contents: Contents::Tree, places: HashMap::new(), links: HashMap::new() });
        }
        match entry.header().entry_type() {
            EntryType::Regular => {
                found.places.insert(path, (entry.raw_file_position(), entry.size()));
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default();
                let target = std::str::from_utf8(&target).unwrap_or_default();
                if let Some(target) = target.strip_prefix("../") {
                    found.links.insert(path, target.to_owned());
                }
            }
            _ => {}
        }
        meter.expect_contents(entry.size());
        work.check()?;
        let mut entry = entry;
        io::copy(&mut entry, &mut io::sink()).map_err(|error| meter.explain(error))?;
    }
    if !seen {
        return Err(Error::Refused("the archive is empty".to_owned()));
    }
    let has = |path: &str| found.places.contains_key(path);
    found.contents = match (has("oci-layout") && has("index.json"), has("manifest.json")) {
        (true, _) => Contents::Layout,
        (false, true) => Contents::Docker,
        (false, false) => Contents::Tree,
    };
    Ok(found)
}

/// Whether a name at the top of an archive is one that images are saved under. Root trees have others.
fn is_part(path: &str) -> bool {
    let first = path.split('/').next().unwrap_or_default();
    let digits = first.strip_suffix(".json").or_else(|| first.strip_suffix(".tar")).unwrap_or(first);
    matches!(first, "" | "." | "oci-layout" | "index.json" | "manifest.json" | "repositories" | "blobs")
        || digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}
