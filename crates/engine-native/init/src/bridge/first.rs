//! The bridge that is there from the start: a fork of process 1, over the streams that the daemon has given to it.
//!
//! To have a daemon start one more program in a sandbox takes it about a third of the time that the sandbox itself takes.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::syscall::{self, Forked};
use crate::wire;

/// Returns process 1's end of the channel to it. From then on the streams are the bridge's alone: whoever holds their other
/// ends sees them close when it ends.
pub fn start() -> io::Result<OwnedFd> {
    let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    match syscall::fork()? {
        Forked::Parent(_) => {
            rustix::stdio::dup2_stdin(&nothing)?;
            rustix::stdio::dup2_stdout(&nothing)?;
            rustix::stdio::dup2_stderr(&nothing)?;
            Ok(ours)
        }
        Forked::Child => {
            syscall::close_all_but(wire::INIT_CHANNEL, &mut [theirs.as_raw_fd()]);
            syscall::exit_now(super::exit_code(super::carry(|| Ok(theirs))));
        }
    }
}
