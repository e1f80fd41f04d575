//! The lines of a history on disk, and their one conversion to what they mean.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::exec::ExecStatus;
use crate::history::{Deed, KnownEnvironment};
use crate::path::GuestPath;
use crate::service::history::{DeedKey, Line, Log, Withheld};
use crate::spec::Environment;
use crate::tree::Checkpoint;

const VERSION: u32 = 1;

/// The first line.
#[derive(Serialize, Deserialize)]
struct WrittenHead {
    version: u32,
    #[serde(skip_serializing_if = "BTreeSet::is_empty", default)]
    withheld: BTreeSet<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    all_withheld: bool,
    #[serde(default)]
    dropped: u64,
}

/// Kept apart from the domain's types, so that renaming a field there cannot orphan what is on disk.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum WrittenLine {
    Began { key: u64, at_ns: i64, deed: WrittenDeed },
    Ended { key: u64, at_ns: i64, status: WrittenStatus },
    Done { at_ns: i64, deed: WrittenDeed },
    Checkpointed(u32),
    Restored(u32),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum WrittenDeed {
    Command {
        argv: Vec<String>,
        environment: WrittenEnvironment,
        work_directory: WrittenBytes,
    },
    Code {
        language: String,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        code: Option<WrittenBytes>,
        arguments: Vec<String>,
        environment: WrittenEnvironment,
        work_directory: WrittenBytes,
    },
    FileWritten {
        path: WrittenBytes,
        mode: u32,
        bytes: u64,
    },
    Unpacked {
        path: WrittenBytes,
        bytes: u64,
    },
    DirectoryMade {
        path: WrittenBytes,
    },
    Removed {
        path: WrittenBytes,
    },
    Renamed {
        from: WrittenBytes,
        to: WrittenBytes,
    },
}

/// Values that may be told; of others the name alone is ever here.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenEnvironment {
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    values: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty", default)]
    withheld: BTreeSet<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WrittenStatus {
    Exited(i32),
    Signalled(i32),
    TimedOut,
    OutOfMemory,
    Cancelled,
    Killed,
}

/// Text where it is text, so that a person can read it.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum WrittenBytes {
    Text(String),
    Raw(Vec<u8>),
}

pub(super) fn encode_log(log: &Log) -> Result<Vec<u8>> {
    let (withheld, all_withheld) = match &log.withheld {
        Withheld::These(names) => (names.clone(), false),
        Withheld::All => (BTreeSet::new(), true),
    };
    let head = WrittenHead { version: VERSION, withheld, all_withheld, dropped: log.dropped() };
    let mut bytes = to_json(&head)?;
    bytes.push(b'\n');
    for line in log.lines() {
        bytes.extend(encode(line)?);
        bytes.push(b'\n');
    }
    Ok(bytes)
}

pub(super) fn encode(line: &Line) -> Result<Vec<u8>> {
    let written = match line {
        Line::Began { key, started_ns, deed } => {
            WrittenLine::Began { key: key.0, at_ns: short(*started_ns), deed: deed.into() }
        }
        Line::Ended { key, ended_ns, status } => {
            WrittenLine::Ended { key: key.0, at_ns: short(*ended_ns), status: (*status).into() }
        }
        Line::Done { at_ns, deed } => WrittenLine::Done { at_ns: short(*at_ns), deed: deed.into() },
        Line::Checkpointed(checkpoint) => WrittenLine::Checkpointed(checkpoint.0),
        Line::Restored(checkpoint) => WrittenLine::Restored(checkpoint.0),
    };
    to_json(&written)
}

/// `None` for one that cannot be read, or that a later version wrote.
pub(super) fn decode_head(bytes: &[u8]) -> Option<Log> {
    let head: WrittenHead = serde_json::from_slice(bytes).ok()?;
    let withheld = if head.all_withheld { Withheld::All } else { Withheld::These(head.withheld) };
    (head.version == VERSION).then(|| Log::resumed(withheld, head.dropped))
}

