//! Where the checkpoints of sandboxes lie, as files.

use std::fs;
use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};

use sandbox::{Checkpoint, Error, Owner, Result};

use crate::random;

/// Says whose they are; see `sweep_checkpoints`.
const MAKER: &str = "maker";
/// Whose quota they count to.
const OWNER: &str = "owner";
/// How what is not whole yet is called.
const DRAFT: &str = "draft-";
/// There while the files of the sandbox are neither those that it had nor those of a checkpoint.
const RESTORING: &str = "restoring";
/// The highest number that was given: none is given twice.
const HIGHEST: &str = "highest";

/// All checkpoints of an owner, those of other processes among them.
pub(crate) fn bytes_of(place: &Path, owner: &Owner) -> u64 {
    let shelves = fs::read_dir(place).into_iter().flatten().flatten().map(|entry| Shelf { directory: entry.path() });
    shelves.filter(|shelf| shelf.is_of(owner)).map(|shelf| shelf.all_bytes()).sum()
}

/// The checkpoints of one sandbox: files that are called by their numbers.
pub(crate) struct Shelf {
    pub(crate) directory: PathBuf,
}

/// A file that is gone again unless it was kept.
pub(crate) struct Draft(pub(crate) PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl Shelf {
    pub(crate) fn prepare(&self, instance: &str, owner: &Owner) -> Result<()> {
        if self.directory.join(MAKER).exists() {
            return Ok(());
        }
        fs::create_dir_all(&self.directory).map_err(unusable)?;
        fs::write(self.directory.join(OWNER), owner.as_str()).map_err(unusable)?;
        fs::write(self.directory.join(MAKER), instance).map_err(unusable)
    }

    fn is_of(&self, owner: &Owner) -> bool {
        fs::read_to_string(self.directory.join(OWNER)).is_ok_and(|text| text == owner.as_str())
    }

    /// Those that are being written too.
    fn all_bytes(&self) -> u64 {
        let files = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
    }

    pub(crate) fn maker(&self) -> Option<String> {
        fs::read_to_string(self.directory.join(MAKER)).ok()
    }

    pub(crate) fn path(&self, number: u32) -> PathBuf {
        self.directory.join(number.to_string())
    }

    pub(crate) fn bytes(&self, number: u32) -> u64 {
        fs::metadata(self.path(number)).map_or(0, |file| file.len())
    }

    pub(crate) fn numbers(&self) -> Result<Vec<u32>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(unusable)?,
        };
        let mut numbers: Vec<u32> =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    pub(crate) fn find(&self, checkpoint: Checkpoint) -> Result<PathBuf> {
        let path = self.path(checkpoint.0);
        if path.is_file() {
            return Ok(path);
        }
        Err(Error::not_found(format!("the sandbox has no checkpoint {}", checkpoint.0)))
    }

    pub(crate) fn draft(&self) -> Result<Draft> {
        Ok(Draft(self.directory.join(format!("{DRAFT}{}", random::text(8)?))))
    }

    /// Those of processes that were killed while they wrote. To be called while the sandbox is frozen, when nobody else writes
    /// one.
    pub(crate) fn drop_drafts(&self) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(DRAFT)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    pub(crate) fn highest(&self) -> Result<u32> {
        let written = fs::read_to_string(self.directory.join(HIGHEST)).ok().and_then(|text| text.parse().ok());
        Ok(self.numbers()?.last().copied().into_iter().chain(written).max().unwrap_or(0))
    }

    pub(crate) fn keep(&self, draft: &Draft, number: u32) -> Result<()> {
        fs::write(self.directory.join(HIGHEST), number.to_string()).map_err(unusable)?;
        fs::rename(&draft.0, self.path(number)).map_err(unusable)
    }

    pub(crate) fn remove(&self, number: u32) -> Result<()> {
        fs::remove_file(self.path(number)).map_err(unusable)
    }

    /// To be called before the first file of the sandbox is touched. It stays there when we are killed, or give up.
    pub(crate) fn begin_restoring(&self) -> Result<()> {
        fs::write(self.directory.join(RESTORING), "").map_err(unusable)
    }

    /// To be called when the last file is in its place.
    pub(crate) fn end_restoring(&self) -> Result<()> {
        fs::remove_file(self.directory.join(RESTORING)).map_err(unusable)
    }

    pub(crate) fn is_restoring(&self) -> Result<bool> {
        self.directory.join(RESTORING).try_exists().map_err(unusable)
    }

    pub(crate) fn clear(&self) {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != IoErrorKind::NotFound => {
                tracing::warn!(?error, "the checkpoints of a sandbox that has ended stay until somebody looks around");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

pub(crate) fn unusable(cause: std::io::Error) -> Error {
    Error::unavailable("the files of a checkpoint cannot be used").with_cause(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_count_to_their_owner() {
        let place = tempfile::tempdir().unwrap();
        let (ada, bob): (Owner, Owner) = ("ada".parse().unwrap(), "bob".parse().unwrap());
        for (name, owner, sizes) in [("one", &ada, [100, 20]), ("two", &ada, [3, 0]), ("three", &bob, [7000, 0])] {
            let shelf = Shelf { directory: place.path().join(name) };
            shelf.prepare("", owner).unwrap();
            for (number, size) in sizes.into_iter().enumerate() {
                fs::write(shelf.directory.join(number.to_string()), vec![0; size]).unwrap();
            }
        }
        // The name of the owner lies beside them.
        assert_eq!(bytes_of(place.path(), &ada), 123 + 2 * 3);
        assert_eq!(bytes_of(place.path(), &bob), 7000 + 3);
        assert_eq!(bytes_of(&place.path().join("none"), &ada), 0);
    }

    #[test]
    fn what_was_half_written_is_removed_and_the_rest_is_not() {
        let place = tempfile::tempdir().unwrap();
        let shelf = Shelf { directory: place.path().join("one") };
        shelf.prepare("in-23456789abcdefgh", &Owner::local()).unwrap();
        let left = shelf.draft().unwrap();
        fs::write(&left.0, "half").unwrap();
        std::mem::forget(left);
        fs::write(shelf.path(1), "whole").unwrap();
        shelf.drop_drafts();
        let mut names: Vec<_> =
            fs::read_dir(&shelf.directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["1", MAKER, OWNER]);
    }
}
