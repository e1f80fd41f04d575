//! From what was done in a sandbox to the steps that do it again. Pure: what is there and what was recorded go in, an order
//! of steps comes out.
//!
//! A file that survived belongs to whatever was going on when the kernel last saw it change. So a command is done again if
//! something of it is left, and a file is copied if a caller wrote it, or if nothing that could be done again accounts for it.

use std::collections::{BTreeMap, BTreeSet};

use sandbox::{Deed, ExecStatus, GuestPath, HistoryEntry, KnownEnvironment};
use tools::export::{Difference, What};

use super::paths;

/// The clock that stamps files goes in steps, of ten milliseconds at most: it is behind by as much.
const COARSE_NS: i128 = 10_000_000;

/// One path that is different from what the sandbox started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survivor {
    pub path: GuestPath,
    pub state: Survival,
    /// 0 when nobody knows.
    pub changed_ns: i128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// A file or a link.
    File,
    Directory,
    Removed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Put there as they are now.
    Files(BTreeSet<GuestPath>),
    Remove(BTreeSet<GuestPath>),
    Run(Run),
}

/// Something to do again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub what: Work,
    pub environment: KnownEnvironment,
    pub work_directory: GuestPath,
    /// It ended with another code than 0, and did something all the same.
    pub may_fail: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    Command(Vec<String>),
    Code { language: String, code: Vec<u8>, arguments: Vec<String> },
}

/// Which commands are done again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Those of which something is left.
    Effective,
    /// All that succeeded, up to the last one of which something is left: one of them may have made what a later one needed
    /// or added to.
    Successful,
    /// All that succeeded: one may have taken away what another made.
    All,
    /// None; what they left is copied.
    Nothing,
}

/// The steps, in their order.
pub fn steps(entries: &[HistoryEntry], survivors: &[Survivor], choice: Choice) -> Vec<Step> {
    let traced = Trace::of(entries, survivors, choice);
    let last_effective = traced.effective.last().copied();
    let mut steps = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if let Some(paths) = traced.written.get(&index) {
            match steps.last_mut() {
                Some(Step::Files(files)) => files.extend(paths.iter().cloned()),
                Some(Step::Remove(_) | Step::Run(_)) | None => steps.push(Step::Files(paths.clone())),
            }
        }
        if let Some(paths) = traced.removed.get(&index) {
            steps.push(Step::Remove(paths.clone()));
        }
        let is_wanted = match choice {
            Choice::Effective => traced.effective.contains(&index),
            Choice::Successful => {
                traced.effective.contains(&index)
                    || last_effective.is_some_and(|last| index < last) && succeeded(&entry.deed)
            }
            Choice::All => traced.effective.contains(&index) || succeeded(&entry.deed),
            Choice::Nothing => false,
        };
        if let Some(run) = again(&entry.deed).filter(|_| is_wanted) {
            steps.push(Step::Run(run));
        }
    }
    steps.extend((!traced.removed_last.is_empty()).then_some(Step::Remove(traced.removed_last)));
    steps.extend((!traced.files_last.is_empty()).then_some(Step::Files(traced.files_last)));
    steps
}

/// The same steps, and after them what a build of them made differently, as it is in the sandbox.
pub fn corrected(steps: &[Step], differences: &[Difference], survivors: &[Survivor]) -> Vec<Step> {
    let (mut removed, mut files) = (BTreeSet::new(), BTreeSet::new());
    for Difference { path, what } in differences {
        match what {
            What::Extra => _ = removed.insert(path.clone()),
            // Nothing is put over a directory, and no directory over anything else.
            What::Kind => {
                removed.insert(path.clone());
                files.extend(at_or_below(survivors, path));
            }
            What::Missing => files.extend(at_or_below(survivors, path)),
            What::Contents | What::Target | What::Mode | What::Owner => _ = files.insert(path.clone()),
        }
    }
    let mut steps = steps.to_vec();
    steps.extend((!removed.is_empty()).then_some(Step::Remove(removed)));
    steps.extend((!files.is_empty()).then_some(Step::Files(files)));
    steps
}

/// A difference of a directory stands for all that is in it.
fn at_or_below<'a>(survivors: &'a [Survivor], top: &'a GuestPath) -> impl Iterator<Item = GuestPath> + 'a {
    let is_there = |survivor: &&Survivor| survivor.state != Survival::Removed;
    let found = survivors.iter().filter(is_there).filter(|survivor| top.contains(&survivor.path));
    found.map(|survivor| survivor.path.clone())
}

/// What accounts for each path, by the number of the entry.
#[derive(Default)]
struct Trace {
    written: BTreeMap<usize, BTreeSet<GuestPath>>,
    removed: BTreeMap<usize, BTreeSet<GuestPath>>,
    effective: BTreeSet<usize>,
    files_last: BTreeSet<GuestPath>,
    removed_last: BTreeSet<GuestPath>,
}

