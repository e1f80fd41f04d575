//! The child's side of building a sandbox: from a clone of the launcher to process 1 behind every wall.
//!
//! Runs alone: no threads, no runtime, no log but the status pipe. It decides nothing; what to do is in the plan. The list
//! below is the whole of it, in order, and the order matters:
//!
//! - Host trees are opened while we still have the rights of whoever runs the engine; everything after that happens with
//!   the ids of the sandbox.
//! - Descriptors are put in their places before there is a limit on their numbers.
//! - The cgroup namespace is made after joining the cgroup, or the sandbox would see its parent's.
//! - Walls that could keep us from building others come last, and the filter that allows only harmless calls must still
//!   allow the two that follow it: dropping capabilities and starting process 1.

mod inherit;
mod mounts;
mod privileges;
mod skeleton;

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Gid, Mode, OFlags, Uid};
use serde::{Deserialize, Serialize};

use crate::launcher::Program;
use crate::plan::{Identity, Init, Mount, Plan, Resource, Rights};
use crate::seccomp;
use crate::syscall;
use crate::wire::{INIT_CHANNEL, INIT_FROZEN, INIT_HOLDS, INIT_LOCK, INIT_SCRATCH, MOST_FROZEN};

/// Above all fixed numbers.
const ASIDE: i32 = INIT_FROZEN + MOST_FROZEN as i32;

type Step = fn(&mut Jail) -> Result<(), StepError>;

const STEPS: &[(&str, Step)] = &[
    ("await-ids", Jail::await_ids),
    ("join-cgroups", Jail::join_cgroups),
    ("cgroup-namespace", Jail::cgroup_namespace),
    ("kernel-objects", Jail::kernel_objects),
    ("private-mounts", Jail::private_mounts),
    ("open-sources", Jail::open_sources),
    ("open-frozen", Jail::open_frozen),
    ("become-root", Jail::become_root),
    ("writable-layer", Jail::writable_layer),
    ("fill-layer", Jail::fill_layer),
    ("belongings", Jail::unpack_belongings),
    ("root", Jail::build_root),
    ("mounts", Jail::build_mounts),
    ("pivot", Jail::pivot),
    ("host-name", Jail::host_name),
    ("loopback", Jail::loopback),
    ("descriptors", Jail::descriptors),
    ("rlimits", Jail::rlimits),
    ("no-new-privileges", Jail::no_new_privileges),
    ("landlock", Jail::landlock),
    ("seccomp", Jail::seccomp),
    ("capabilities", Jail::capabilities),
    ("start-init", Jail::start_init),
];

/// The names of the steps, in order.
pub fn steps() -> impl Iterator<Item = &'static str> {
    STEPS.iter().map(|(name, _)| *name)
}

/// What stopped the building of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub step: String,
    pub errno: i32,
    /// What was being worked on, with host paths: for the log.
    pub subject: String,
}

pub use inherit::{Inherited, Inheriting, Raw};
pub(crate) use mounts::{BELONGINGS, open_sources};

#[derive(Debug)]
pub(crate) struct StepError {
    error: io::Error,
    subject: String,
}

impl StepError {
    fn about(subject: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |error| Self { error: error.into(), subject: subject.into() }
    }

    fn with(subject: impl Into<String>, error: io::Error) -> Self {
        Self { error, subject: subject.into() }
    }
}

impl StepError {
    pub(crate) fn into_failure(self, step: &str) -> Failure {
        let errno = self.error.raw_os_error().unwrap_or(libc::EIO);
        Failure { step: step.to_owned(), errno, subject: self.subject }
    }
}

impl From<io::Error> for StepError {
    fn from(error: io::Error) -> Self {
        Self { error, subject: String::new() }
    }
}

impl From<rustix::io::Errno> for StepError {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}

/// Descriptors that the launcher opened for this sandbox.
#[derive(Debug)]
pub struct Held {
    /// Gives one byte when the id maps are written, and ends when the launcher does.
    pub go: OwnedFd,
    /// The plan's trees, when the launcher may open them.
    pub sources: Option<Vec<OwnedFd>>,
    /// The `tasks` files of version 1 groups.
    pub cgroups: Vec<std::fs::File>,
    pub channel: OwnedFd,
    pub lock: Option<OwnedFd>,
    /// What keeps the image and the trees that are attached.
    pub holds: Vec<OwnedFd>,
    pub init: Program,
    /// What it has from another sandbox.
    pub inherited: Option<Inheriting>,
}

