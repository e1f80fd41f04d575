//! A network in which everything lands on our sockets, made from inside where a daemon made the network itself.
//!
//! Process 1 keeps the sockets and lends them to one bridge at a time. While nobody has them, whoever connects is refused at
//! once and questions find nobody: what a program hears is the same as when there is no server on the embedded engine.

#[path = "../../src/network/netlink.rs"]
mod netlink;
#[path = "../../src/network/nftables.rs"]
mod nftables;
#[path = "../../src/network/routes.rs"]
mod routes;
#[path = "../../src/network/sockets.rs"]
mod sockets;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::Shutdown;
use sockets::Caught;

use crate::wire::{self, Catch, FromInit};

/// What programs find when they connect to somewhere.
#[derive(Debug, Default)]
pub enum Network {
    #[default]
    None,
    /// It was asked for, and the kernel does not have what it takes: connections lead nowhere.
    Impossible {
        step: &'static str,
        reason: String,
    },
    Caught(Lent),
}

/// Sockets, and which connection of ours has them.
#[derive(Debug)]
pub struct Lent {
    sockets: Caught,
    to: Option<RawFd>,
    /// In the order in which they asked.
    waiting: Vec<RawFd>,
}

impl Network {
    pub fn open(port: u16) -> Self {
        let opened = sockets::open(port, false).and_then(|sockets| {
            let lent = Lent { sockets, to: None, waiting: Vec::new() };
            lent.rest().map(|()| lent).map_err(|error| ("sockets", error))
        });
        match opened {
            Ok(lent) => Self::Caught(lent),
            Err((step, error)) => Self::Impossible { step, reason: error.to_string() },
        }
    }

    /// Somebody wants to serve it; `false` when it cannot be told what came of that.
    pub fn ask(&mut self, connection: BorrowedFd<'_>) -> bool {
        let by = connection.as_raw_fd();
        let answer = match self {
            Self::None => Catch::None,
            Self::Impossible { step, reason } => Catch::Impossible { step: (*step).to_owned(), reason: reason.clone() },
            Self::Caught(lent) => match lent.to {
                Some(other) if other != by => {
                    if !lent.waiting.contains(&by) {
                        lent.waiting.push(by);
                    }
                    Catch::Others
                }
                Some(_) | None => return lent.lend(connection, Catch::Yours),
            },
        };
        wire::send(connection, &FromInit::Network(answer), &[]).is_ok()
    }

    /// A connection of ours is over: whoever waited longest is next.
    pub fn left(&mut self, gone: RawFd, connections: &[OwnedFd]) {
        let Self::Caught(lent) = self else { return };
        lent.waiting.retain(|waiting| *waiting != gone);
        if lent.to != Some(gone) {
            return;
        }
        lent.to = None;
        // Whoever has come meanwhile had its address from the one that is gone.
        let _ = lent.rest();
        while !lent.waiting.is_empty() {
            let next = lent.waiting.remove(0);
            let next = connections.iter().find(|connection| connection.as_raw_fd() == next);
            if next.is_some_and(|next| lent.lend(next.as_fd(), Catch::HandedOn)) {
                return;
            }
        }
    }
}

impl Lent {
    fn lend(&mut self, connection: BorrowedFd<'_>, word: Catch) -> bool {
        let Caught { streams, names } = &self.sockets;
        if self.to.is_none() && self.wake().is_err() {
            return false;
        }
        self.to = Some(connection.as_raw_fd());
        let sent = wire::send(connection, &FromInit::Network(word), &[streams.as_fd(), names.as_fd()]);
        if sent.is_err() {
            self.to = None;
            let _ = self.rest();
        }
        sent.is_ok()
    }

    /// Refuse everybody: those who wait, and those who come.
    fn rest(&self) -> io::Result<()> {
        rustix::net::shutdown(&self.sockets.streams, Shutdown::Both)?;
        // To itself: nobody else can send from there.
        let itself = rustix::net::getsockname(&self.sockets.names)?;
        Ok(rustix::net::connect(&self.sockets.names, &itself)?)
    }

    fn wake(&self) -> io::Result<()> {
        rustix::net::listen(&self.sockets.streams, sockets::BACKLOG)?;
        Ok(rustix::net::connect_unspec(&self.sockets.names)?)
    }
}
