//! Which walls a container stands behind. The daemon builds them; what it cannot build stops a sandbox, unless its operator
//! accepts to be without.

use std::collections::BTreeSet;

use sandbox::user::UserIds;
use sandbox::{Error, IsolationReport, Layer, LayerReport, LayerState, Result};

use crate::Flavour;
use crate::client::DaemonFacts;
use crate::record::{Description, Storage, User};

/// Layers that no daemon of this kind gives, or gives only when its operator set it up so. They are shown as missing, and
/// are no reason to refuse: a container without them is what whoever chooses this engine expects.
const NOT_PROMISED: [Layer; 4] = [Layer::UserNamespace, Layer::CgroupNamespace, Layer::UidRange, Layer::Landlock];

/// Refuse when the daemon lacks a wall that every container is to have. What a runtime that its operator chose does is not
/// known to be missing: it is shown as unknown.
pub fn check(
    flavour: Flavour,
    facts: &DaemonFacts,
    runtime: Option<&str>,
    allow_missing: &BTreeSet<Layer>,
) -> Result<()> {
    let kernel = Kernel::of(runtime, facts);
    for &layer in Layer::ALL {
        let (state, detail) = wall(layer, flavour, facts, kernel);
        if state != LayerState::Off || NOT_PROMISED.contains(&layer) || allow_missing.contains(&layer) {
            continue;
        }
        return Err(Error::unsupported(format!(
            "this {} daemon cannot give the {layer} layer ({}): {detail}",
            flavour.title(),
            layer.description()
        ))
        .with_hint(format!("set the daemon up for it; or accept sandboxes without it by --allow-missing {layer}")));
    }
    Ok(())
}

pub fn report(flavour: Flavour, facts: &DaemonFacts, description: &Description) -> IsolationReport {
    let runtime = description.runtime.clone().or_else(|| facts.default_runtime.clone());
    let kernel = Kernel::of(runtime.as_deref(), facts);
    let User { id, group } = description.user;
    let is_layered = description.storage == Storage::Layer;
    let layers = Layer::ALL.iter().map(|&layer| {
        let (state, detail) = wall(layer, flavour, facts, kernel);
        let detail = match layer {
            Layer::NetworkNamespace if !description.network.is_none() => {
                format!("namespace of its own without a route out; the gateway lets it reach {}", description.network)
            }
            Layer::NoCapabilities if is_layered => "programs are root of the container, as was asked for, and keep CHOWN, DAC_OVERRIDE, \
                 FOWNER, FSETID, SETUID, SETGID and KILL; nothing can add to them"
                .to_owned(),
            Layer::PivotedRoot if is_layered => {
                "the image alone, which its root can change: in the container's own layer, on the daemon's disk".to_owned()
            }
            Layer::Rlimits if is_layered => format!("{detail}, and the size of a file"),
            Layer::DiskLimit if is_layered => format!(
                "approximate: files are on the daemon's disk, one no larger than {disk}; while a server is connected it looks how \
                 much all take, about once a second while something runs, and ends the sandbox when that is more than {disk}; \
                 nothing bounds how many there are, nor what is written between two looks",
                disk = description.limits.disk
            ),
            Layer::NoCapabilities if description.user.id == 0 => {
                "programs are root of the container, as was asked for, without any capability".to_owned()
            }
            Layer::NoCapabilities if !description.network.is_none() => {
                format!("{detail}; it had NET_ADMIN and NET_BIND_SERVICE until it had made the network")
            }
            Layer::DiskLimit => format!(
                "files are in memory: {} for each of the work directory, home and /tmp, and no more than the memory \
                 limit for all together; {}",
                description.limits.disk,
                match (flavour, kernel) {
                    (Flavour::Docker, Kernel::Hosts) => "the number of files is bounded too",
                    (Flavour::Docker | Flavour::Podman, _) => "the number of files is bounded by their memory alone",
                }
            ),
            _ => detail,
        };
        LayerReport { layer, state, detail }
    });
    IsolationReport {
        tier: kernel.tier(),
        runtime,
        layers: layers.collect(),
        limits: description.limits,
        user: UserIds { id, group },
    }
}

/// How runtimes are called that a daemon need not have been told of: containerd finds their programs by these names.
const SHIM: &str = "io.containerd.";

