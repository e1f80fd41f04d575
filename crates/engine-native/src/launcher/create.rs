//! The parent's side of building a sandbox.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::fs::Uid;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use super::inherit::{Estate, Maps};
use super::listen::Way;
use super::{FromLauncher, Launcher, Sandbox, Wanted, failed, persistent};
use crate::cgroup::{self, Version};
use crate::crash;
use crate::ids::{Extent, Pool};
use crate::image::User;
use crate::jail::{self, Failure, Held, Inherited, Inheriting};
use crate::plan::{Heir, Identity, Init, Mount, Plan, Rights, Root};
use crate::syscall::{self, Cloned};

/// The steps of the parent, in order.
pub const STEPS: &[&str] = &[
    "inherit",
    "take-ids",
    "make-groups",
    "open-trees",
    "open-channel",
    "clone",
    "write-id-maps",
    "shift-owners",
    "prefer-for-oom",
    "release",
    "report",
];

/// Undone when it is dropped: a creation that fails half-way leaves nothing.
#[derive(Default)]
struct Begun {
    groups: Vec<PathBuf>,
    socket: Option<PathBuf>,
    process: Option<(i32, OwnedFd)>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some((pid, process)) = self.process.take() {
            let _ = rustix::process::pidfd_send_signal(&process, rustix::process::Signal::KILL);
            let _ = syscall::reap(pid);
        }
        for group in self.groups.drain(..) {
            let _ = cgroup::remove(&group);
        }
        if let Some(socket) = self.socket.take() {
            let _ = std::fs::remove_file(socket);
        }
    }
}

impl Launcher {
    pub(super) fn create(&mut self, plan: &Plan, wanted: Wanted, given: Vec<OwnedFd>) {
        match self.try_create(plan, wanted, given) {
            // Only now: a child that is made while the descriptors of a creation are open would have them too.
            Ok(Some(way)) => self.listen(plan.id.clone(), way),
            Ok(None) => {}
            Err(failure) => self.tell(&FromLauncher::NotCreated { id: plan.id.clone(), failure }, &[]),
        }
    }

    /// The way into its network, when that is wanted.
    fn try_create(&mut self, plan: &Plan, wanted: Wanted, given: Vec<OwnedFd>) -> Result<Option<Way>, Failure> {
        let mut begun = Begun::default();

        crash::here("inherit");
        let (mut estate, holds) = match (plan.inheritance, given.first()) {
            (None, _) => (None, given),
            (Some(inheritance), Some(process)) => {
                let mut estate = Estate::of(process, inheritance).map_err(failed("inherit"))?;
                let holds = std::mem::take(&mut estate.holds);
                (Some(estate), holds)
            }
            (Some(_), None) => return Err(failed("inherit")(io::ErrorKind::InvalidInput.into())),
        };

        crash::here("take-ids");
        let (maps, lock) = match estate.as_mut().and_then(|estate| estate.ids.take()) {
            Some((maps, lock)) => (Some(maps), lock),
            None => self.take_ids(plan.identity, plan.user).map_err(failed("take-ids"))?,
        };

        crash::here("make-groups");
        let parents = plan.cgroups.iter().filter_map(|leaf| leaf.directory.parent());
        self.instance_groups.extend(parents.map(PathBuf::from));
        let (group, tasks) = make_groups(plan, &mut begun).map_err(failed("make-groups"))?;

        crash::here("open-trees");
        let sources = match self.privileged {
            true => Some(jail::open_sources(plan).map_err(|error| error.into_failure("open-sources"))?),
            false => None,
        };
        let inherited = match estate {
            Some(Estate { tree, .. }) if self.privileged => {
                Some(Inheriting::Copied(tree.copied().map_err(|error| error.into_failure("open-frozen"))?))
            }
            Some(Estate { tree, .. }) => Some(Inheriting::Raw(tree)),
            None => None,
        };

        crash::here("open-channel");
        let (ours, theirs) = open_channel(plan, &mut begun).map_err(failed("open-channel"))?;
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from);
        let (go, release) = pipe().map_err(failed("open-channel"))?;
        let (status, report) = pipe().map_err(failed("open-channel"))?;
        let init = self.init.try_clone().map_err(failed("open-channel"))?;

        crash::here("clone");
        let owner = maps.as_ref().and_then(|(users, _)| users.first()).filter(|_| self.privileged);
        let cloned = owned_by(owner.map(|extent| extent.outside), || {
            syscall::clone_into_namespaces(plan.namespaces, group.as_ref().map(AsFd::as_fd))
        });
        let (pid, process) = match cloned.map_err(failed("clone"))? {
            Cloned::Parent { pid, descriptor } => (pid, descriptor),
            Cloned::Child => {
                // Ours to keep open, or the child would hold its own life line.
                drop((release, ours, status));
                let held = Held { go, sources, cgroups: tasks, channel: theirs, lock, holds, init, inherited };
                let failure = jail::enter(plan, held);
                if let Ok(bytes) = postcard::to_stdvec(&failure) {
                    let _ = rustix::io::write(&report, &bytes);
                }
                syscall::exit_now(1);
            }
        };
        begun.process = Some((pid, process));

