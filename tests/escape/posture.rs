//! How a process stands, read from the host's `/proc`: everything that the kernel holds against it, as text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use sandpen_tests::lab::is_on_daemon;
use sandpen_tests::processes::{NAMESPACES, Process, keeper, own_namespaces};
use sandpen_tests::{cgroups, mounts};

/// One process or thread, with what depends on the machine replaced by words.
pub struct Posture(pub BTreeMap<String, String>);

const STATUS: &[&str] =
    &["Umask", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters"];

/// Limits that the engine sets; the others are the host's. On a daemon those are the first two.
const LIMITS: &[&str] = &[
    "Max core file size",
    "Max open files",
    "Max locked memory",
    "Max msgqueue size",
    "Max pending signals",
    "Max processes",
];

impl Posture {
    pub fn of(process: &Process) -> Self {
        let mut fields = BTreeMap::new();
        let map = IdMap::of(process, "uid_map");
        fields.insert("ids".to_owned(), map.inside_all(&process.status("Uid")));
        fields.insert("groups of ids".to_owned(), IdMap::of(process, "gid_map").inside_all(&process.status("Gid")));
        fields.insert("supplementary groups".to_owned(), process.status("Groups"));
        fields.insert("id map".to_owned(), map.shown());
        for field in STATUS {
            fields.insert((*field).to_owned(), process.status(field));
        }
        let own = own_namespaces();
        // The daemon of the tests has some of its own, and calls those the host's.
        let keeper = keeper(process);
        for kind in NAMESPACES {
            let namespace = process.namespace(kind);
            let keepers = keeper.as_ref().and_then(|keeper| keeper.namespace(kind));
            let whose = match &namespace {
                None => "unreadable",
                Some(_) if own.get(kind) == namespace.as_ref() || keepers == namespace => "the host's",
                Some(_) => "its own",
            };
            fields.insert(format!("namespace {kind}"), whose.to_owned());
        }
        let limits = process.text("limits");
        let own = if is_on_daemon() { &LIMITS[..2] } else { LIMITS };
        for name in own {
            let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().take(2).collect();
            fields.insert((*name).to_owned(), words.join(" "));
        }
        let descriptors: Vec<String> = process
            .descriptors()
            .into_iter()
            .map(|(number, target)| format!("{number}={}", kind_of(&target)))
            .collect();
        let descriptors = if process.shows_descriptors() { descriptors.join(" ") } else { "unreadable".to_owned() };
        fields.insert("descriptors".to_owned(), descriptors);
        let names = match std::fs::read(process.file("environ")) {
            Err(_) => "unreadable".to_owned(),
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                let mut names: Vec<&str> = text.split('\0').filter_map(|pair| Some(pair.split_once('=')?.0)).collect();
                names.sort_unstable();
                names.join(" ")
            }
        };
        fields.insert("environment".to_owned(), names);
        Self(fields)
    }

    /// For processes that hold what their work needs at the moment: what kinds of things, not which numbers.
    pub fn with_kinds_of_descriptors(mut self) -> Self {
        if let Some(descriptors) = self.0.get_mut("descriptors") {
            let kinds: BTreeSet<&str> =
                descriptors.split(' ').map(|one| one.split_once('=').map_or(one, |(_, kind)| kind)).collect();
            *descriptors = kinds.into_iter().collect::<Vec<_>>().join(" ");
        }
        if is_on_daemon() {
            // Bridges have those that the daemon's operator has set up.
            self.0.retain(|field, _| !field.starts_with("Max "));
        }
        self
    }

    /// Mounts belong to the namespace, not to one process, so they are told once.
    pub fn mounts(process: &Process) -> Self {
        let mut fields = BTreeMap::new();
        let (mut masks, mut groups) = (BTreeSet::new(), BTreeSet::new());
        for mount in mounts::of(&process.pid.to_string()) {
            let device = mount.kind == "devtmpfs" && mount.root != "/";
            let is_of_the_daemon = is_on_daemon() && (mount.point.starts_with("/etc/") || mount.point == "/.sandpen");
            let kind = match mount.kind.as_str() {
                _ if device => "device",
                // Whatever the daemon's directory lies on.
                _ if is_of_the_daemon => "file",
                "cgroup2" => "cgroup",
                kind => kind,
            };
            let atime = ["relatime", "noatime", "strictatime"];
            let mut options: Vec<&str> =
                mount.options.iter().map(String::as_str).filter(|option| !atime.contains(option)).collect();
            let bounds = mount.filesystem_options.iter().map(String::as_str);
            let is_bound = |option: &&str| option.starts_with("size=") || option.starts_with("nr_inodes=");
            options.extend(bounds.filter(|option| !device && is_bound(option)));
            options.extend(mount.propagation.iter().map(|word| word.split(':').next().unwrap_or(word)));
            let shown = format!("{kind} {}", options.join(","));
            // Which files of the kernel there are to hide depends on how it was built.
            if mount.point.starts_with("/proc/") && mount.point != "/proc/sys" {
                masks.insert(shown);
            } else if mount.point.starts_with("/sys/fs/cgroup") {
                // One for each controller, or one for all, in a directory of root's.
                groups.extend((kind == "cgroup").then_some(shown));
            } else {
                fields.insert(format!("mount {}", mount.point), shown);
            }
        }
        fields.insert("masks below /proc".to_owned(), masks.into_iter().collect::<Vec<_>>().join(" and "));
        if !groups.is_empty() {
            fields.insert("control groups".to_owned(), groups.into_iter().collect::<Vec<_>>().join(" and "));
        }
        Self(fields)
    }

    /// The bounds of the sandbox's control group, in the words of either version.
    pub fn groups(process: &Process) -> Self {
        // Version 2 names the period beside the quota.
        let first = |text: String| text.split(' ').next().map(str::to_owned);
        let of = |files: &[&str]| cgroups::value(process, files).and_then(first).unwrap_or_else(|| "none".to_owned());
        let fields = [
            ("memory limit", of(&["memory.max", "memory.limit_in_bytes"])),
            ("process limit", of(&["pids.max"])),
            ("processor quota", of(&["cpu.max", "cpu.cfs_quota_us"])),
        ];
        Self(fields.map(|(name, value)| (name.to_owned(), value)).into())
    }

    pub fn text(&self, role: &str) -> String {
        let mut text = String::new();
        for (field, value) in &self.0 {
            writeln!(text, "{role}: {field}: {value}").expect("a string takes all");
        }
        text
    }

    pub fn get(&self, field: &str) -> &str {
        self.0.get(field).map_or("", String::as_str)
    }

    /// The fields that differ.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        self.0
            .iter()
            .filter(|(field, value)| other.0.get(*field) != Some(value))
            .map(|(field, value)| format!("{field}: {value} and {}", other.get(field)))
            .collect()
    }
}

