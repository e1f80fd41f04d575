//! Whoever inside connects to somewhere, or asks for a name, and servers that wait for them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};

use super::passage::Passage;
use crate::wire::Catch;

/// A question is one name of 253 bytes at most; what is longer is none of ours.
const MOST_BYTES: usize = 4096;

/// After there was no room for another connection, how long before we look again.
const BREATH: Duration = Duration::from_millis(20);

/// The sockets of process 1, once they were asked for, and the numbers under which the server waits.
#[derive(Default)]
pub struct Entrance {
    sockets: Sockets,
    accepting: VecDeque<u32>,
    questioning: VecDeque<u32>,
    rests_until: Option<Instant>,
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

    pub fn receive(&mut self, catch: &Catch, descriptors: Vec<OwnedFd>) {
        let mut descriptors = descriptors.into_iter();
        self.sockets = match (catch, descriptors.next(), descriptors.next()) {
            (Catch::Yours | Catch::HandedOn, Some(streams), Some(names)) => Sockets::There { streams, names },
            // They come by themselves.
            (Catch::Others, _, _) => Sockets::Asked,
            (Catch::Yours | Catch::HandedOn | Catch::None | Catch::Impossible { .. }, _, _) => Sockets::None,
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
            (!self.accepting.is_empty() && self.rest().is_none()).then(|| (streams.as_fd(), PollFlags::IN)),
            (!self.questioning.is_empty()).then(|| (names.as_fd(), PollFlags::IN)),
        ]
    }

    /// For how long connections are not looked for.
    pub fn rest(&self) -> Option<Duration> {
        self.rests_until.and_then(|until| until.checked_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// All who have come and are waited for.
    pub fn take(&mut self) -> Vec<Come> {
        let Sockets::There { streams, names } = &self.sockets else { return Vec::new() };
        let mut come = Vec::new();
        while let Some(&number) = self.accepting.front() {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(streams, flags) {
                Ok(socket) => {
                    self.accepting.pop_front();
                    come.push(Come::Connection(number, Passage::new(socket)));
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // No descriptor or no memory for it. It goes on waiting, and we would be called again at once.
                Err(_) => {
                    self.rests_until = Some(Instant::now() + BREATH);
                    break;
                }
            }
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
