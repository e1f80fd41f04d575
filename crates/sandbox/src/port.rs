//! Ports that programs in a sandbox listen on, for whoever is let in from outside. A power that an engine may have besides
//! making sandboxes.
//!
//! Nothing is opened to the sandbox by it: a connection begins outside, and inside it comes from the sandbox itself.

use std::fmt;
use std::io;
use std::num::NonZeroU16;
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::error::{Error, Result};
use crate::id::SandboxId;

/// A way to what programs listen on.
#[async_trait]
pub trait Connections: Send + Sync + 'static {
    /// Connect to a TCP port of the sandbox, on its own 127.0.0.1, or on its ::1 where nobody listens on the first. It needs no
    /// network: every sandbox has these two.
    ///
    /// The connection ends with the sandbox. Shutting the stream down is the end of what is sent to the program; dropping it
    /// before is seen there as a connection that was cut.
    ///
    /// Must fail when the sandbox is gone (`NotFound`), when nobody listens there (`WrongState`), when whoever listens takes
    /// nobody in (`TimedOut`).
    async fn connect(&self, id: &SandboxId, port: GuestPort) -> Result<GuestStream>;
}

/// A port of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestPort(NonZeroU16);

impl GuestPort {
    pub fn new(number: u16) -> Result<Self> {
        NonZeroU16::new(number).map(Self).ok_or_else(|| not_a_port(&number))
    }

    pub fn number(self) -> u16 {
        self.0.get()
    }
}

impl FromStr for GuestPort {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.parse().map(Self).map_err(|_| not_a_port(&text))
    }
}

impl fmt::Display for GuestPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn not_a_port(what: &dyn fmt::Display) -> Error {
    let shown: String = what.to_string().chars().take(32).collect();
    Error::invalid_input(format!("{shown} is not a port")).with_hint("a port is a number from 1 to 65535")
}

/// What an engine says where nobody listens.
pub fn nobody_listens(port: GuestPort) -> Error {
    Error::wrong_state(format!("nothing in the sandbox listens on port {port}"))
        .with_hint("start the server first, in the background, and have it listen on 127.0.0.1, ::1 or all addresses")
}

/// What an engine says where somebody listens and takes nobody in.
pub fn takes_nobody(port: GuestPort) -> Error {
    Error::new(crate::ErrorKind::TimedOut, format!("what listens on port {port} of the sandbox takes no connection"))
        .with_hint("the server may be busy or stopped; look at its output")
}

/// Bytes both ways.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// One connection to a program.
pub struct GuestStream {
    /// Dropped first: the connection is gone before anybody else has its place.
    stream: Box<dyn Duplex>,
    held: Vec<Box<dyn Send>>,
}

impl GuestStream {
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self { stream: Box::new(stream), held: Vec::new() }
    }

    /// Keep something for as long as the connection is there.
    #[must_use]
    pub fn holding(mut self, held: impl Send + 'static) -> Self {
        self.held.push(Box::new(held));
        self
    }
}

impl fmt::Debug for GuestStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestStream").finish_non_exhaustive()
    }
}

impl AsyncRead for GuestStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for GuestStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_number_that_a_program_can_listen_on() {
        assert_eq!("8000".parse::<GuestPort>().unwrap().number(), 8000);
        for text in ["", "0", "65536", "-1", "http", "80 "] {
            assert!(text.parse::<GuestPort>().is_err(), "{text:?}");
        }
        assert!(GuestPort::new(0).is_err());
    }
}