/// What a descriptor refers to, without numbers that change from sandbox to sandbox.
fn kind_of(target: &str) -> &str {
    match target.split_once(":[") {
        Some((kind, _)) => kind,
        None if target.contains("/ids/") => "lock on its ids",
        // The root of a mount that is in no tree.
        None if target == "/" => "its layer",
        None => target,
    }
}

/// A user or group map: inside, outside, count.
pub struct IdMap(pub Vec<[u64; 3]>);

impl IdMap {
    pub fn of(process: &Process, file: &str) -> Self {
        let parse = |line: &str| {
            let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            <[u64; 3]>::try_from(numbers).ok()
        };
        Self(process.text(file).lines().filter_map(parse).collect())
    }

    fn inside(&self, outside: u64) -> String {
        self.0
            .iter()
            .find(|[_, start, count]| (*start..*start + *count).contains(&outside))
            .map_or_else(|| "unmapped".to_owned(), |[inside, start, _]| (outside - start + inside).to_string())
    }

    fn inside_all(&self, ids: &str) -> String {
        let inside: Vec<String> =
            ids.split_whitespace().filter_map(|id| id.parse().ok()).map(|id| self.inside(id)).collect();
        inside.join(" ")
    }

    fn shown(&self) -> String {
        let lines = self.0.iter().map(|[inside, outside, count]| {
            let whose = if inside == outside { "the same ids" } else { "other ids" };
            format!("{count} from {inside} to {whose}")
        });
        lines.collect::<Vec<_>>().join(", ")
    }
}
