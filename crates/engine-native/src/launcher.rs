//! The launcher: the one process that clones. Single-threaded, started before anything else, without the server's
//! environment, descriptors or memory.
//!
//! It is the same program, re-executed under another name with its channel as standard input. It builds what it is told
//! to build, collects the dead, clears their groups away, and ends everything ephemeral when the server's end of the
//! channel closes, however that came about.

mod changes;
mod create;
mod inherit;
mod listen;
mod pack;
mod program;

pub(crate) use inherit::pid_of;

pub use changes::LookRequest;
pub(crate) use create::map_with_helper;
pub use pack::{PackFailure, PackRequest, PackedTree, Tree};
pub(crate) use program::Program;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::ids::Pool;
use crate::jail::Failure;
use crate::plan::{Init, Plan};
use crate::syscall::{self, Forked};
use crate::{cgroup, network, wire};

use listen::Way;

const NAME: &str = "sandpen-launcher";

/// The named steps of the launcher, in order; a test dies at each of them.
pub fn steps() -> impl Iterator<Item = &'static str> {
    let all = [create::STEPS, listen::FIRST_STEPS, network::STEPS, listen::LAST_STEPS];
    all.into_iter().flatten().copied()
}

/// To the launcher. The first message is `Configure`.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToLauncher {
    Configure(Configuration),
    /// With descriptors: those that keep the image and what is attached, where they have to be kept; or, for one that
    /// inherits, process 1 of the sandbox that it inherits from.
    Create {
        plan: Box<Plan>,
        wanted: Wanted,
    },
    /// With a descriptor that stands for process 1 of a sandbox, whoever made it: make sockets in its network. Answered
    /// under `id`, which means nothing else here.
    Listen {
        id: String,
        /// Those of its namespaces that are its own.
        namespaces: u64,
    },
    /// With descriptors: one that stands for process 1 of a sandbox, whoever made it, and the pipe that its tree is
    /// written to. Answered under `id`, which means nothing else here.
    Pack {
        id: String,
        request: PackRequest,
    },
    /// With the same descriptors: what the sandbox has changed is written to the pipe.
    Look {
        id: String,
        request: LookRequest,
    },
    /// Answered by `Gone`, also when there is no such sandbox.
    Destroy {
        id: String,
    },
}

/// What to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wanted {
    Sandbox,
    /// The same as a sandbox and then `Listen`, at the same time.
    SandboxAndSockets,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Configuration {
    /// Where locks on id ranges are.
    pub id_locks: PathBuf,
    /// Where process 1's program may lie as a file, `None` where a sandbox could have the id of its owner.
    pub programs: Option<PathBuf>,
    /// The server's own lock, which is of no use once the server is gone.
    pub instance_lock: PathBuf,
    /// `None`: there is only the user's own id.
    pub pool: Option<Pool>,
}

/// From the launcher.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromLauncher {
    /// Cloned and on its way; process 1 itself says when it is ready. With descriptors: one that stands for the
    /// process, and the channel of an attached one.
    Started {
        id: String,
    },
    /// It did not become a sandbox, and nothing of it is left.
    NotCreated {
        id: String,
        failure: Failure,
    },
    /// It has ended, and nothing of it is left.
    Gone {
        id: String,
    },
    /// With descriptors: the listener and the socket for names.
    Listening {
        id: String,
    },
    NotListening {
        id: String,
        failure: Failure,
    },
    /// All of it is in the pipe.
    Packed {
        id: String,
        packed: PackedTree,
    },
    NotPacked {
        id: String,
        failure: PackFailure,
    },
    /// All that was wanted is in the pipe.
    Looked {
        id: String,
        truncated: bool,
    },
    NotLooked {
        id: String,
        failure: Failure,
    },
}

/// A launcher that runs; its channel is its life line.
#[derive(Debug)]
pub struct Running {
    pub channel: OwnedFd,
    /// To be waited for by a program that lives on; one that was started ahead ends with its short-lived parent.
    pub process: Option<Child>,
}

/// One that was started ahead of its use.
static AHEAD: Mutex<Option<Running>> = Mutex::new(None);

/// Start a launcher for the engine that this process is about to start, by a fork alone. For programs that live for
/// milliseconds: it is ready before they have read their configuration.
///
/// Must be called before any thread exists: then the child may go on as a single-threaded program. What it inherits in
/// memory is the caller's own command line and environment, which no sandbox sees, because process 1 is a program of its
/// own with an empty environment. A server starts its launcher by re-execution instead.
pub fn start_ahead() {
    let Ok((ours, theirs)) = pair() else { return };
    match syscall::fork() {
        Ok(Forked::Child) => {
            drop(ours);
            syscall::close_all_but(3, &mut [theirs.as_raw_fd()]);
            syscall::exit_now(main(Ok(theirs), Complaints::UntilConfigured));
        }
        Ok(Forked::Parent(_)) => {
            let running = Running { channel: ours, process: None };
            *AHEAD.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
        }
        // Tried again, and told, when the launcher is needed.
        Err(_) => {}
    }
}

fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

pub fn start(configuration: Configuration) -> io::Result<Running> {
    let ahead = AHEAD.lock().unwrap_or_else(PoisonError::into_inner).take();
    let running = ahead.map_or_else(spawn, Ok)?;
    wire::send(running.channel.as_fd(), &ToLauncher::Configure(configuration), &[])?;
    Ok(running)
}

fn spawn() -> io::Result<Running> {
    let (ours, theirs) = pair()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).env_clear().current_dir("/").stdin(Stdio::from(theirs)).stdout(Stdio::null());
    if let Some(step) = cfg!(feature = "weaken").then(|| std::env::var_os(crate::crash::VARIABLE)).flatten() {
        command.env(crate::crash::VARIABLE, step);
    }
    Ok(Running { channel: ours, process: Some(command.spawn()?) })
}

/// Must be the first call of any program that uses this engine: in the launcher it never returns.
pub fn main_if_asked() {
    if std::env::args_os().next().is_some_and(|name| name == NAME) {
        let channel = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3);
        syscall::exit_now(main(channel.map_err(io::Error::from), Complaints::Always));
    }
}

/// For how long standard error stays the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Complaints {
    Always,
    /// A short-lived command's: whoever reads its standard error to the end must not wait until we have cleared up.
    UntilConfigured,
}

fn main(channel: io::Result<OwnedFd>, complaints: Complaints) -> i32 {
    match channel.and_then(|channel| serve(channel, complaints)) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            1
        }
    }
}

/// Everything the launcher knows.
struct Launcher {
    channel: OwnedFd,
    signals: OwnedFd,
    configuration: Configuration,
    /// Root of the host, or under Docker if that gives as much.
    privileged: bool,
    init: Program,
    sandboxes: HashMap<i32, Sandbox>,
    helpers: HashMap<i32, Helper>,
    /// Directories that hold the groups of our sandboxes.
    instance_groups: BTreeSet<PathBuf>,
    last_slot: u32,
}

/// A child that does one thing in a sandbox, and under which name it answers.
enum Helper {
    /// Makes sockets.
    Listening {
        id: String,
    },
    Packing {
        id: String,
    },
    /// Tells changes.
    Looking {
        id: String,
    },
}

/// A child that became, or is becoming, process 1 of a sandbox.
struct Sandbox {
    id: String,
    process: OwnedFd,
    /// Tells what went wrong before process 1 started.
    status: OwnedFd,
    groups: Vec<PathBuf>,
    persistent: bool,
    socket: Option<PathBuf>,
}

fn serve(channel: OwnedFd, complaints: Complaints) -> io::Result<()> {
    rustix::process::setsid().ok();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    raise_descriptor_limit();
    // Nothing of the caller's may stay open: whoever reads its output waits for the last copy to close.
    let null = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    syscall::close_on_exec_from(3)?;
    let configuration = match wire::receive(channel.as_fd())? {
        Some((ToLauncher::Configure(configuration), _)) => configuration,
        Some((
            ToLauncher::Create { .. }
            | ToLauncher::Listen { .. }
            | ToLauncher::Pack { .. }
            | ToLauncher::Look { .. }
            | ToLauncher::Destroy { .. },
            _,
        )) => return Err(io::ErrorKind::InvalidData.into()),
        // Started ahead and not needed.
        None => return Ok(()),
    };
    if complaints == Complaints::UntilConfigured {
        rustix::stdio::dup2_stderr(&null)?;
    }
    let privileged = keep_capabilities();
    let mut launcher = Launcher {
        channel,
        init: program::open(configuration.programs.as_deref().filter(|_| privileged))?,
        signals: syscall::signal_descriptor(&[libc::SIGCHLD])?,
        configuration,
        privileged,
        sandboxes: HashMap::new(),
        helpers: HashMap::new(),
        instance_groups: BTreeSet::new(),
        last_slot: std::process::id(),
    };
    while launcher.turn()? {}
    launcher.end()
}

/// As root, let a change of user leave our capabilities alone. `false` when we are not root.
fn keep_capabilities() -> bool {
    use rustix::thread::CapabilitiesSecureBits;
    let bits = CapabilitiesSecureBits::NO_SETUID_FIXUP;
    rustix::process::geteuid().is_root() && rustix::thread::set_capabilities_secure_bits(bits).is_ok()
}

/// Two descriptors for each sandbox; a thousand of them is more than the usual soft limit.
fn raise_descriptor_limit() {
    let resource = rustix::process::Resource::Nofile;
    let mut limit = rustix::process::getrlimit(resource);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(resource, limit);
}

