//! Work on a thread of its own that ends when nobody waits for it any more.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Held by whoever waits. Dropped, it makes the next read or write of the other side fail.
#[derive(Debug, Default)]
pub struct Waiting(Arc<AtomicBool>);

impl Waiting {
    pub fn stream<T>(&self, stream: T) -> Revocable<T> {
        Revocable { stream, revoked: Arc::clone(&self.0) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub struct Revocable<T> {
    stream: T,
    revoked: Arc<AtomicBool>,
}

impl<T> Revocable<T> {
    pub fn into_inner(self) -> T {
        self.stream
    }

    fn check(&self) -> io::Result<()> {
        if self.revoked.load(Ordering::Relaxed) {
            return Err(io::Error::other("nobody waits for it any more"));
        }
        Ok(())
    }
}

impl<T: Read> Read for Revocable<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.stream.read(buffer)
    }
}

impl<T: Write> Write for Revocable<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.check()?;
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_waits_for_ends() {
        let waiting = Waiting::default();
        let mut endless = waiting.stream(io::repeat(0));
        let mut buffer = [0; 8];
        assert!(endless.read(&mut buffer).is_ok());
        drop(waiting);
        assert!(endless.read(&mut buffer).is_err());
    }
}
