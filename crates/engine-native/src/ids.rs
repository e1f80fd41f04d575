//! Ranges of user and group ids: one for each sandbox, from those that nobody else on the host has.
//!
//! A range is taken by locking a file. Process 1 of the sandbox holds the lock, so the range is free again exactly when
//! nothing of the sandbox is left, whatever became of the engine.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::image::User;

/// Ids inside a sandbox that have someone behind them.
const ROOT: u32 = 0;
const NOBODY: u32 = 65534;

/// Ids that belong to us: all of the sandboxes' ranges are cut from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pool {
    /// As root. Above the ids that distributions, `useradd` and systemd hand out, below those that some file systems
    /// cannot store.
    System,
    /// As an ordinary user: what the administrator gave in `/etc/subuid` and `/etc/subgid`.
    Subordinate { first_user: u32, first_group: u32, count: u32 },
}

const SYSTEM_FIRST: u32 = 0x7000_0000;
const SYSTEM_RANGE: u32 = 0x1_0000;
const SYSTEM_SLOTS: u32 = 4000;

/// Subordinate ids are few, and a sandbox needs three.
const SUBORDINATE_RANGE: u32 = 4;

/// Files of images have half of them, and as many as a sandbox of root's has at most. With fewer than this many, users that
/// images usually have would be missing.
const MOST_IMAGE_IDS: u32 = 0x1_0000;
const FEWEST_IMAGE_IDS: u32 = 2048;

/// With which a user has ids for files of images.
pub const FEWEST_SUBORDINATE: u32 = 2 * FEWEST_IMAGE_IDS;

/// One line of an id map: so many ids from `inside` on are those from `outside` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

/// Subordinate ids that files of images belong to, the last ones. They are the same for all images, so that a layer can be
/// unpacked once; no sandbox's programs have them, except those that build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageIds {
    pub first_user: u32,
    pub first_group: u32,
    pub count: u32,
}

impl ImageIds {
    /// Users, groups. Nobody has the last id where there is none for everybody.
    pub fn maps(self) -> (Vec<Extent>, Vec<Extent>) {
        let extents = |first: u32| {
            if self.count == MOST_IMAGE_IDS {
                return vec![Extent { inside: 0, outside: first, count: self.count }];
            }
            let last = self.count - 1;
            vec![
                Extent { inside: 0, outside: first, count: last },
                Extent { inside: NOBODY, outside: first + last, count: 1 },
            ]
        };
        (extents(self.first_user), extents(self.first_group))
    }

    /// The last one inside that is not nobody.
    pub fn last(self) -> u32 {
        self.maps().0[0].count - 1
    }

    pub fn has(self, id: u32) -> bool {
        self.maps().0.iter().any(|extent| (extent.inside..extent.inside + extent.count).contains(&id))
    }
}

impl Pool {
    fn slots(self) -> u32 {
        match self {
            Self::System => SYSTEM_SLOTS,
            Self::Subordinate { count, .. } => {
                (count - self.image_ids().map_or(0, |ids| ids.count)) / SUBORDINATE_RANGE
            }
        }
    }

    /// Those that files of images belong to, where they cannot belong to whom they say.
    pub fn image_ids(self) -> Option<ImageIds> {
        let Self::Subordinate { first_user, first_group, count: all } = self else { return None };
        let count = (all / 2).min(MOST_IMAGE_IDS);
        let before = all - count;
        (count >= FEWEST_IMAGE_IDS).then_some(ImageIds {
            first_user: first_user + before,
            first_group: first_group + before,
            count,
        })
    }

    /// The maps of one slot: users, groups. Where ids are few, root, programs' user and nobody have one each.
    pub fn maps(self, slot: u32, user: User) -> (Vec<Extent>, Vec<Extent>) {
        match self {
            Self::System => {
                let all = Extent { inside: 0, outside: SYSTEM_FIRST + slot * SYSTEM_RANGE, count: SYSTEM_RANGE };
                (vec![all], vec![all])
            }
            Self::Subordinate { first_user, first_group, .. } => {
                let extents = |first: u32, own: u32| {
                    let first = first + slot * SUBORDINATE_RANGE;
                    let own = (own != ROOT && own != NOBODY).then_some(own);
                    let inside = [ROOT].into_iter().chain(own).chain([NOBODY]);
                    inside.zip(first..).map(|(inside, outside)| Extent { inside, outside, count: 1 }).collect()
                };
                (extents(first_user, user.id), extents(first_group, user.group))
            }
        }
    }