impl Trace {
    fn of(entries: &[HistoryEntry], survivors: &[Survivor], choice: Choice) -> Self {
        let mut trace = Self::default();
        for (index, survivor) in survivors.iter().enumerate() {
            let next = survivors.get(index + 1);
            // A directory that has something in it comes with that.
            let comes_by_itself = survivor.state == Survival::Directory
                && next.is_some_and(|next| next.state != Survival::Removed && survivor.path.contains(&next.path));
            if !comes_by_itself {
                trace.account_for(entries, survivor, choice);
            }
        }
        trace
    }

    fn account_for(&mut self, entries: &[HistoryEntry], survivor: &Survivor, choice: Choice) {
        let path = &survivor.path;
        if paths::is_passing(path) && !entries.iter().any(|entry| touches(&entry.deed, path)) {
            return;
        }
        let doers = doers(entries, survivor.changed_ns);
        let touching = || entries.iter().enumerate().filter(|(_, entry)| touches(&entry.deed, path));
        let last_touch = touching().find(|(_, entry)| is_of(entry, survivor.changed_ns, !doers.is_empty()));
        match survivor.state {
            Survival::Removed => {
                if let Some((index, _)) = last_touch {
                    self.removed.entry(index).or_default().insert(path.clone());
                    return;
                }
            }
            Survival::File | Survival::Directory => {
                if let Some((index, _)) = last_touch {
                    // Where it was first written, because what came after may have read it.
                    let first = touching().map(|(index, _)| index).next().unwrap_or(index);
                    self.written.entry(first).or_default().insert(path.clone());
                    return;
                }
                // It was written and changed later. What changed it needs something to change.
                if let Some((index, _)) = touching().next() {
                    self.written.entry(index).or_default().insert(path.clone());
                    self.files_last.insert(path.clone());
                }
            }
        }
        if doers.is_empty() || choice == Choice::Nothing {
            match survivor.state {
                Survival::Removed => self.removed_last.insert(path.clone()),
                Survival::File | Survival::Directory => self.files_last.insert(path.clone()),
            };
            return;
        }
        self.effective.extend(doers);
    }
}

/// Whether what a caller did accounts for the last change: it was noted when it was done. A write replaces a file as a
/// whole; of anything else that was going on at the time a program may have done it.
fn is_of(entry: &HistoryEntry, moment: i128, is_contested: bool) -> bool {
    let is_exact = matches!(entry.deed, Deed::FileWritten { .. });
    moment != 0 && moment <= entry.started_ns && (is_exact || !is_contested)
}

/// Everything that can be done again and was going on at this moment, or began so soon after it that the clock cannot tell.
fn doers(entries: &[HistoryEntry], moment: i128) -> Vec<usize> {
    let of = |early: i128| -> Vec<usize> {
        let is_going_on = |entry: &HistoryEntry| {
            moment != 0
                && entry.started_ns - early <= moment
                && entry.ended_ns.is_none_or(|end| moment <= end)
                && again(&entry.deed).is_some()
        };
        entries.iter().enumerate().filter(|(_, entry)| is_going_on(entry)).map(|(index, _)| index).collect()
    };
    let certain = of(0);
    if certain.is_empty() { of(COARSE_NS) } else { certain }
}

/// Whether a caller did this to the path itself, not a program.
fn touches(deed: &Deed, path: &GuestPath) -> bool {
    match deed {
        Deed::Command { .. } | Deed::Code { .. } => false,
        Deed::FileWritten { path: written, .. } => written == path,
        Deed::DirectoryMade { path: made } => path.contains(made),
        Deed::Unpacked { path: below, .. } => below.contains(path),
        Deed::Removed { path: removed } => removed.contains(path),
        Deed::Renamed { from, to } => to.contains(path) || from.contains(path),
    }
}

/// What can be done again: it has ended by itself, and all of it is known.
fn again(deed: &Deed) -> Option<Run> {
    let (what, environment, work_directory, status) = match deed {
        Deed::Command { argv, environment, work_directory, status } => {
            (Work::Command(argv.clone()), environment, work_directory, status)
        }
        Deed::Code { language, code, arguments, environment, work_directory, status } => {
            let (language, code, arguments) = (language.clone(), code.clone()?, arguments.clone());
            (Work::Code { language, code, arguments }, environment, work_directory, status)
        }
        Deed::FileWritten { .. }
        | Deed::Unpacked { .. }
        | Deed::DirectoryMade { .. }
        | Deed::Removed { .. }
        | Deed::Renamed { .. } => return None,
    };
    match status {
        Some(ExecStatus::Exited(code)) => Some(Run {
            what,
            environment: environment.clone(),
            work_directory: work_directory.clone(),
            may_fail: *code != 0,
        }),
        Some(
            ExecStatus::Signalled(_)
            | ExecStatus::TimedOut
            | ExecStatus::OutOfMemory
            | ExecStatus::Cancelled
            | ExecStatus::Killed,
        )
        | None => None,
    }
}

fn succeeded(deed: &Deed) -> bool {
    again(deed).is_some_and(|run| !run.may_fail)
}

#[cfg(test)]
#[path = "recipe_tests.rs"]
mod tests;
