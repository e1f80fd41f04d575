//! The tree of a sandbox as a layer, for the server to store.
//!
//! Written to a pipe by a child that joins the sandbox's user namespace, where the owners of files read as they do inside,
//! and that has no right there which the sandbox's own root would lack: the server itself never walks a sandbox's tree. The
//! child ends when the pipe's reader does.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use images::confined::{Missing, Name};
use images::pack::{Packed, PackedOwners, Rules, Shift};
use images::{Digest, Directory};
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::process::{PidfdGetfdFlags, Signal};
use rustix::thread::ThreadNameSpaceType;
use serde::{Deserialize, Serialize};

use super::changes::directory;
use super::inherit::{Owners, layer_for};
use super::{FromLauncher, Helper, Launcher, failed};
use crate::jail::Failure;
use crate::syscall::{self, Forked};
use crate::wire::{self, INIT_SCRATCH};

/// No part of what a sandbox makes of its image: file systems of the kernel, what process 1 keeps, and what says where one
/// is.
const WITHOUT: [&str; 7] = ["dev", "etc/hostname", "etc/hosts", "etc/resolv.conf", "proc", "run", "sys"];

/// Fewer system calls than the pipe's own size would take.
const BUFFER: usize = 1 << 20;

/// What to pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tree {
    /// What the writable layer has.
    Changes,
    /// What this one of the frozen layers has, counted from the lowest.
    Frozen(usize),
    /// What is seen below this path, for sandboxes of others to read.
    Below(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackRequest {
    pub tree: Tree,
    /// Those of the sandbox's namespaces that are its own.
    pub namespaces: u64,
    /// Of all files together, holes included.
    pub most_bytes: u64,
}

/// What was written to the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedTree {
    pub digest: Digest,
    pub size: u64,
    pub left_out: u64,
}

/// Why there is no layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PackFailure {
    /// There is no directory at this path.
    NoDirectory,
    TooLarge(String),
    /// Something changed meanwhile.
    Changed(String),
    /// Something in it cannot be written down.
    Unsupported(String),
    Step(Failure),
}

impl Launcher {
    /// Answered by the child, or, when it ends without an answer, by whoever collects it.
    pub(super) fn pack(&mut self, id: String, request: &PackRequest, process: &OwnedFd, pipe: &OwnedFd) {
        match syscall::fork() {
            Ok(Forked::Parent(pid)) => {
                self.helpers.insert(pid, Helper::Packing { id });
            }
            Ok(Forked::Child) => {
                syscall::reset_signals();
                // A reader that goes away is an error, which ends us in order.
                syscall::ignore_signal(libc::SIGPIPE);
                let kept = [&self.channel, process, pipe].map(AsRawFd::as_raw_fd);
                syscall::close_all_but(3, &mut { kept });
                let shown = Owners::of_layers(self.privileged, request.namespaces);
                let message = match write_layer(request, shown, process, pipe) {
                    Ok(packed) => FromLauncher::Packed { id, packed },
                    Err(failure) => FromLauncher::NotPacked { id, failure },
                };
                syscall::exit_now(i32::from(wire::send(self.channel.as_fd(), &message, &[]).is_err()));
            }
            Err(error) => {
                let failure = PackFailure::Step(failed("pack")(error));
                self.tell(&FromLauncher::NotPacked { id, failure }, &[]);
            }
        }
    }
}

