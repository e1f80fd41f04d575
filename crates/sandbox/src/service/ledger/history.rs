//! The history of a persistent sandbox on disk: a line for each thing that happened, added by every process that has a part
//! in it.
//!
//! Lines are added with `O_APPEND` under a shared lock, so that nobody waits for anybody; whoever finds the file too large
//! writes a shorter one in its place, alone. It is not synced: after a loss of power the sandbox is gone too. What cannot be
//! read of it is left out: a history is told as far as it is known.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, ErrorKind as IoErrorKind, Write};
use std::path::PathBuf;
use std::time::Duration;

use super::line;
use super::{open_anew, unusable};
use crate::error::{Error, Result};
use crate::service::history::{Line, Log};
use crate::system::{is_at, lock_of, private_file, read_at, read_exact_at};

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
        let Some((file, lock)) = self.open_locked()? else { return Ok(()) };
        let size = file.metadata().map_err(unusable)?.len();
        // A writer that died in the middle of its line must not spoil this one.
        let mut last = [b'\n'];
        if size > 0 && read_exact_at(&file, &mut last, size - 1).is_ok() && last != [b'\n'] {
            bytes.insert(0, b'\n');
        }
        (&file).write_all(&bytes).map_err(unusable)?;
        if size + bytes.len() as u64 > MOST_FILE_BYTES {
            self.shorten(&file, &lock)?;
        }
        Ok(())
    }

    /// `None` when there is none.
    pub fn read(&self) -> Result<Option<Log>> {
        match private_file().read(true).open(&self.path) {
            Ok(file) => read_log(&file).map(Some),
            Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
            Err(error) => Err(unusable(error)),
        }
    }

    /// With what the lock is on.
    fn open_locked(&self) -> Result<Option<(File, File)>> {
        for _ in 0..TRIES {
            let file = match private_file().read(true).append(true).open(&self.path) {
                Ok(file) => file,
                Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(unusable(error)),
            };
            let lock = lock_of(&file, &self.path).map_err(unusable)?;
            match lock.try_lock_shared() {
                Ok(()) if is_at(&file, &self.path).map_err(unusable)? => return Ok(Some((file, lock))),
                // Another has taken its place, or nothing has.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
                Err(TryLockError::Error(error)) => return Err(unusable(error)),
            }
        }
        Err(Error::unavailable("another process is at work on the history of this sandbox"))
    }

    /// Somebody who adds a line now is let go first: the next one shortens it.
    fn shorten(&self, file: &File, lock: &File) -> Result<()> {
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
        if !is_at(file, &self.path).map_err(unusable)? {
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
            // From one who added a line while another was in the middle of theirs, and took it for dead.
            Some(_) if text == b"\n" => {}
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
        let count = read_at(self.file, buffer, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}
