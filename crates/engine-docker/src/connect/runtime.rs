//! The directory that a system makes for each user who is there, for sockets among other things.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const PLACE: &str = "/run/user";

/// `None` where the system makes none, or where it is not ours.
pub fn of_process() -> Option<PathBuf> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    below(Path::new(PLACE), user(&status)?)
}

/// Whom the kernel takes us for.
fn user(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().nth(1)?.parse().ok()
}

/// Somebody else's could hold a daemon of theirs.
fn below(place: &Path, user: u32) -> Option<PathBuf> {
    let directory = place.join(user.to_string());
    let found = fs::symlink_metadata(&directory).ok()?;
    (found.is_dir() && found.uid() == user).then_some(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_directory_of_ones_own() {
        let place = tempfile::tempdir().unwrap();
        let own = fs::metadata(place.path()).unwrap().uid();
        assert_eq!(below(place.path(), own), None, "nobody has made it");
        let directory = place.path().join(own.to_string());
        std::os::unix::fs::symlink(place.path(), &directory).unwrap();
        assert_eq!(below(place.path(), own), None, "a link leads anywhere");
        fs::remove_file(&directory).unwrap();
        fs::create_dir(&directory).unwrap();
        assert_eq!(below(place.path(), own), Some(directory));
        fs::create_dir(place.path().join((own + 1).to_string())).unwrap();
        assert_eq!(below(place.path(), own + 1), None, "it is somebody else's");
    }

    #[test]
    fn who_we_are_is_what_counts_for_files() {
        assert_eq!(user("Name:\tx\nUid:\t1000\t1001\t1002\t1001\nGid:\t5\t5\t5\t5\n"), Some(1001));
        assert_eq!(user("Name:\tx\n"), None);
    }
}
