//! A sandbox as the container that a daemon is asked for. Pure: what it says is what the golden files in `golden/` show.
//!
//! Programs get no capability at all. Process 1, which is ours, has the five that it takes to start them as somebody else
//! and to end them; it drops them in each program that it starts, together with the bounding set. Programs that are root, where
//! that is wanted, keep seven of its eight, and the image's system is theirs to change: see [`Storage::Layer`].

use std::collections::HashMap;

use agent::{Hosted, HostedNetwork, HostedRest, HostedRole, HostedStreams, KEPT_DIRECTORY};
use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountTmpfsOptions, MountType, ResourcesUlimits,
};
use egress::Sockets;
use sandbox::{ByteSize, Error, GuestPath, Limits, Network, Result};

use crate::Flavour;
use crate::isolation::Kernel;
use crate::record::{self, Description, Maker, Storage};
use crate::volume_mounts::{Access, VolumeMount, VolumeMounts};

/// Where process 1's program is seen inside.
pub const AGENT_DIRECTORY: &str = agent::PROGRAM_DIRECTORY;
pub const AGENT_PROGRAM: &str = "/.sandpen/init";

/// What process 1 needs: to become the sandbox's user without any right, to give it its directories, and to kill what it
/// started, which is somebody else's by then.
const PROCESS_1: [&str; 5] = ["CHOWN", "KILL", "SETGID", "SETPCAP", "SETUID"];

/// And what it passes on to programs that are root, which is never more than this; see `rights.rs` of process 1.
const ROOT: [&str; 3] = ["DAC_OVERRIDE", "FOWNER", "FSETID"];

/// And to catch all connections in a network that has no way out. It gives both up before the first program starts.
const NETWORK: [&str; 2] = ["NET_ADMIN", "NET_BIND_SERVICE"];

/// Where root is at home.
pub const ROOT_HOME: &str = "/root";

/// Where process 1 answers questions for names.
const RESOLVER: &str = "127.0.0.1";

/// Docker's word for a resolver that looks below no domain.
const NO_DOMAINS: &str = ".";

/// What programs find as settings of their resolver, where the daemon leaves those to the image.
pub const RESOLVER_SETTINGS: &str = "nameserver 127.0.0.1\n";

/// Where programs look names up first.
const HOSTS_FILE: &str = "/etc/hosts";

/// Process 1, its worker that stands by, the server's bridge and the supervisor of a command. Daemons count them too.
const HELPERS: u32 = 4;

/// What gVisor itself needs for one process inside that waits, as measured, with some room; and besides.
const GVISOR_THREADS: i64 = 12;
const GVISOR_OWN_THREADS: i64 = 128;

/// For process 1 and the bridge, which hold a few of every command. Programs get the sandbox's own limit from process 1.
const OPEN_FILES: u64 = 4096;

/// Shared memory is one more place to write to.
const LARGEST_SHARED_MEMORY: u64 = 64 << 20;

/// For what detached commands wrote, which process 1 keeps where programs do not reach.
const LOGS: u64 = 40 << 20;

/// Files and directories of the kernel that tell about the host, or that only root could use and should not be able to: what
/// daemons hide by themselves, and what the embedded engine hides besides. A kernel may lack some. What they hide of each
/// processor is in [`hidden`].
const HIDDEN: [&str; 41] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/buddyinfo",
    "/proc/bus",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/diskstats",
    "/proc/driver",
    "/proc/fs",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/irq",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/mtrr",
    "/proc/partitions",
    "/proc/pressure",
    "/proc/sched_debug",
    "/proc/schedstat",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/softirqs",
    "/proc/swaps",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/proc/zoneinfo",
    "/sys/dev/block",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/selinux",
    "/sys/kernel",
];

const STOP_AT_LEAST: i64 = 30;
const STOP_BYTES_PER_SECOND: u64 = 16 << 20;

/// After the daemon itself and before whatever else is there, when a host runs out of memory.
const OUT_OF_MEMORY_SCORE: i64 = 500;

/// Everything that a container is made of.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub flavour: Flavour,
    pub maker: Maker<'a>,
    pub description: &'a Description,
    pub agent_volume: &'a str,
    /// Where the daemon's host has the hosts file of sandboxes, for a daemon that would give them its own.
    pub hosts: Option<&'a str>,
    /// Directories for which the image asks for a volume.
    pub volumes: &'a [String],
    pub runtime: Option<&'a str>,
    /// Whether the daemon's host knows addresses of the sixth version.
    pub has_ipv6: bool,
    /// How many the daemon's host has.
    pub processors: u32,
    pub kernel: Kernel,
}