        crash::here("write-id-maps");
        if let Some(maps) = &maps {
            write_maps(pid, maps, self.configuration.pool).map_err(failed("write-id-maps"))?;
        }

        crash::here("shift-owners");
        if let (Some(sources), Some(_)) = (&sources, &maps) {
            shift_owners(plan, pid, sources).map_err(failed("shift-owners"))?;
        }
        if let (Some(Inheriting::Copied(inherited)), Some(_)) = (&inherited, &maps) {
            shift_inherited(pid, inherited).map_err(failed("shift-inherited"))?;
        }

        crash::here("prefer-for-oom");
        // When memory runs out on the host, a sandbox must go before the server and before anything of the user's.
        std::fs::write(format!("/proc/{pid}/oom_score_adj"), "500").map_err(failed("prefer-for-oom"))?;

        let way = match wanted {
            Wanted::Sandbox => None,
            Wanted::SandboxAndSockets => Some(Way::of_child(pid, plan.namespaces).map_err(failed("join-network"))?),
        };

        crash::here("release");
        rustix::io::write(&release, b"!").map_err(|error| failed("release")(error.into()))?;

        crash::here("report");
        begun.groups.clear();
        let Some((pid, process)) = begun.process.take() else { return Ok(None) };
        let channel = ours.as_ref().map(AsFd::as_fd);
        let descriptors: Vec<_> = [process.as_fd()].into_iter().chain(channel).collect();
        self.tell(&FromLauncher::Started { id: plan.id.clone() }, &descriptors);
        let sandbox = Sandbox {
            id: plan.id.clone(),
            process,
            status,
            groups: plan.cgroups.iter().map(|leaf| leaf.directory.clone()).collect(),
            persistent: persistent(plan),
            socket: begun.socket.take(),
        };
        self.sandboxes.insert(pid, sandbox);
        Ok(way)
    }

    fn take_ids(&mut self, identity: Identity, user: User) -> io::Result<(Option<Maps>, Option<OwnedFd>)> {
        match (identity, self.configuration.pool) {
            (Identity::OwnRange, Some(pool)) => {
                let (slot, lock) = pool.take(&self.configuration.id_locks, self.last_slot)?;
                self.last_slot = slot;
                Ok((Some(pool.maps(slot, user)), Some(lock)))
            }
            (Identity::SharedRange, Some(pool)) => Ok((Some(pool.maps(0, user)), None)),
            (Identity::Images, pool) => match pool.and_then(Pool::image_ids) {
                Some(ids) => Ok((Some(ids.maps()), None)),
                None => Err(io::Error::from_raw_os_error(libc::EUSERS)),
            },
            (Identity::Single, _) => {
                let own = |inside, outside| vec![Extent { inside, outside, count: 1 }];
                let users = own(user.id, rustix::process::geteuid().as_raw());
                Ok((Some((users, own(user.group, rustix::process::getegid().as_raw()))), None))
            }
            (Identity::Host, _) => Ok((None, None)),
            (Identity::OwnRange | Identity::SharedRange, None) => Err(io::Error::from_raw_os_error(libc::EUSERS)),
        }
    }
}

/// Do something as another user and come back, so that what the kernel counts by the maker of a user namespace is counted
/// for each sandbox and not for root. Our capabilities stay with us, see `keep_capabilities`.
fn owned_by(user: Option<u32>, work: impl FnOnce() -> io::Result<Cloned>) -> io::Result<Cloned> {
    let Some(user) = user else { return work() };
    rustix::thread::set_thread_res_uid(None, Uid::from_raw(user), None)?;
    let result = work();
    if let Ok(Cloned::Parent { .. }) | Err(_) = &result {
        rustix::thread::set_thread_res_uid(None, Uid::ROOT, None)?;
    }
    result
}

/// Make all groups; on version 2 the child is cloned into its directory, on version 1 it joins by the files.
fn make_groups(plan: &Plan, begun: &mut Begun) -> io::Result<(Option<OwnedFd>, Vec<std::fs::File>)> {
    let mut directory = None;
    let mut tasks = Vec::new();
    let has_them = plan.inheritance.is_some_and(|inheritance| inheritance.heir == Heir::Successor);
    for leaf in &plan.cgroups {
        if !has_them {
            begun.groups.push(leaf.directory.clone());
            cgroup::create(leaf)?;
        }
        match leaf.version {
            Version::V1 => tasks.push(OpenOptions::new().write(true).open(leaf.directory.join("tasks"))?),
            Version::V2 => {
                let flags = libc::O_DIRECTORY | libc::O_PATH;
                directory = Some(OpenOptions::new().read(true).custom_flags(flags).open(&leaf.directory)?.into());
            }
        }
    }
    Ok((directory, tasks))
}

