//! Whoever inside connects to somewhere, or asks for a name, and servers that wait for them.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};

use super::passage::Passage;

/// A question is one name of 253 bytes at most; what is longer is none of ours.
const MOST_BYTES: usize = 4096;

/// The sockets of process 1, once they were asked for, and the numbers under which the server waits.
#[derive(Default)]
pub struct Entrance {
    sockets: Sockets,
    accepting: VecDeque<u32>,
    questioning: VecDeque<u32>,
}

#[derive(Default)]
enum Sockets {
    #[default]
    NotAsked,
    Asked,
    There {
        streams: OwnedFd,
        names: OwnedFd,
    },
    /// There is no network.
    None,
}

/// Somebody who came.
pub enum Come {
    Connection(u32, Passage),
    Question(u32, SocketAddr, Vec<u8>),
}

impl Entrance {
    pub fn await_connection(&mut self, number: u32) {
        self.accepting.push_back(number);
    }

    pub fn await_question(&mut self, number: u32) {
        self.questioning.push_back(number);
    }

    /// Whether process 1 is to be asked for the sockets now.
    pub fn must_ask(&mut self) -> bool {
        let must = matches!(self.sockets, Sockets::NotAsked);
        if must {
            self.sockets = Sockets::Asked;
        }
        must
    }

    pub fn receive(&mut self, descriptors: Vec<OwnedFd>) {
        let mut descriptors = descriptors.into_iter();
        self.sockets = match (descriptors.next(), descriptors.next()) {
            (Some(streams), Some(names)) => Sockets::There { streams, names },
            (Some(_) | None, None) | (None, Some(_)) => Sockets::None,
        };
    }

    /// Those who wait for what will not come.
    pub fn disappointed(&mut self) -> Vec<u32> {
        match self.sockets {
            Sockets::None => self.accepting.drain(..).chain(self.questioning.drain(..)).collect(),
            Sockets::NotAsked | Sockets::Asked | Sockets::There { .. } => Vec::new(),
        }
    }

    /// The server does not wait under this number any more.
    pub fn forget(&mut self, number: u32) {
        self.accepting.retain(|&waiting| waiting != number);
        self.questioning.retain(|&waiting| waiting != number);
    }

    /// What to wait for: nobody is taken whom nobody waits for.
    pub fn interests(&self) -> [Option<(BorrowedFd<'_>, PollFlags)>; 2] {
        let Sockets::There { streams, names } = &self.sockets else { return [None, None] };
        [
            (!self.accepting.is_empty()).then(|| (streams.as_fd(), PollFlags::IN)),
            (!self.questioning.is_empty()).then(|| (names.as_fd(), PollFlags::IN)),
        ]
    }

    /// All who have come and are waited for.
    pub fn take(&mut self) -> Vec<Come> {
        let Sockets::There { streams, names } = &self.sockets else { return Vec::new() };
        let mut come = Vec::new();
        while let Some(&number) = self.accepting.front() {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(passage) = rustix::net::accept_with(streams, flags).map_err(io::Error::from).and_then(Passage::new)
            else {
                break;
            };
            self.accepting.pop_front();
            come.push(Come::Connection(number, passage));
        }
        let mut packet = [0; MOST_BYTES];
        while let Some(&number) = self.questioning.front() {
            let Ok((length, _, Some(from))) = rustix::net::recvfrom(names, &mut packet, RecvFlags::DONTWAIT) else {
                break;
            };
            let Ok(from) = SocketAddr::try_from(from) else { continue };
            self.questioning.pop_front();
            come.push(Come::Question(number, from, packet[..length].to_vec()));
        }
        come
    }

    pub fn reply(&self, to: SocketAddr, packet: &[u8]) {
        if let Sockets::There { names, .. } = &self.sockets {
            // Whoever asked may be gone.
            let _ = rustix::net::sendto(names, packet, SendFlags::DONTWAIT, &to);
        }
    }
}
