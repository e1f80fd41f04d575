//! The history of one sandbox as it is kept: lines that are only ever added, within bounds, the oldest dropped.

use std::collections::{BTreeSet, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

use super::core::Core;
use crate::error::Result;
use crate::exec::ExecStatus;
use crate::history::{Deed, History, HistoryEntry, KnownEnvironment};
use crate::id::{Owner, SandboxId};
use crate::path::GuestPath;
use crate::spec::{Environment, Persistence, SandboxSpec};
use crate::tree::Checkpoint;

/// Lines of one sandbox. A line is a few hundred bytes but for code.
const MOST_LINES: usize = 2000;
/// What all lines of one sandbox take together. A server may hold a thousand sandboxes.
const MOST_BYTES: usize = 512 * 1024;
/// Longer code is not kept. Arguments and environments are within bounds of their own, which are narrower.
const MOST_CODE_BYTES: usize = 128 * 1024;

/// One thing to remember.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Line {
    Began { key: DeedKey, started_ns: i128, deed: Deed },
    Ended { key: DeedKey, ended_ns: i128, status: ExecStatus },
    Done { at_ns: i128, deed: Deed },
    Checkpointed(Checkpoint),
    Restored(Checkpoint),
}

/// Ties the end of something to its beginning, over all processes that add to one history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeedKey(pub u64);

impl DeedKey {
    /// Two that are equal would only show one end for another.
    pub fn random() -> Self {
        Self(getrandom::u64().unwrap_or_default())
    }
}

/// The lines of one sandbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Log {
    pub withheld: Withheld,
    lines: VecDeque<Line>,
    bytes: usize,
    dropped: u64,
}

/// Variables of the sandbox whose values are not to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Withheld {
    These(BTreeSet<String>),
    /// Nobody knows any more which, so any of them may be.
    All,
}

impl Default for Withheld {
    fn default() -> Self {
        Self::These(BTreeSet::new())
    }
}

impl Withheld {
    fn known_of(&self, environment: &Environment) -> KnownEnvironment {
        match self {
            Self::These(names) => KnownEnvironment::new(environment, names),
            Self::All => {
                KnownEnvironment::new(environment, &environment.iter().map(|(name, _)| name.to_owned()).collect())
            }
        }
    }
}

impl Log {
    pub fn new(withheld: BTreeSet<String>) -> Self {
        Self { withheld: Withheld::These(withheld), ..Self::default() }
    }

    /// One of which `dropped` entries are gone already.
    pub fn resumed(withheld: Withheld, dropped: u64) -> Self {
        Self { withheld, dropped, ..Self::default() }
    }

    /// One whose beginning nobody knows any more.
    pub fn incomplete() -> Self {
        Self::resumed(Withheld::All, 1)
    }

    /// Something was there that cannot be told.
    pub fn miss(&mut self) {
        self.dropped += 1;
    }

    pub fn lines(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter()
    }

    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    pub fn push(&mut self, line: Line) {
        self.bytes += line.bytes();
        self.lines.push_back(line);
        self.drop_oldest(MOST_LINES, MOST_BYTES);
    }

    /// To have room for a while.
    pub fn halve(&mut self) {
        self.drop_oldest(MOST_LINES / 2, MOST_BYTES / 2);
    }

    fn drop_oldest(&mut self, most_lines: usize, most_bytes: usize) {
        while self.lines.len() > most_lines || self.bytes > most_bytes {
            let Some(oldest) = self.lines.pop_front() else { return };
            self.bytes -= oldest.bytes();
            match oldest {
                Line::Began { .. } | Line::Done { .. } => self.dropped += 1,
                Line::Ended { .. } | Line::Checkpointed(_) | Line::Restored(_) => {}
            }
        }
    }

    /// Entries in the order of their beginnings, without those that a restore has undone.
    pub fn entries(&self) -> Vec<HistoryEntry> {
        let mut kept: Vec<(Option<DeedKey>, HistoryEntry)> = Vec::new();
        let mut marks: Vec<(Checkpoint, usize)> = Vec::new();
        for line in &self.lines {
            match line {
                Line::Began { key, started_ns, deed } => {
                    let entry = HistoryEntry { started_ns: *started_ns, ended_ns: None, deed: deed.clone() };
                    kept.push((Some(*key), entry));
                }
                Line::Ended { key, ended_ns, status } => {
                    if let Some((_, entry)) = kept.iter_mut().rev().find(|(found, _)| *found == Some(*key)) {
                        entry.ended_ns = Some(*ended_ns);
                        entry.deed.set_status(*status);
                    }
                }
                Line::Done { at_ns, deed } => {
                    kept.push((None, HistoryEntry { started_ns: *at_ns, ended_ns: Some(*at_ns), deed: deed.clone() }));
                }
                Line::Checkpointed(checkpoint) => marks.push((*checkpoint, kept.len())),
                Line::Restored(checkpoint) => {
                    let mark = marks.iter().rposition(|(made, _)| made == checkpoint);
                    // One whose line was dropped is older than all that is left.
                    kept.truncate(mark.map_or(0, |mark| marks[mark].1));
                    marks.truncate(mark.map_or(0, |mark| mark + 1));
                }
            }
        }
        kept.into_iter().map(|(_, entry)| entry).collect()
    }

