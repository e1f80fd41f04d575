//! What this host allows: each layer, whether it can be built here, and what to do when it cannot.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use sandbox::user::UserIds;
use sandbox::{Error, ErrorKind, IsolationReport, Layer, LayerReport, LayerState, Result, Role};

use crate::cgroup::{self, Controller, Missing, Place, Version};
use crate::ids::{self, ImageIds, Pool};
use crate::image::User;
use crate::live::Description;
use crate::{role, syscall};

/// What was found out about the host, once, at start.
#[derive(Clone, Debug)]
pub struct Host {
    pub kernel: String,
    pub root: bool,
    pub places: Vec<Place>,
    pub pool: Option<Pool>,
    landlock: u32,
    seccomp: bool,
    missing_controllers: Vec<Missing>,
    user_namespaces: std::result::Result<(), (String, String)>,
}

/// For `doctor`: the host in words.
#[derive(Clone, Debug)]
pub struct HostReport {
    pub kernel: String,
    pub cgroups: String,
    pub privilege: String,
    pub layers: Vec<LayerProbe>,
}

#[derive(Clone, Debug)]
pub struct LayerProbe {
    pub layer: Layer,
    pub available: bool,
    /// How it is or would be enforced, or why it cannot be.
    pub detail: String,
    pub remedy: Option<String>,
}

/// Look at the host without changing it.
pub fn probe(_state_dir: &Path) -> HostReport {
    let host = Host::detect();
    HostReport {
        kernel: host.kernel.clone(),
        cgroups: host.cgroups(),
        privilege: if host.root { "root".to_owned() } else { "ordinary user".to_owned() },
        layers: Layer::ALL.iter().map(|&layer| host.layer(layer)).collect(),
    }
}

impl Host {
    pub fn detect() -> Self {
        let root = rustix::process::geteuid().is_root();
        let (places, missing_controllers) = cgroup::detect().unwrap_or_default();
        let system = rustix::system::uname();
        Self {
            kernel: system.release().to_string_lossy().into_owned(),
            root,
            places,
            missing_controllers,
            pool: if root {
                root_pool(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default())
            } else {
                subordinate_pool()
            },
            landlock: syscall::landlock_version(),
            seccomp: syscall::has_seccomp(),
            user_namespaces: user_namespaces(root),
        }
    }

    /// Ids for the owners of an image's files, where only an ordinary user's can stand for them.
    pub fn image_ids(&self) -> Option<ImageIds> {
        self.pool.filter(|_| !self.root).and_then(Pool::image_ids)
    }

    /// Whether a control group counts the processes of a sandbox.
    pub fn has_process_groups(&self) -> bool {
        self.places.iter().any(|place| place.controller == Controller::Processes)
    }

    fn cgroups(&self) -> String {
        let has = |version| self.places.iter().any(|place| place.version == version);
        match (has(Version::V1), has(Version::V2)) {
            (true, true) => "version 1 and version 2".to_owned(),
            (true, false) => "version 1".to_owned(),
            (false, true) => "version 2".to_owned(),
            (false, false) => "none that may be used".to_owned(),
        }
    }

