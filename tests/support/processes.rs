//! Processes as the host's `/proc` shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

/// The kinds of namespaces, as `/proc/PID/ns` names them.
pub const NAMESPACES: [&str; 8] = ["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"];

/// One process; the start time tells it from a later one with the same id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub started: u64,
    /// `R`, `S`, `Z`…
    pub state: char,
    pub name: String,
    pub command_line: String,
}

impl Process {
    pub fn read(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may contain anything, so it ends at the last bracket.
        let (before, after) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = after.split_whitespace().collect();
        let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
            state: fields.first()?.chars().next()?,
            name: before.split_once('(')?.1.to_owned(),
            command_line: String::from_utf8_lossy(&command_line).replace('\0', " ").trim_end().to_owned(),
        })
    }

    pub fn all() -> Vec<Self> {
        pids().into_iter().filter_map(Self::read).collect()
    }

    pub fn is_zombie(&self) -> bool {
        self.state == 'Z'
    }

    pub fn is_alive(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.started == self.started && !now.is_zombie())
    }

    pub fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    pub fn text(&self, name: &str) -> String {
        fs::read(self.file(name)).map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A field of `status`, without its name.
    pub fn status(&self, field: &str) -> String {
        let prefix = format!("{field}:");
        let text = self.text("status");
        text.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_default().trim().to_owned()
    }

    /// For example `net:[4026531840]`.
    pub fn namespace(&self, kind: &str) -> Option<String> {
        namespace(&format!("/proc/{}/ns/{kind}", self.pid))
    }

    /// Number and target of every open descriptor.
    pub fn descriptors(&self) -> BTreeMap<u32, String> {
        descriptors(&format!("/proc/{}/fd", self.pid))
    }

    /// Whether this user may look: an ordinary one may not into processes with ids of a range.
    pub fn shows_descriptors(&self) -> bool {
        fs::read_dir(self.file("fd")).is_ok()
    }

    pub fn threads(&self) -> Vec<u32> {
        numbers_in(&format!("/proc/{}/task", self.pid))
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({}) child of {}: {}", self.pid, self.name, self.state, self.parent, self.command_line)
    }
}

fn pids() -> Vec<u32> {
    numbers_in("/proc")
}

fn numbers_in(directory: &str) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    found.sort_unstable();
    found
}

pub fn namespace(link: &str) -> Option<String> {
    fs::read_link(link).ok().map(|target| target.to_string_lossy().into_owned())
}

/// The namespaces of this process, by kind.
pub fn own_namespaces() -> BTreeMap<&'static str, String> {
    NAMESPACES.iter().filter_map(|kind| Some((*kind, namespace(&format!("/proc/self/ns/{kind}"))?))).collect()
}

pub fn own_descriptors() -> BTreeMap<u32, String> {
    descriptors("/proc/self/fd")
}

fn descriptors(directory: &str) -> BTreeMap<u32, String> {
    numbers_in(directory)
        .into_iter()
        .filter_map(|number| {
            let target = fs::read_link(format!("{directory}/{number}")).ok()?;
            Some((number, target.to_string_lossy().into_owned()))
        })
        // The descriptor that lists the directory is gone when the list is read.
        .filter(|(_, target)| !target.ends_with("/fd"))
        .collect()
}

/// Everything below `root`, itself not included.
pub fn descendants(root: u32) -> Vec<Process> {
    let all = Process::all();
    let mut wanted = BTreeSet::from([root]);
    loop {
        let below = |process: &&Process| wanted.contains(&process.parent) && !wanted.contains(&process.pid);
        let found: Vec<u32> = all.iter().filter(below).map(|process| process.pid).collect();
        if found.is_empty() {
            break;
        }
        wanted.extend(found);
    }
    all.into_iter().filter(|process| process.pid != root && wanted.contains(&process.pid)).collect()
}

/// Everything whose command line contains `mark`, this process excepted.
pub fn marked(mark: &str) -> Vec<Process> {
    let own = std::process::id();
    Process::all().into_iter().filter(|process| process.pid != own && process.command_line.contains(mark)).collect()
}

/// Everything that lives in the same pid namespace as `process`, or in one below it that it can see.
pub fn companions(process: &Process) -> Vec<Process> {
    let Some(namespace) = process.namespace("pid") else { return Vec::new() };
    Process::all().into_iter().filter(|other| other.namespace("pid").as_ref() == Some(&namespace)).collect()
}

/// What a daemon has started to look after the container of `process`; `None` for what is in no container.
pub fn keeper(process: &Process) -> Option<Process> {
    let mut above = Process::read(process.parent)?;
    while !["containerd-shim", "conmon"].iter().any(|name| above.name.starts_with(name)) {
        above = Process::read(above.parent)?;
    }
    Some(above)
}

/// Resident memory in KiB.
pub fn resident_kib(pid: u32) -> u64 {
    Process::read(pid)
        .map(|process| process.status("VmRSS"))
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}
