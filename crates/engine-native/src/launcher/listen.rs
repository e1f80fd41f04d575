//! Sockets inside the network of a sandbox, for the server to hold.
//!
//! Made by a child that joins that network, hands them over and ends: the launcher itself must not leave its namespaces.
//! Nobody waits for the child; one that hangs is ended by the kernel.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType};

use super::{FromLauncher, Helper, Launcher, failed};
use crate::jail::Failure;
use crate::syscall::{self, Forked};
use crate::{crash, network, wire};

/// The steps of the launcher and its child, around those of the network itself.
pub const FIRST_STEPS: &[&str] = &["listen", "join-network"];
pub const LAST_STEPS: &[&str] = &["hand-over"];

/// It takes less than a millisecond.
const PATIENCE_SECONDS: u32 = 10;

/// The way into a sandbox's network, and into the user namespace that owns it.
#[derive(Debug)]
pub(super) enum Way {
    /// Opened while the sandbox is built: in between, it is closed to an ordinary user.
    Namespaces { user: Option<OwnedFd>, network: OwnedFd },
    /// By process 1, and which of its namespaces differ from ours.
    Process { process: OwnedFd, namespaces: u64 },
}

impl Way {
    pub(super) fn of_child(pid: i32, namespaces: u64) -> io::Result<Self> {
        let open = |name: &str| File::open(format!("/proc/{pid}/ns/{name}")).map(OwnedFd::from);
        let has = |bit: i32| namespaces & bit as u64 != 0;
        Ok(Self::Namespaces {
            user: has(libc::CLONE_NEWUSER).then(|| open("user")).transpose()?,
            network: open("net")?,
        })
    }

    fn join(&self) -> io::Result<()> {
        match self {
            Self::Namespaces { user, network } => {
                if let Some(user) = user {
                    rustix::thread::move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))?;
                }
                rustix::thread::move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            }
            Self::Process { process, namespaces } => {
                let wanted = ThreadNameSpaceType::USER | ThreadNameSpaceType::NETWORK;
                let wanted = wanted & ThreadNameSpaceType::from_bits_truncate(*namespaces as u32);
                rustix::thread::move_into_thread_name_spaces(process.as_fd(), wanted)?;
            }
        }
        Ok(())
    }
}

impl Launcher {
    /// Answered by the child, or, when it ends without an answer, by whoever collects it.
    pub(super) fn listen(&mut self, id: String, way: Way) {
        crash::here("listen");
        match syscall::fork() {
            Ok(Forked::Parent(pid)) => {
                self.helpers.insert(pid, Helper::Listening { id });
            }
            Ok(Forked::Child) => {
                // Whoever started us may have had the alarm ignored.
                syscall::reset_signals();
                syscall::end_after(PATIENCE_SECONDS);
                syscall::exit_now(i32::from(self.serve_listen(id, &way).is_err()));
            }
            Err(error) => self.tell(&FromLauncher::NotListening { id, failure: failed("listen")(error) }, &[]),
        }
    }

    fn serve_listen(&self, id: String, way: &Way) -> io::Result<()> {
        let made = enter(way).and_then(|()| network::open().map_err(|(step, error)| failed(step)(error)));
        match made {
            Ok(sockets) => {
                crash::here("hand-over");
                let descriptors = [sockets.streams.as_fd(), sockets.names.as_fd()];
                wire::send(self.channel.as_fd(), &FromLauncher::Listening { id }, &descriptors)
            }
            Err(failure) => wire::send(self.channel.as_fd(), &FromLauncher::NotListening { id, failure }, &[]),
        }
    }
}

fn enter(way: &Way) -> Result<(), Failure> {
    crash::here("join-network");
    way.join().map_err(failed("join-network"))?;
    // Only now: the kernel forgets it when a process joins a user namespace.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| failed("join-network")(error.into()))
}
