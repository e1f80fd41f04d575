//! A file of what was done, a line of JSON each, in which nothing can be changed or left out unseen: every line has the
//! digest of the one before it.
//!
//! What a chain cannot tell is that its end was cut off. Whoever wants to know keeps the digest of the last line elsewhere.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::SystemTime;

use sandbox::system::{self, private_file};
use sandbox::{Error, Result};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::line::{Line, MISSED};
use crate::output::reason;
use crate::time;

/// No line of ours is longer.
pub(super) const LONGEST_LINE: u64 = 64 << 10;

/// The one file that a server adds to. Held by a lock: two chains cannot be one.
#[derive(Debug)]
pub struct Trail {
    file: File,
    /// Bytes of whole lines.
    length: u64,
    number: u64,
    previous: LineDigest,
    /// Lines that could not be written since the last one that could.
    missed: u64,
}

/// Of a line without its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LineDigest(String);

impl LineDigest {
    /// Before the first line.
    fn none() -> Self {
        Self("0".repeat(64))
    }

    pub(super) fn of(line: &[u8]) -> Self {
        Self(Sha256::digest(line).iter().map(|byte| format!("{byte:02x}")).collect())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a trail was found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    pub lines: u64,
    /// The digest of the last line.
    pub head: String,
    /// Lines that are not there, as those say that are: what came too fast, and what a full disk did not take.
    pub missed: u64,
}

impl Trail {
    /// Go on where it ends. What a process that died has left of a line is cut off, and the next line says so.
    pub fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        let unusable = |cause: std::io::Error| {
            Error::unavailable(format!("the audit trail {shown} cannot be written: {}", reason(&cause)))
        };
        let mut file = private_file().read(true).append(true).create(true).open(path).map_err(unusable)?;
        if !file.metadata().map_err(unusable)?.is_file() {
            return Err(Error::invalid_input(format!("{shown} is not a file")));
        }
        if system::lock_of(&file, path).map_err(unusable)?.try_lock().is_err() {
            return Err(Error::unavailable(format!("another process writes to the audit trail {shown}"))
                .with_hint("name another file with --audit-log: each server has its own"));
        }
        let end = file.metadata().map_err(unusable)?.len();
        let start = end.saturating_sub(2 * LONGEST_LINE);
        let mut tail = Vec::new();
        file.seek(SeekFrom::Start(start)).map_err(unusable)?;
        Read::by_ref(&mut file).take(2 * LONGEST_LINE).read_to_end(&mut tail).map_err(unusable)?;
        let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let torn = (tail.len() - whole) as u64;
        let mut trail = Self { file, length: end - torn, number: 0, previous: LineDigest::none(), missed: 0 };
        if let Some(lines) = tail[..whole].strip_suffix(b"\n") {
            let last = lines.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
            let number = serde_json::from_slice(last).ok().as_ref().and_then(number_of);
            trail.number = number.ok_or_else(|| {
                Error::invalid_input(format!("{shown} does not end as an audit trail does"))
                    .with_hint("`sandpen audit verify` says where; name another file with --audit-log to go on")
            })?;
            trail.previous = LineDigest::of(last);
        } else if whole == 0 && start > 0 {
            return Err(Error::invalid_input(format!("{shown} does not end as an audit trail does")));
        }
        if torn > 0 {
            trail.file.set_len(trail.length).map_err(unusable)?;
        }
        let details = vec![("torn_bytes", torn.into())];
        trail.add(&Line { owner: None, sandbox: None, event: "opened", details }, SystemTime::now());
        Ok(trail)
    }

    /// Whether it was written. A disk that is full must not end a server: how many lines are lost to it is in the next one that is
    /// not.
    pub fn add(&mut self, line: &Line, now: SystemTime) -> bool {
        let mut object = Map::new();
        object.insert("number".to_owned(), (self.number + 1).into());
        object.insert("time".to_owned(), time::rfc3339(now).into());
        let owner = line.owner.as_ref().map(|owner| owner.as_str().into());
        let sandbox = line.sandbox.as_ref().map(|sandbox| sandbox.as_str().into());
        let named = [("owner", owner), ("sandbox", sandbox)];
        let named = named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        object.extend(named);
        object.insert("event".to_owned(), line.event.into());
        object.extend(line.details.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        if self.missed > 0 {
            object.insert("missed".to_owned(), self.missed.into());
        }
        object.insert("previous".to_owned(), self.previous.0.clone().into());
        let mut bytes = Value::Object(object).to_string().into_bytes();
        let digest = LineDigest::of(&bytes);
        bytes.push(b'\n');
        match self.file.write_all(&bytes) {
            Ok(()) => {
                self.length += bytes.len() as u64;
                self.number += 1;
                self.previous = digest;
                self.missed = 0;
                true
            }
            Err(error) => {
                self.missed += 1;
                // Half of a line would break the chain.
                let cut = self.file.set_len(self.length);
                tracing::error!(%error, ?cut, "a line of the audit trail is lost");
                false
            }
        }
    }

    /// On disk when it returns.
    pub fn close(self) {
        if let Err(error) = self.file.sync_all() {
            tracing::error!(%error, "the audit trail may not be on disk");
        }
    }
}

fn number_of(line: &Value) -> Option<u64> {
    line.get("number")?.as_u64()
}

/// How many lines a line says are not there.
fn missed_before(line: &Value) -> u64 {
    let said = |name: &str| line.get(name).and_then(Value::as_u64).unwrap_or(0);
    let is_about_them = line.get("event").and_then(Value::as_str) == Some(MISSED);
    said("missed").saturating_add(if is_about_them { said("count") } else { 0 })
}

/// Whether nothing was changed, left out or put in between.
pub fn verify(path: &Path) -> Result<Verified> {
    let shown = path.display();
    let unreadable =
        |cause: std::io::Error| Error::invalid_input(format!("{shown} cannot be read: {}", reason(&cause)));
    let mut reader = BufReader::new(system::file_of_another().read(true).open(path).map_err(unreadable)?);
    let mut verified = Verified { lines: 0, head: LineDigest::none().0, missed: 0 };
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader.by_ref().take(LONGEST_LINE + 1).read_until(b'\n', &mut line).map_err(unreadable)?;
        if read == 0 {
            return Ok(verified);
        }
        let number = verified.lines + 1;
        let wrong = |why: &str| Error::invalid_input(format!("{shown} line {number}: {why}"));
        let bytes = line.strip_suffix(b"\n").ok_or_else(|| wrong("it does not end, or is too long"))?;
        let object: Value = serde_json::from_slice(bytes).map_err(|_| wrong("it is not a line of an audit trail"))?;
        if number_of(&object) != Some(number) {
            return Err(wrong("it has another number: lines are missing or were put in before it"));
        }
        if object.get("previous").and_then(Value::as_str) != Some(&verified.head) {
            return Err(wrong("the line before it is not the one that it was written after"));
        }
        let missed = verified.missed.saturating_add(missed_before(&object));
        verified = Verified { lines: number, head: LineDigest::of(bytes).0, missed };
    }
}

#[cfg(test)]
#[path = "trail_tests.rs"]
mod tests;