/// Whether containers will really have the runtime that was chosen: nobody is told of a kernel that is not there.
pub fn check_runtime(flavour: Flavour, facts: &DaemonFacts, runtime: &str) -> Result<()> {
    let DaemonFacts { runtimes, default_runtime, .. } = facts;
    // Daemons do not list what they leave to containerd, and say themselves when that is not there.
    if !runtimes.is_empty() && !runtimes.contains(runtime) && !runtime.starts_with(SHIM) {
        let names: Vec<&str> = runtimes.iter().map(String::as_str).collect();
        return Err(Error::not_found(format!("the daemon has no runtime {runtime:?}"))
            .with_hint(format!("it has {}", names.join(", "))));
    }
    // Podman's service takes a runtime in a request and starts its own all the same, without a word.
    if flavour == Flavour::Podman && default_runtime.as_deref() != Some(runtime) {
        return Err(Error::unsupported(format!(
            "Podman starts containers for others with its own runtime only, and that is {}, not {runtime}",
            default_runtime.as_deref().unwrap_or("not told")
        ))
        .with_hint(format!(
            "set runtime = {runtime:?} below [engine] in containers.conf of Podman's host, and start its service anew; or \
             choose --engine docker"
        )));
    }
    Ok(())
}

/// Which kernel programs speak to: what a daemon's options mean depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// That of the daemon's host.
    Hosts,
    /// gVisor's, a program of the host.
    Gvisor,
    /// One of its own in a virtual machine.
    Virtual,
    /// Of a runtime that we do not know.
    Unknown,
}

impl Kernel {
    pub fn of(runtime: Option<&str>, facts: &DaemonFacts) -> Self {
        let runtime = runtime.or(facts.default_runtime.as_deref()).unwrap_or_default();
        let name = runtime.rsplit('/').next().unwrap_or_default();
        // As containerd names what it starts: io.containerd.NAME.VERSION.
        let shim = name.strip_prefix(SHIM).map(|rest| rest.rsplit_once('.').map_or(rest, |(name, _)| name));
        match shim.unwrap_or(name) {
            "runc" | "crun" | "youki" => Self::Hosts,
            // Said by nobody.
            "" if runtime.is_empty() => Self::Hosts,
            name if name.starts_with("runsc") => Self::Gvisor,
            name if name.starts_with("kata") => Self::Virtual,
            _ => Self::Unknown,
        }
    }

    fn tier(self) -> &'static str {
        match self {
            Self::Hosts => "container with a shared kernel",
            Self::Gvisor => "container with a kernel of its own in user space (gVisor)",
            Self::Virtual => "container in a virtual machine (Kata)",
            Self::Unknown => "container of a runtime that the operator chose",
        }
    }
}

fn wall(layer: Layer, flavour: Flavour, facts: &DaemonFacts, kernel: Kernel) -> (LayerState, String) {
    match kernel {
        Kernel::Hosts => container_wall(layer, flavour, facts),
        Kernel::Gvisor => gvisor_wall(layer).unwrap_or_else(|| container_wall(layer, flavour, facts)),
        Kernel::Virtual | Kernel::Unknown => {
            let (state, detail) = container_wall(layer, flavour, facts);
            // What the host lacks the runtime does not bring.
            if is_ours(layer) || state == LayerState::Off {
                return (state, detail);
            }
            let within = if kernel == Kernel::Virtual { "a virtual machine" } else { "a runtime of the operator's" };
            (LayerState::Unknown, format!("asked of {within}, which nobody has measured: {detail}"))
        }
    }
}

/// Walls that process 1 builds itself, under any kernel, and does not serve without.
fn is_ours(layer: Layer) -> bool {
    matches!(layer, Layer::NoCapabilities | Layer::NoNewPrivileges | Layer::Rlimits | Layer::Descriptors)
}

