//! The messages of one conversation.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frame::{Kind, Lane};
use crate::mux::Work;

/// The server's end. Dropping it is what a helper inside sees as its caller's end.
#[derive(Debug)]
pub struct Channel(Arc<Work>);

impl Channel {
    pub fn new(work: Arc<Work>) -> Self {
        Self(work)
    }

    /// Fails with `BrokenPipe` when the other side is gone.
    pub async fn send(&self, message: &impl Serialize) -> io::Result<()> {
        self.0.tell(message).await
    }

    /// The same, and `WouldBlock` when there is no room for it now.
    pub fn send_at_once(&self, message: &impl Serialize) -> io::Result<()> {
        self.0.tell_at_once(message)
    }

    /// `None` when the other side is gone.
    pub async fn receive<M: DeserializeOwned>(&self) -> io::Result<Option<M>> {
        let packet = poll_fn(|context| self.0.poll_packet(context)).await;
        packet.map(|packet| parse(&packet)).transpose()
    }

    /// A message that has already arrived.
    pub fn try_receive<M: DeserializeOwned>(&self) -> Option<M> {
        let packet = self.0.state().messages.take()?;
        parse(&packet).ok()
    }

    pub fn resize(&self, rows: u16, columns: u16) {
        let [a, b] = rows.to_le_bytes();
        let [c, d] = columns.to_le_bytes();
        self.0.send(Kind::Resize, Lane::Messages, &[a, b, c, d]);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.0.send(Kind::Finish, Lane::Messages, &[]);
    }
}

fn parse<M: DeserializeOwned>(packet: &[u8]) -> io::Result<M> {
    postcard::from_bytes(packet).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