pub fn container(wanted: &Wanted<'_>) -> ContainerCreateBody {
    let description = wanted.description;
    ContainerCreateBody {
        hostname: Some(description.name.as_ref().map_or("sandbox", |name| name.as_str()).to_owned()),
        user: Some("0:0".to_owned()),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        open_stdin: Some(true),
        // It closes with the stream of whoever had it made, also when that was killed.
        stdin_once: Some(true),
        entrypoint: Some(vec![AGENT_PROGRAM.to_owned()]),
        cmd: Some(hosted(description).arguments()),
        image: Some(description.image.clone()),
        working_dir: Some("/".to_owned()),
        // The daemon would run an image's own check in the container, as root.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        labels: Some(record::labels(wanted.maker, description)),
        // What process 1 takes for a stop. An image may have named another one, for a program that is not started here.
        stop_signal: Some("SIGTERM".to_owned()),
        stop_timeout: description.keeps_files().then(|| stop_timeout(&description.limits)),
        host_config: Some(host(wanted)),
        ..ContainerCreateBody::default()
    }
}

fn hosted(description: &Description) -> Hosted {
    Hosted {
        token: description.token.clone(),
        user: description.user.id,
        group: description.user.group,
        role: match description.storage {
            Storage::Memory => HostedRole::Guest,
            Storage::Layer => HostedRole::Root,
        },
        persistence: description.persistence,
        idle: description.idle,
        rest: match (description.keeps_files(), description.storage) {
            (false, _) => HostedRest::None,
            (true, Storage::Memory) => HostedRest::Kept,
            (true, Storage::Layer) => HostedRest::Lasting,
        },
        open_files: description.limits.open_files,
        largest_file: match description.storage {
            Storage::Memory => None,
            Storage::Layer => Some(description.limits.disk.bytes()),
        },
        places: directories(description),
        network: match description.network {
            Network::None => HostedNetwork::Untouched,
            Network::Hosts(_) | Network::Internet => HostedNetwork::Caught { proxy_port: Sockets::PROXY_PORT },
        },
        streams: HostedStreams::Bridge,
    }
}

/// Those that are there for programs, whatever the image has.
pub fn directories(description: &Description) -> Vec<GuestPath> {
    let places = description.places.iter().cloned();
    match description.storage {
        Storage::Memory => places.chain("/tmp".parse()).collect(),
        Storage::Layer => {
            let own = [ROOT_HOME.parse().ok(), Some(GuestPath::workspace()), "/tmp".parse().ok()].into_iter().flatten();
            let mut all: Vec<GuestPath> = places.chain(own).chain([description.work_directory.clone()]).collect();
            all.sort_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
            all.dedup();
            all
        }
    }
}

fn host(wanted: &Wanted<'_>) -> HostConfig {
    let VolumeMounts { mounts, mut binds } = volumes(wanted);
    binds.extend(wanted.hosts.map(|hosts| format!("{hosts}:{HOSTS_FILE}:ro,nosuid,nodev,noexec")));
    let limits = &wanted.description.limits;
    let memory = number(limits.memory.bytes());
    let has_network = !wanted.description.network.is_none();
    let is_layered = wanted.description.storage == Storage::Layer;
    let rights = PROCESS_1.iter().chain(ROOT.iter().filter(|_| is_layered));
    let rights = rights.chain(NETWORK.iter().filter(|_| has_network));
    HostConfig {
        auto_remove: Some(!wanted.description.keeps_files()),
        cap_add: Some(rights.map(|right| (*right).to_owned()).collect()),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(security(wanted)),
        // In place of the daemon's own list, which this one contains.
        masked_paths: (wanted.flavour == Flavour::Docker).then(|| hidden(wanted.processors)),
        privileged: Some(false),
        readonly_rootfs: Some(!is_layered),
        // Also for a sandbox that has one: it is made inside, and nothing of the daemon's is in it.
        network_mode: Some("none".to_owned()),
        // Also where nobody answers: the daemon would copy the settings of its own host, which tell of its network.
        dns: (wanted.flavour == Flavour::Docker).then(|| vec![RESOLVER.to_owned()]),
        dns_search: (wanted.flavour == Flavour::Docker).then(|| vec![NO_DOMAINS.to_owned()]),
        sysctls: sysctls(wanted, has_network),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        init: Some(false),
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        memory: Some(memory),
        memory_swap: Some(memory),
        nano_cpus: Some(i64::from(limits.cpu_millis) * 1_000_000),
        pids_limit: Some(host_processes(wanted.kernel, limits)),
        oom_score_adj: Some(OUT_OF_MEMORY_SCORE),
        shm_size: Some(number(limits.disk.bytes().min(LARGEST_SHARED_MEMORY))),
        ulimits: ulimits(wanted.flavour, limits),
        tmpfs: Some(writable(wanted)),
        mounts: Some(mounts.into_iter().chain(bounded(wanted)).collect()),
        binds: (!binds.is_empty()).then_some(binds),
        runtime: wanted.runtime.map(str::to_owned),
        ..HostConfig::default()
    }
}

