//! Output of detached commands: the newest part of it, kept by their supervisors where only process 1 can read it.
//!
//! One file for each command: how many bytes there were in all, then a ring of the last ones. A second file says what the
//! command was and how it ended.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::pipe::PipeFlags;

use crate::wire::{self, FromLog, LogEntry};

/// Closed to the sandbox's user.
const DIRECTORY: &str = "/run/log";
const RING_BYTES: u64 = 1 << 20;
const RING_START: u64 = 8;
/// Older ones make room.
const MOST_LOGS: usize = 32;
/// A command with all its arguments: more than one message can hold never came here.
const MOST_ENTRY_BYTES: u64 = wire::MAX_MESSAGE as u64;
/// Pieces that are taken in one go, as much as a pipe can hold. A command that writes as fast as we read must not keep its
/// supervisor from its deadline.
const MOST_PIECES: usize = 16;

/// Make the place for logs, where nobody else has.
pub fn prepare() -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(DIRECTORY)
}

/// The log of a running command.
pub struct Log {
    /// `None` once everything that could write to it is gone.
    pub pipe: Option<OwnedFd>,
    ring: File,
    total: u64,
    description: PathBuf,
    entry: LogEntry,
}

impl Log {
    /// A new log, and the end of its pipe that the command writes to.
    pub fn open(argv: &[String]) -> io::Result<(Self, OwnedFd)> {
        fs::create_dir_all(DIRECTORY)?;
        make_room()?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let base = Path::new(DIRECTORY).join(format!("{:020}-{}", now.as_nanos(), std::process::id()));
        let ring = OpenOptions::new().read(true).write(true).create_new(true).open(base.with_extension("ring"))?;
        let (pipe, end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        rustix::io::ioctl_fionbio(&end, false)?;
        let entry = LogEntry { argv: argv.to_vec(), started_milliseconds: now.as_millis() as u64, end: None, total: 0 };
        let log = Self { pipe: Some(pipe), ring, total: 0, description: base.with_extension("entry"), entry };
        log.describe()?;
        Ok((log, end))
    }

    /// Take what has come, and leave what comes meanwhile. What cannot be kept, because the disk is full, is lost: the command
    /// must not stop for it.
    pub fn take(&mut self) {
        let mut bytes = [0; 64 << 10];
        for _ in 0..MOST_PIECES {
            let Some(pipe) = &self.pipe else { return };
            match rustix::io::read(pipe, &mut bytes) {
                Ok(0) => self.pipe = None,
                Ok(count) => drop(self.append(&bytes[..count])),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let at = self.total % RING_BYTES;
            let count = bytes.len().min((RING_BYTES - at) as usize);
            self.total += count as u64;
            self.ring.write_all_at(&bytes[..count], RING_START + at)?;
            bytes = &bytes[count..];
        }
        self.ring.write_all_at(&self.total.to_ne_bytes(), 0)
    }

    pub fn ended(&mut self, end: wire::LogEnd) {
        self.entry.end = Some(end);
        let _ = self.describe();
    }

    fn describe(&self) -> io::Result<()> {
        let unfinished = self.description.with_extension("new");
        // A program that is root in its sandbox may have put something there, which would be waited for.
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).open(&unfinished)?;
        file.write_all(&postcard::to_stdvec(&self.entry).map_err(io::Error::other)?)?;
        fs::rename(unfinished, &self.description)
    }
}

fn descriptions() -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|kind| kind == "entry")).collect();
    found.sort_unstable();
    Ok(found)
}

fn make_room() -> io::Result<()> {
    let found = descriptions()?;
    for path in found.iter().take((found.len() + 1).saturating_sub(MOST_LOGS)) {
        fs::remove_file(path.with_extension("ring")).and_then(|()| fs::remove_file(path))?;
    }
    Ok(())
}

/// Send all logs, the oldest first.
pub fn send_all(channel: &OwnedFd) -> io::Result<()> {
    for path in descriptions()? {
        // One that makes room for another at this moment is left out.
        let Ok(mut entry) = read_entry(&path) else { continue };
        let Ok(ring) = open_own(&path.with_extension("ring"), RING_START + RING_BYTES) else { continue };
        let mut total = [0; 8];
        // A command that has not written anything yet has an empty ring.
        entry.total = ring.read_exact_at(&mut total, 0).map_or(0, |()| u64::from_ne_bytes(total));
        let kept = entry.total.min(RING_BYTES);
        let first = entry.total - kept;
        wire::send(channel.as_fd(), &FromLog::Entry(entry), &[])?;
        let mut sent = 0;
        while sent < kept {
            let at = (first + sent) % RING_BYTES;
            let count = (kept - sent).min(RING_BYTES - at).min(64 << 10);
            let mut bytes = vec![0; count as usize];
            ring.read_exact_at(&mut bytes, RING_START + at)?;
            wire::send(channel.as_fd(), &FromLog::Output(bytes), &[])?;
            sent += count;
        }
    }
    wire::send(channel.as_fd(), &FromLog::Done, &[])
}

fn read_entry(path: &Path) -> io::Result<LogEntry> {
    let mut bytes = Vec::new();
    open_own(path, MOST_ENTRY_BYTES)?.take(MOST_ENTRY_BYTES).read_to_end(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// A program that is root in its sandbox may have put something else there: what leads elsewhere, what is waited for, or
/// what is too large.
fn open_own(path: &Path, most: u64) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.len() > most {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(file)
}