    fn layer(&self, layer: Layer) -> LayerProbe {
        let on = |detail: &str| LayerProbe { layer, available: true, detail: detail.to_owned(), remedy: None };
        let off = |detail: String, remedy: &str| LayerProbe {
            layer,
            available: false,
            detail,
            remedy: Some(remedy.to_owned()),
        };
        match layer {
            Layer::UserNamespace => match &self.user_namespaces {
                Ok(()) => on("user namespace of its own"),
                Err((why, remedy)) => off(why.clone(), remedy),
            },
            Layer::UidRange if self.user_namespaces.is_err() => off(
                "ids are given to a user namespace, and there is none".to_owned(),
                "make user namespaces possible, as for the user-namespace layer",
            ),
            Layer::UidRange => match self.pool {
                Some(Pool::System) => on("65,536 ids for each sandbox"),
                Some(Pool::Subordinate { count, .. }) => on(&format!("from the user's {count} subordinate ids")),
                None => off(
                    "no subordinate ids, or no newuidmap".to_owned(),
                    "install the package uidmap (shadow-utils) and run `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER` as root",
                ),
            },
            Layer::Landlock if self.landlock == 0 => off(
                "this kernel has no Landlock, or has it switched off".to_owned(),
                "use Linux 5.13 or newer with landlock in the lsm= list",
            ),
            Layer::Landlock => on(&format!("interface version {}", self.landlock)),
            Layer::MemoryLimit => self.controller(layer, Controller::Memory),
            Layer::ProcessLimit if self.user_namespaces.is_ok() => {
                on("resource limit, counted in its own user namespace")
            }
            Layer::ProcessLimit => self.controller(layer, Controller::Processes),
            Layer::CpuLimit => self.controller(layer, Controller::Cpu),
            Layer::PidNamespace | Layer::MountNamespace | Layer::IpcNamespace | Layer::UtsNamespace => {
                on("namespace of its own")
            }
            Layer::NetworkNamespace => on("namespace of its own, loopback only"),
            Layer::CgroupNamespace => on("namespace of its own, made inside its group"),
            Layer::PivotedRoot => on("read-only system tree, the host's is detached"),
            Layer::MaskedPaths => on("/proc of its own, host files hidden, /proc/sys read-only, no /sys"),
            Layer::NoCapabilities => on("all five sets empty"),
            Layer::NoNewPrivileges => on("set for every process"),
            Layer::Seccomp if !self.seccomp => {
                off("this kernel does not filter system calls".to_owned(), "use a kernel with CONFIG_SECCOMP_FILTER")
            }
            Layer::Seccomp => on("allow-list, everything else is refused"),
            Layer::Rlimits => on("open files, core size, locked memory, queues"),
            Layer::DiskLimit => on("size- and inode-limited memory file system"),
            Layer::Descriptors => on("0, 1 and 2"),
        }
    }

    fn controller(&self, layer: Layer, controller: Controller) -> LayerProbe {
        if let Some(place) = self.places.iter().find(|place| place.controller == controller) {
            let version = if place.version == Version::V1 { 1 } else { 2 };
            return LayerProbe { layer, available: true, detail: format!("cgroup version {version}"), remedy: None };
        }
        let missing = self.missing_controllers.iter().find(|missing| missing.controller == controller);
        LayerProbe {
            layer,
            available: false,
            detail: missing.map_or_else(|| "cgroups cannot be read".to_owned(), |missing| missing.why.clone()),
            remedy: missing.map(|missing| missing.remedy.clone()),
        }
    }

    /// The layers to build. One that cannot be built stops everything, unless the operator said that it may be missing.
    pub fn walls(&self, allow_missing: &BTreeSet<Layer>) -> Result<BTreeSet<Layer>> {
        let mut walls = BTreeSet::new();
        for probe in Layer::ALL.iter().map(|&layer| self.layer(layer)) {
            if probe.available {
                walls.insert(probe.layer);
            } else if !allow_missing.contains(&probe.layer) {
                let remedy = probe.remedy.unwrap_or_default();
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "this host cannot give the {} layer ({}): {}",
                        probe.layer,
                        probe.layer.description(),
                        probe.detail
                    ),
                )
                .with_hint(format!("{remedy}; or accept sandboxes without it by --allow-missing {}", probe.layer)));
            }
        }
        Ok(walls)
    }

    /// The report of a sandbox that was built with these walls.
    pub fn report(&self, description: &Description) -> IsolationReport {
        let Description { walls, network, role, .. } = description;
        let root = description.root.as_ref();
        let User { id, group } = root.map_or(User::SANDBOX, |root| root.user);
        // Nobody else can ask for sandboxes that are without it.
        let is_unbounded =
            |layer| layer == Layer::ProcessLimit && matches!(role, Role::ImageUser(_)) && !self.has_process_groups();
        let layers = Layer::ALL
            .iter()
            .map(|&layer| {
                let detail = match (layer, network.is_none(), role) {
                    (Layer::NetworkNamespace, false, _) => {
                        format!("namespace of its own without a route out; the gateway lets it reach {network}")
                    }
                    (Layer::NoCapabilities, _, Role::ImageUser(_) | Role::Builder) => role::KEPT.to_owned(),
                    (Layer::UidRange, _, Role::Builder) if self.image_ids().is_some() => {
                        "those of the user's subordinate ids that files of images have, in every build of this user"
                            .to_owned()
                    }
                    (Layer::UidRange, _, Role::ImageUser(_)) if root.is_some_and(|root| root.image_ids.is_some()) => {
                        "those of the user's subordinate ids that files of images have, in every sandbox of this user \
                         whose programs are root"
                            .to_owned()
                    }
                    (Layer::ProcessLimit, _, Role::ImageUser(_) | Role::Builder) if !self.has_process_groups() => {
                        "resource limit for each user of the sandbox, and root can be many of them".to_owned()
                    }
                    (Layer::Landlock, _, Role::ImageUser(_) | Role::Builder) => {
                        format!("{}; all of the image may be written to", self.layer(layer).detail)
                    }
                    _ => self.layer(layer).detail,
                };
                let is_on = walls.contains(&layer) && !is_unbounded(layer);
                LayerReport { layer, state: if is_on { LayerState::On } else { LayerState::Off }, detail }
            })
            .collect();
        IsolationReport {
            tier: "Linux process isolation with a shared kernel",
            runtime: None,
            layers,
            limits: description.limits,
            user: UserIds { id, group },
        }
    }
}

