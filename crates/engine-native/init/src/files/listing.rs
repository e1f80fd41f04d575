//! Listing directories, bounded and in a stable order.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, OFlags};

use super::{convert, open};
use crate::wire::{self, FileFailure, FromFile, Kind, Stat};

/// Entries of one message: 400 of the longest names fit.
const BATCH: usize = 400;

/// Deeper than this there is nothing that a path could still name.
const MAX_DEPTH: usize = 2048;

pub fn list(channel: &OwnedFd, path: &[u8], recursive: bool, max_entries: u64) -> Result<(), FileFailure> {
    let mut listing = Listing { channel, batch: Vec::new(), left: max_entries };
    // Entries still to be told, the next one last: each directory is followed by what is in it.
    let mut pending = children(path, 1)?;
    let mut truncated = false;
    while let Some(Entry { path, stat, depth }) = pending.pop() {
        let enter = recursive && stat.kind == Kind::Directory && depth < MAX_DEPTH;
        if !listing.add(path.clone(), stat)? {
            truncated = true;
            break;
        }
        if enter {
            // It may be closed to the user, or gone.
            pending.extend(children(&path, depth + 1).unwrap_or_default());
        }
    }
    listing.flush()?;
    Ok(wire::send(channel.as_fd(), &FromFile::ListEnd { truncated }, &[])?)
}

struct Entry {
    path: Vec<u8>,
    stat: Stat,
    depth: usize,
}

/// The entries of a directory, the first one last.
fn children(directory: &[u8], depth: usize) -> Result<Vec<Entry>, FileFailure> {
    let base = if directory == b"/" { b"" } else { directory };
    let entries = read_directory(directory)?.into_iter().rev();
    Ok(entries.map(|(name, stat)| Entry { path: [base, b"/", &name].concat(), stat, depth }).collect())
}

struct Listing<'a> {
    channel: &'a OwnedFd,
    batch: Vec<(Vec<u8>, Stat)>,
    left: u64,
}

impl Listing<'_> {
    /// `false` when there is no room for it.
    fn add(&mut self, path: Vec<u8>, stat: Stat) -> Result<bool, FileFailure> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        let bytes: usize = self.batch.iter().map(|(path, _)| path.len()).sum();
        if self.batch.len() == BATCH || bytes + path.len() > wire::MAX_MESSAGE / 2 {
            self.flush()?;
        }
        self.batch.push((path, stat));
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), FileFailure> {
        Ok(wire::send(self.channel.as_fd(), &FromFile::Entries(std::mem::take(&mut self.batch)), &[])?)
    }
}

fn read_directory(path: &[u8]) -> Result<Vec<(Vec<u8>, Stat)>, FileFailure> {
    let directory = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK).map_err(|error| match error {
        rustix::io::Errno::NOTDIR => FileFailure::NotDirectory,
        other => other.into(),
    })?;
    let mut entries = Vec::new();
    for entry in Dir::read_from(&directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if matches!(name.as_slice(), b"." | b"..") {
            continue;
        }
        // It may be gone again.
        if let Ok(stat) = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            entries.push((name, convert(&stat)));
        }
    }
    entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Ok(entries)
}
