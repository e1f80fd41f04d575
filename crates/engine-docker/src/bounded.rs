//! Streams that may not be longer than they should be.

use std::io::{self, Read};

/// Ends in an error where its bound is, and not as if that were its end.
#[derive(Debug)]
pub struct Bounded<R> {
    inner: R,
    left: u64,
}

/// For names and headers of what a disk holds.
const BESIDES: u64 = 64 << 20;

impl<R: Read> Bounded<R> {
    pub fn new(inner: R, most: u64) -> Self {
        Self { inner, left: most }
    }

    /// For an archive of what lies on a disk of this size. A file with holes says that it is larger than any disk, and
    /// archives have no holes.
    pub fn to_disk(inner: R, disk: u64) -> Self {
        Self::new(inner, disk.saturating_mul(2).saturating_add(BESIDES))
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        match self.left.checked_sub(count as u64) {
            Some(left) => self.left = left,
            None => return Err(io::Error::from(io::ErrorKind::FileTooLarge)),
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_whole_or_an_error() {
        let read = |most: u64| io::read_to_string(Bounded::new(&b"12345"[..], most)).map_err(|error| error.kind());
        assert_eq!(read(5).as_deref(), Ok("12345"));
        assert_eq!(read(4), Err(io::ErrorKind::FileTooLarge));
    }
}
