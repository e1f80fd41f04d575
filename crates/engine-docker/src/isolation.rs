//! Which walls a container stands behind. The daemon builds them; what it cannot build stops a sandbox, unless its operator
//! accepts to be without.

use std::collections::BTreeSet;

use sandbox::{Error, IsolationReport, Layer, LayerReport, LayerState, Result};

use crate::Flavour;
use crate::client::DaemonFacts;
use crate::record::Description;

/// Layers that no daemon of this kind gives, or gives only when its operator set it up so. They are shown as missing, and
/// are no reason to refuse: a container without them is what whoever chooses this engine expects.
const NOT_PROMISED: [Layer; 3] = [Layer::UserNamespace, Layer::UidRange, Layer::Landlock];

/// Refuse when the daemon lacks a wall that every container is to have.
pub fn check(flavour: Flavour, facts: &DaemonFacts, allow_missing: &BTreeSet<Layer>) -> Result<()> {
    for &layer in Layer::ALL {
        let (state, detail) = wall(layer, flavour, facts);
        if state == LayerState::On || NOT_PROMISED.contains(&layer) || allow_missing.contains(&layer) {
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

pub fn report(
    flavour: Flavour,
    facts: &DaemonFacts,
    runtime: Option<&str>,
    description: &Description,
) -> IsolationReport {
    let layers = Layer::ALL.iter().map(|&layer| {
        let (state, detail) = wall(layer, flavour, facts);
        let detail = match layer {
            Layer::NoCapabilities if description.user.id == 0 => {
                "programs are root of the container, as the operator allows, without any capability".to_owned()
            }
            Layer::DiskLimit => format!(
                "files are in memory: {} for each of the work directory, home and /tmp, and no more than the memory \
                 limit for all together",
                description.limits.disk
            ),
            _ => detail,
        };
        LayerReport { layer, state, detail }
    });
    let runtime = runtime.or(facts.default_runtime.as_deref()).unwrap_or_default();
    IsolationReport { tier: tier(runtime), layers: layers.collect(), limits: description.limits }
}

fn tier(runtime: &str) -> &'static str {
    match runtime.rsplit('/').next().unwrap_or_default() {
        "runc" | "crun" | "youki" | "io.containerd.runc.v2" | "" => "container with a shared kernel",
        "runsc" => "container with a kernel of its own in user space (gVisor)",
        name if name.starts_with("kata") => "container in a virtual machine (Kata)",
        _ => "container of a runtime that the operator chose",
    }
}

fn wall(layer: Layer, flavour: Flavour, facts: &DaemonFacts) -> (LayerState, String) {
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
        Layer::CgroupNamespace => on("namespace of its own"),
        Layer::UidRange => {
            (LayerState::Off, "programs of all containers have the same user ids on the daemon's host".to_owned())
        }
        Layer::PivotedRoot => on("the image alone, read-only, with work directory, home and /tmp in memory"),
        Layer::MaskedPaths => (LayerState::On, format!("{title}'s own list")),
        Layer::NoCapabilities => {
            on("programs have none; process 1, which is ours, keeps CHOWN, KILL, SETGID, SETPCAP and SETUID")
        }
        Layer::NoNewPrivileges => on("set for process 1 and all that it starts"),
        Layer::Seccomp => given(
            facts.seccomp,
            &format!("{title}'s default profile"),
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
        assert!(check(Flavour::Docker, &whole(), &BTreeSet::new()).is_ok());
        let poor = DaemonFacts { swap_limit: false, ..whole() };
        let refused = check(Flavour::Docker, &poor, &BTreeSet::new()).unwrap_err();
        assert_eq!(refused.kind(), sandbox::ErrorKind::Unsupported);
        assert!(check(Flavour::Docker, &poor, &BTreeSet::from([Layer::MemoryLimit])).is_ok());
        let blind = DaemonFacts { seccomp: false, ..whole() };
        assert!(check(Flavour::Podman, &blind, &BTreeSet::from([Layer::MemoryLimit])).is_err());
    }

    #[test]
    fn what_a_daemon_lacks_is_told() {
        let told = report(Flavour::Docker, &whole(), Some("runsc"), &description());
        assert_eq!(told.missing(), NOT_PROMISED);
        assert!(told.tier.contains("gVisor"));
        let remapped = DaemonFacts { user_namespaces: true, ..whole() };
        let told = report(Flavour::Docker, &remapped, None, &description());
        assert_eq!(told.state(Layer::UserNamespace), LayerState::On);
        let mut root = description();
        root.user.id = 0;
        let told = report(Flavour::Docker, &whole(), None, &root);
        assert!(told.layers.iter().any(|layer| layer.detail.contains("as the operator allows")));
    }
}
