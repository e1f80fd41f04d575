//! Values from bytes, and a place for files.

use std::path::Path;

use tempfile::TempDir;

/// In memory where the host has such a place: a disk that is asked to sync thousands of times only slows the run down.
pub fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a temporary directory")
}

/// Reads from the front; what is missing at the end is zero.
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    pub fn byte(&mut self) -> u8 {
        self.number(1) as u8
    }

    /// Little-endian, of so many bytes.
    pub fn number(&mut self, count: usize) -> u64 {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// As long as the next byte says.
    pub fn text(&mut self) -> Vec<u8> {
        let length = usize::from(self.byte());
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }
}
