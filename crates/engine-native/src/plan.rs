//! A sandbox as data: everything that will be done to build it, decided before anything is done.
//!
//! Pure. The launcher and the jail carry a plan out without deciding anything, so what a plan says is what stands around a
//! sandbox, and a test can read it without root.

use std::collections::BTreeSet;
use std::path::PathBuf;

use sandbox::{Layer, Limits, Persistence, Role, SandboxId, SandboxSpec};
use serde::{Deserialize, Serialize};

use crate::cgroup::{self, Leaf, Place};
use crate::image::{self, Belongings, Fill, User, WorkDirectory};
use crate::skeleton::RootLayout;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub id: String,
    pub host_name: String,
    /// `CLONE_NEW*` bits.
    pub namespaces: u64,
    pub cgroup_namespace: bool,
    pub identity: Identity,
    /// Whom programs run as, inside.
    pub user: User,
    pub rights: Rights,
    /// Whether the small tree that every root starts from is copied for the sandbox's root, which could not change it
    /// otherwise: as an ordinary user no mount can say whose it is.
    pub copies_skeleton: bool,
    pub cgroups: Vec<Leaf>,
    /// Trees of the host that mounts refer to by index. Opened with the rights of whoever runs the engine, before the
    /// change to the sandbox's ids, because a directory on the way to one may be closed to those.
    pub sources: Vec<PathBuf>,
    pub root: Root,
    /// What it has from another sandbox.
    pub inheritance: Option<Inheritance>,
    pub scratch: Scratch,
    /// Those of the writable layer that are there from the start.
    pub directories: Vec<Directory>,
    /// Layers that it begins with beside those.
    pub fill: Vec<Fill>,
    /// A layer that lies over the image, with what is the user's in it.
    pub belongings: Option<Fill>,
    pub mounts: Vec<Mount>,
    pub no_new_privileges: bool,
    pub drop_capabilities: bool,
    pub close_descriptors: bool,
    pub landlock: Option<Landlock>,
    /// Whether the filter is installed; its instructions are the same for all and sent once.
    pub seccomp: bool,
    pub rlimits: Vec<Rlimit>,
    pub init: Init,
}

/// Which ids of the host stand behind those of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Identity {
    /// A range that no other sandbox has; the launcher picks a free one.
    OwnRange,
    /// One range for all sandboxes.
    SharedRange,
    /// Those that an ordinary user's images have on disk.
    Images,
    /// Only the user who runs the engine.
    Single,
    /// No user namespace at all.
    Host,
}

/// What programs may do beyond what their user may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rights {
    Nothing,
    /// They are root of the sandbox, and have what installing programs takes.
    Root,
    /// The same, and process 1 may be asked to start programs as others.
    Installing,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Root {
    /// A prepared tree, read-only.
    ReadOnly { source: usize },
    /// Trees on top of each other, the first one on top, and a writable layer above them.
    Overlay { sources: Vec<usize> },
}

/// Files of another sandbox that lie over those of the image. Whoever asks for the sandbox says which one that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inheritance {
    pub heir: Heir,
    /// How many descriptors keep its image and what is attached.
    pub holds: usize,
    /// How many of its frozen layers, from the lowest on.
    pub layers: usize,
    /// Whether its writable layer, as it is now, is frozen and lies over them.
    pub freeze: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Heir {
    /// The same sandbox with a new process 1: has its ids, groups and logs as well.
    Successor,
    /// Another sandbox, with ids of its own.
    Fork,
}

impl Inheritance {
    pub fn count(self) -> usize {
        self.layers + usize::from(self.freeze)
    }
}

/// What frozen layers hold, which counts against the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub bytes: u64,
    pub inodes: u64,
}

impl Held {
    /// What the kernel keeps of it in memory.
    pub fn memory(&self) -> u64 {
        self.bytes.saturating_add(self.inodes.saturating_mul(INODE))
    }
}