/// As root: ids of our own choice on a host, and under Docker those that it has, above the ones in use.
fn root_pool(uid_map: &str) -> Option<Pool> {
    const FIRST: u32 = 10_000;
    let mapped = uid_map
        .lines()
        .map(|line| line.split_whitespace().filter_map(|field| field.parse::<u64>().ok()).collect::<Vec<_>>())
        .filter_map(|fields| (fields.first() == Some(&0)).then(|| fields.get(2).copied()).flatten())
        .max()
        .unwrap_or(0);
    match mapped {
        0x8000_0000.. => Some(Pool::System),
        20_000.. => {
            let count = u32::try_from(mapped).unwrap_or(u32::MAX).min(60_000) - FIRST;
            Some(Pool::Subordinate { first_user: FIRST, first_group: FIRST, count })
        }
        _ => None,
    }
}

/// What an ordinary user was given.
pub(crate) fn subordinate_pool() -> Option<Pool> {
    let helper = |name: &str| ["/usr/bin", "/bin", "/usr/local/bin"].iter().any(|at| Path::new(at).join(name).exists());
    if !helper("newuidmap") || !helper("newgidmap") {
        return None;
    }
    let uid = rustix::process::getuid().as_raw();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.get(2).is_some_and(|field| field.parse() == Ok(uid)))
        .and_then(|fields| fields.first().map(|name| (*name).to_owned()))
        .unwrap_or_default();
    ids::subordinate(
        &fs::read_to_string("/etc/subuid").unwrap_or_default(),
        &fs::read_to_string("/etc/subgid").unwrap_or_default(),
        &name,
        uid,
    )
}

/// Switches by which distributions turn user namespaces off. Whether they really work shows when one is made.
fn user_namespaces(root: bool) -> std::result::Result<(), (String, String)> {
    let switch = |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    if !Path::new("/proc/self/ns/user").exists() {
        return Err(("this kernel has no user namespaces".to_owned(), "use a kernel with CONFIG_USER_NS".to_owned()));
    }
    if switch("/proc/sys/user/max_user_namespaces") == Some(0) {
        return Err((
            "user namespaces are switched off".to_owned(),
            "run `sysctl user.max_user_namespaces=10000` as root".to_owned(),
        ));
    }
    if !root && switch("/proc/sys/kernel/unprivileged_userns_clone") == Some(0) {
        return Err((
            "user namespaces are for root only on this host".to_owned(),
            "run `sysctl kernel.unprivileged_userns_clone=1` as root".to_owned(),
        ));
    }
    if !root && switch("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        return Err((
            "AppArmor keeps ordinary users from user namespaces".to_owned(),
            "run `sysctl kernel.apparmor_restrict_unprivileged_userns=0` as root, or give sandpen a profile with `userns,`".to_owned(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_user_namespace_uses_the_ids_that_it_has() {
        assert_eq!(root_pool("         0          0 4294967295\n"), Some(Pool::System));
        assert_eq!(root_pool("0 1000 1\n1 100000 65536\n"), None);
        assert!(matches!(
            root_pool("0 100000 65536\n"),
            Some(Pool::Subordinate { first_user: 10_000, count: 50_000, .. })
        ));
        assert_eq!(root_pool(""), None);
    }
}