/// Where gVisor's walls are others than a container's. As measured with it, from inside and from the host.
fn gvisor_wall(layer: Layer) -> Option<(LayerState, String)> {
    let detail = match layer {
        Layer::PidNamespace | Layer::MountNamespace | Layer::IpcNamespace | Layer::UtsNamespace => {
            "gVisor's kernel has this sandbox alone"
        }
        Layer::NetworkNamespace => "gVisor's own network with a loopback alone",
        Layer::CgroupNamespace => "gVisor's kernel shows no control group of the host",
        Layer::MaskedPaths => {
            "gVisor's own /proc and /sys; nothing of the host is in them, so the daemon's list is not used, and programs see \
             the environment and the arguments of all processes inside"
        }
        Layer::Seccomp => {
            "every system call is answered by gVisor, which the host's kernel filters; inside there is our own filter alone"
        }
        Layer::MemoryLimit => "control group of the sandbox as a whole, without swap: what is over it ends the sandbox",
        Layer::ProcessLimit => {
            "control group that counts gVisor's own threads, several for each process: what is over it ends the sandbox"
        }
        Layer::CpuLimit => "control group of the sandbox as a whole",
        Layer::UserNamespace
        | Layer::UidRange
        | Layer::PivotedRoot
        | Layer::NoCapabilities
        | Layer::NoNewPrivileges
        | Layer::Landlock
        | Layer::Rlimits
        | Layer::DiskLimit
        | Layer::Descriptors => return None,
    };
    Some((LayerState::On, detail.to_owned()))
}