/// What a file takes besides its contents: an inode of a file system in memory (752 bytes on Linux 6) and the entry of its
/// name (192), rounded up for long names and for what security modules add.
const INODE: u64 = 1024;

/// The one writable layer. In memory, so it needs no clearing away and ends with the sandbox.
///
/// `upper` in it holds all that programs can change, under the paths that it has inside: what is below it, and nothing
/// else, is what a sandbox makes of its image. What only the sandbox itself needs lies beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scratch {
    pub bytes: Option<u64>,
    pub inodes: Option<u64>,
}

/// One that is there whatever the image has at this path. What it has in it is seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    pub path: String,
    pub mode: u32,
    pub owner: DirectoryOwner,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mount {
    /// A tree of the host, read-only.
    Bind { source: usize, target: String },
    /// A kept tree, read-only, with owners as in a layer of an image.
    Tree { source: usize, target: String },
    /// A directory of the writable layer, where the root is not an overlay that has it already.
    Writable { target: String },
    /// One that is no part of the tree, closed to programs.
    Private { target: String },
    /// The sandbox's own processes.
    Processes { target: String },
    /// Harmless devices, terminals of its own, shared memory in the writable layer.
    Devices { target: String, nodes: Vec<usize> },
    /// Hidden behind something empty, when it is there.
    Hidden { target: String },
    /// Closed for writing, when it is there.
    ReadOnly { target: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DirectoryOwner {
    Root,
    User,
    /// As in the image, of which this is a copy with nothing in it.
    Somebody(User),
}

/// Where the sandbox may write; everything else it may only read and execute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landlock {
    pub writable: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    pub resource: Resource,
    pub limit: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resource {
    Processes,
    OpenFiles,
    CoreSize,
    LockedMemory,
    MessageQueues,
    PendingSignals,
}

/// How process 1 is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Init {
    Attached,
    Listening {
        socket: PathBuf,
        idle_milliseconds: u64,
        /// Ends with the connection of whoever made it, unless that one has said that it stays.
        on_trial: bool,
    },
}

/// What a plan is made from.
#[derive(Debug)]
pub struct Request<'a> {
    pub id: &'a SandboxId,
    pub spec: &'a SandboxSpec,
    pub instance: &'a str,
    pub root: &'a RootLayout,
    pub places: &'a [Place],
    /// The layers to build; a layer that is not in here will be missing and reported so.
    pub walls: &'a BTreeSet<Layer>,
    pub single_id: bool,
    /// Whether mounts can say whose files are.
    pub shifts_owners: bool,
    pub socket: PathBuf,
    pub inheritance: Option<Inheritance>,
    /// By the layers that it inherits.
    pub held: Held,
    /// Groups that are there already, those of the sandbox that it succeeds.
    pub groups: Option<&'a [PathBuf]>,
}

/// Which of the sources is the small tree that every root starts from.
pub const SKELETON: usize = 0;

/// Processes of ours that count as root's where programs are root.
const ROOT_HELPERS: u64 = 8;

/// Nodes that give nothing away and take nothing in.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Files of `/proc` that tell about the host, or that only root could use and should not be able to.
const HIDDEN: &[&str] = &[
    "acpi",
    "asound",
    "buddyinfo",
    "bus",
    "cmdline",
    "config.gz",
    "diskstats",
    "driver",
    "fs",
    "interrupts",
    "iomem",
    "ioports",
    "irq",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "latency_stats",
    "modules",
    "mtrr",
    "partitions",
    "pressure",
    "sched_debug",
    "schedstat",
    "scsi",
    "slabinfo",
    "softirqs",
    "swaps",
    "sysrq-trigger",
    "timer_list",
    "timer_stats",
    "vmallocinfo",
    "zoneinfo",
];

/// The limits that will really hold. Files live in memory and count there too, so a disk larger than the memory could only
/// end in a kill; a quarter is left for programs.
pub fn enforced_limits(limits: &Limits) -> Limits {
    let most = limits.memory.bytes() / 4 * 3;
    Limits { disk: sandbox::ByteSize::new(limits.disk.bytes().min(most)), ..*limits }
}

