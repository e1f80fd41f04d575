//! What a container's own layer has over its image, as the daemon tells it.

use std::collections::BTreeMap;

use bollard::models::{ChangeType, FilesystemChange};
use sandbox::{Change, ChangeKind, ErrorKind, FileKind, GuestPath, Result};

use crate::engine::Shared;
use crate::live::Live;
use crate::record::Description;
use crate::translate;

/// What daemons write into containers by themselves: files that they mount over, and marks.
const NOT_ITS_OWN: [&str; 6] =
    ["/.dockerenv", "/etc/hostname", "/etc/hosts", "/etc/mtab", "/etc/resolv.conf", translate::AGENT_DIRECTORY];

/// Where something else is mounted.
const MOUNTED: [&str; 4] = ["/dev", "/proc", "/run", "/sys"];

/// One path of a layer that is not as the image has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Altered {
    pub path: GuestPath,
    pub kind: ChangeKind,
}

impl Shared {
    /// In byte order of their paths. A directory is not among them for what is in it.
    pub(crate) async fn altered(&self, live: &Live) -> Result<Vec<Altered>> {
        Ok(own(self.daemon.changes(&live.container).await?, &live.description))
    }

    /// The same with what is there now, at most so many.
    pub(crate) async fn layer_changes(&self, live: &Live, most: usize) -> Result<(Vec<Change>, bool)> {
        let altered = self.altered(live).await?;
        let files = live.connection.files();
        let mut changes = Vec::new();
        let truncated = altered.len() > most;
        for Altered { path, kind } in altered.into_iter().take(most) {
            let removed = || Change { path: path.clone(), kind, file: FileKind::Regular, bytes: 0, changed_ns: 0 };
            changes.push(match kind {
                ChangeKind::Removed => removed(),
                ChangeKind::Added | ChangeKind::Modified => match files.stat(&path).await {
                    Ok(found) => {
                        let bytes = if found.kind == FileKind::Directory { 0 } else { found.bytes };
                        Change { file: found.kind, bytes, changed_ns: found.changed_ns, ..removed() }
                    }
                    // It has gone since.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                },
            });
        }
        Ok((changes, truncated))
    }

    /// Everything of a layer that is not as the image has it, by as few paths as possible: with a directory that the image does
    /// not have goes what is in it.
    pub(crate) async fn altered_tops(&self, live: &Live) -> Result<Vec<Altered>> {
        let mut tops: Vec<Altered> = Vec::new();
        let mut altered = self.altered(live).await?;
        // Above before below, which byte order alone does not give.
        altered
            .sort_by_key(|one| one.path.as_bytes().split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>());
        for one in altered {
            let is_below =
                tops.last().is_some_and(|top| top.kind != ChangeKind::Modified && top.path.contains(&one.path));
            if !is_below {
                tops.push(one);
            }
        }
        Ok(tops)
    }
}

fn own(told: Vec<FilesystemChange>, description: &Description) -> Vec<Altered> {
    let in_memory = description.trees();
    let made = translate::directories(description);
    let is_mounted = |path: &GuestPath| {
        let mounted = MOUNTED.iter().filter_map(|place| place.parse::<GuestPath>().ok());
        mounted.chain(in_memory.iter().cloned()).any(|place| place.contains(path))
    };
    let mut found = BTreeMap::new();
    for FilesystemChange { path, kind } in told {
        let Ok(path) = path.parse::<GuestPath>() else { continue };
        let kind = match kind {
            ChangeType::_0 => ChangeKind::Modified,
            ChangeType::_1 => ChangeKind::Added,
            ChangeType::_2 => ChangeKind::Removed,
        };
        if !is_mounted(&path) {
            found.insert(path.as_bytes().to_vec(), Altered { path, kind });
        }
    }
    let has_below = |above: &[u8]| {
        let first = [above, b"/"].concat();
        found.range(first.clone()..).next().is_some_and(|(path, _)| path.starts_with(&first))
    };
    let is_own = |one: &&Altered| {
        let text = one.path.to_string_lossy();
        let is_way = one.kind == ChangeKind::Modified && has_below(one.path.as_bytes());
        let is_made = one.kind != ChangeKind::Removed && made.contains(&one.path);
        !is_way && !is_made && !NOT_ITS_OWN.contains(&text.as_ref())
    };
    found.values().filter(is_own).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::description;
    use crate::record::{Storage, User};

    #[test]
    fn what_the_daemon_does_is_not_the_sandboxs() {
        let layered = Description {
            storage: Storage::Layer,
            places: Vec::new(),
            user: User { id: 0, group: 0 },
            ..description()
        };
        let told = [
            ("/etc", ChangeType::_0),
            ("/etc/hosts", ChangeType::_1),
            ("/etc/motd", ChangeType::_2),
            ("/etc-more", ChangeType::_1),
            ("/opt", ChangeType::_0),
            ("/run/x", ChangeType::_1),
            ("/.sandpen", ChangeType::_1),
            ("/workspace", ChangeType::_1),
            ("/workspace/file", ChangeType::_1),
        ];
        let told = told.map(|(path, kind)| FilesystemChange { path: path.to_owned(), kind });
        let found: Vec<String> =
            own(told.to_vec(), &layered).iter().map(|one| format!("{:?} {}", one.kind, one.path)).collect();
        assert_eq!(found, ["Added /etc-more", "Removed /etc/motd", "Modified /opt", "Added /workspace/file"]);
    }
}
