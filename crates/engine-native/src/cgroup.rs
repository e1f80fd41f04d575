//! Control groups, version 1 and 2, side by side: each controller is used where this host has it.
//!
//! A process is never moved by writing its id to `cgroup.procs`: that takes a lock for which the kernel waits for every
//! processor, 6 to 14 ms. A fresh child that writes `0` to a version 1 `tasks` file moves itself without that lock, and on
//! version 2 it is cloned into its group.

mod detect;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox::Limits;
use serde::{Deserialize, Serialize};

pub use detect::{Missing, detect};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    V1,
    V2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    Memory,
    Cpu,
    CpuAccounting,
    Processes,
}

impl Controller {
    pub const ALL: [Controller; 4] =
        [Controller::Memory, Controller::Cpu, Controller::CpuAccounting, Controller::Processes];

    fn name(self, version: Version) -> &'static str {
        match (self, version) {
            (Self::Memory, _) => "memory",
            (Self::Cpu, _) | (Self::CpuAccounting, Version::V2) => "cpu",
            (Self::CpuAccounting, Version::V1) => "cpuacct",
            (Self::Processes, _) => "pids",
        }
    }
}

/// Where one controller lives, and the group of ours below which sandboxes get theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub controller: Controller,
    pub version: Version,
    pub parent: PathBuf,
}

/// One directory of one sandbox in one hierarchy, with what is to be written there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaf {
    pub version: Version,
    pub directory: PathBuf,
    pub settings: Vec<Setting>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    pub file: String,
    pub value: String,
    /// A kernel without this file still enforces the limit, because there is no swap to bound.
    pub optional: bool,
}

const PERIOD_MICROSECONDS: u64 = 100_000;

/// The groups of one sandbox: pure, so that a plan can be shown and compared.
/// `processes` are those of the sandbox and ours in it together.
pub fn leaves(places: &[Place], instance: &str, id: &str, limits: &Limits, processes: u64) -> Vec<Leaf> {
    let mut leaves: Vec<Leaf> = Vec::new();
    for place in places {
        let directory = place.parent.join(group_name(instance)).join(id);
        let settings = settings(place.controller, place.version, limits, processes);
        match leaves.iter_mut().find(|leaf| leaf.directory == directory) {
            Some(leaf) => leaf.settings.extend(settings),
            None => leaves.push(Leaf { version: place.version, directory, settings }),
        }
    }
    leaves
}

pub fn group_name(instance: &str) -> String {
    format!("sandpen-{instance}")
}

fn settings(controller: Controller, version: Version, limits: &Limits, processes: u64) -> Vec<Setting> {
    let required = |file: &str, value: String| Setting { file: file.to_owned(), value, optional: false };
    let optional = |file: &str, value: String| Setting { file: file.to_owned(), value, optional: true };
    let quota = u64::from(limits.cpu_millis) * PERIOD_MICROSECONDS / 1000;
    let memory = limits.memory.bytes().to_string();
    match (controller, version) {
        (Controller::Memory, Version::V1) => vec![
            required("memory.limit_in_bytes", memory.clone()),
            optional("memory.memsw.limit_in_bytes", memory),
            optional("memory.swappiness", "0".to_owned()),
        ],
        (Controller::Memory, Version::V2) => {
            vec![required("memory.max", memory), optional("memory.swap.max", "0".to_owned())]
        }
        (Controller::Cpu, Version::V1) => vec![
            required("cpu.cfs_period_us", PERIOD_MICROSECONDS.to_string()),
            required("cpu.cfs_quota_us", quota.to_string()),
        ],
        (Controller::Cpu, Version::V2) => vec![required("cpu.max", format!("{quota} {PERIOD_MICROSECONDS}"))],
        (Controller::CpuAccounting, _) => Vec::new(),
        (Controller::Processes, _) => vec![required("pids.max", processes.to_string())],
    }
}

/// Make the group and set its limits. Its parent, one for each instance, is made on the way.
pub fn create(leaf: &Leaf) -> io::Result<()> {
    if let Err(error) = fs::create_dir(&leaf.directory) {
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error);
        }
        if let Some(parent) = leaf.directory.parent() {
            match fs::create_dir(parent) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            if leaf.version == Version::V2 {
                detect::enable_controllers(parent)?;
            }
        }
        fs::create_dir(&leaf.directory)?;
    }
    for setting in &leaf.settings {
        match fs::write(leaf.directory.join(&setting.file), &setting.value) {
            Err(_) if setting.optional => {}
            result => result?,
        }
    }
    Ok(())
}

