//! What goes with every long piece of work: bounds, a way to give it up, and somebody to tell how far it is.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::manifest::ImageLimits;
use crate::platform::Platform;

#[derive(Clone, Debug)]
pub struct Work {
    pub limits: ImageLimits,
    /// For which machine an image is wanted.
    pub platform: Platform,
    pub cancel: CancellationToken,
    pub progress: Arc<dyn Progress>,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            limits: ImageLimits::default(),
            platform: Platform::host(),
            cancel: CancellationToken::new(),
            progress: Arc::new(Silent),
        }
    }
}

impl Work {
    pub fn check(&self) -> Result<()> {
        if self.cancel.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// A reader that tells how much went through it, and ends when the work is given up.
    pub fn watch<R: Read>(&self, inner: R) -> Watched<'_, R> {
        Watched { inner, work: self }
    }
}

/// Which part of the work is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Asking a registry what there is.
    Asking,
    Reading,
    Downloading,
    Unpacking,
    Uploading,
    Writing,
}

/// Whoever wants to know how far it is. Called from several threads.
pub trait Progress: fmt::Debug + Send + Sync {
    fn step(&self, step: Step);
    /// How many bytes there will be, once that is known.
    fn total(&self, bytes: u64);
    /// So many more are done. Bytes that were there already count too.
    fn advance(&self, bytes: u64);
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn step(&self, _: Step) {}
    fn total(&self, _: u64) {}
    fn advance(&self, _: u64) {}
}

#[derive(Debug)]
pub struct Watched<'a, R> {
    inner: R,
    work: &'a Work,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.work.cancel.is_cancelled() {
            return Err(io::Error::other("it was given up"));
        }
        let count = self.inner.read(buffer)?;
        self.work.progress.advance(count as u64);
        Ok(count)
    }
}
