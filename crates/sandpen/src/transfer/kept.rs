//! A directory of this machine whose files are lent to one sandbox after the other, and come back as these left them.
//!
//! Nothing of the host is mounted into a sandbox. So what a run has changed is found out afterwards, by comparing two lists
//! of its files, and copied file by file, each in one step.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use sandbox::{
    ByteRange, ByteSize, DirectoryEntry, Error, ErrorKind, FileKind, Files, GuestPath, Limits, ListOptions, Result,
    SandboxId, is_code_of_a_run,
};
use tokio::io::AsyncReadExt;
use tokio_util::io::SyncIoBridge;

use super::host_tree::HostTree;
use super::links::Links;
use super::revocable::Waiting;
use super::unpack::{self, Received, Wanted};
use super::{Bounds, blocking, host_error, names};

/// Files and directories that it can hold. All of them are listed before and after each run.
const MOST_ENTRIES: usize = 20_000;

/// Directories within each other. Each that is being looked at takes a descriptor.
pub const MOST_LEVELS: usize = 128;

/// So many are asked for one by one. More come faster all together, and with them what nobody asked for.
const FEW: usize = 32;

const PAGE: u64 = 4096;

/// Times of files come from a clock that ticks this slowly at most.
const TICK: Duration = Duration::from_millis(10);

/// What is below a directory.
#[derive(Debug)]
pub struct Found {
    pub names: Vec<OsString>,
    /// Of a regular file; nothing else has any.
    pub bytes: Option<u64>,
}

/// What a name leads to.
#[derive(Debug)]
pub enum Opened {
    File(File),
    Directory,
    /// Also what is neither.
    Nothing,
}

#[derive(Debug)]
pub struct Kept {
    tree: Arc<Alone>,
    limits: Limits,
    lent: Seen,
}

/// A directory with the lock by which one is alone with it. Work on a thread goes on when nobody waits for it any more, so
/// whatever works there has a share in both.
#[derive(Debug)]
struct Alone {
    tree: HostTree,
    _lock: Box<dyn Lock>,
}

/// Held until it is dropped.
pub trait Lock: fmt::Debug + Send + Sync {}

impl<T: fmt::Debug + Send + Sync> Lock for T {}

impl Deref for Alone {
    type Target = HostTree;

    fn deref(&self) -> &HostTree {
        &self.tree
    }
}

/// Files, directories and links of a sandbox at one moment, by their paths below the directory that they were lent to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen(BTreeMap<Vec<u8>, Trait>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trait {
    kind: Kind,
    bytes: u64,
    changed_ns: i128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
    /// Where it leads is not in the list.
    Link,
}

/// What must be done here so that it is as it is there.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// What is in a directory before the directory.
    remove: Vec<Vec<u8>>,
    make: Vec<Vec<u8>>,
    copy: Vec<Vec<u8>>,
    link: Vec<Vec<u8>>,
}

impl Kept {
    /// Whoever has it is alone with it, by this lock. What a copy that was cut off left behind is taken away.
    pub fn new(tree: HostTree, lock: impl Lock + 'static, limits: Limits) -> Result<Self> {
        let kept = Self { tree: Arc::new(Alone { tree, _lock: Box::new(lock) }), limits, lent: Seen::default() };
        for Found { names, .. } in walk(&kept.tree)? {
            if names.last().is_some_and(|name| is_unfinished(name.as_encoded_bytes())) {
                let _ = kept.tree.remove(&names);
            }
        }
        Ok(kept)
    }

    /// The files at the top, in the order of their names. No directories.
    pub async fn names(&self) -> Result<Vec<OsString>> {
        let tree = Arc::clone(&self.tree);
        blocking(move || {
            let mut names = tree.names().map_err(|cause| unreadable(&cause))?;
            names.retain(|name| matches!(tree.open_below(&[name]), Ok(Opened::File(_))));
            names.sort();
            Ok(names)
        })
        .await
    }

    /// What all of them take where files are in memory, which is whole pages.
    pub async fn memory(&self) -> Result<ByteSize> {
        let tree = Arc::clone(&self.tree);
        let found = blocking(move || walk(&tree)).await?;
        let pages = found.iter().filter_map(|found| found.bytes).map(|bytes| bytes.div_ceil(PAGE) * PAGE);
        Ok(ByteSize::new(pages.fold(0, u64::saturating_add)))
    }

    pub async fn put(&self, name: &[u8], contents: Vec<u8>) -> Result<()> {
        let name = names::here(name)?;
        let (tree, limits) = (Arc::clone(&self.tree), self.limits);
        blocking(move || {
            let mut others = walk(&tree)?;
            others.retain(|found| found.names != [name.clone()]);
            let bytes = others.iter().filter_map(|found| found.bytes).sum::<u64>();
            admit(&limits, others.len() + 1, bytes.saturating_add(contents.len() as u64))?;
            if matches!(tree.open_below(&[&name]), Ok(Opened::Directory)) {
                return Err(Error::new(ErrorKind::AlreadyExists, "a directory has this name"));
            }
            let mut file = tree.new_usual_file(&[] as &[&OsString], &name)?;
            file.write_all(&contents)?;
            file.commit_as_made()
        })
        .await
    }

