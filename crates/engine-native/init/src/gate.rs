//! Who may speak to a process 1 whose socket everybody inside can reach: whoever is its user and knows the token.
//!
//! Programs of the sandbox are usually another user, and are turned away at once. Where they are the same one, they do not
//! know the token: it came with the environment of process 1 and of the bridges, whose memory is closed to them.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::syscall;
use crate::wire::{self, ToInit};

/// Of the environment of process 1 and of bridges.
const TOKEN: &CStr = c"SANDPEN_TOKEN";

/// An abstract name: it needs no place in the tree, and is there as long as process 1 is.
const NAME: &[u8] = b"sandpen";

/// Those who have not said who they are: older ones make room.
const MOST_WAITING: usize = 16;

#[derive(Debug)]
pub struct Gate {
    token: String,
    waiting: Vec<OwnedFd>,
}

impl Gate {
    pub fn new(token: String) -> Self {
        Self { token, waiting: Vec::new() }
    }

    pub fn waiting(&self) -> &[OwnedFd] {
        &self.waiting
    }

    /// Somebody has come.
    pub fn receive(&mut self, connection: OwnedFd) {
        let is_ours =
            rustix::net::sockopt::socket_peercred(&connection).is_ok_and(|peer| peer.uid == rustix::process::geteuid());
        if !is_ours {
            return;
        }
        if self.waiting.len() == MOST_WAITING {
            self.waiting.remove(0);
        }
        self.waiting.push(connection);
    }

    /// One who waits has said something. It is let in, or is gone. One who is silent goes on waiting, and holds up nobody.
    pub fn hear(&mut self, index: usize) -> Option<OwnedFd> {
        let connection = self.waiting.remove(index);
        match wire::receive_at_once(connection.as_fd()) {
            Ok(Some((ToInit::Present { token }, _))) if is_same(token.as_bytes(), self.token.as_bytes()) => {
                Some(connection)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.waiting.insert(index, connection);
                None
            }
            Ok(_) | Err(_) => None,
        }
    }
}

/// The token that the daemon gave us. It can be had once.
pub fn take_token() -> io::Result<String> {
    let token = syscall::take_variable(TOKEN).and_then(|token| token.into_string().ok());
    token.filter(|token| !token.is_empty()).ok_or_else(|| io::Error::other("there is no token"))
}

/// In a time that does not depend on where they differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// The socket of process 1, not listening yet.
pub fn bound() -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &address()?)?;
    Ok(socket)
}

/// A connection to process 1 that has not said who it is.
pub fn connected() -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::connect(&socket, &address()?)?;
    Ok(socket)
}

fn socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn address() -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(NAME)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn one_who_is_silent_is_not_waited_for() {
        let mut gate = Gate::new("token".into());
        let (theirs, ours) = pair();
        gate.receive(ours);
        assert!(gate.hear(0).is_none());
        assert_eq!(gate.waiting().len(), 1, "it may still speak");
        wire::send(theirs.as_fd(), &ToInit::Present { token: "token".into() }, &[]).unwrap();
        assert!(gate.hear(0).is_some());
        assert!(gate.waiting().is_empty());
    }

    #[test]
    fn one_who_says_something_else_is_gone() {
        let mut gate = Gate::new("token".into());
        let (theirs, ours) = pair();
        gate.receive(ours);
        wire::send(theirs.as_fd(), &ToInit::Present { token: "guess".into() }, &[]).unwrap();
        assert!(gate.hear(0).is_none());
        assert!(gate.waiting().is_empty());
    }

    #[test]
    fn only_the_whole_token_is_the_same() {
        assert!(is_same(b"token", b"token"));
        for other in [&b"tokeN"[..], b"Token", b"toke", b"token0", b""] {
            assert!(!is_same(b"token", other), "{other:?}");
        }
    }
}