/// Remove a group whose processes are gone. The last of them may still be leaving when their end is already known.
pub fn remove(directory: &Path) -> io::Result<()> {
    for _ in 0..200 {
        match fs::remove_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::sleep(Duration::from_millis(5)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            result => return result,
        }
    }
    Err(io::Error::from(io::ErrorKind::ResourceBusy))
}

/// What one sandbox uses, read from its groups.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    memory: Option<(Version, PathBuf)>,
    accounting: Option<(Version, PathBuf)>,
    processes: Option<PathBuf>,
}

impl Meter {
    pub fn new(places: &[Place], instance: &str, id: &str) -> Self {
        Self::of(places, |place| Some(place.parent.join(group_name(instance)).join(id)))
    }

    /// Of a sandbox that another instance made: only its directories are known.
    pub fn from_groups(places: &[Place], groups: &[PathBuf]) -> Self {
        Self::of(places, |place| groups.iter().find(|group| group.starts_with(&place.parent)).cloned())
    }

    fn of(places: &[Place], directory: impl Fn(&Place) -> Option<PathBuf>) -> Self {
        let mut meter = Self::default();
        for place in places {
            let Some(directory) = directory(place) else { continue };
            match place.controller {
                Controller::Memory => meter.memory = Some((place.version, directory)),
                Controller::CpuAccounting => meter.accounting = Some((place.version, directory)),
                Controller::Processes => meter.processes = Some(directory),
                Controller::Cpu => {}
            }
        }
        meter
    }

    pub fn memory(&self) -> Option<u64> {
        self.read_memory("memory.usage_in_bytes", "memory.current")
    }

    pub fn peak_memory(&self) -> Option<u64> {
        self.read_memory("memory.max_usage_in_bytes", "memory.peak")
    }

    fn read_memory(&self, v1: &str, v2: &str) -> Option<u64> {
        let (version, directory) = self.memory.as_ref()?;
        read_number(&directory.join(if *version == Version::V1 { v1 } else { v2 }))
    }

    /// How often the kernel has killed a process of this sandbox for want of memory.
    pub fn out_of_memory_kills(&self) -> Option<u64> {
        let (version, directory) = self.memory.as_ref()?;
        let file = match version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        read_field(&directory.join(file), "oom_kill")
    }

    pub fn cpu(&self) -> Option<Duration> {
        let (version, directory) = self.accounting.as_ref()?;
        match version {
            Version::V1 => read_number(&directory.join("cpuacct.usage")).map(Duration::from_nanos),
            Version::V2 => read_field(&directory.join("cpu.stat"), "usage_usec").map(Duration::from_micros),
        }
    }

    pub fn processes(&self) -> Option<u64> {
        read_number(&self.processes.as_ref()?.join("pids.current"))
    }
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn read_field(path: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(controller: Controller, version: Version, parent: &str) -> Place {
        Place { controller, version, parent: PathBuf::from(parent) }
    }

    #[test]
    fn controllers_mounted_together_share_a_group() {
        let places = [
            place(Controller::Cpu, Version::V1, "/c/cpu,cpuacct"),
            place(Controller::CpuAccounting, Version::V1, "/c/cpu,cpuacct"),
            place(Controller::Processes, Version::V1, "/c/pids"),
        ];
        let leaves = leaves(&places, "in-x", "sb-y", &Limits::default(), 272);
        assert_eq!(leaves.len(), 2);
        assert_eq!(leaves[0].directory, Path::new("/c/cpu,cpuacct/sandpen-in-x/sb-y"));
    }

    #[test]
    fn one_group_carries_all_limits_on_version_2() {
        let places = Controller::ALL.map(|controller| place(controller, Version::V2, "/c"));
        let leaves = leaves(&places, "in-x", "sb-y", &Limits::default(), 272);
        let written: Vec<_> = leaves[0].settings.iter().map(|s| format!("{}={}", s.file, s.value)).collect();
        assert_eq!(written, ["memory.max=536870912", "memory.swap.max=0", "cpu.max=100000 100000", "pids.max=272"]);
    }
}
