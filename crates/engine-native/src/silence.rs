//! Output that ends when it is known that nobody will write any more, although somebody still could.
//!
//! A program that is about to end holds its pipes for as long as the kernel takes its memory apart. Whoever waits for the end of its
//! output would wait for that.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, ReadBuf};

use crate::channel::Stream;

/// Whether all of a command's output is written.
#[derive(Debug, Default)]
pub struct Silence {
    begun: AtomicBool,
    /// Readers that have nothing to read, at most one for each of the two streams.
    waiting: Mutex<Vec<Waker>>,
}

impl Silence {
    pub fn begin(&self) {
        let waiting = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            self.begun.store(true, Ordering::Release);
            std::mem::take(&mut *waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// A stream that ends with what is there when it begins.
    pub fn bound(self: &Arc<Self>, stream: Stream) -> Bound {
        Bound { stream, silence: Arc::clone(self) }
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// `false` when it has begun, and nobody would be woken.
    fn wakes(&self, waker: &Waker) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_begun() {
            return false;
        }
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
        true
    }
}

#[derive(Debug)]
pub struct Bound {
    stream: Stream,
    silence: Arc<Silence>,
}

impl AsyncRead for Bound {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, silence } = self.get_mut();
        if !silence.has_begun() {
            let polled = Pin::new(&mut *stream).poll_read(context, buffer);
            if polled.is_ready() || silence.wakes(context.waker()) {
                return polled;
            }
        }
        // What was written before is in the pipe, whether the runtime has heard of it or not.
        let count = stream.read_now(buffer.initialize_unfilled());
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncReadExt;

    use super::*;

    fn pipe() -> (Stream, std::os::fd::OwnedFd) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        (Stream::new(read).unwrap(), write)
    }

    #[tokio::test]
    async fn what_was_written_before_is_read_and_nothing_is_waited_for() {
        let silence = Arc::new(Silence::default());
        let (stream, write) = pipe();
        let mut bound = silence.bound(stream);
        // The runtime learns that there is nothing to read, and not that there is something again.
        assert!(tokio::time::timeout(Duration::from_millis(20), bound.read_u8()).await.is_err());
        rustix::io::write(&write, b"last words").unwrap();
        silence.begin();
        let mut text = String::new();
        bound.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "last words", "and the other end is still open");
    }

    #[tokio::test]
    async fn whoever_reads_when_it_begins_is_woken() {
        let silence = Arc::new(Silence::default());
        let ((one, _open), (other, _too)) = (pipe(), pipe());
        let (mut one, mut other) = (silence.bound(one), silence.bound(other));
        let mut buffers = [[0; 8]; 2];
        let [first, second] = &mut buffers;
        let beginning = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            silence.begin();
        };
        let reading = async { tokio::join!(one.read(first), other.read(second), beginning) };
        let (one, other, ()) = tokio::time::timeout(Duration::from_secs(10), reading).await.expect("it is woken");
        assert_eq!((one.unwrap(), other.unwrap()), (0, 0));
    }

    #[tokio::test]
    async fn without_it_a_stream_ends_when_nobody_can_write() {
        let silence = Arc::new(Silence::default());
        let (stream, write) = pipe();
        let mut bound = silence.bound(stream);
        rustix::io::write(&write, b"all").unwrap();
        drop(write);
        let mut text = String::new();
        bound.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "all");
    }
}
