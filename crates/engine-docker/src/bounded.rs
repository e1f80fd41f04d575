//! Streams that may not be longer than they should be.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sandbox::Limits;

/// Ends in an error where its bound is, and not as if that were its end.
#[derive(Debug)]
pub struct Bounded<R> {
    inner: R,
    allowance: Allowance,
}

/// What several streams may have together. Copies are one.
#[derive(Clone, Debug)]
pub struct Allowance(Arc<AtomicU64>);

/// For names and headers of what a disk holds.
const BESIDES: u64 = 64 << 20;

impl Allowance {
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(AtomicU64::new(bytes)))
    }

    /// For archives of so many places of a sandbox, each of which may be as large as its disk, and which are in its memory. A
    /// file with holes says that it is larger than any disk, and archives have no holes.
    pub fn of_places(limits: &Limits, places: usize) -> Self {
        let held = limits.disk.bytes().saturating_mul(places as u64).min(limits.memory.bytes());
        Self::new(held.saturating_mul(2).saturating_add(BESIDES))
    }

    /// For archives of all that a sandbox can have on its disk.
    pub fn of_layer(limits: &Limits) -> Self {
        Self::new(limits.disk.bytes().saturating_mul(2).saturating_add(BESIDES))
    }

    fn take(&self, bytes: u64) -> io::Result<()> {
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map(drop).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))
    }
}

impl<R: Read> Bounded<R> {
    pub fn new(inner: R, allowance: Allowance) -> Self {
        Self { inner, allowance }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.allowance.take(count as u64)?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use sandbox::ByteSize;

    use super::*;

    #[test]
    fn a_stream_is_whole_or_an_error() {
        let read = |most: u64| {
            let bounded = Bounded::new(&b"12345"[..], Allowance::new(most));
            io::read_to_string(bounded).map_err(|error| error.kind())
        };
        assert_eq!(read(5).as_deref(), Ok("12345"));
        assert_eq!(read(4), Err(io::ErrorKind::FileTooLarge));
    }
    #[test]
    fn several_streams_have_one_bound() {
        let allowance = Allowance::new(8);
        let read = || io::read_to_string(Bounded::new(&b"12345"[..], allowance.clone())).map_err(|error| error.kind());
        assert_eq!(read().as_deref(), Ok("12345"));
        assert_eq!(read(), Err(io::ErrorKind::FileTooLarge));
    }

    #[test]
    fn all_places_of_a_sandbox_are_no_larger_than_its_memory() {
        let limits = Limits { disk: ByteSize::mebibytes(300), memory: ByteSize::mebibytes(400), ..Limits::default() };
        let most = |places: usize| Allowance::of_places(&limits, places).0.load(Ordering::Relaxed) >> 20;
        assert_eq!((most(1), most(2), most(67)), (664, 864, 864));
    }
}
