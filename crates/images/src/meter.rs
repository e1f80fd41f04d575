//! Watches how much comes out of an archive, while it comes.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, BufReader, Chain, Cursor, Read};
use std::rc::Rc;

use flate2::read::MultiGzDecoder;

use crate::digest::{Digest, Hasher};
use crate::error::{Error, Result};
use crate::unpack::Limits;
use crate::zstd;

/// What may be read between the contents of two files: headers, long names, extensions.
///
/// The tar reader collects those in memory however long they say they are.
const LONGEST_HEADER: u64 = 1 << 20;

/// Below this much, a ratio says nothing: a few kilobytes of an empty disk compress to almost nothing.
const SMALL: u64 = 16 << 20;

/// What limits the stream, and why it ended.
#[derive(Clone, Default)]
pub struct Meter(Rc<State>);

#[derive(Default)]
struct State {
    compressed: Cell<u64>,
    uncompressed: Cell<u64>,
    allowed: Cell<u64>,
    at_end: Cell<bool>,
    violation: RefCell<Option<String>>,
}

impl Meter {
    /// From here on, only what describes an entry may come.
    pub fn expect_header(&self) {
        self.0.allowed.set(LONGEST_HEADER);
    }

    /// From here on, the contents of a file and their padding may come.
    pub fn expect_contents(&self, size: u64) {
        self.0.allowed.set(size.saturating_add(1024));
    }

    /// Whether the stream itself has ended.
    pub fn at_end(&self) -> bool {
        self.0.at_end.get()
    }

    /// What an error of the tar reader really was: a limit of ours, trouble with the disk, or a bad archive.
    pub fn explain(&self, error: io::Error) -> Error {
        match self.0.violation.take() {
            Some(limit) => Error::LimitExceeded(limit),
            None if error.raw_os_error().is_some() => {
                Error::Io { doing: "reading the archive".to_owned(), source: error }
            }
            None => Error::Refused(format!("not a tar archive, or a damaged one ({error})")),
        }
    }

    fn count(&self, bytes: u64, ratio: u64) -> io::Result<()> {
        let state = &self.0;
        let uncompressed = state.uncompressed.get() + bytes;
        state.uncompressed.set(uncompressed);
        let violation = if uncompressed > SMALL && uncompressed / ratio.max(1) > state.compressed.get() {
            Some(format!("it grows to more than {ratio} times its size"))
        } else if bytes > state.allowed.get() {
            Some("it describes one file in more than a mebibyte, or has more than is allowed".to_owned())
        } else {
            None
        };
        state.allowed.set(state.allowed.get().saturating_sub(bytes));
        match violation {
            None => Ok(()),
            Some(violation) => {
                *state.violation.borrow_mut() = Some(violation);
                Err(io::Error::other("a limit is passed"))
            }
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").finish_non_exhaustive()
    }
}

/// What an archive is wrapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// By the first four bytes. What a sender says about it is often wrong, and never needed.
    pub fn of(start: &[u8]) -> Result<Self> {
        let other = [(&b"\xfd7zX"[..], "xz"), (b"BZh", "bzip2"), (b"PK\x03\x04", "zip")];
        if let Some((_, format)) = other.iter().find(|(magic, _)| start.starts_with(magic)) {
            let read = "plain tar, gzip and zstd are read";
            return Err(Error::Unsupported(format!("the archive is a {format} file; {read}")));
        }
        Ok(match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::None,
        })
    }
}

/// An archive without its compression.
pub struct Stream<R: Read> {
    source: BufReader<Source<R>>,
    ratio: u64,
    meter: Meter,
    hasher: Option<Hasher>,
}

type Raw<R> = Chain<Cursor<Vec<u8>>, Counted<R>>;

enum Source<R: Read> {
    Plain(Raw<R>),
    Gzip(Box<MultiGzDecoder<BufReader<Raw<R>>>>),
    Zstd(Box<zstd::Decoder<BufReader<Raw<R>>>>),
}

impl<R: Read> Stream<R> {
    pub fn new(reader: R, ratio: u64) -> Result<Self> {
        let meter = Meter::default();
        meter.expect_header();
        let mut counted = Counted { inner: reader, meter: meter.clone() };
        let mut start = Vec::new();
        counted.by_ref().take(4).read_to_end(&mut start).map_err(Error::io("reading the archive"))?;
        let compression = Compression::of(&start)?;
        let raw = Cursor::new(start).chain(counted);
        let buffered = |raw| BufReader::with_capacity(64 * 1024, raw);
        let source = match compression {
            Compression::None => Source::Plain(raw),
            Compression::Gzip => Source::Gzip(Box::new(MultiGzDecoder::new(buffered(raw)))),
            Compression::Zstd => Source::Zstd(Box::new(zstd::Decoder::new(buffered(raw)))),
        };
        Ok(Self { source: BufReader::with_capacity(64 * 1024, source), ratio, meter, hasher: None })
    }

    /// The same, and it digests what comes out.
    pub fn hashing(reader: R, ratio: u64) -> Result<Self> {
        Ok(Self { hasher: Some(Hasher::default()), ..Self::new(reader, ratio)? })
    }

    /// The digest of everything, for a stream that was made to tell it. What follows the end mark of the archive is not
    /// unpacked, but it is part of what the digest names.
    pub fn finish(mut self) -> Result<Digest> {
        self.meter.expect_header();
        io::copy(&mut self, &mut io::sink()).map_err(|error| self.meter.explain(error))?;
        Ok(self.hasher.unwrap_or_default().finish())
    }

    /// The digest of everything, without looking at what it is.
    pub fn digest(mut self, limits: &Limits) -> Result<Digest> {
        let headers = limits.entries.saturating_mul(2048);
        self.meter.expect_contents(limits.bytes.saturating_add(headers));
        io::copy(&mut self, &mut io::sink()).map_err(|error| self.meter.explain(error))?;
        Ok(self.hasher.unwrap_or_default().finish())
    }

    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }
}

impl<R: Read> Read for Stream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        if count == 0 && !buffer.is_empty() {
            self.meter.0.at_end.set(true);
        }
        self.meter.count(count as u64, self.ratio)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..count]);
        }
        Ok(count)
    }
}

impl<R: Read> fmt::Debug for Stream<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(raw) => raw.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zstd(decoder) => decoder.read(buffer),
        }
    }
}

struct Counted<R> {
    inner: R,
    meter: Meter,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let compressed = &self.meter.0.compressed;
        compressed.set(compressed.get() + count as u64);
        Ok(count)
    }
}