fn security(wanted: &Wanted<'_>) -> Vec<String> {
    let no_new_privileges = "no-new-privileges".to_owned();
    match wanted.flavour {
        Flavour::Docker => vec![no_new_privileges],
        // It has a word for this where Docker has a list, and adds to its own.
        Flavour::Podman => vec![no_new_privileges, format!("mask={}", hidden(wanted.processors).join(":"))],
    }
}

/// How often each processor was too hot tells what others do on the host, and Docker hides it since version 28. Older ones are
/// told the same: a runtime passes over what is not there.
fn hidden(processors: u32) -> Vec<String> {
    let heat = (0..processors).map(|number| format!("/sys/devices/system/cpu/cpu{number}/thermal_throttle"));
    HIDDEN.into_iter().map(str::to_owned).chain(heat).collect()
}

/// Docker turns addresses of the sixth version off where it gives none itself.
fn sysctls(wanted: &Wanted<'_>, has_network: bool) -> Option<HashMap<String, String>> {
    match wanted.flavour {
        Flavour::Docker if has_network && wanted.has_ipv6 => {
            Some(HashMap::from([("net.ipv6.conf.all.disable_ipv6".to_owned(), "0".to_owned())]))
        }
        Flavour::Docker | Flavour::Podman => None,
    }
}

/// What the host's kernel may count for the sandbox's processes.
fn host_processes(kernel: Kernel, limits: &Limits) -> i64 {
    let processes = i64::from(limits.processes) + i64::from(HELPERS);
    match kernel {
        Kernel::Hosts | Kernel::Virtual | Kernel::Unknown => processes,
        // Its own threads are counted, which are several for each process inside, and it does not survive to be refused one.
        Kernel::Gvisor => processes * GVISOR_THREADS + GVISOR_OWN_THREADS,
    }
}

/// The limits that will really hold. Files live in memory and count there too, so a disk larger than the memory could only
/// end in a kill; a quarter stays for programs.
pub fn enforced_limits(limits: &Limits) -> Limits {
    let most = limits.memory.bytes() / 4 * 3;
    Limits { disk: ByteSize::new(limits.disk.bytes().min(most)), ..*limits }
}

/// Where programs can write in memory, and where process 1 can. Each place has the whole limit, and the memory bounds them all
/// together.
fn writable(wanted: &Wanted<'_>) -> HashMap<String, String> {
    let Description { limits, user, places: own_places, storage, .. } = wanted.description;
    let own = |mode: &str, user: u32, group: u32| {
        let size = limits.disk.bytes();
        match wanted.flavour {
            Flavour::Docker => {
                let inodes = limits.inodes;
                format!("rw,exec,nosuid,nodev,size={size},nr_inodes={inodes},mode={mode},uid={user},gid={group}")
            }
            // It knows neither owners nor counts of files; process 1 gives them away.
            Flavour::Podman => format!("rw,exec,nosuid,nodev,size={size},mode={mode},notmpcopyup"),
        }
    };
    let kept = format!("rw,noexec,nosuid,nodev,size={LOGS},mode=0755");
    let mut places = HashMap::from([("/run".to_owned(), kept)]);
    if *storage == Storage::Memory {
        places.insert("/tmp".to_owned(), own("1777", 0, 0));
    }
    let closed = "ro,noexec,nosuid,nodev,size=4096,mode=0755,notmpcopyup".to_owned();
    for place in own_places {
        if is_own_directory(place) {
            let place = place.to_string_lossy().into_owned();
            places.entry(place).or_insert_with(|| own("0755", user.id, user.group));
        }
    }
    if wanted.flavour == Flavour::Podman && *storage == Storage::Memory {
        // Podman gives a read-only image one more place to write to, without a bound, where there is none yet.
        places.entry("/var/tmp".to_owned()).or_insert(closed);
    }
    places
}

