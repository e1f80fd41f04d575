//! Looking at the work directory of a sandbox, bounded in entries and in time.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::artifact::{is_in_noise, is_noise};
use crate::engine::Files;
use crate::file::{DirectoryEntry, FileKind, ListOptions};
use crate::path::GuestPath;

/// Entries that are looked at.
const MOST_ENTRIES: usize = 2000;
/// Directories that are looked at one by one, where there are more entries than that.
const MOST_DIRECTORIES: usize = 32;
/// What an engine takes longer for is left out.
const PATIENCE: Duration = Duration::from_secs(2);

/// Everything below `root` that is not in a noisy directory, as far as the bounds go.
///
/// Fails never: a directory that is gone, and a sandbox that is, have nothing in them.
pub(super) async fn look(files: &dyn Files, root: &GuestPath) -> Vec<DirectoryEntry> {
    // The whole system is nobody's work, and parts of it change all the time.
    if root.is_root() {
        return Vec::new();
    }
    let until = Instant::now() + PATIENCE;
    let all = ListOptions { recursive: true, max_entries: MOST_ENTRIES };
    let Ok(Ok(listing)) = timeout_at(until, files.list(root, all)).await else { return Vec::new() };
    if listing.truncated {
        // Most of them may be noise, and what is near the root is more likely to be wanted.
        return look_level_by_level(files, root, until).await;
    }
    listing.entries.into_iter().filter(|entry| !is_in_noise(root, &entry.path)).collect()
}

async fn look_level_by_level(files: &dyn Files, root: &GuestPath, until: Instant) -> Vec<DirectoryEntry> {
    let mut found = Vec::new();
    let mut directories = VecDeque::from([root.clone()]);
    for _ in 0..MOST_DIRECTORIES {
        let Some(directory) = directories.pop_front() else { break };
        let level = ListOptions { recursive: false, max_entries: MOST_ENTRIES - found.len() };
        let Ok(listed) = timeout_at(until, files.list(&directory, level)).await else { break };
        let Ok(listing) = listed else { continue };
        for entry in &listing.entries {
            let is_wanted = entry.path.file_name().is_some_and(|name| !is_noise(name));
            if entry.stat.kind == FileKind::Directory && is_wanted {
                directories.push_back(entry.path.clone());
            }
        }
        found.extend(listing.entries);
        if found.len() >= MOST_ENTRIES {
            break;
        }
    }
    found
}
