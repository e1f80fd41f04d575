//! Connections to what programs of a sandbox listen on.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use sandbox::port::{GuestPort, nobody_listens, takes_nobody};
use sandbox::{Error, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::channel::Channel;
use crate::connection::Connection;
use crate::frame::{Part, Task};
use crate::lane::{LaneReader, LaneWriter};
use crate::messages::FromDial;
use crate::mux::Handles;

/// A program that listens is connected to at once, unless more wait for it than it has room for.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A connection inside of the sandbox. Dropped before both directions have ended, it is cut, and the program sees that.
#[derive(Debug)]
pub struct Dialled {
    /// Dropped first: that is what cuts it.
    _channel: Channel,
    input: LaneWriter,
    output: LaneReader,
}

impl Dialled {
    pub(crate) fn new(channel: Channel, input: LaneWriter, output: LaneReader) -> Self {
        Self { _channel: channel, input, output }
    }
}

impl AsyncRead for Dialled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_read(context, buffer)
    }
}

impl AsyncWrite for Dialled {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.input).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The end of what goes to the program.
    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.finish();
        Poll::Ready(Ok(()))
    }
}

impl Connection {
    /// Connect to what a program listens on.
    pub async fn dial(&self, port: GuestPort) -> Result<Dialled> {
        let dialled = async {
            let Handles { channel, input, output, errors: _ } =
                self.begin(Task::Dial { port: port.number() }, Part::default()).await?;
            match self.unless_silent(channel.receive()).await? {
                Ok(Some(FromDial::Connected)) => Ok(Dialled::new(channel, input, output)),
                Ok(Some(FromDial::Refused { errno })) => Err(refused(port, errno)),
                Ok(None) | Err(_) => Err(self.lost().unwrap_or_else(|| no_room(port))),
            }
        };
        tokio::time::timeout(PATIENCE, dialled).await.map_err(|_| takes_nobody(port))?
    }
}

/// `ECONNREFUSED`, and what it is where there is no such address: numbers of Linux, on which sandboxes are.
const NOBODY: [i32; 2] = [111, 99];
const TOO_LATE: i32 = 110;

/// Why there is no connection, for every engine.
pub fn refused(port: GuestPort, errno: i32) -> Error {
    match errno {
        TOO_LATE => takes_nobody(port),
        errno if NOBODY.contains(&errno) => nobody_listens(port),
        errno => no_room(port).with_cause(io::Error::from_raw_os_error(errno)),
    }
}

/// Whoever was to connect could not even begin.
pub fn no_room(port: GuestPort) -> Error {
    Error::unavailable(format!("the sandbox has no room for a connection to its port {port}"))
        .with_hint("end some of its processes or connections")
}
