//! Room that saves have taken before they know how much they need: a file for each, locked by who saves.
//!
//! Made and counted under the lock of admissions, so two that start at once, in one process or in two, see each other. A
//! file that nobody locks was left by a process that died.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Ledger, RecordLock, unusable};
use crate::error::{Error, Result};
use crate::id::Owner;
use crate::system::{private_directory, private_file};
use crate::tree::SavedName;

/// An owner, a name and a number.
const MOST_BYTES: u64 = 4096;

/// Room for a save, until it is dropped.
#[derive(Debug)]
pub(crate) struct SavingRoom {
    path: PathBuf,
    locked: File,
}

/// Room that somebody has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Saving {
    pub name: SavedName,
    pub bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    owner: String,
    name: String,
    bytes: u64,
}

impl Ledger {
    pub fn take_saving_room(&self, owner: &Owner, saving: &Saving, _admission: &RecordLock) -> Result<SavingRoom> {
        let directory = self.saving_directory();
        private_directory().create(&directory).map_err(unusable)?;
        let number =
            getrandom::u64().map_err(|cause| Error::internal("there are no random numbers").with_cause(cause))?;
        let path = directory.join(format!("{number:016x}.json"));
        let written = Written { owner: owner.to_string(), name: saving.name.to_string(), bytes: saving.bytes };
        let bytes = serde_json::to_vec(&written)
            .map_err(|cause| Error::internal("room for a save cannot be written down").with_cause(cause))?;
        let file = private_file().read(true).write(true).create_new(true).open(&path).map_err(unusable)?;
        let mut room = SavingRoom { path, locked: file };
        room.locked.write_all(&bytes).map_err(unusable)?;
        // Shared, because a lock of Windows that is not keeps others from reading what is written here.
        room.locked.lock_shared().map_err(unusable)?;
        Ok(room)
    }

    /// All that one owner has taken. What nobody holds is cleared away.
    pub fn saving(&self, owner: &Owner, _admission: &RecordLock) -> Result<Vec<Saving>> {
        let entries = match fs::read_dir(self.saving_directory()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unusable(error)),
        };
        let mut taken = Vec::new();
        for entry in entries {
            let path = entry.map_err(unusable)?.path();
            if let Some(written) = read_held(&path)?
                && written.owner == owner.as_str()
            {
                taken.push(Saving { name: written.name.parse()?, bytes: written.bytes });
            }
        }
        Ok(taken)
    }

    fn saving_directory(&self) -> PathBuf {
        self.directory.join("saving")
    }
}

fn read_held(path: &Path) -> Result<Option<Written>> {
    let file = match private_file().read(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unusable(error)),
    };
    match file.try_lock() {
        Ok(()) => {
            let _ = fs::remove_file(path);
            return Ok(None);
        }
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(unusable(error)),
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(unusable)?;
    Ok(serde_json::from_slice(&bytes).ok())
}

impl Drop for SavingRoom {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
