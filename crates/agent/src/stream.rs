//! Whole trees of a sandbox as one stream that only we read: with links between files, holes and times, which the archives
//! for others do not have. It is never much larger than what the trees take, whatever sizes their files claim.
//!
//! Entries come in the order of their paths, compared part by part, so two streams can be compared while they pass.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

const MAGIC: &[u8; 8] = b"sandpen1";

/// Two paths and some numbers.
const LARGEST_ENTRY: u32 = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// What is in it follows; then it is left.
    Directory {
        path: Vec<u8>,
        about: About,
    },
    /// Its pieces follow; then it is left.
    File {
        path: Vec<u8>,
        bytes: u64,
        is_linked: bool,
        about: About,
    },
    /// Of the file that came last: so many bytes follow, which belong there. The rest of it are holes.
    Piece {
        offset: u64,
        bytes: u64,
    },
    /// All of a file or a directory has come: only now can it have a mode that forbids more, and its time.
    Left {
        path: Vec<u8>,
        about: About,
    },
    /// The file that came under another path, once more.
    Again {
        path: Vec<u8>,
        first: Vec<u8>,
    },
    Link {
        path: Vec<u8>,
        target: Vec<u8>,
        about: About,
    },
    Fifo {
        path: Vec<u8>,
        about: About,
    },
    /// A socket or a device, of which nothing can be kept.
    Other {
        path: Vec<u8>,
    },
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    pub mode: u32,
    pub modified: Moment,
    /// When the kernel saw the last change.
    pub changed: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    pub seconds: i64,
    pub nanoseconds: i64,
}

pub fn begin(output: &mut impl Write) -> io::Result<()> {
    output.write_all(MAGIC)
}

pub fn check_beginning(input: &mut impl Read) -> io::Result<()> {
    let mut magic = [0; MAGIC.len()];
    input.read_exact(&mut magic)?;
    if magic == *MAGIC { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}

pub fn put(output: &mut impl Write, entry: &Entry) -> io::Result<()> {
    let bytes = postcard::to_allocvec(entry).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    output.write_all(&length.to_le_bytes())?;
    output.write_all(&bytes)
}

pub fn get(input: &mut impl Read) -> io::Result<Entry> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > LARGEST_ENTRY {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    input.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}
