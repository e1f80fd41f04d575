//! Counts and bounds what one connection moves, wherever its bytes pass by.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use sandbox::Denial;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::activity::Direction;
use crate::caps::{Caps, Leave, Place};
use crate::record::Record;

/// How much is asked for at once where the size of a read is not known before.
const PORTION: usize = 64 * 1024;

/// One connection's counts, its bounds, and its place among those that are open.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    pub record: Arc<Record>,
    caps: Caps,
    _places: Arc<[Place; 2]>,
}

impl Meter {
    pub fn new(record: Arc<Record>, caps: Caps, places: [Place; 2]) -> Self {
        Self { record, caps, _places: Arc::new(places) }
    }

    /// Wait until bytes may be moved: how many, `wanted` at most. To be settled with [`Meter::moved`].
    pub async fn admit(&self, wanted: usize) -> io::Result<usize> {
        loop {
            match self.caps.ask(wanted) {
                Leave::Now(bytes) => return Ok(bytes),
                Leave::Later(wait) => tokio::time::sleep(wait).await,
                Leave::Never => return Err(self.used_up()),
            }
        }
    }

    /// Of the bytes that were admitted, this many went through.
    pub fn moved(&self, direction: Direction, admitted: usize, bytes: usize) {
        self.caps.give_back(admitted.saturating_sub(bytes));
        if bytes > 0 {
            self.record.moved(direction, bytes as u64);
        }
    }

    /// Account for bytes that are here already, waiting as long as they would have had to wait.
    pub async fn charge(&self, direction: Direction, bytes: usize) -> io::Result<()> {
        let mut left = bytes;
        while left > 0 {
            let admitted = self.admit(left).await?;
            self.moved(direction, admitted, admitted);
            left -= admitted;
        }
        Ok(())
    }

    fn used_up(&self) -> io::Error {
        self.record.refuse(Denial::BytesUsedUp);
        io::Error::new(io::ErrorKind::QuotaExceeded, Denial::BytesUsedUp.description())
    }

    fn poll_admit(&self, wanted: usize, wait: &mut Wait, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            if let Some(sleep) = wait {
                ready!(sleep.as_mut().poll(context));
                *wait = None;
            }
            match self.caps.ask(wanted) {
                Leave::Now(bytes) => return Poll::Ready(Ok(bytes)),
                Leave::Later(time) => *wait = Some(Box::pin(tokio::time::sleep(time))),
                Leave::Never => return Poll::Ready(Err(self.used_up())),
            }
        }
    }
}

type Wait = Option<Pin<Box<Sleep>>>;

/// A sandbox's end of a connection: what is read from it goes out, what is written to it comes in.
#[derive(Debug)]
pub(crate) struct Metered<S> {
    stream: S,
    meter: Meter,
    reading: Wait,
    writing: Wait,
}

impl<S> Metered<S> {
    pub fn new(stream: S, meter: Meter) -> Self {
        Self { stream, meter, reading: None, writing: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let wanted = buffer.remaining().min(PORTION);
        if wanted == 0 {
            return Poll::Ready(Ok(()));
        }
        let admitted = ready!(this.meter.poll_admit(wanted, &mut this.reading, context))?;
        let mut portion = ReadBuf::new(buffer.initialize_unfilled_to(admitted));
        let polled = Pin::new(&mut this.stream).poll_read(context, &mut portion);
        let read = portion.filled().len();
        this.meter.moved(Direction::Out, admitted, read);
        buffer.advance(read);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let admitted = ready!(this.meter.poll_admit(bytes.len(), &mut this.writing, context))?;
        let polled = Pin::new(&mut this.stream).poll_write(context, &bytes[..admitted]);
        let written = if let Poll::Ready(Ok(written)) = polled { written } else { 0 };
        this.meter.moved(Direction::In, admitted, written);
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// A body on its way through, with whatever must live as long as it does.
pub(crate) struct MeteredBody<B, G> {
    body: B,
    meter: Meter,
    direction: Direction,
    /// A frame that came and whose bytes are not all admitted yet.
    held: Option<(Bytes, usize)>,
    wait: Wait,
    _guard: G,
}

impl<B, G> MeteredBody<B, G> {
    pub fn new(body: B, direction: Direction, meter: Meter, guard: G) -> Self {
        Self { body, meter, direction, held: None, wait: None, _guard: guard }
    }
}

impl<B, G> Body for MeteredBody<B, G>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    G: Unpin,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        loop {
            if let Some((bytes, admitted)) = &mut this.held {
                let missing = bytes.len() - *admitted;
                if missing > 0 {
                    let more = ready!(this.meter.poll_admit(missing, &mut this.wait, context))?;
                    this.meter.moved(this.direction, more, more);
                    *admitted += more;
                    continue;
                }
                let bytes = std::mem::take(bytes);
                this.held = None;
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => this.held = Some((bytes, 0)),
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.held.is_none() { self.body.size_hint() } else { SizeHint::default() }
    }
}
