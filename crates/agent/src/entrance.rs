//! Programs of a sandbox that connect to somewhere: their connections and questions, for whoever decides about them.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use sandbox::{Error, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::channel::Channel;
use crate::connection::{Connection, another_question};
use crate::dial::Dialled;
use crate::frame::{Part, Task};
use crate::messages::{Catch, FromEntrance, FromInit, ToEntrance, ToInit};
use crate::mux::Handles;

/// A connection that a program made. Dropped before both directions have ended, it is cut, and the program sees that.
#[derive(Debug)]
pub struct Arrival {
    /// Where the program wanted to go.
    pub destination: SocketAddr,
    stream: Dialled,
}

impl AsyncRead for Arrival {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Arrival {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A packet with a question for a name.
#[derive(Debug)]
pub struct Question {
    pub packet: Vec<u8>,
    channel: Channel,
}

impl Question {
    pub fn reply(self, packet: Vec<u8>) {
        // Whoever asked may be gone, and asks again when nothing comes.
        let _ = self.channel.send_at_once(&ToEntrance::Reply { packet });
    }
}

impl Connection {
    /// Have what programs connect to come here. As long as another server has it, nobody comes.
    ///
    /// Fails when the sandbox has no network, or when its kernel cannot catch all connections: then they lead nowhere.
    pub async fn catch(&self) -> Result<()> {
        match self.ask(&ToInit::Network).await? {
            FromInit::Network(Catch::Yours | Catch::Others | Catch::HandedOn) => Ok(()),
            FromInit::Network(Catch::None) => Err(no_network()),
            FromInit::Network(Catch::Impossible { step, reason }) => {
                Err(Error::unsupported("a network cannot be held to its rules on the kernel that the sandbox runs on")
                    .with_hint(
                        "the kernel needs nftables with its `tproxy` expression; use a sandbox without a network",
                    )
                    .with_cause(format!("{step}: {reason}")))
            }
            FromInit::Ready
            | FromInit::DeadlineSet
            | FromInit::Measured { .. }
            | FromInit::Frozen { .. }
            | FromInit::Busy
            | FromInit::Staying => Err(another_question()),
        }
    }

    /// Wait for the next connection of a program. Nobody is taken whom nobody waits for, so several may wait at once.
    pub async fn accept(&self) -> Result<Arrival> {
        let Handles { channel, input, output, errors: _ } = self.begin(Task::Accept, Part::default()).await?;
        match channel.receive().await {
            Ok(Some(FromEntrance::Connected { address, port })) => {
                let destination = SocketAddr::new(IpAddr::V6(Ipv6Addr::from(address)).to_canonical(), port);
                Ok(Arrival { destination, stream: Dialled::new(channel, input, output) })
            }
            Ok(Some(FromEntrance::Asked { .. }) | None) | Err(_) => Err(self.lost().unwrap_or_else(no_network)),
        }
    }

    /// Wait for the next question for a name.
    pub async fn question(&self) -> Result<Question> {
        let Handles { channel, .. } = self.begin(Task::Question, Part::default()).await?;
        match channel.receive().await {
            Ok(Some(FromEntrance::Asked { packet })) => Ok(Question { packet, channel }),
            Ok(Some(FromEntrance::Connected { .. }) | None) | Err(_) => Err(self.lost().unwrap_or_else(no_network)),
        }
    }
}

fn no_network() -> Error {
    Error::wrong_state("the sandbox has no network")
}
