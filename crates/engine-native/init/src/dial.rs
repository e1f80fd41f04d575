//! Connections from outside to what programs listen on. They begin here, in the sandbox's own network, where the only addresses
//! that are tried are its loopback ones: so whoever asks gets no further than the programs themselves.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

use crate::identity;
use crate::wire::{self, FromDial};

/// Whoever asks waits a little longer than that.
const PATIENCE: Duration = Duration::from_secs(8);

/// A connection on its way.
#[derive(Debug)]
pub struct Dial {
    socket: OwnedFd,
    port: u16,
    /// What is tried when nobody is at the first address.
    next: Option<IpAddr>,
}

/// What came of it so far.
#[derive(Debug)]
pub enum Progress {
    Connected(OwnedFd),
    Waiting(Dial),
    Refused { errno: i32 },
}

impl Dial {
    pub fn begin(port: u16) -> Progress {
        Self::to(Ipv4Addr::LOCALHOST.into(), port, Some(Ipv6Addr::LOCALHOST.into()))
    }

    /// Becomes writable when there is something to say.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub fn advance(self) -> Progress {
        match rustix::net::sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => Progress::Connected(self.socket),
            Ok(Err(error)) | Err(error) => Self::otherwise(self.port, self.next, error),
        }
    }

    fn to(address: IpAddr, port: u16, next: Option<IpAddr>) -> Progress {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = match rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)) {
            Ok(socket) => socket,
            Err(error) => return Self::otherwise(port, next, error),
        };
        match rustix::net::connect(&socket, &SocketAddr::new(address, port)) {
            Ok(()) => Progress::Connected(socket),
            Err(Errno::INPROGRESS | Errno::INTR) => Progress::Waiting(Self { socket, port, next }),
            Err(error) => Self::otherwise(port, next, error),
        }
    }

    fn otherwise(port: u16, next: Option<IpAddr>, error: Errno) -> Progress {
        match next {
            Some(address) => match Self::to(address, port, None) {
                // A kernel without the other family has nothing to say about programs.
                Progress::Refused { errno } if errno == libc::EAFNOSUPPORT => {
                    Progress::Refused { errno: error.raw_os_error() }
                }
                progress => progress,
            },
            None => Progress::Refused { errno: error.raw_os_error() },
        }
    }
}

/// Connect as the sandbox's user, in a process of its own, and hand the connection over.
pub fn work(port: u16, channel: OwnedFd) {
    let dialled = identity::become_user(None).map_err(io::Error::from).and_then(|()| connected(port));
    // Whoever asked may be gone.
    let _ = match dialled {
        Ok(socket) => wire::send(channel.as_fd(), &FromDial::Connected, &[socket.as_fd()]),
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            wire::send(channel.as_fd(), &FromDial::Refused { errno }, &[])
        }
    };
}

fn connected(port: u16) -> io::Result<OwnedFd> {
    let until = Instant::now() + PATIENCE;
    let mut progress = Dial::begin(port);
    loop {
        match progress {
            Progress::Connected(socket) => return Ok(socket),
            Progress::Refused { errno } => return Err(io::Error::from_raw_os_error(errno)),
            Progress::Waiting(dial) => {
                let left = until.saturating_duration_since(Instant::now());
                let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                let mut polled = [PollFd::from_borrowed_fd(dial.socket(), PollFlags::OUT)];
                match rustix::event::poll(&mut polled, Some(&left)) {
                    Ok(0) => return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
                    Ok(_) => progress = dial.advance(),
                    Err(Errno::INTR) => progress = Progress::Waiting(dial),
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}
