//! Hands for the store of images: this program, re-executed, in a user namespace where it is root of the ids that an
//! ordinary user's images have, and nothing else.
//!
//! Trees whose files have owners can be made and removed there. What it works on comes by descriptor. It unpacks what nobody
//! has looked at, and a hole in that is worth those ids: it cannot even go to where the store is.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use images::confined::Name;
use images::hands::{Hands, TREE};
use images::unpack::{Owners, unpack_layer};
use images::{Digest, Directory, Error, Limits, Result, Summary};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Gid, Mode, Uid};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::ids::{ImageIds, Pool};
use crate::launcher::map_with_helper;
use crate::{host, syscall, wire};

const NAME: &str = "sandpen-hands";

/// How long it takes at most to notice that nobody wants the work any more.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Over files of the ids that are mapped: to give them away, to reach them, to set their modes.
const KEPT: CapabilitySet = CapabilitySet::CHOWN.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::FOWNER);

/// To the hands, once they have said that they are ready and their ids are mapped.
#[derive(Debug, Serialize, Deserialize)]
enum Task {
    /// With descriptors: the place and the layer.
    Unpack { diff_id: Digest, limits: Limits },
    /// With a descriptor: the place.
    Clear,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Ready,
    Done(Summary),
    Refused(String),
    LimitExceeded(String),
    Unsupported(String),
    Failed { doing: String, errno: i32 },
}

/// What is lent to stores: processes, one for each piece of work.
#[derive(Debug)]
struct Processes;

pub fn lend() {
    images::hands::lend(Box::new(Processes));
}

/// In a process that was started as hands it never returns.
pub fn main_if_asked() {
    if std::env::args_os().next().is_some_and(|name| name == NAME) {
        let channel = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(io::Error::from);
        syscall::exit_now(i32::from(channel.and_then(|channel| serve(&channel)).is_err()));
    }
}

impl Hands for Processes {
    fn ids(&self) -> Option<String> {
        image_ids().map(|ImageIds { first_user, first_group, count }| format!("{first_user}-{first_group}-{count}"))
    }

    fn unpack(
        &self,
        blob: File,
        diff_id: Digest,
        place: &Directory,
        limits: &Limits,
        cancel: &CancellationToken,
    ) -> Result<Summary> {
        let blob = OwnedFd::from(blob);
        let task = Task::Unpack { diff_id, limits: *limits };
        ask(&task, &[place.as_fd(), blob.as_fd()], cancel)
    }

    fn clear(&self, place: &Directory) -> Result<()> {
        ask(&Task::Clear, &[place.as_fd()], &CancellationToken::new()).map(drop)
    }
}

/// Those of whoever calls, if that is an ordinary user.
fn image_ids() -> Option<ImageIds> {
    if rustix::process::geteuid().is_root() {
        return None;
    }
    host::subordinate_pool().and_then(Pool::image_ids)
}

/// Ended when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ask(task: &Task, descriptors: &[std::os::fd::BorrowedFd<'_>], cancel: &CancellationToken) -> Result<Summary> {
    let doing = || Error::io("working with the ids of images");
    let ids = image_ids().ok_or_else(|| doing()(io::ErrorKind::PermissionDenied.into()))?;
    let (process, channel) = start(ids).map_err(doing())?;
    wire::send(channel.as_fd(), task, descriptors).map_err(doing())?;
    loop {
        match rustix::event::poll(&mut [PollFd::new(&channel, PollFlags::IN)], Some(&PATIENCE)) {
            Ok(0) if cancel.is_cancelled() => return Err(Error::Cancelled),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => break,
            Err(error) => return Err(doing()(error.into())),
        }
    }
    let answer = wire::receive(channel.as_fd()).map_err(doing())?;
    drop(process);
    match answer {
        Some((Answer::Done(summary), _)) => Ok(summary),
        Some((Answer::Refused(what), _)) => Err(Error::Refused(what)),
        Some((Answer::LimitExceeded(what), _)) => Err(Error::LimitExceeded(what)),
        Some((Answer::Unsupported(what), _)) => Err(Error::Unsupported(what)),
        Some((Answer::Failed { doing, errno }, _)) => Err(Error::io(doing)(io::Error::from_raw_os_error(errno))),
        Some((Answer::Ready, _)) | None => Err(doing()(io::ErrorKind::UnexpectedEof.into())),
    }
}

/// A process that waits for its work, with its ids.
fn start(ids: ImageIds) -> io::Result<(Process, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).env_clear().current_dir("/");
    let process = Process(command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    // The command has a copy of their end, and with it we would wait for ourselves.
    drop(command);
    if !matches!(wire::receive(ours.as_fd())?, Some((Answer::Ready, _))) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let pid = i32::try_from(process.0.id()).map_err(io::Error::other)?;
    let (users, groups) = ids.maps();
    map_with_helper("newuidmap", pid, &users)?;
    map_with_helper("newgidmap", pid, &groups)?;
    Ok((process, ours))
}

fn serve(channel: &OwnedFd) -> io::Result<()> {
    syscall::unshare_user_namespace()?;
    wire::send(channel.as_fd(), &Answer::Ready, &[])?;
    let Some((task, descriptors)) = wire::receive::<Task>(channel.as_fd())? else { return Ok(()) };
    become_root_of_images()?;
    let mut descriptors = descriptors.into_iter();
    let place = descriptors.next().map(Directory::from).ok_or(io::ErrorKind::InvalidInput)?;
    let done = match task {
        Task::Unpack { diff_id, limits } => {
            let blob = descriptors.next().map(File::from).ok_or(io::ErrorKind::InvalidInput)?;
            unpack(blob, diff_id, &place, &limits)
        }
        Task::Clear => clear(&place).map(|()| Summary::default()),
    };
    wire::send(channel.as_fd(), &done.map_or_else(told, Answer::Done), &[])
}

/// Until here we are whoever runs the engine; from here on nobody whom any program of that user is.
fn become_root_of_images() -> io::Result<()> {
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
    rustix::thread::set_no_new_privs(true)?;
    let few = CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, few)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // Only now: the kernel forgets it when ids change.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

fn unpack(blob: File, diff_id: Digest, place: &Directory, limits: &Limits) -> Result<Summary> {
    let making = || Error::io(format!("making the tree of {diff_id}"));
    let name = Name::new(TREE.as_bytes()).ok_or_else(|| Error::Invalid(TREE.to_owned()))?;
    place.make_directory(name, 0o700).map_err(making())?;
    let tree = place.enter(name).map_err(making())?;
    let summary = unpack_layer(blob, diff_id, &tree, limits, Owners::Known)?;
    tree.set_mode(0o755).map_err(making())?;
    Ok(summary)
}

fn clear(place: &Directory) -> Result<()> {
    let clearing = || Error::io("removing a tree");
    for name in place.names().map_err(clearing())? {
        if let Some(name) = Name::new(&name) {
            place.remove_tree(name).map_err(clearing())?;
        }
    }
    Ok(())
}

fn told(error: Error) -> Answer {
    match error {
        Error::Refused(what) => Answer::Refused(what),
        Error::LimitExceeded(what) => Answer::LimitExceeded(what),
        Error::Unsupported(what) => Answer::Unsupported(what),
        Error::Io { doing, source } => Answer::Failed { doing, errno: source.raw_os_error().unwrap_or(libc::EIO) },
        Error::Invalid(doing) | Error::NotFound(doing) | Error::Denied(doing) | Error::Unavailable(doing) => {
            Answer::Failed { doing, errno: libc::EIO }
        }
        Error::Cancelled => Answer::Failed { doing: error.to_string(), errno: libc::ECANCELED },
    }
}