    /// For a branch, whose checkpoints are its own.
    pub fn without_marks(&self) -> Self {
        let mut log = Self { withheld: self.withheld.clone(), dropped: self.dropped, ..Self::default() };
        for HistoryEntry { started_ns, ended_ns, deed } in self.entries() {
            let status = deed.status();
            match (ended_ns, status) {
                (Some(at_ns), None) => log.push(Line::Done { at_ns, deed }),
                (ended_ns, status) => {
                    let key = DeedKey::random();
                    log.push(Line::Began { key, started_ns, deed });
                    if let (Some(ended_ns), Some(status)) = (ended_ns, status) {
                        log.push(Line::Ended { key, ended_ns, status });
                    }
                }
            }
        }
        log
    }

    pub fn to_history(&self, spec: &SandboxSpec) -> History {
        History {
            image: spec.image.clone(),
            attachments: spec.attachments.clone(),
            environment: self.withheld.known_of(&spec.environment),
            work_directory: spec.work_directory.clone().unwrap_or_else(GuestPath::workspace),
            entries: self.entries(),
            dropped: self.dropped,
        }
    }
}

impl Core {
    pub(super) fn history(&self, owner: &Owner, id: &SandboxId) -> Result<History> {
        let (spec, log) = self.log(owner, id)?;
        Ok(log.to_history(&spec))
    }

    /// Where all processes can add to it, if the sandbox may be used by several.
    pub(super) fn log(&self, owner: &Owner, id: &SandboxId) -> Result<(SandboxSpec, Log)> {
        let found = self.locate(owner, id)?;
        let (spec, log) = self.registry.history(owner, id)?;
        match found.persistence {
            Persistence::Ephemeral => Ok((spec, log)),
            Persistence::Persistent => Ok((spec, self.ledger.history(id).read()?.unwrap_or_else(Log::incomplete))),
        }
    }

    /// A history with a gap is worth more than a command that is refused for its sake.
    pub(super) fn remember(&self, id: &SandboxId, line: Line) {
        match self.registry.persistence(id) {
            Some(Persistence::Ephemeral) => self.registry.record(id, line),
            Some(Persistence::Persistent) => {
                if let Err(error) = self.ledger.history(id).append(&line) {
                    tracing::warn!(%id, ?error, "something was done that the sandbox's history does not have");
                }
            }
            None => {}
        }
    }

    /// What ended as it began, like a file that was put in its place.
    pub(super) fn remember_done(&self, id: &SandboxId, deed: Deed) {
        self.remember(id, Line::Done { at_ns: now_ns(), deed });
    }

    pub(super) fn known_environment(&self, environment: &Environment) -> KnownEnvironment {
        KnownEnvironment::new(environment, &self.settings.passed_through)
    }
}

pub(super) fn keepable(code: &[u8]) -> Option<Vec<u8>> {
    (code.len() <= MOST_CODE_BYTES).then(|| code.to_vec())
}

pub(super) fn now_ns() -> i128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128)
}

impl Deed {
    fn status(&self) -> Option<ExecStatus> {
        match self {
            Self::Command { status, .. } | Self::Code { status, .. } => *status,
            Self::FileWritten { .. }
            | Self::Unpacked { .. }
            | Self::DirectoryMade { .. }
            | Self::Removed { .. }
            | Self::Renamed { .. } => None,
        }
    }

    fn set_status(&mut self, ended: ExecStatus) {
        match self {
            Self::Command { status, .. } | Self::Code { status, .. } => *status = Some(ended),
            Self::FileWritten { .. }
            | Self::Unpacked { .. }
            | Self::DirectoryMade { .. }
            | Self::Removed { .. }
            | Self::Renamed { .. } => {}
        }
    }
}

impl Line {
    /// What it takes, roughly and never nothing.
    fn bytes(&self) -> usize {
        const SMALL: usize = 64;
        let texts = |texts: &[String]| -> usize { texts.iter().map(|text| text.len() + SMALL).sum() };
        let variables = |known: &KnownEnvironment| -> usize {
            let given: usize = known.values.iter().map(|(name, value)| name.len() + value.len() + SMALL).sum();
            given + known.withheld.iter().map(|name| name.len() + SMALL).sum::<usize>()
        };
        let deed = match self {
            Self::Began { deed, .. } | Self::Done { deed, .. } => deed,
            Self::Ended { .. } | Self::Checkpointed(_) | Self::Restored(_) => return SMALL,
        };
        SMALL
            + match deed {
                Deed::Command { argv, environment, work_directory, status: _ } => {
                    texts(argv) + variables(environment) + work_directory.as_bytes().len()
                }
                Deed::Code { language, code, arguments, environment, work_directory, status: _ } => {
                    language.len()
                        + code.as_ref().map_or(0, Vec::len)
                        + texts(arguments)
                        + variables(environment)
                        + work_directory.as_bytes().len()
                }
                Deed::FileWritten { path, .. }
                | Deed::Unpacked { path, .. }
                | Deed::DirectoryMade { path }
                | Deed::Removed { path } => path.as_bytes().len(),
                Deed::Renamed { from, to } => from.as_bytes().len() + to.as_bytes().len(),
            }
    }
}
