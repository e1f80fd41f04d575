//! The history of a persistent sandbox on disk: a line for each thing that happened, added by every process that has a part
//! in it.
//!
//! Lines are added with `O_APPEND` under a shared lock, so that nobody waits for anybody; whoever finds the file too large
//! writes a shorter one in its place, alone. It is not synced: after a loss of power the sandbox is gone too. What cannot be
//! read of it is left out: a history is told as far as it is known.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind as IoErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::line;
use super::{is_linked, open_anew, safe_open, unusable};
use crate::error::{Error, Result};
use crate::service::history::{Line, Log};

/// A file that is larger is written anew, with half of what a history may hold.
const MOST_FILE_BYTES: u64 = 1 << 20;

/// How often, and after how long, one tries again who finds the file being written anew.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub(crate) struct HistoryFile {
    path: PathBuf,
}

impl HistoryFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Only whoever makes the sandbox.
    pub fn make(&self, log: &Log) -> Result<()> {
        let temporary = self.path.with_extension("history-new");
        let mut file = open_anew(&temporary)?;
        let written = file.write_all(&line::encode_log(log)?).and_then(|()| fs::rename(&temporary, &self.path));
        written.map_err(|cause| {
            let _ = fs::remove_file(&temporary);
            unusable(cause)
        })
    }

    /// Of a sandbox that is gone, nothing is remembered.
    pub fn append(&self, line: &Line) -> Result<()> {
        let mut bytes = line::encode(line)?;
        bytes.push(b'\n');
        let Some(file) = self.open_locked()? else { return Ok(()) };
        let size = file.metadata().map_err(unusable)?.len();
        // A writer that died in the middle of its line must not spoil this one.
        let mut last = [b'\n'];
        if size > 0 && file.read_exact_at(&mut last, size - 1).is_ok() && last != [b'\n'] {
            bytes.insert(0, b'\n');
        }
        (&file).write_all(&bytes).map_err(unusable)?;
        if size + bytes.len() as u64 > MOST_FILE_BYTES {
            self.shorten(&file)?;
        }
        Ok(())
    }

    /// `None` when there is none.
    pub fn read(&self) -> Result<Option<Log>> {
        match OpenOptions::new().read(true).custom_flags(safe_open()).open(&self.path) {
            Ok(file) => read_log(&file).map(Some),
            Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
            Err(error) => Err(unusable(error)),
        }
    }

    fn open_locked(&self) -> Result<Option<File>> {
        for _ in 0..TRIES {
            let file = match OpenOptions::new().read(true).append(true).custom_flags(safe_open()).open(&self.path) {
                Ok(file) => file,
                Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(unusable(error)),
            };
            match flock(&file, FlockOperation::NonBlockingLockShared) {
                Ok(()) if is_linked(&file, &self.path).map_err(unusable)? => return Ok(Some(file)),
                // Another has taken its place, or nothing has.
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
                Err(error) => return Err(unusable(error.into())),
            }
        }
        Err(Error::unavailable("another process is at work on the history of this sandbox"))
    }

    /// Somebody who adds a line now is let go first: the next one shortens it.
    fn shorten(&self, file: &File) -> Result<()> {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
            Err(error) => return Err(unusable(error.into())),
        }
        if !is_linked(file, &self.path).map_err(unusable)? {
            return Ok(());
        }
        let mut log = read_log(file)?;
        log.halve();
        self.make(&log)
    }
}

fn read_log(file: &File) -> Result<Log> {
    let mut reader = BufReader::new(PositionedFile { file, position: 0 });
    let mut log: Option<Log> = None;
    let mut text = Vec::new();
    loop {
        text.clear();
        if reader.read_until(b'\n', &mut text).map_err(unusable)? == 0 {
            break;
        }
        match &mut log {
            None => log = Some(line::decode_head(&text).unwrap_or_else(Log::incomplete)),
            Some(log) => match line::decode(&text) {
                Some(line) => log.push(line),
                None => log.miss(),
            },
        }
    }
    Ok(log.unwrap_or_else(Log::incomplete))
}

/// A descriptor that is open for appending has a position of its own, which is not to be moved.
struct PositionedFile<'a> {
    file: &'a File,
    position: u64,
}

impl io::Read for PositionedFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}