pub(crate) struct Jail {
    plan: Plan,
    held: Held,
    /// In the order of the plan's; `None` once mounted.
    sources: Vec<Option<OwnedFd>>,
    fill: Vec<File>,
    belongings: Option<File>,
    /// The writable layer where it is attached while the tree is being built.
    scratch: Option<OwnedFd>,
    /// The same, for process 1 to hold.
    kept_scratch: Option<OwnedFd>,
    root: Option<OwnedFd>,
    inherited: Option<Inherited>,
}

/// Build the sandbox and become its process 1. Returns only when a step fails.
pub fn enter(plan: &Plan, held: Held) -> Failure {
    let plan = plan.clone();
    let mut jail = Jail {
        plan,
        held,
        sources: Vec::new(),
        fill: Vec::new(),
        belongings: None,
        scratch: None,
        kept_scratch: None,
        root: None,
        inherited: None,
    };
    for (name, step) in STEPS {
        crate::crash::here(name);
        if let Err(error) = step(&mut jail) {
            return error.into_failure(name);
        }
    }
    Failure { step: "start-init".to_owned(), errno: libc::EIO, subject: String::new() }
}

impl Jail {
    fn await_ids(&mut self) -> Result<(), StepError> {
        let mut go = [0];
        std::fs::File::from(self.held.go.try_clone()?).read_exact(&mut go)?;
        Ok(())
    }

    fn join_cgroups(&mut self) -> Result<(), StepError> {
        for tasks in &mut self.held.cgroups {
            tasks.write_all(b"0")?;
        }
        Ok(())
    }

    fn cgroup_namespace(&mut self) -> Result<(), StepError> {
        if self.plan.cgroup_namespace {
            syscall::unshare_cgroup_namespace()?;
        }
        Ok(())
    }

    /// A sandbox that has a `/proc` of its own is bounded there, when that is mounted: in the host's, the kernel looks a setting of user
    /// namespaces up among those of all of them, and each sandbox would make the next one slower.
    fn kernel_objects(&mut self) -> Result<(), StepError> {
        let has_its_own = self.plan.mounts.iter().any(|mount| matches!(mount, Mount::Processes { .. }));
        if has_its_own { Ok(()) } else { self.bound_kernel_objects(File::open("/proc")?) }
    }

    /// Objects that the kernel counts for whoever made the user namespace as well: one sandbox must not use up what all
    /// of them, and that user's other programs, have together.
    fn bound_kernel_objects(&self, processes: impl AsFd) -> Result<(), StepError> {
        if self.plan.namespaces & libc::CLONE_NEWUSER as u64 == 0 {
            return Ok(());
        }
        for (name, most) in [("max_inotify_instances", "16"), ("max_inotify_watches", "8192")] {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let setting = rustix::fs::openat(&processes, format!("sys/user/{name}"), flags, Mode::empty())
                .map_err(StepError::about(name))?;
            File::from(setting).write_all(most.as_bytes()).map_err(|error| StepError::with(name, error))?;
        }
        Ok(())
    }

    fn become_root(&mut self) -> Result<(), StepError> {
        let (user, group) = match self.plan.identity {
            Identity::OwnRange | Identity::SharedRange | Identity::Images => {
                rustix::thread::set_thread_groups(&[])?;
                (Uid::ROOT, Gid::ROOT)
            }
            Identity::Host => (Uid::ROOT, Gid::ROOT),
            // There is one id, and it is the sandbox's user.
            Identity::Single => (Uid::from_raw(self.plan.user.id), Gid::from_raw(self.plan.user.group)),
        };
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
        rustix::process::umask(Mode::empty());
        Ok(())
    }

    fn host_name(&mut self) -> Result<(), StepError> {
        if self.plan.namespaces & libc::CLONE_NEWUTS as u64 != 0 {
            rustix::system::sethostname(self.plan.host_name.as_bytes())?;
        }
        Ok(())
    }

    /// Programs expect to reach themselves; there is nothing else to reach.
    fn loopback(&mut self) -> Result<(), StepError> {
        if self.plan.namespaces & libc::CLONE_NEWNET as u64 != 0 {
            let socket = rustix::net::socket_with(
                rustix::net::AddressFamily::INET,
                rustix::net::SocketType::DGRAM,
                rustix::net::SocketFlags::CLOEXEC,
                None,
            )?;
            syscall::raise_loopback(socket.as_fd())?;
        }
        Ok(())
    }

