//! Whose a file is, on Windows: what is made in a directory inherits from it.

use std::fs::Metadata;
use std::io;
use std::path::Path;

/// Nobody tells without opening it once more.
pub fn names(_: &Metadata) -> u64 {
    1
}

pub fn keep(_: &Path, _: &Metadata) -> io::Result<()> {
    Ok(())
}