    /// Everything goes into a directory of a sandbox that is fresh, and was made for it.
    pub async fn lend(&mut self, files: &dyn Files, to: &GuestPath) -> Result<()> {
        let tree = Arc::clone(&self.tree);
        let found = blocking(move || walk(&tree)).await?;
        if !found.is_empty() {
            admit(&self.limits, found.len(), found.iter().filter_map(|found| found.bytes).sum())?;
            super::send_below(files, self.tree.source()?, to, Links::LENT).await?;
        }
        self.lent = Self::look(files, to).await?;
        Ok(())
    }

    /// What differs from what was lent.
    pub async fn take_back(&mut self, files: &dyn Files, from: &GuestPath) -> Result<()> {
        let now = Self::look(files, from).await?;
        admit(&self.limits, now.0.len(), now.bytes())?;
        now.check_levels()?;
        let plan = Plan::new(&self.lent, &now);
        for path in &plan.remove {
            // Of what was there and did not go along something may be left in a directory, which then stays.
            if let Err(error) = self.tree.remove(&names_of(path)?) {
                tracing::debug!(%error, "a directory of a conversation stays");
            }
        }
        for path in &plan.make {
            self.tree.directory(&names_of(path)?)?;
        }
        let mut unread = 0;
        // Whatever the list said: a program that is still at work can make each of them grow until its turn comes.
        let mut bytes = now.bytes_without(plan.copy.iter().chain(&plan.link));
        let received = match plan.copy.len() {
            0..=FEW if plan.link.is_empty() => Received::default(),
            _ => {
                let [files_of, links] = [&plan.copy, &plan.link].map(|paths| paths.iter().cloned().collect());
                self.fetch_together(files, from, Wanted { files: files_of, links }, bytes).await?
            }
        };
        bytes = bytes.saturating_add(received.bytes);
        for path in plan.copy.iter().filter(|path| !received.paths.contains(*path)) {
            match self.fetch(files, from, path, bytes).await {
                Ok(fetched) => bytes = bytes.saturating_add(fetched),
                // Gone meanwhile: something that the run left behind is still at work.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                // Not even its owner may read it.
                Err(error) if error.kind() == ErrorKind::Denied => unread += 1,
                Err(error) => return Err(error),
            }
        }
        for path in plan.link.iter().filter(|path| !received.paths.contains(*path)) {
            // It leads out now: what it was before is not what the run has left.
            if self.lent.0.get(path).is_some_and(|before| before.kind == Kind::Link) {
                self.tree.remove(&names_of(path)?).map_err(|cause| unreadable(&cause))?;
            }
        }
        self.lent = now;
        if unread > 0 {
            return Err(Error::denied(format!("{unread} of the files cannot be read by the user that made them")));
        }
        Ok(())
    }

    /// One file, besides so many bytes that there are already; how many it has.
    async fn fetch(&self, files: &dyn Files, from: &GuestPath, path: &[u8], besides: u64) -> Result<u64> {
        let guest = GuestPath::resolve(from, path)?;
        let mut source = files.read(&guest, ByteRange::default()).await?;
        admit(&self.limits, 1, besides.saturating_add(source.stat.bytes))?;
        // What it grows by meanwhile is not part of the copy: a program could make it grow without end.
        source.stream = Box::new(source.stream.take(source.stat.bytes));
        let names = names_of(path)?;
        let Some((name, above)) = names.split_last() else { return Ok(0) };
        let mut file = self.tree.new_file(above, name)?;
        super::receive(&mut source, &mut file, &guest).await?;
        file.commit(source.stat.mode)?;
        Ok(source.stat.bytes)
    }

    /// As many of these as come in one stream, where alone it is said where links lead. Files that are in there under another's name,
    /// or cannot be read, are left to be asked for.
    async fn fetch_together(
        &self,
        files: &dyn Files,
        from: &GuestPath,
        wanted: Wanted,
        besides: u64,
    ) -> Result<Received> {
        let waiting = Waiting::default();
        let stream = waiting.stream(SyncIoBridge::new(files.pack(from).await?));
        let (tree, bounds) = (Arc::clone(&self.tree), Bounds::from(self.limits).less(besides));
        blocking(move || unpack::unpack_some(stream, &tree, bounds, &wanted)).await
    }

