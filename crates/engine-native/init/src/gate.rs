//! Who may speak to a process 1 whose socket everybody inside can reach: whoever is its user and knows the token.
//!
//! Programs of the sandbox are usually another user, and are turned away at once. Where they are the same one, they do not
//! know the token: only its digest is in here, and bridges hear it from the server and forget it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use sha2::{Digest, Sha256};

use crate::wire::{self, ToInit};

/// An abstract name: it needs no place in the tree, and is there as long as process 1 is.
const NAME: &[u8] = b"sandpen";

/// Those who have not said who they are: older ones make room.
const MOST_WAITING: usize = 16;

#[derive(Debug)]
pub struct Gate {
    digest: TokenDigest,
    waiting: Vec<OwnedFd>,
}

/// All that process 1 knows of the token.
#[derive(Clone, Copy, Debug)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// In hexadecimal. `None` for what is no digest.
    pub fn read(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 2 * bytes.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Digests need no comparison in constant time: what is learnt of one helps nobody to a token.
    fn is_of(&self, token: &str) -> bool {
        Sha256::digest(token.as_bytes())[..] == self.0
    }
}

impl Gate {
    pub fn new(digest: TokenDigest) -> Self {
        Self { digest, waiting: Vec::new() }
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
            Ok(Some((ToInit::Present { token }, _))) => {
                let is_let_in = self.digest.is_of(&token);
                // Every helper is a copy of us, and none needs to know it.
                wipe(token.into_bytes());
                wire::forget_last();
                is_let_in.then_some(connection)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.waiting.insert(index, connection);
                None
            }
            Ok(_) | Err(_) => None,
        }
    }
}

/// The compiler would leave out what nobody looks at afterwards.
fn wipe(mut bytes: Vec<u8>) {
    bytes.fill(0);
    std::hint::black_box(&bytes);
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

    /// Of the word `token`.
    const DIGEST: &str = "3c469e9d6c5875d37a43f353d4f88e61fcf812c66eee3457465a40b0da4153e0";

    fn digest() -> TokenDigest {
        TokenDigest::read(DIGEST).unwrap()
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn one_who_is_silent_is_not_waited_for() {
        let mut gate = Gate::new(digest());
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
        let mut gate = Gate::new(digest());
        let (theirs, ours) = pair();
        gate.receive(ours);
        wire::send(theirs.as_fd(), &ToInit::Present { token: "guess".into() }, &[]).unwrap();
        assert!(gate.hear(0).is_none());
        assert!(gate.waiting().is_empty());
    }

    #[test]
    fn only_the_whole_token_is_the_same() {
        assert!(digest().is_of("token"));
        for other in ["tokeN", "Token", "toke", "token0", "", DIGEST] {
            assert!(!digest().is_of(other), "{other:?}");
        }
        for text in ["", "3c", &DIGEST[1..], &DIGEST.replace('c', "x"), &format!("+{}", &DIGEST[1..])] {
            assert!(TokenDigest::read(text).is_none(), "{text:?}");
        }
    }
}