/// Nothing can be mounted on the root, and what the daemon mounts itself stays.
pub fn is_own_directory(place: &GuestPath) -> bool {
    let taken = |taken: &str| taken.parse::<GuestPath>().is_ok_and(|taken| taken.contains(place));
    !place.is_root() && !["/proc", "/sys", "/dev", "/run", AGENT_DIRECTORY, KEPT_DIRECTORY].into_iter().any(taken)
}

fn volumes(wanted: &Wanted<'_>) -> VolumeMounts {
    let read_only = |volume, target| VolumeMount { volume, target, access: Access::ReadOnly };
    let agent = read_only(wanted.agent_volume, AGENT_DIRECTORY);
    let attached = wanted.description.attachments.iter();
    let trees = attached.map(|attached| read_only(attached.volume.as_str(), attached.at.as_str()));
    let kept = record::kept_volume_name(&wanted.description.id);
    let kept = VolumeMount { volume: &kept, target: KEPT_DIRECTORY, access: Access::ReadWrite };
    let kept = wanted.description.has_kept_volume().then_some(kept);
    VolumeMounts::new(wanted.flavour, std::iter::once(agent).chain(trees).chain(kept))
}

/// Places for which the image asks for volumes. Otherwise the daemon makes them on its disk, without a bound.
fn bounded(wanted: &Wanted<'_>) -> Vec<Mount> {
    let places = writable(wanted);
    let bounded = wanted.volumes.iter().filter(|place| !places.contains_key(*place));
    let in_memory = bounded.map(|place| Mount {
        target: Some(place.clone()),
        typ: Some(MountType::TMPFS),
        tmpfs_options: Some(MountTmpfsOptions {
            size_bytes: Some(number(wanted.description.limits.disk.bytes())),
            mode: Some(0o1777),
            ..MountTmpfsOptions::default()
        }),
        ..Mount::default()
    });
    in_memory.collect()
}

/// Seconds that process 1 has to write its files down, on a disk that others use too.
fn stop_timeout(limits: &Limits) -> i64 {
    STOP_AT_LEAST + number(limits.memory.bytes() / STOP_BYTES_PER_SECOND)
}

/// A volume of an image's configuration as a place for a mount. The daemon makes a volume without a bound for each that has
/// no mount of ours, so one that cannot have one is refused.
pub fn place_of(text: &str) -> Result<String> {
    let path = cleaned(text).and_then(|path| path.parse::<GuestPath>().ok());
    // The last is in memory already.
    let place = path.filter(|path| is_own_directory(path) || path.as_bytes() == b"/run");
    place.map(|path| path.to_string_lossy().into_owned()).ok_or_else(|| {
        let shown: String = text.chars().take(64).collect();
        Error::invalid_input(format!("the image asks for a volume at {shown:?}, where a sandbox cannot bound it"))
            .with_hint("use an image without this volume")
    })
}

/// As daemons write the path before they look for a mount there; `None` for what is no absolute path.
fn cleaned(text: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in text.strip_prefix('/')?.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    Some(format!("/{}", parts.join("/")))
}

/// Process 1 lowers them for itself and its programs; this is so that there is something to lower.
fn ulimits(flavour: Flavour, limits: &Limits) -> Option<Vec<ResourcesUlimits>> {
    match flavour {
        Flavour::Docker => Some(vec![ulimit("core", 0), ulimit("nofile", limits.open_files.max(OPEN_FILES))]),
        // Named limits take the place of all that its operator has set up, and those that are not named become larger than
        // an ordinary user may have.
        Flavour::Podman => None,
    }
}

fn ulimit(name: &str, most: u64) -> ResourcesUlimits {
    ResourcesUlimits { name: Some(name.to_owned()), soft: Some(number(most)), hard: Some(number(most)) }
}

/// The API's numbers are signed; nothing that is asked for comes near their end.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "translate_tests.rs"]
mod tests;