    async fn look(files: &dyn Files, directory: &GuestPath) -> Result<Seen> {
        // One more, so that as many as there can be are not too many.
        let options = ListOptions { recursive: true, max_entries: MOST_ENTRIES + 1 };
        let listing = files.list(directory, options).await?;
        if listing.truncated {
            return Err(too_many());
        }
        Ok(Seen::new(directory, listing.entries))
    }
}

impl Seen {
    /// Special files count as absent. So does code that is about to run.
    fn new(directory: &GuestPath, entries: Vec<DirectoryEntry>) -> Self {
        let depth = directory.components().count();
        let seen = entries.into_iter().filter_map(|DirectoryEntry { path, stat }| {
            let kind = match stat.kind {
                FileKind::Regular => Kind::File,
                FileKind::Directory => Kind::Directory,
                FileKind::Link => Kind::Link,
                FileKind::Other => return None,
            };
            let names: Vec<&[u8]> = path.components().skip(depth).collect();
            let is_ours = matches!(names.as_slice(), [name] if is_code_of_a_run(name));
            let bytes = if kind == Kind::Directory { 0 } else { stat.bytes };
            let seen = Trait { kind, bytes, changed_ns: stat.changed_ns };
            (!is_ours && !names.is_empty()).then(|| (names.join(&b'/'), seen))
        });
        Self(seen.collect())
    }

    fn bytes(&self) -> u64 {
        self.bytes_without([])
    }

    fn bytes_without<'a>(&self, paths: impl IntoIterator<Item = &'a Vec<u8>>) -> u64 {
        let paths: BTreeSet<&Vec<u8>> = paths.into_iter().collect();
        let others = self.0.iter().filter(|(path, _)| !paths.contains(path));
        others.fold(0, |sum, (_, seen)| sum.saturating_add(seen.bytes))
    }

    /// What is too deep here could never be lent again.
    fn check_levels(&self) -> Result<()> {
        let levels = |path: &Vec<u8>| path.iter().filter(|byte| **byte == b'/').count();
        if self.0.keys().all(|path| levels(path) < MOST_LEVELS) {
            return Ok(());
        }
        Err(Error::limit_exceeded(format!(
            "directories of a conversation can be {MOST_LEVELS} within each other at most"
        ))
        .with_hint("delete the deepest, or pack them into an archive"))
    }
}

impl Plan {
    fn new(before: &Seen, now: &Seen) -> Self {
        // What was changed in the same moment as the last that was lent may have the time of that: it is copied once too often.
        let newest = before.0.values().map(|seen| seen.changed_ns).max();
        let doubtful = newest.map(|newest| newest - TICK.as_nanos() as i128);
        let mut plan = Self::default();
        for (path, seen) in before.0.iter().rev() {
            if now.0.get(path).is_none_or(|now| now.kind != seen.kind) {
                plan.remove.push(path.clone());
            }
        }
        for (path, seen) in &now.0 {
            let old = before.0.get(path).filter(|old| old.kind == seen.kind);
            let is_old = old == Some(seen) && doubtful.is_some_and(|since| seen.changed_ns < since);
            match seen.kind {
                Kind::Directory if old.is_none() => plan.make.push(path.clone()),
                Kind::File if !is_old => plan.copy.push(path.clone()),
                Kind::Link if !is_old => plan.link.push(path.clone()),
                Kind::Directory | Kind::File | Kind::Link => {}
            }
        }
        plan
    }
}

fn walk(tree: &HostTree) -> Result<Vec<Found>> {
    tree.walk(MOST_ENTRIES).map_err(|cause| unreadable(&cause))
}

fn admit(limits: &Limits, entries: usize, bytes: u64) -> Result<()> {
    if entries > MOST_ENTRIES {
        return Err(too_many());
    }
    if bytes > limits.disk.bytes() {
        return Err(Error::limit_exceeded(format!(
            "the files of a conversation can have {} at most",
            ByteSize::new(limits.disk.bytes())
        ))
        .with_hint("delete files that are no longer needed, from the code"));
    }
    Ok(())
}

fn names_of(path: &[u8]) -> Result<Vec<OsString>> {
    path.split(|byte| *byte == b'/').map(names::here).collect()
}

/// The name of a file that was being written: see [`HostTree::new_file`].
fn is_unfinished(name: &[u8]) -> bool {
    let id = name.strip_prefix(b".").and_then(|name| name.strip_suffix(b".part"));
    id.and_then(|id| std::str::from_utf8(id).ok()).is_some_and(|id| id.parse::<SandboxId>().is_ok())
}

fn too_many() -> Error {
    Error::limit_exceeded(format!("a conversation can have {MOST_ENTRIES} files and directories at most"))
        .with_hint("pack them into an archive, or delete what is no longer needed")
}

fn unreadable(cause: &std::io::Error) -> Error {
    host_error("the files of the conversation".as_ref(), cause)
}

#[cfg(all(test, unix))]
#[path = "kept_tests.rs"]
mod tests;
