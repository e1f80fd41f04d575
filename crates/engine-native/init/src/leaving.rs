//! Hearing from a program that it is about to end, before the kernel takes its memory apart.
//!
//! By then the program has written all that it will write, and its status is known. What is left can take as long as all of its
//! work: an interpreter with large modules has tens of thousands of pages to give back. So the program asks before it ends, by a
//! filter that asks about that one call and permits it in any case. It is no wall: where it cannot be had, an end is heard of when
//! it is over.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::syscall::{self, Notice};
use crate::{filter, wire};

/// What is sent along with the listener.
const HERE: u8 = 1;

/// The way by which a command that is about to be a program hands its listener over.
#[derive(Debug)]
pub struct Handover {
    ours: OwnedFd,
    theirs: OwnedFd,
}

impl Handover {
    pub fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok(Self { ours, theirs })
    }

    /// In the command, as the last thing before it is the program: it asks from here on. Must not become one after a failure:
    /// nobody would answer.
    pub fn ask_before_exit(&self) -> io::Result<()> {
        match syscall::install_seccomp_listener(&filter::asking_before_exit()) {
            Ok(listener) => wire::send(self.theirs.as_fd(), &HERE, &[listener.as_fd()]),
            Err(_) => Ok(()),
        }
    }

    /// In its supervisor, when the command is the program.
    pub fn listener(self) -> Option<Exits> {
        drop(self.theirs);
        let (_, descriptors) = wire::receive::<u8>(self.ours.as_fd()).ok()??;
        Some(Exits { listener: descriptors.into_iter().next()? })
    }
}

/// Where a program and all that it starts ask before they end.
#[derive(Debug)]
pub struct Exits {
    listener: OwnedFd,
}

impl Exits {
    /// Whoever asks next. It waits until it is let go.
    pub fn hear(&self) -> io::Result<Asking<'_>> {
        Ok(Asking { exits: self, notice: syscall::hear_notice(self.listener.as_fd())? })
    }
}

impl AsFd for Exits {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// One that is about to end, and does when this is dropped.
#[derive(Debug)]
pub struct Asking<'a> {
    exits: &'a Exits,
    notice: Notice,
}

impl Asking<'_> {
    /// What `wait` will tell of it, where it is this process that asks, by its first thread.
    pub fn status_of(&self, pid: i32) -> Option<i32> {
        (self.notice.thread == pid).then_some(((self.notice.first_argument & 0xff) << 8) as i32)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        // It may have been killed meanwhile.
        let _ = syscall::let_go_on(self.exits.as_fd(), self.notice);
    }
}
