//! A private file as it is at this moment, read again only when it has changed.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use sandbox::private::Stamp;
use sandbox::{PrivateFile, Result};

/// What is made of a file's text; nothing when there is no file.
type Understand<T> = fn(&PrivateFile, Option<String>) -> Result<T>;

pub struct Followed<T> {
    file: PrivateFile,
    understand: Understand<T>,
    read: Mutex<(Option<Stamp>, Arc<T>)>,
    /// Held while the file is changed by us.
    changing: Mutex<()>,
}

impl<T: Default> Followed<T> {
    pub fn open(file: PrivateFile, understand: Understand<T>) -> Result<Self> {
        let stamp = file.stamp()?;
        let value = understand(&file, file.read_if_there()?)?;
        Ok(Self { file, understand, read: Mutex::new((stamp, Arc::new(value))), changing: Mutex::default() })
    }

    /// As the file has it; nothing while it makes no sense.
    pub fn current(&self) -> Arc<T> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = self.file.stamp().ok().flatten();
        if stamp != read.0 {
            let value = self.file.read_if_there().and_then(|text| (self.understand)(&self.file, text));
            let value = value.unwrap_or_else(|error| {
                tracing::error!(?error, "a file of accounts or grants cannot be read, and counts as empty");
                T::default()
            });
            *read = (stamp, Arc::new(value));
        }
        read.1.clone()
    }

    /// Read, change and write. Blocks for as long as the disk does.
    pub fn change<R>(&self, write: fn(&T) -> String, change: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let _turn = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let (value, result) = self.file.change(|text| {
            let mut value = (self.understand)(&self.file, text)?;
            let result = change(&mut value)?;
            Ok((write(&value), (value, result)))
        })?;
        // Two changes of the same length in the same moment would look alike.
        let stamp = self.file.stamp()?;
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = (stamp, Arc::new(value));
        Ok(result)
    }
}

impl<T> fmt::Debug for Followed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Followed").field("file", &self.file).finish_non_exhaustive()
    }
}