pub(super) fn decode(bytes: &[u8]) -> Option<Line> {
    let written: WrittenLine = serde_json::from_slice(bytes).ok()?;
    Some(match written {
        WrittenLine::Began { key, at_ns, deed } => {
            Line::Began { key: DeedKey(key), started_ns: at_ns.into(), deed: deed.into_deed().ok()? }
        }
        WrittenLine::Ended { key, at_ns, status } => {
            Line::Ended { key: DeedKey(key), ended_ns: at_ns.into(), status: status.into() }
        }
        WrittenLine::Done { at_ns, deed } => Line::Done { at_ns: at_ns.into(), deed: deed.into_deed().ok()? },
        WrittenLine::Checkpointed(number) => Line::Checkpointed(Checkpoint(number)),
        WrittenLine::Restored(number) => Line::Restored(Checkpoint(number)),
    })
}

impl From<&Deed> for WrittenDeed {
    fn from(deed: &Deed) -> Self {
        match deed {
            Deed::Command { argv, environment, work_directory, status: _ } => Self::Command {
                argv: argv.clone(),
                environment: environment.into(),
                work_directory: work_directory.into(),
            },
            Deed::Code { language, code, arguments, environment, work_directory, status: _ } => Self::Code {
                language: language.clone(),
                code: code.as_deref().map(WrittenBytes::new),
                arguments: arguments.clone(),
                environment: environment.into(),
                work_directory: work_directory.into(),
            },
            Deed::FileWritten { path, mode, bytes } => {
                Self::FileWritten { path: path.into(), mode: *mode, bytes: *bytes }
            }
            Deed::Unpacked { path, bytes } => Self::Unpacked { path: path.into(), bytes: *bytes },
            Deed::DirectoryMade { path } => Self::DirectoryMade { path: path.into() },
            Deed::Removed { path } => Self::Removed { path: path.into() },
            Deed::Renamed { from, to } => Self::Renamed { from: from.into(), to: to.into() },
        }
    }
}

impl WrittenDeed {
    fn into_deed(self) -> Result<Deed> {
        Ok(match self {
            Self::Command { argv, environment, work_directory } => Deed::Command {
                argv,
                environment: environment.into_known()?,
                work_directory: work_directory.into_path()?,
                status: None,
            },
            Self::Code { language, code, arguments, environment, work_directory } => Deed::Code {
                language,
                code: code.map(WrittenBytes::into_bytes),
                arguments,
                environment: environment.into_known()?,
                work_directory: work_directory.into_path()?,
                status: None,
            },
            Self::FileWritten { path, mode, bytes } => Deed::FileWritten { path: path.into_path()?, mode, bytes },
            Self::Unpacked { path, bytes } => Deed::Unpacked { path: path.into_path()?, bytes },
            Self::DirectoryMade { path } => Deed::DirectoryMade { path: path.into_path()? },
            Self::Removed { path } => Deed::Removed { path: path.into_path()? },
            Self::Renamed { from, to } => Deed::Renamed { from: from.into_path()?, to: to.into_path()? },
        })
    }
}

impl From<&KnownEnvironment> for WrittenEnvironment {
    fn from(known: &KnownEnvironment) -> Self {
        let values = known.values.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self { values: values.collect(), withheld: known.withheld.clone() }
    }
}

impl WrittenEnvironment {
    fn into_known(self) -> Result<KnownEnvironment> {
        let mut values = Environment::default();
        for (name, value) in self.values {
            values.insert(name, value)?;
        }
        Ok(KnownEnvironment { values, withheld: self.withheld })
    }
}

impl From<ExecStatus> for WrittenStatus {
    fn from(status: ExecStatus) -> Self {
        match status {
            ExecStatus::Exited(code) => Self::Exited(code),
            ExecStatus::Signalled(signal) => Self::Signalled(signal),
            ExecStatus::TimedOut => Self::TimedOut,
            ExecStatus::OutOfMemory => Self::OutOfMemory,
            ExecStatus::Cancelled => Self::Cancelled,
            ExecStatus::Killed => Self::Killed,
        }
    }
}

impl From<WrittenStatus> for ExecStatus {
    fn from(status: WrittenStatus) -> Self {
        match status {
            WrittenStatus::Exited(code) => Self::Exited(code),
            WrittenStatus::Signalled(signal) => Self::Signalled(signal),
            WrittenStatus::TimedOut => Self::TimedOut,
            WrittenStatus::OutOfMemory => Self::OutOfMemory,
            WrittenStatus::Cancelled => Self::Cancelled,
            WrittenStatus::Killed => Self::Killed,
        }
    }
}

