//! Whose a file is, on systems of the Unix kind.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

/// How many names a file has.
pub fn names(metadata: &Metadata) -> u64 {
    metadata.nlink()
}

/// Gives a file that we made to the owner of another.
pub fn keep(path: &Path, of: &Metadata) -> io::Result<()> {
    let made = std::fs::metadata(path)?;
    if (made.uid(), made.gid()) == (of.uid(), of.gid()) {
        return Ok(());
    }
    match chown(path, Some(of.uid()), Some(of.gid())) {
        // An ordinary user keeps to the group that they have.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && made.uid() == of.uid() => Ok(()),
        done => done,
    }
}