pub fn plan(request: &Request<'_>) -> Plan {
    let has = |layer: Layer| request.walls.contains(&layer);
    let limits = limits_left(&request.spec.limits, request.inheritance, request.held);
    let frozen = request.inheritance.map_or(0, Inheritance::count);
    let own = belongings(request);
    let rights = rights(request);
    let mut sources = vec![request.root.skeleton.clone()];
    let mut source = |path: PathBuf| {
        sources.push(path);
        sources.len() - 1
    };
    let root = match &request.root.lowers[..] {
        [] if rights == Rights::Nothing && frozen == 0 && request.root.fill.is_empty() => {
            Root::ReadOnly { source: SKELETON }
        }
        lowers => {
            Root::Overlay { sources: [SKELETON].into_iter().chain(lowers.iter().cloned().map(&mut source)).collect() }
        }
    };
    let mut mounts: Vec<Mount> = request
        .root
        .binds
        .iter()
        .map(|bind| Mount::Bind {
            source: source(bind.source.clone()),
            target: String::from_utf8_lossy(bind.target.as_bytes()).into_owned(),
        })
        .collect();
    if !has(Layer::PivotedRoot) {
        mounts.push(Mount::Bind { source: source(PathBuf::from("/")), target: "/mnt".to_owned() });
    }
    let directory = |path: &str, mode, owner| {
        let before = request.root.modes.iter().find(|(known, _)| known == path).map(|(_, mode)| *mode);
        Directory { path: path.to_owned(), mode: before.unwrap_or(mode), owner }
    };
    let directories = match request.spec.role {
        Role::Guest | Role::ImageUser(_) => {
            // Process 1 keeps the output of detached commands there.
            mounts.push(Mount::Private { target: "/run".to_owned() });
            // Frozen layers have them, as programs left them.
            let given = image::GIVEN.map(|path| match path {
                "/tmp" => directory(path, 0o1777, DirectoryOwner::Root),
                path => directory(path, 0o755, DirectoryOwner::User),
            });
            let own = given.into_iter().chain(request.root.work_directory.made.iter().cloned());
            own.filter(|_| frozen == 0).collect()
        }
        Role::Builder => Vec::new(),
    };
    if let Root::ReadOnly { .. } = root {
        mounts.extend(directories.iter().map(|directory| Mount::Writable { target: directory.path.clone() }));
    }
    mounts.extend(request.root.attachments.iter().map(|tree| Mount::Tree {
        source: source(tree.source.clone()),
        target: String::from_utf8_lossy(tree.target.as_bytes()).into_owned(),
    }));
    let target = "/proc".to_owned();
    mounts.push(match has(Layer::PidNamespace) {
        true => Mount::Processes { target },
        // The kernel shows processes only to a namespace that has its own.
        false => Mount::Bind { source: source(PathBuf::from("/proc")), target },
    });
    let nodes = DEVICES.iter().map(|name| source(PathBuf::from("/dev").join(name))).collect();
    mounts.push(Mount::Devices { target: "/dev".to_owned(), nodes });
    if has(Layer::MaskedPaths) {
        mounts.extend(HIDDEN.iter().map(|name| Mount::Hidden { target: format!("/proc/{name}") }));
        mounts.push(Mount::ReadOnly { target: "/proc/sys".to_owned() });
    }

    Plan {
        id: request.id.to_string(),
        host_name: request.spec.name.as_ref().map_or_else(|| "sandbox".to_owned(), ToString::to_string),
        namespaces: namespaces(request.walls),
        cgroup_namespace: has(Layer::CgroupNamespace),
        identity: match (has(Layer::UserNamespace), has(Layer::UidRange)) {
            (false, _) => Identity::Host,
            (true, true) if request.root.image_ids.is_some() => Identity::Images,
            (true, true) => Identity::OwnRange,
            (true, false) if request.single_id => Identity::Single,
            (true, false) => Identity::SharedRange,
        },
        user: request.root.user,
        rights,
        copies_skeleton: rights != Rights::Nothing && !request.shifts_owners,
        cgroups: cgroups(request, &limits),
        sources,
        root,
        inheritance: request.inheritance,
        // What belongs to the user is the image's, and takes nothing of the sandbox's own.
        scratch: Scratch {
            bytes: has(Layer::DiskLimit).then_some(limits.disk.bytes() + own.map_or(0, Belongings::most_bytes)),
            inodes: has(Layer::DiskLimit).then_some(limits.inodes + own.map_or(0, |own| own.entries)),
        },
        directories,
        // It is in the lowest frozen layer already.
        fill: if frozen == 0 { request.root.fill.clone() } else { Vec::new() },
        belongings: own.map(|own| own.layer.clone()),
        landlock: has(Layer::Landlock).then(|| Landlock { writable: writable(request) }),
        mounts,
        no_new_privileges: has(Layer::NoNewPrivileges),
        drop_capabilities: has(Layer::NoCapabilities),
        close_descriptors: has(Layer::Descriptors),
        seccomp: has(Layer::Seccomp),
        rlimits: rlimits(&limits, request.walls, rights),
        init: match request.spec.persistence {
            Persistence::Ephemeral => Init::Attached,
            Persistence::Persistent => Init::Listening {
                socket: request.socket.clone(),
                idle_milliseconds: request.spec.lifetime.idle.as_millis() as u64,
                on_trial: request.inheritance.is_some_and(|inheritance| inheritance.heir == Heir::Successor),
            },
        },
    }
}