    /// A slot that nobody holds, with its lock. Starts looking after `last`, so that a range rests before it is used
    /// again.
    pub fn take(self, directory: &Path, last: u32) -> io::Result<(u32, OwnedFd)> {
        let slots = self.slots();
        for step in 1..=slots {
            let slot = (last + step) % slots;
            let file = lock_file(&directory.join(slot.to_string()))?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok((slot, file.into())),
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EUSERS))
    }
}

fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}

/// What `/etc/subuid` and `/etc/subgid` give to a user, by name or by number. The first line for the user counts.
pub fn subordinate(subuid: &str, subgid: &str, name: &str, uid: u32) -> Option<Pool> {
    let find = |text: &str| {
        text.lines().find_map(|line| {
            let mut fields = line.split(':');
            let owner = fields.next()?;
            if owner != name && owner.parse() != Ok(uid) {
                return None;
            }
            let range: (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.trim().parse().ok()?);
            range.0.checked_add(range.1)?;
            Some(range)
        })
    };
    let ((first_user, users), (first_group, groups)) = (find(subuid)?, find(subgid)?);
    let count = users.min(groups);
    (count >= SUBORDINATE_RANGE).then_some(Pool::Subordinate { first_user, first_group, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_never_overlap() {
        for pool in [Pool::System, Pool::Subordinate { first_user: 100_000, first_group: 200_000, count: 65_536 }] {
            let end = |slot: u32| pool.maps(slot, User::SANDBOX).0.iter().map(|e| e.outside + e.count).max().unwrap();
            let start = |slot: u32| pool.maps(slot, User::SANDBOX).0.iter().map(|e| e.outside).min().unwrap();
            for slot in 0..pool.slots() - 1 {
                assert!(end(slot) <= start(slot + 1), "{pool:?} slot {slot}");
            }
            assert!(end(pool.slots() - 1) <= i32::MAX as u32);
        }
    }

    #[test]
    fn files_of_images_have_ids_that_no_slot_has() {
        for count in [4096, 65_536, 131_072, 4_194_304] {
            let pool = Pool::Subordinate { first_user: 100_000, first_group: 200_000, count };
            let ids = pool.image_ids().unwrap();
            let (users, groups) = pool.maps(pool.slots() - 1, User::SANDBOX);
            assert!(users.iter().all(|extent| extent.outside + extent.count <= ids.first_user), "{count}");
            assert!(groups.iter().all(|extent| extent.outside + extent.count <= ids.first_group), "{count}");
            assert_eq!(ids.first_user + ids.count, 100_000 + count, "the last ones");
            assert_eq!(ids.maps().0.iter().map(|extent| extent.count).sum::<u32>(), ids.count);
            assert!(ids.has(0) && ids.has(1000) && ids.has(NOBODY), "{count}");
            assert_eq!(ids.has(40_000), count >= 131_072, "{count}");
            assert!(!ids.has(MOST_IMAGE_IDS));
        }
        assert_eq!(Pool::Subordinate { first_user: 1, first_group: 1, count: 4095 }.image_ids(), None);
        assert_eq!(Pool::System.image_ids(), None);
    }

    #[test]
    fn no_id_is_mapped_twice() {
        let pool = Pool::Subordinate { first_user: 100, first_group: 200, count: 8 };
        for (id, group, users, groups) in [(1000, 1000, 3, 3), (NOBODY, ROOT, 2, 2), (33, NOBODY, 3, 2)] {
            let maps = pool.maps(0, User { id, group });
            assert_eq!((maps.0.len(), maps.1.len()), (users, groups), "{id}:{group}");
            assert!(maps.0.iter().any(|extent| extent.inside == id));
            assert!(maps.1.iter().any(|extent| extent.inside == group));
        }
    }

    #[test]
    fn a_locked_slot_is_passed_over_and_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let pool = Pool::Subordinate { first_user: 1, first_group: 1, count: 8 };
        let (first, held) = pool.take(directory.path(), 0).unwrap();
        let (second, _other) = pool.take(directory.path(), 0).unwrap();
        assert_ne!(first, second);
        assert!(pool.take(directory.path(), 0).is_err());
        drop(held);
        assert_eq!(pool.take(directory.path(), 0).unwrap().0, first);
    }

    #[test]
    fn subordinate_ids_are_found_by_name_and_by_number() {
        let text = "ann:100000:65536\n1001:165536:65536\n";
        assert_eq!(
            subordinate(text, text, "ann", 7),
            Some(Pool::Subordinate { first_user: 100_000, first_group: 100_000, count: 65_536 })
        );
        assert!(subordinate(text, text, "bob", 1001).is_some());
        assert!(subordinate(text, text, "bob", 7).is_none());
        assert!(subordinate("ann:4294967295:9\n", text, "ann", 7).is_none());
    }
}
