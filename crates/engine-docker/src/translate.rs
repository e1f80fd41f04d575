//! A sandbox as the container that a daemon is asked for. Pure: what it says is what the golden files in `golden/` show.
//!
//! Programs get no capability at all. Process 1, which is ours, has the five that it takes to start them as somebody else
//! and to end them; it drops them in each program that it starts, together with the bounding set.

use std::collections::HashMap;

use agent::{Hosted, HostedNetwork, TOKEN_VARIABLE};
use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountTmpfsOptions, MountType, MountVolumeOptions, ResourcesUlimits,
};
use sandbox::{ByteSize, Error, GuestPath, Limits, Result};

use crate::Flavour;
use crate::record::{self, Description, Maker};

/// Where process 1's program is seen inside.
pub const AGENT_DIRECTORY: &str = "/.sandpen";
pub const AGENT_PROGRAM: &str = "/.sandpen/init";

/// What process 1 needs: to become the sandbox's user without any right, to give it its directories, and to kill what it
/// started, which is somebody else's by then.
const PROCESS_1: [&str; 5] = ["CHOWN", "KILL", "SETGID", "SETPCAP", "SETUID"];

/// Process 1, its worker that stands by, the server's bridge and the supervisor of a command. Daemons count them too.
const HELPERS: u32 = 4;

/// For process 1 and the bridge, which hold a few of every command. Programs get the sandbox's own limit from process 1.
const OPEN_FILES: u64 = 4096;

/// Shared memory is one more place to write to.
const LARGEST_SHARED_MEMORY: u64 = 64 << 20;

/// For what detached commands wrote, which process 1 keeps where programs do not reach.
const LOGS: u64 = 40 << 20;

/// After the daemon itself and before whatever else is there, when a host runs out of memory.
const OUT_OF_MEMORY_SCORE: i64 = 500;

/// Everything that a container is made of.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub flavour: Flavour,
    pub maker: Maker<'a>,
    pub description: &'a Description,
    pub agent_volume: &'a str,
    /// Directories for which the image asks for a volume.
    pub volumes: &'a [String],
    pub runtime: Option<&'a str>,
}

pub fn container(wanted: &Wanted<'_>) -> ContainerCreateBody {
    let description = wanted.description;
    ContainerCreateBody {
        hostname: Some(description.name.as_ref().map_or("sandbox", |name| name.as_str()).to_owned()),
        user: Some("0:0".to_owned()),
        attach_stdin: Some(false),
        attach_stdout: Some(false),
        attach_stderr: Some(false),
        tty: Some(false),
        open_stdin: Some(false),
        env: Some(vec![format!("{TOKEN_VARIABLE}={}", description.token)]),
        entrypoint: Some(vec![AGENT_PROGRAM.to_owned()]),
        cmd: Some(hosted(description).arguments()),
        image: Some(description.image.clone()),
        working_dir: Some("/".to_owned()),
        // The daemon would run an image's own check in the container, as root.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        labels: Some(record::labels(wanted.maker, description)),
        host_config: Some(host(wanted)),
        ..ContainerCreateBody::default()
    }
}

fn hosted(description: &Description) -> Hosted {
    Hosted {
        user: description.user.id,
        group: description.user.group,
        persistence: description.persistence,
        idle: description.idle,
        open_files: description.limits.open_files,
        places: description.places.iter().cloned().chain("/tmp".parse()).collect(),
        network: HostedNetwork::Untouched,
    }
}

fn host(wanted: &Wanted<'_>) -> HostConfig {
    let limits = &wanted.description.limits;
    let memory = number(limits.memory.bytes());
    HostConfig {
        auto_remove: Some(true),
        cap_add: Some(PROCESS_1.map(str::to_owned).to_vec()),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        privileged: Some(false),
        readonly_rootfs: Some(true),
        network_mode: Some("none".to_owned()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        init: Some(false),
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        memory: Some(memory),
        memory_swap: Some(memory),
        nano_cpus: Some(i64::from(limits.cpu_millis) * 1_000_000),
        pids_limit: Some(i64::from(limits.processes) + i64::from(HELPERS)),
        oom_score_adj: Some(OUT_OF_MEMORY_SCORE),
        shm_size: Some(number(limits.disk.bytes().min(LARGEST_SHARED_MEMORY))),
        ulimits: ulimits(wanted.flavour, limits),
        tmpfs: Some(writable(wanted)),
        mounts: Some(mounts(wanted)),
        runtime: wanted.runtime.map(str::to_owned),
        ..HostConfig::default()
    }
}

/// The limits that will really hold. Files live in memory and count there too, so a disk larger than the memory could only
/// end in a kill; a quarter stays for programs.
pub fn enforced_limits(limits: &Limits) -> Limits {
    let most = limits.memory.bytes() / 4 * 3;
    Limits { disk: ByteSize::new(limits.disk.bytes().min(most)), ..*limits }
}

/// Where programs can write, and where process 1 can. Each place has the whole limit, and the memory bounds them all
/// together.
fn writable(wanted: &Wanted<'_>) -> HashMap<String, String> {
    let Description { limits, user, places: own_places, .. } = wanted.description;
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
    let mut places = HashMap::from([("/tmp".to_owned(), own("1777", 0, 0)), ("/run".to_owned(), kept)]);
    for place in own_places {
        if is_own_directory(place) {
            let place = place.to_string_lossy().into_owned();
            places.entry(place).or_insert_with(|| own("0755", user.id, user.group));
        }
    }
    places
}

/// Nothing can be mounted on the root, and what the daemon mounts itself stays.
pub fn is_own_directory(place: &GuestPath) -> bool {
    let taken = |taken: &str| taken.parse::<GuestPath>().is_ok_and(|taken| taken.contains(place));
    !place.is_root() && !["/proc", "/sys", "/dev", "/run", AGENT_DIRECTORY].into_iter().any(taken)
}

fn mounts(wanted: &Wanted<'_>) -> Vec<Mount> {
    let agent = Mount {
        target: Some(AGENT_DIRECTORY.to_owned()),
        source: Some(wanted.agent_volume.to_owned()),
        typ: Some(MountType::VOLUME),
        read_only: Some(true),
        // A volume that is empty would be filled from the image, which may have a program of this name.
        volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
        ..Mount::default()
    };
    // Otherwise the daemon makes volumes on its disk for them, without a bound.
    let places = writable(wanted);
    let bounded = wanted.volumes.iter().filter(|place| !places.contains_key(*place));
    let bounded = bounded.map(|place| Mount {
        target: Some(place.clone()),
        typ: Some(MountType::TMPFS),
        tmpfs_options: Some(MountTmpfsOptions {
            size_bytes: Some(number(wanted.description.limits.disk.bytes())),
            mode: Some(0o1777),
            ..MountTmpfsOptions::default()
        }),
        ..Mount::default()
    });
    std::iter::once(agent).chain(bounded).collect()
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