impl Launcher {
    /// Serve one event; `false` when the server is gone.
    fn turn(&mut self) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.channel, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
        match rustix::event::poll(&mut polled, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [channel, signals] = polled.map(|descriptor| !descriptor.revents().is_empty());
        if signals {
            self.collect_dead();
        }
        if !channel {
            return Ok(true);
        }
        match wire::receive::<ToLauncher>(self.channel.as_fd())? {
            None => return Ok(false),
            Some((ToLauncher::Create { plan, wanted }, given)) => self.create(&plan, wanted, given),
            Some((ToLauncher::Listen { id, namespaces }, descriptors)) => match descriptors.into_iter().next() {
                Some(process) => self.listen(id, Way::Process { process, namespaces }),
                None => return Err(io::ErrorKind::InvalidData.into()),
            },
            Some((ToLauncher::Pack { id, request }, descriptors)) => match &descriptors[..] {
                [process, pipe] => self.pack(id, &request, process, pipe),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            },
            Some((ToLauncher::Look { id, request }, descriptors)) => match &descriptors[..] {
                [process, pipe] => self.look(id, &request, process, pipe),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            },
            Some((ToLauncher::Destroy { id }, _)) => self.destroy(&id),
            Some((ToLauncher::Configure(_), _)) => {}
        }
        Ok(true)
    }

    fn tell(&self, message: &FromLauncher, descriptors: &[std::os::fd::BorrowedFd<'_>]) {
        // A server that is gone is noticed by the next turn.
        let _ = wire::send(self.channel.as_fd(), message, descriptors);
    }

    fn destroy(&mut self, id: &str) {
        match self.sandboxes.values().find(|sandbox| sandbox.id == id) {
            // Its end is told when it is collected.
            Some(sandbox) => drop(rustix::process::pidfd_send_signal(&sandbox.process, Signal::KILL)),
            None => self.tell(&FromLauncher::Gone { id: id.to_owned() }, &[]),
        }
    }

    fn collect_dead(&mut self) {
        let mut record = [0; 128];
        while rustix::io::read(&self.signals, &mut record).is_ok() {}
        while let Ok(Some(reaped)) = syscall::reap_any() {
            if let Some(helper) = self.helpers.remove(&reaped.pid) {
                self.collect_helper(helper, reaped.status);
            }
            if let Some(mut sandbox) = self.sandboxes.remove(&reaped.pid) {
                // A successor is in them.
                if self.sandboxes.values().any(|other| other.groups == sandbox.groups) {
                    sandbox.groups.clear();
                }
                let message = sandbox.clear_away();
                self.tell(&message, &[]);
            }
        }
    }

    /// One that ended well has answered itself.
    fn collect_helper(&self, helper: Helper, status: i32) {
        if status == 0 {
            return;
        }
        let subject = format!("the child ended with status {status:#x}");
        let failure = |step: &str| Failure { step: step.to_owned(), errno: libc::EIO, subject };
        let message = match helper {
            Helper::Listening { id } => FromLauncher::NotListening { id, failure: failure("listen") },
            Helper::Looking { id } => FromLauncher::NotLooked { id, failure: failure("look") },
            Helper::Packing { id } => FromLauncher::NotPacked { id, failure: PackFailure::Step(failure("pack")) },
        };
        self.tell(&message, &[]);
    }

    /// The server is gone: end what it had, leave what is to outlive it.
    fn end(mut self) -> io::Result<()> {
        let ephemeral: Vec<i32> =
            self.sandboxes.iter().filter(|(_, sandbox)| !sandbox.persistent).map(|(&pid, _)| pid).collect();
        for pid in &ephemeral {
            let _ = rustix::process::pidfd_send_signal(&self.sandboxes[pid].process, Signal::KILL);
        }
        for pid in ephemeral {
            syscall::reap(pid)?;
            if let Some(sandbox) = self.sandboxes.remove(&pid) {
                sandbox.clear_away();
            }
        }
        for group in &self.instance_groups {
            // Stays as long as a persistent sandbox is in it.
            let _ = std::fs::remove_dir(group);
        }
        let _ = std::fs::remove_file(&self.configuration.instance_lock);
        Ok(())
    }
}

impl Sandbox {
    /// Process 1 is gone and with it every process, mount and namespace; what is left are names.
    fn clear_away(self) -> FromLauncher {
        crate::crash::here("clear-groups");
        for group in &self.groups {
            let _ = cgroup::remove(group);
        }
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
        crate::crash::here("report-end");
        match read_failure(&self.status) {
            Some(failure) => FromLauncher::NotCreated { id: self.id, failure },
            None => FromLauncher::Gone { id: self.id },
        }
    }
}

fn failed(step: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure {
        step: step.to_owned(),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
        subject: error.to_string(),
    }
}

fn read_failure(status: &OwnedFd) -> Option<Failure> {
    let mut bytes = vec![0; 4096];
    let count = rustix::io::read(status, &mut bytes).ok()?;
    postcard::from_bytes(&bytes[..count]).ok()
}

fn persistent(plan: &Plan) -> bool {
    matches!(plan.init, Init::Listening { .. })
}