fn write_layer(
    request: &PackRequest,
    shown: Owners,
    process: &OwnedFd,
    pipe: &OwnedFd,
) -> Result<PackedTree, PackFailure> {
    let step = |name: &'static str| move |error: io::Error| PackFailure::Step(failed(name)(error));
    // The sandbox's own `/proc` does not know us.
    let own = rustix::fs::open("/proc/self", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let own = own.map_err(|error| step("join-tree")(error.into()))?;
    let place = Place::of(&request.tree, process, shown).map_err(step("open-tree"))?;
    join(request, process).map_err(step("join-tree"))?;
    become_insider(&own).map_err(step("join-tree"))?;
    let tree = place.open()?;
    let (without, owners): (&[&str], _) = match request.tree {
        Tree::Changes | Tree::Frozen(_) => (&WITHOUT, PackedOwners::Shifted),
        Tree::Below(_) => (&[], PackedOwners::Everybody),
    };
    let limits = images::Limits { bytes: request.most_bytes, ..images::Limits::default() };
    let rules = Rules { shift: Shift::default(), limits, without, owners };
    let writer = io::BufWriter::with_capacity(BUFFER, std::fs::File::from(pipe.try_clone().map_err(step("pack"))?));
    let Packed { digest, size, left_out, .. } =
        images::pack::pack(&tree, rules, writer, &Default::default()).map_err(from_images)?;
    Ok(PackedTree { digest, size, left_out })
}

fn join(request: &PackRequest, process: &OwnedFd) -> io::Result<()> {
    let mut wanted = ThreadNameSpaceType::USER;
    if matches!(request.tree, Tree::Below(_)) {
        wanted |= ThreadNameSpaceType::MOUNT;
    }
    join_those(wanted, request.namespaces, process)
}

/// Join the user namespace of a sandbox, if it has one of its own.
pub(super) fn join_user(namespaces: u64, process: &OwnedFd) -> io::Result<()> {
    join_those(ThreadNameSpaceType::USER, namespaces, process)
}

fn join_those(wanted: ThreadNameSpaceType, namespaces: u64, process: &OwnedFd) -> io::Result<()> {
    let wanted = wanted & ThreadNameSpaceType::from_bits_truncate(namespaces as u32);
    if !wanted.is_empty() {
        rustix::thread::move_into_thread_name_spaces(process.as_fd(), wanted)?;
    }
    // Only now: the kernel forgets it when a process joins a user namespace.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

/// Be the first user that there is inside, which is its root where it has one: with the ids of whoever runs the engine,
/// files of the host could be read that are closed to everybody inside.
pub(super) fn become_insider(own: &OwnedFd) -> io::Result<()> {
    let first = |map: &str| -> io::Result<u32> {
        let map = rustix::fs::openat(own, map, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let text = io::read_to_string(std::fs::File::from(map))?;
        let number = text.split_whitespace().next().and_then(|number| number.parse().ok());
        number.ok_or_else(|| io::Error::from_raw_os_error(libc::EUSERS))
    };
    let (user, group) = (Uid::from_raw(first("uid_map")?), Gid::from_raw(first("gid_map")?));
    match rustix::thread::set_thread_groups(&[]) {
        // Where there is one id alone, the kernel leaves the groups as they are.
        Ok(()) | Err(rustix::io::Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)?;
    Ok(())
}

/// Where a tree is, taken before the sandbox's namespaces are joined: what process 1 holds is not for those inside to map.
enum Place<'a> {
    /// In what process 1 holds, under this name.
    Held(OwnedFd, &'static str),
    /// At this path, as the sandbox sees it.
    Seen(&'a [u8]),
}

impl<'a> Place<'a> {
    fn of(tree: &'a Tree, process: &OwnedFd, shown: Owners) -> io::Result<Self> {
        Ok(match tree {
            Tree::Changes => {
                let scratch = rustix::process::pidfd_getfd(process, INIT_SCRATCH, PidfdGetfdFlags::empty())?;
                Self::Held(scratch, "upper")
            }
            Tree::Frozen(index) => Self::Held(layer_for(process, *index, shown)?, "."),
            Tree::Below(path) => Self::Seen(path),
        })
    }

    fn open(&self) -> Result<Directory, PackFailure> {
        let step = |error: io::Error| PackFailure::Step(failed("open-tree")(error));
        match self {
            Self::Held(held, name) => directory(held, name).map_err(step),
            Self::Seen(path) => {
                let root = Directory::open(Path::new("/")).map_err(step)?;
                let names = path.split(|byte| *byte == b'/').filter_map(Name::new);
                root.descend(names, Missing::Fail).map_err(|error| match error.raw_os_error() {
                    Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EXDEV) => PackFailure::NoDirectory,
                    _ => step(error),
                })
            }
        }
    }
}

fn from_images(error: images::Error) -> PackFailure {
    match error {
        images::Error::LimitExceeded(what) => PackFailure::TooLarge(what),
        images::Error::Unavailable(what) => PackFailure::Changed(what),
        images::Error::Unsupported(what) => PackFailure::Unsupported(what),
        images::Error::Io { doing, source } => {
            let errno = source.raw_os_error().unwrap_or(libc::EIO);
            PackFailure::Step(Failure { step: "pack".to_owned(), errno, subject: doing })
        }
        images::Error::Refused(_)
        | images::Error::Invalid(_)
        | images::Error::NotFound(_)
        | images::Error::Denied(_)
        | images::Error::Cancelled => {
            let subject = error.to_string();
            PackFailure::Step(Failure { step: "pack".to_owned(), errno: libc::EIO, subject })
        }
    }
}
