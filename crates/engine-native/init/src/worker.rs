//! Children of process 1 that do one piece of work each, made before there is any.
//!
//! The fork is the slow part of starting a command, so one child always stands by; when it gets its work, process 1 makes
//! the next while the work is under way, or just before where programs could take its place.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::syscall::{self, Forked};
use crate::wire::{self, Work};
use crate::{dial, exec, files, log, tree, weaken};

/// A child without work.
pub struct Worker {
    pub pid: i32,
    channel: OwnedFd,
}

impl Worker {
    pub fn new() -> io::Result<Self> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        match syscall::fork()? {
            Forked::Parent(pid) => Ok(Self { pid, channel: ours }),
            Forked::Child => {
                drop(ours);
                // Whatever fails here, the channel of the work closes with us, and its caller sees that.
                let _ = stand_by(theirs);
                syscall::exit_now(0);
            }
        }
    }

    /// What was held when it was made is closed: process 1 has its descriptors in the same places whatever it was asked for.
    pub fn settle(&mut self) {
        if let Ok(lowest) = rustix::io::fcntl_dupfd_cloexec(&self.channel, wire::INIT_CHANNEL)
            && lowest.as_raw_fd() < self.channel.as_raw_fd()
        {
            self.channel = lowest;
        }
    }

    /// Give it its work. From then on it is nobody's but the work's.
    pub fn give(self, work: &Work, descriptors: &[OwnedFd]) -> io::Result<()> {
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        wire::send(self.channel.as_fd(), work, &descriptors)
    }
}

fn stand_by(channel: OwnedFd) -> io::Result<()> {
    let leaked = weaken::is_asked(weaken::LEAK_DESCRIPTOR).then_some(wire::INIT_SCRATCH);
    let mut kept: Vec<_> = leaked.into_iter().chain([channel.as_raw_fd()]).collect();
    syscall::close_all_but(wire::INIT_CHANNEL, &mut kept);
    tree::adopt()?;
    let signals = syscall::signal_descriptor(&[libc::SIGCHLD])?;
    let Some((work, descriptors)) = wire::receive(channel.as_fd())? else { return Ok(()) };
    drop(channel);
    let mut descriptors = descriptors.into_iter();
    let Some(channel) = descriptors.next() else { return Ok(()) };
    match work {
        Work::Exec(request) => exec::supervise(request, channel, descriptors.collect(), signals),
        Work::File(operation) => files::work(operation, channel, descriptors.next()),
        Work::Logs => log::send_all(&channel)?,
        Work::Dial { port } => dial::work(port, channel),
    }
    Ok(())
}