impl WrittenBytes {
    fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Raw(bytes.to_vec()),
        }
    }

    fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.into_bytes(),
            Self::Raw(bytes) => bytes,
        }
    }

    pub fn into_path(self) -> Result<GuestPath> {
        GuestPath::resolve(&GuestPath::root(), &self.into_bytes())
    }
}

impl From<&GuestPath> for WrittenBytes {
    fn from(path: &GuestPath) -> Self {
        Self::new(path.as_bytes())
    }
}

/// Enough for two centuries more.
fn short(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|cause| Error::internal("a history cannot be written down").with_cause(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Line> {
        let path = |bytes: &[u8]| GuestPath::resolve(&GuestPath::root(), bytes).unwrap();
        let mut values = Environment::default();
        values.insert("LANG", "C\nUTF").unwrap();
        let environment = KnownEnvironment { values, withheld: ["TOKEN".to_owned()].into() };
        let (key, work_directory) = (DeedKey(u64::MAX), path(b"/workspace"));
        let command = Deed::Command {
            argv: vec!["sh".to_owned(), "a\nb".to_owned()],
            environment: environment.clone(),
            work_directory: work_directory.clone(),
            status: None,
        };
        let code = |code| Deed::Code {
            language: "python".to_owned(),
            code,
            arguments: vec![String::new()],
            environment: KnownEnvironment::default(),
            work_directory: work_directory.clone(),
            status: None,
        };
        let done = |deed| Line::Done { at_ns: 1_800_000_000_000_000_001, deed };
        let statuses = [
            ExecStatus::Exited(3),
            ExecStatus::Signalled(9),
            ExecStatus::TimedOut,
            ExecStatus::OutOfMemory,
            ExecStatus::Cancelled,
            ExecStatus::Killed,
        ];
        let mut lines = vec![
            Line::Began { key, started_ns: 1, deed: command },
            Line::Began { key, started_ns: 2, deed: code(Some(b"\xff\0".to_vec())) },
            Line::Began { key, started_ns: 2, deed: code(None) },
            done(Deed::FileWritten { path: path(b"/a\xff"), mode: 0o755, bytes: 7 }),
            done(Deed::Unpacked { path: path(b"/"), bytes: 7 }),
            done(Deed::DirectoryMade { path: path(b"/d") }),
            done(Deed::Removed { path: path(b"/d") }),
            done(Deed::Renamed { from: path(b"/d"), to: path(b"/e") }),
            Line::Checkpointed(Checkpoint(7)),
            Line::Restored(Checkpoint(7)),
        ];
        lines.extend(statuses.map(|status| Line::Ended { key, ended_ns: 3, status }));
        lines
    }

    #[test]
    fn what_nobody_knows_stays_unknown() {
        let written = encode_log(&Log::incomplete()).unwrap();
        assert_eq!(decode_head(&written), Some(Log::incomplete()));
        assert_eq!(decode_head(b"{\"version\":1}"), Some(Log::default()), "most have nothing to withhold");
    }

    #[test]
    fn each_line_is_one_and_reads_as_it_was_written() {
        for line in samples() {
            let bytes = encode(&line).unwrap();
            assert!(!bytes.contains(&b'\n'), "{line:?}");
            assert_eq!(decode(&bytes), Some(line));
        }
        let mut log = Log::resumed(Withheld::These(["TOKEN".to_owned()].into()), 5);
        samples().into_iter().for_each(|line| log.push(line));
        let bytes = encode_log(&log).unwrap();
        let mut lines = bytes.split(|byte| *byte == b'\n');
        let mut again = decode_head(lines.next().unwrap()).unwrap();
        lines.filter(|line| !line.is_empty()).for_each(|line| again.push(decode(line).unwrap()));
        assert_eq!(again, log);
    }

    #[test]
    fn garbage_is_no_line() {
        for text in
            ["", "{}", "x", "{\"restored\":-1}", "{\"done\":{\"at_ns\":1,\"deed\":{\"removed\":{\"path\":\"..\"}}}}"]
        {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
        assert!(decode_head(b"{\"version\":2}").is_none());
    }
}