/// Whoever is root of the sandbox has the rights of one, and nobody else has any.
fn rights(request: &Request<'_>) -> Rights {
    match request.spec.role {
        Role::ImageUser(_) if request.root.user.id == 0 => Rights::Root,
        Role::Guest | Role::ImageUser(_) => Rights::Nothing,
        Role::Builder => Rights::Installing,
    }
}

/// What belongs to the user, where a sandbox is large enough for it. The same after each restart.
fn belongings<'a>(request: &Request<'a>) -> Option<&'a Belongings> {
    let limits = enforced_limits(&request.spec.limits);
    let fits = |own: &&Belongings| own.bytes <= limits.disk.bytes() / 4 && own.entries <= limits.inodes / 4;
    request.root.belongings.as_ref().filter(fits)
}

/// What is left of the limits beside files that are frozen. Those of a successor are charged to its group already.
fn limits_left(limits: &Limits, inheritance: Option<Inheritance>, held: Held) -> Limits {
    let whole = enforced_limits(limits);
    let charged = inheritance.is_none_or(|inheritance| inheritance.heir == Heir::Successor);
    let memory = whole.memory.bytes().saturating_sub(if charged { 0 } else { held.memory() });
    Limits {
        memory: sandbox::ByteSize::new(memory),
        disk: sandbox::ByteSize::new(whole.disk.bytes().saturating_sub(held.bytes)),
        inodes: whole.inodes.saturating_sub(held.inodes),
        ..whole
    }
}

fn cgroups(request: &Request<'_>, limits: &Limits) -> Vec<Leaf> {
    let own = u64::from(limits.processes);
    let processes = match rights(request) {
        // The user's own processes are counted by a resource limit. The group also bounds ours, of which there is at most
        // one for each of the user's, so that a sandbox full of processes can still be looked into and ended.
        Rights::Nothing | Rights::Installing => own * 2 + 16,
        // Root can be many users, each of whom that limit counts apart: only the group holds them all.
        Rights::Root => own + ROOT_HELPERS,
    };
    let mut leaves = cgroup::leaves(request.places, request.instance, request.id.as_str(), limits, processes);
    if let Some(groups) = request.groups {
        for (leaf, group) in leaves.iter_mut().zip(groups) {
            leaf.directory.clone_from(group);
        }
    }
    leaves
}