/// The server's end, if it is made here, and process 1's.
fn open_channel(plan: &Plan, begun: &mut Begun) -> io::Result<(Option<OwnedFd>, OwnedFd)> {
    match &plan.init {
        Init::Attached => {
            let (ours, theirs) =
                rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
            Ok((Some(ours), theirs))
        }
        Init::Listening { socket, .. } => {
            let listener =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
            rustix::net::bind(&listener, &SocketAddrUnix::new(socket.as_path())?)?;
            begun.socket = Some(socket.clone());
            // So that the server can connect before process 1 runs; its own `listen` then makes it the peer.
            rustix::net::listen(&listener, 64)?;
            Ok((None, listener))
        }
    }
}

fn write_maps(pid: i32, (users, groups): &Maps, pool: Option<Pool>) -> io::Result<()> {
    let own = rustix::process::geteuid();
    let has_others = users.iter().any(|extent| extent.outside != own.as_raw() || extent.count > 1);
    match pool {
        Some(Pool::Subordinate { .. }) if has_others && !own.is_root() => {
            map_with_helper("newuidmap", pid, users)?;
            map_with_helper("newgidmap", pid, groups)
        }
        _ => {
            if !own.is_root() {
                // The kernel asks for it before an ordinary user may map a group.
                std::fs::write(format!("/proc/{pid}/setgroups"), "deny")?;
            }
            let text = |extents: &[Extent]| -> String {
                extents.iter().map(|e| format!("{} {} {}\n", e.inside, e.outside, e.count)).collect()
            };
            std::fs::write(format!("/proc/{pid}/uid_map"), text(users))?;
            std::fs::write(format!("/proc/{pid}/gid_map"), text(groups))
        }
    }
}

/// Let the trees of images have the owners inside that they have outside: what is root's there is the sandbox's root's.
/// Changes the mounts that the child has descriptors of as well, which waits until this is done.
fn shift_owners(plan: &Plan, pid: i32, trees: &[OwnedFd]) -> io::Result<()> {
    let layers = match &plan.root {
        Root::ReadOnly { .. } => &[][..],
        Root::Overlay { sources } => sources,
    };
    let attached = plan.mounts.iter().filter_map(|mount| match mount {
        Mount::Tree { source, .. } => Some(source),
        Mount::Bind { .. }
        | Mount::Writable { .. }
        | Mount::Private { .. }
        | Mount::Processes { .. }
        | Mount::Devices { .. }
        | Mount::Hidden { .. }
        | Mount::ReadOnly { .. } => None,
    });
    let shifted: Vec<&OwnedFd> = layers.iter().chain(attached).filter_map(|&source| trees.get(source)).collect();
    if shifted.is_empty() {
        return Ok(());
    }
    let namespace = std::fs::File::open(format!("/proc/{pid}/ns/user"))?;
    for tree in shifted {
        match syscall::map_owners(tree.as_fd(), namespace.as_fd()) {
            // Under Docker it is not for us to do, and some file systems cannot. The owners are strangers inside then.
            // Root could not change them, and has to know.
            Err(error)
                if plan.rights == Rights::Nothing
                    && matches!(error.raw_os_error(), Some(libc::EPERM | libc::EINVAL | libc::EOPNOTSUPP)) => {}
            result => result?,
        }
    }
    Ok(())
}

/// The same for frozen layers, whose owners' numbers in the sandbox that made them are to be the same here. What cannot be
/// shifted may belong to ids of another one, and must not be seen at all.
fn shift_inherited(pid: i32, inherited: &Inherited) -> io::Result<()> {
    let namespace = std::fs::File::open(format!("/proc/{pid}/ns/user"))?;
    for layer in inherited.layers.iter().filter_map(|layer| layer.mounted.as_ref()) {
        syscall::map_owners(layer.as_fd(), namespace.as_fd())?;
    }
    Ok(())
}

/// An ordinary user may not map other ids; these set-id programs check `/etc/subuid` and do it.
pub(crate) fn map_with_helper(helper: &str, pid: i32, extents: &[Extent]) -> io::Result<()> {
    let numbers = extents.iter().flat_map(|extent| [extent.inside, extent.outside, extent.count]);
    let mut child = Command::new(helper)
        .arg(pid.to_string())
        .args(numbers.map(|number| number.to_string()))
        .env("PATH", "/usr/bin:/bin:/usr/local/bin")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    if child.wait()?.success() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}