/// Under the kernel of the daemon's host.
fn container_wall(layer: Layer, flavour: Flavour, facts: &DaemonFacts) -> (LayerState, String) {
    let title = flavour.title();
    let on = |detail: &str| (LayerState::On, detail.to_owned());
    let given = |is_given: bool, detail: &str, missing: &str| {
        let (state, detail) = if is_given { (LayerState::On, detail) } else { (LayerState::Off, missing) };
        (state, detail.to_owned())
    };
    match layer {
        Layer::UserNamespace => given(
            facts.user_namespaces,
            if facts.rootless { "the daemon is an ordinary user's" } else { "the daemon maps users" },
            "root of the container is root of the daemon's host, without capabilities and with no program of the user's; \
             a rootless daemon or `userns-remap` gives this layer",
        ),
        Layer::PidNamespace => on("namespace of its own"),
        Layer::MountNamespace => on("namespace of its own"),
        Layer::NetworkNamespace => on("namespace of its own with a loopback alone"),
        Layer::IpcNamespace => on("namespace of its own"),
        Layer::UtsNamespace => on("namespace of its own"),
        // Its API has no word for it, and its default is one where that cannot hide anything.
        Layer::CgroupNamespace => given(
            flavour == Flavour::Docker || facts.cgroup_version == Some(2),
            "namespace of its own",
            "Podman gives none by itself with control groups of version 1; programs see the names of groups, and can \
             change none",
        ),
        Layer::UidRange => {
            (LayerState::Off, "programs of all containers have the same user ids on the daemon's host".to_owned())
        }
        Layer::PivotedRoot => on("the image alone, read-only, with work directory, home and /tmp in memory"),
        Layer::MaskedPaths => (LayerState::On, format!("{title}'s own list, and the embedded engine's")),
        Layer::NoCapabilities => on("programs have none; process 1, which is ours, keeps KILL, SETGID and SETUID"),
        Layer::NoNewPrivileges => on("set for process 1 and all that it starts"),
        Layer::Seccomp => given(
            facts.seccomp,
            &format!("{title}'s default profile, and the embedded engine's list of system calls"),
            "the daemon was built or set up without seccomp",
        ),
        Layer::Landlock => (LayerState::Off, "not used in containers".to_owned()),
        Layer::Rlimits => on("open files and core dumps"),
        Layer::MemoryLimit => given(
            facts.memory_limit && facts.swap_limit,
            "control group, without swap",
            "the daemon's host does not let it bound memory and swap",
        ),
        Layer::ProcessLimit => given(
            facts.process_limit,
            "control group; with four of ours on top, and those of further commands at once within it",
            "the daemon's host does not let it bound processes",
        ),
        Layer::CpuLimit => {
            given(facts.cpu_limit, "control group", "the daemon's host does not let it bound processors")
        }
        Layer::DiskLimit => on("files are in memory"),
        Layer::Descriptors => on("three streams, given by process 1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::description;

    fn whole() -> DaemonFacts {
        DaemonFacts {
            seccomp: true,
            memory_limit: true,
            swap_limit: true,
            process_limit: true,
            cpu_limit: true,
            ..DaemonFacts::default()
        }
    }

    #[test]
    fn a_daemon_that_cannot_bound_memory_is_refused_unless_that_is_accepted() {
        assert!(check(Flavour::Docker, &whole(), None, &BTreeSet::new()).is_ok());
        let poor = DaemonFacts { swap_limit: false, ..whole() };
        let refused = check(Flavour::Docker, &poor, None, &BTreeSet::new()).unwrap_err();
        assert_eq!(refused.kind(), sandbox::ErrorKind::Unsupported);
        assert!(check(Flavour::Docker, &poor, None, &BTreeSet::from([Layer::MemoryLimit])).is_ok());
        let blind = DaemonFacts { seccomp: false, ..whole() };
        assert!(check(Flavour::Podman, &blind, None, &BTreeSet::from([Layer::MemoryLimit])).is_err());
    }

    #[test]
    fn runtimes_are_known_by_their_names_and_by_those_of_their_shims() {
        for (kernel, names) in [
            (Kernel::Hosts, &["runc", "/usr/bin/crun", "io.containerd.runc.v2", "io.containerd.crun.v1"][..]),
            (Kernel::Gvisor, &["runsc", "runsc-kvm", "io.containerd.runsc.v1"]),
            (Kernel::Virtual, &["kata", "kata-qemu", "io.containerd.kata.v2", "io.containerd.kata-qemu.v2"]),
            (Kernel::Unknown, &["other", "io.containerd.wasmtime.v1", "io.containerd.", "io.containerd.v2"]),
        ] {
            for name in names {
                assert_eq!(Kernel::of(Some(name), &DaemonFacts::default()), kernel, "{name}");
            }
        }
    }

    #[test]
    fn a_runtime_is_refused_where_another_would_run() {
        let facts = DaemonFacts {
            runtimes: ["crun", "runc", "runsc"].map(str::to_owned).into(),
            default_runtime: Some("runc".to_owned()),
            ..DaemonFacts::default()
        };
        let kind = |flavour, runtime| check_runtime(flavour, &facts, runtime).err().map(|error| error.kind());
        for (runtime, on_docker, on_podman) in [
            ("runc", None, None),
            ("runsc", None, Some(sandbox::ErrorKind::Unsupported)),
            ("io.containerd.runsc.v1", None, Some(sandbox::ErrorKind::Unsupported)),
            ("kata", Some(sandbox::ErrorKind::NotFound), Some(sandbox::ErrorKind::NotFound)),
        ] {
            assert_eq!(kind(Flavour::Docker, runtime), on_docker, "{runtime}");
            assert_eq!(kind(Flavour::Podman, runtime), on_podman, "{runtime}");
        }
        let silent = DaemonFacts { default_runtime: None, ..facts };
        assert!(check_runtime(Flavour::Podman, &silent, "runc").is_err());
    }

    #[test]
    fn what_a_daemon_lacks_is_told() {
        let in_gvisor = Description { runtime: Some("runsc".to_owned()), ..description() };
        let facts = DaemonFacts { default_runtime: Some("runc".to_owned()), ..whole() };
        let told = report(Flavour::Docker, &facts, &in_gvisor);
        assert_eq!(told.missing(), [Layer::UserNamespace, Layer::UidRange, Layer::Landlock]);
        assert!(told.tier.contains("gVisor"));
        assert_eq!(told.runtime.as_deref(), Some("runsc"));
        assert_eq!(report(Flavour::Docker, &facts, &description()).runtime.as_deref(), Some("runc"));
        let told = report(Flavour::Podman, &DaemonFacts { cgroup_version: Some(1), ..whole() }, &description());
        assert_eq!(told.missing(), NOT_PROMISED);
        let remapped = DaemonFacts { user_namespaces: true, ..whole() };
        let told = report(Flavour::Docker, &remapped, &description());
        assert_eq!(told.state(Layer::UserNamespace), LayerState::On);
        let mut root = description();
        root.user.id = 0;
        let told = report(Flavour::Docker, &whole(), &root);
        assert!(told.layers.iter().any(|layer| layer.detail.contains("as was asked for")));
        let layered = Description { storage: Storage::Layer, ..root };
        let told = report(Flavour::Docker, &whole(), &layered);
        assert!(
            told.layers.iter().any(|layer| layer.layer == Layer::DiskLimit && layer.detail.contains("approximate"))
        );
    }
}
