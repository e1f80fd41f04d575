//! One direction of one conversation: what has come and was not read yet, and what may still be sent.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::frame::{Kind, Lane, MAX_DATA, MESSAGE_WINDOW, Malformed, WINDOW};
use crate::mux::Work;

/// More small messages than this are not waiting for anybody who reads.
const MOST_PACKETS: usize = 8192;

/// Bytes that come.
#[derive(Debug)]
pub struct Inward {
    queue: VecDeque<u8>,
    /// What the other side may still send.
    granted: u32,
    /// What was read and not yet given back.
    owed: u32,
    end: End,
    is_wanted: bool,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// All has come.
    Finished,
    /// The connection was lost before.
    Cut,
}

impl Default for Inward {
    fn default() -> Self {
        Self { queue: VecDeque::new(), granted: WINDOW, owed: 0, end: End::Open, is_wanted: true, waker: None }
    }
}

impl Inward {
    /// Of a work that has no such lane.
    pub fn absent() -> Self {
        Self { end: End::Finished, ..Self::default() }
    }

    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let length = u32::try_from(bytes.len()).map_err(|_| Malformed)?;
        self.granted = self.granted.checked_sub(length).ok_or(Malformed)?;
        if self.end != End::Open {
            return Err(Malformed);
        }
        if self.is_wanted {
            self.queue.extend(bytes);
            wake(&mut self.waker);
        }
        Ok(())
    }

    pub fn finish(&mut self) {
        if self.end == End::Open {
            self.end = End::Finished;
        }
        wake(&mut self.waker);
    }

    pub fn cut(&mut self) {
        if self.end == End::Open {
            self.end = End::Cut;
        }
        wake(&mut self.waker);
    }

    fn poll(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.queue.is_empty() {
            return match self.end {
                End::Open => {
                    self.waker = Some(context.waker().clone());
                    Poll::Pending
                }
                End::Finished => Poll::Ready(Ok(())),
                End::Cut => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            };
        }
        let (first, _) = self.queue.as_slices();
        let count = first.len().min(buffer.remaining());
        buffer.put_slice(&first[..count]);
        self.queue.drain(..count);
        self.owed += count as u32;
        Poll::Ready(Ok(()))
    }

    fn credit_due(&mut self) -> Option<u32> {
        credit_due(&mut self.owed, &mut self.granted, WINDOW)
    }
}

/// Given back in halves: one frame for many reads, and never a sender that waits for nothing.
fn credit_due(owed: &mut u32, granted: &mut u32, window: u32) -> Option<u32> {
    (*owed >= window / 2).then(|| {
        *granted += *owed;
        std::mem::take(owed)
    })
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

/// Messages that come.
#[derive(Debug)]
pub struct Packets {
    queue: VecDeque<Vec<u8>>,
    granted: u32,
    owed: u32,
    is_finished: bool,
    waker: Option<Waker>,
}

impl Default for Packets {
    fn default() -> Self {
        Self { queue: VecDeque::new(), granted: MESSAGE_WINDOW, owed: 0, is_finished: false, waker: None }
    }
}

impl Packets {
    pub fn receive(&mut self, packet: &[u8]) -> Result<(), Malformed> {
        let length = u32::try_from(packet.len()).map_err(|_| Malformed)?;
        self.granted = self.granted.checked_sub(length).ok_or(Malformed)?;
        if self.is_finished || self.queue.len() >= MOST_PACKETS {
            return Err(Malformed);
        }
        self.queue.push_back(packet.to_vec());
        wake(&mut self.waker);
        Ok(())
    }

    pub fn finish(&mut self) {
        self.is_finished = true;
        wake(&mut self.waker);
    }

    pub fn is_over(&self) -> bool {
        self.is_finished
    }

    /// `None` when there will be no more.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        match self.take() {
            Some(packet) => Poll::Ready(Some(packet)),
            None if self.is_finished => Poll::Ready(None),
            None => {
                self.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    pub fn take(&mut self) -> Option<Vec<u8>> {
        let packet = self.queue.pop_front()?;
        self.owed += packet.len() as u32;
        Some(packet)
    }

    pub fn credit_due(&mut self) -> Option<u32> {
        credit_due(&mut self.owed, &mut self.granted, MESSAGE_WINDOW)
    }
}

/// Bytes that go.
#[derive(Debug)]
pub struct Outward {
    credit: u32,
    is_stopped: bool,
    waker: Option<Waker>,
}

impl Default for Outward {
    fn default() -> Self {
        Self { credit: WINDOW, is_stopped: false, waker: None }
    }
}

impl Outward {
    /// Of a work that has no such lane.
    pub fn absent() -> Self {
        Self { is_stopped: true, ..Self::default() }
    }

    pub fn credit(&mut self, bytes: u32) -> Result<(), Malformed> {
        self.credit = self.credit.checked_add(bytes).filter(|&credit| credit <= WINDOW).ok_or(Malformed)?;
        wake(&mut self.waker);
        Ok(())
    }

    pub fn stop(&mut self) {
        self.is_stopped = true;
        wake(&mut self.waker);
    }

    /// How many bytes may be sent now.
    fn poll(&mut self, context: &mut Context<'_>, wanted: usize) -> Poll<io::Result<usize>> {
        if self.is_stopped {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if self.credit == 0 {
            self.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = wanted.min(self.credit as usize).min(MAX_DATA);
        self.credit -= count as u32;
        Poll::Ready(Ok(count))
    }
}

/// The server's end of output or errors. An end before all has come is an error.
#[derive(Debug)]
pub struct LaneReader {
    work: Arc<Work>,
    lane: Lane,
}

impl LaneReader {
    pub fn new(work: Arc<Work>, lane: Lane) -> Self {
        Self { work, lane }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inward) -> T) -> T {
        let mut state = self.work.state();
        act(if self.lane == Lane::Errors { &mut state.errors } else { &mut state.output })
    }
}

impl AsyncRead for LaneReader {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (polled, credit) = self.with(|inward| (inward.poll(context, buffer), inward.credit_due()));
        self.work.give_credit(self.lane, credit);
        polled
    }
}

impl Drop for LaneReader {
    fn drop(&mut self) {
        let is_open = self.with(|inward| {
            inward.is_wanted = false;
            inward.queue = VecDeque::new();
            inward.end == End::Open
        });
        if is_open {
            self.work.send(Kind::Stop, self.lane, &[]);
        }
    }
}

/// The server's end of input. Dropping it is the input's end.
#[derive(Debug)]
pub struct LaneWriter(Arc<Work>);

impl LaneWriter {
    pub fn new(work: Arc<Work>) -> Self {
        Self(work)
    }

    /// There is no more.
    pub fn finish(&mut self) {
        let was_stopped = std::mem::replace(&mut self.0.state().input.is_stopped, true);
        if !was_stopped {
            self.0.send(Kind::Finish, Lane::Input, &[]);
        }
    }
}

impl AsyncWrite for LaneWriter {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let polled = self.0.state().input.poll(context, bytes.len());
        if let Poll::Ready(Ok(count)) = polled {
            self.0.send(Kind::Data, Lane::Input, &bytes[..count]);
        }
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for LaneWriter {
    fn drop(&mut self) {
        self.finish();
    }
}