    fn rlimits(&mut self) -> Result<(), StepError> {
        for rlimit in &self.plan.rlimits {
            let resource = match rlimit.resource {
                Resource::Processes => rustix::process::Resource::Nproc,
                Resource::OpenFiles => rustix::process::Resource::Nofile,
                Resource::CoreSize => rustix::process::Resource::Core,
                Resource::LockedMemory => rustix::process::Resource::Memlock,
                Resource::MessageQueues => rustix::process::Resource::Msgqueue,
                Resource::PendingSignals => rustix::process::Resource::Sigpending,
            };
            // A hard limit that is already lower cannot be raised, and need not be.
            let hard = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
            let limit = Some(rlimit.limit.min(hard));
            rustix::process::setrlimit(resource, rustix::process::Rlimit { current: limit, maximum: limit })
                .map_err(StepError::about(format!("{resource:?}")))?;
        }
        Ok(())
    }

    /// Process 1 gets its channel and what it holds at fixed numbers, nothing on its standard streams, and nothing else.
    fn descriptors(&mut self) -> Result<(), StepError> {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        // First out of the way of the fixed numbers, then onto them.
        let aside = |descriptor: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(descriptor, ASIDE);
        let several = |descriptors: &[&OwnedFd]| {
            descriptors.iter().map(|descriptor| aside(descriptor)).collect::<rustix::io::Result<Vec<_>>>()
        };
        let channel = aside(&self.held.channel)?;
        let lock = self.held.lock.as_ref().map(aside).transpose()?;
        let scratch = self.kept_scratch.as_ref().map(aside).transpose()?;
        let holds = several(&self.held.holds.iter().collect::<Vec<_>>())?;
        let layers = self.inherited.iter().flat_map(|inherited| &inherited.layers);
        let frozen = several(&layers.map(|layer| &layer.kept).collect::<Vec<_>>())?;
        self.held.init.descriptor = aside(&self.held.init.descriptor)?;
        syscall::close_on_exec_from(INIT_CHANNEL)?;
        let fixed = [(Some(channel), INIT_CHANNEL), (lock, INIT_LOCK), (scratch, INIT_SCRATCH)];
        let rows = [(holds, INIT_HOLDS), (frozen, INIT_FROZEN)];
        let rows = rows.into_iter().flat_map(|(row, first)| row.into_iter().map(Some).zip(first..));
        for (held, number) in fixed.into_iter().chain(rows) {
            if let Some(held) = held {
                syscall::place_descriptor(held.as_fd(), number)?;
            }
        }
        Ok(())
    }

    fn no_new_privileges(&mut self) -> Result<(), StepError> {
        if self.plan.no_new_privileges {
            rustix::thread::set_no_new_privs(true)?;
        }
        Ok(())
    }

    fn landlock(&mut self) -> Result<(), StepError> {
        let Some(landlock) = &self.plan.landlock else { return Ok(()) };
        let init = self.held.init.is_file.then(|| self.held.init.descriptor.as_fd());
        privileges::restrict_files(landlock, init)
    }

    fn seccomp(&mut self) -> Result<(), StepError> {
        if self.plan.seccomp {
            syscall::install_seccomp(seccomp::program())?;
        }
        Ok(())
    }

    fn capabilities(&mut self) -> Result<(), StepError> {
        if self.plan.drop_capabilities {
            privileges::keep_few(self.plan.rights)?;
        }
        Ok(())
    }

    fn start_init(&mut self) -> Result<(), StepError> {
        let user = self.plan.user;
        let mut argv = vec!["init".to_owned(), user.id.to_string(), user.group.to_string()];
        let role = match self.plan.rights {
            Rights::Nothing => "guest",
            Rights::Root => "root",
            Rights::Installing => "builder",
        };
        argv.push(role.to_owned());
        match &self.plan.init {
            Init::Attached => argv.push("attached".to_owned()),
            Init::Listening { idle_milliseconds, on_trial, .. } => {
                let word = if *on_trial { "on-trial" } else { "listening" };
                argv.extend([word.to_owned(), idle_milliseconds.to_string()]);
            }
        }
        // Asked for by tests, and understood only by what was built for them.
        if !self.plan.drop_capabilities {
            argv.push("keep-capabilities".to_owned());
        }
        if !self.plan.close_descriptors {
            argv.push("leak-descriptor".to_owned());
        }
        let argv: Vec<CString> = argv.into_iter().filter_map(|text| CString::new(text).ok()).collect();
        Err(syscall::exec_descriptor(self.held.init.descriptor.as_fd(), &argv).into())
    }
}