/// Those that a sandbox behind these walls has of its own, as `CLONE_NEW*` bits.
pub fn namespaces(walls: &BTreeSet<Layer>) -> u64 {
    let bits = [
        (Layer::UserNamespace, libc::CLONE_NEWUSER),
        (Layer::PidNamespace, libc::CLONE_NEWPID),
        (Layer::MountNamespace, libc::CLONE_NEWNS),
        (Layer::NetworkNamespace, libc::CLONE_NEWNET),
        (Layer::IpcNamespace, libc::CLONE_NEWIPC),
        (Layer::UtsNamespace, libc::CLONE_NEWUTS),
    ];
    bits.iter().filter(|(layer, _)| walls.contains(layer)).fold(0, |all, (_, bit)| all | *bit as u64)
}

fn writable(request: &Request<'_>) -> Vec<String> {
    match rights(request) {
        Rights::Nothing => {}
        // Root makes directories in the root and writes to them; a rule for them cannot be made before.
        Rights::Root | Rights::Installing => return vec!["/".to_owned()],
    }
    let mut writable = ["/dev", "/run"].into_iter().chain(image::GIVEN).map(str::to_owned).collect::<Vec<_>>();
    let work_directory = request.root.work_directory.path.to_string_lossy();
    writable.extend((!image::GIVEN.contains(&&*work_directory)).then(|| work_directory.into_owned()));
    // The image's own rights decide there; what remains closed is what is mounted over it.
    let covered = ["dev", "proc", "sys"];
    let own = request.root.top.iter().filter(|name| !covered.contains(&name.as_str()));
    writable.extend(own.map(|name| format!("/{name}")));
    writable
}

fn rlimits(limits: &Limits, walls: &BTreeSet<Layer>, rights: Rights) -> Vec<Rlimit> {
    let limit = |resource, limit| Rlimit { resource, limit };
    let mut rlimits = Vec::new();
    if walls.contains(&Layer::ProcessLimit) {
        // Counted by user and user namespace, so it holds for one sandbox alone, and exactly for its user's processes.
        // Where programs are root, our own helpers are the same user.
        let helpers = match rights {
            Rights::Nothing => 0,
            Rights::Root | Rights::Installing => ROOT_HELPERS,
        };
        rlimits.push(limit(Resource::Processes, u64::from(limits.processes) + helpers));
    }
    if walls.contains(&Layer::Rlimits) {
        rlimits.extend([
            limit(Resource::OpenFiles, limits.open_files),
            limit(Resource::CoreSize, 0),
            limit(Resource::LockedMemory, 64 << 10),
            limit(Resource::MessageQueues, 0),
            limit(Resource::PendingSignals, 4096),
        ]);
    }
    rlimits
}

/// The directories that every guest has from the start, and those above them, without a slash at either end.
pub fn given_directories(work_directory: &WorkDirectory) -> Vec<Vec<u8>> {
    let mut given = Vec::new();
    for path in image::GIVEN.into_iter().chain(work_directory.made.iter().map(|directory| directory.path.as_str())) {
        let path = path.trim_start_matches('/');
        let slashes = path.match_indices('/').map(|(index, _)| index);
        given.extend(slashes.chain([path.len()]).map(|end| path.as_bytes()[..end].to_vec()));
    }
    given
}

/// Where the files of an image must have directories, so that there is something to mount on.
pub fn mount_points<'a>(role: Role) -> impl Iterator<Item = &'a str> {
    let (ours, given): (&[&'a str], &[&'a str]) = match role {
        Role::Guest | Role::ImageUser(_) => (&["/dev", "/mnt", "/proc", "/run"], &image::GIVEN),
        Role::Builder => (&["/dev", "/mnt", "/proc"], &[]),
    };
    ours.iter().chain(given).copied()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
