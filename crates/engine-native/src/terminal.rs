//! The output of a command on a terminal, which ends with the command.
//!
//! By itself it would end with the last who has the terminal open. That may be something that the command left behind and that
//! does not mind being hung up on, for ever.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::pipe::PipeFlags;
use tokio::io::{AsyncRead, ReadBuf};

use crate::channel::Stream;

/// What the command itself has written and nobody has read yet is less than that. What comes after it is of others, who may
/// never stop.
const LEFT_BYTES: usize = 128 << 10;

/// The end of a pipe whose other end is closed when the command ends.
#[derive(Debug)]
pub struct Lifeline(Stream);

impl Lifeline {
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        Ok((Self(Stream::new(ours)?), theirs))
    }

    pub fn bound(self, terminal: Stream) -> TerminalOutput {
        TerminalOutput { terminal, lifeline: self.0, left: None }
    }

    fn poll_closed(stream: &mut Stream, context: &mut Context<'_>) -> Poll<()> {
        let mut byte = [0];
        // Nobody writes to it, and an error is an end too.
        Pin::new(stream).poll_read(context, &mut ReadBuf::new(&mut byte)).map(drop)
    }
}

pub struct TerminalOutput {
    terminal: Stream,
    lifeline: Stream,
    /// How much more is read; `None` while the command runs.
    left: Option<usize>,
}

impl AsyncRead for TerminalOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.left.is_none() {
            // First of all: whoever is left may write without end.
            if Lifeline::poll_closed(&mut this.lifeline, context).is_pending() {
                return Pin::new(&mut this.terminal).poll_read(context, buffer);
            }
            this.left = Some(LEFT_BYTES);
        }
        let left = this.left.unwrap_or(0);
        let most = left.min(buffer.remaining());
        let count = this.terminal.read_now(&mut buffer.initialize_unfilled()[..most]);
        buffer.advance(count);
        this.left = Some(left - count);
        Poll::Ready(Ok(()))
    }
}
