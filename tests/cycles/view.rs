//! What there is of us, what the daemon says that it has, and what its host has of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use sandpen_tests::census::{Census, Scope};
use sandpen_tests::daemon::{Given, Holdings};
use sandpen_tests::processes::Process;
use sandpen_tests::{Result, cgroups, mounts};

pub(crate) struct View {
    ours: Census,
    holdings: Holdings,
    host: Host,
}

impl View {
    pub fn take(daemon: &Given, scope: &Scope) -> Result<Self> {
        // Docker's client is below us while it runs, so it comes afterwards.
        let ours = Census::take(scope);
        Ok(Self { ours, holdings: Holdings::of(|words| daemon.docker(words))?, host: Host::of(&mark(daemon)?)? })
    }

    pub fn containers(&self) -> usize {
        self.holdings.containers.len()
    }

    pub fn memory_kib(&self) -> u64 {
        self.ours.memory_kib
    }

    pub fn classes(&self) -> usize {
        const HELD: usize = 4;
        self.ours.classes() + HELD + self.host.0.len()
    }

    pub fn with_network(mut self, name: &str) -> Self {
        self.holdings.networks.insert(name.to_owned());
        self
    }

    /// What `after` has more of ours, and all that the daemon has more or less.
    pub fn differences(&self, after: &Self) -> Vec<String> {
        let mut found = self.ours.leaks(&after.ours);
        // A spare that was used is followed by another.
        let containers = (self.containers(), after.containers());
        if containers.0 != containers.1 {
            found.push(format!("containers: {} before, {} now", containers.0, containers.1));
        }
        for (class, before, now) in [
            ("images", &self.holdings.images, &after.holdings.images),
            ("volumes", &self.holdings.volumes, &after.holdings.volumes),
            ("networks", &self.holdings.networks, &after.holdings.networks),
        ] {
            found.extend(now.difference(before).map(|new| format!("{class}: {new} is new")));
            found.extend(before.difference(now).map(|gone| format!("{class}: {gone} is gone")));
        }
        found.extend(self.host.differences(&after.host));
        found
    }

    /// Waits for what the daemon takes down in the background. What is made here meanwhile goes on being made.
    pub async fn differences_within(
        &self,
        daemon: &Given,
        scope: &Scope,
        patience: Duration,
    ) -> Result<(Self, Vec<String>)> {
        let started = Instant::now();
        loop {
            let now = Self::take(daemon, scope)?;
            let found = self.differences(&now);
            if found.is_empty() || started.elapsed() > patience {
                return Ok((now, found));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// In the names of everything that a daemon of the tests has.
fn mark(daemon: &Given) -> Result<String> {
    let socket = daemon.address.strip_prefix("unix://").map(Path::new);
    let place = socket.and_then(Path::parent).and_then(Path::file_name);
    place.map(|name| name.to_string_lossy().into_owned()).ok_or_else(|| "the daemon has no place here".into())
}

const DESCRIPTORS: &str = "descriptors";
/// A daemon has files and connections of its own that come and go. One for every fourth sandbox would be more.
const OF_ITS_OWN: usize = 20;

/// By class and kind, how many.
struct Host(BTreeMap<&'static str, BTreeMap<String, usize>>);

impl Host {
    fn of(mark: &str) -> Result<Self> {
        let groups = cgroups::marked(mark);
        let members = |group: &std::path::PathBuf| fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        let members: BTreeSet<u32> =
            groups.iter().flat_map(|group| members(group).lines().flat_map(str::parse).collect::<Vec<_>>()).collect();
        let processes: Vec<Process> = members.into_iter().filter_map(Process::read).collect();
        let is_daemon = |process: &&Process| ["dockerd", "podman"].contains(&process.name.as_str());
        let daemon = processes.iter().find(is_daemon).ok_or("the daemon has no process")?;
        let state = |process: &Process| if process.is_zombie() { "dead " } else { "" };
        Ok(Self(BTreeMap::from([
            ("processes", counted(processes.iter().map(|process| format!("{}{}", state(process), process.name)))),
            ("groups", counted(groups.iter().map(|_| "control group".to_owned()))),
            ("mounts", counted(mounts::of(&daemon.pid.to_string()).into_iter().map(|mount| mount.kind))),
            (DESCRIPTORS, counted(daemon.descriptors().into_values().map(|target| kind(&target)))),
        ])))
    }

    fn differences(&self, after: &Self) -> Vec<String> {
        let mut found = Vec::new();
        for (class, now) in &after.0 {
            let before = &self.0[class];
            let kinds: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
            for kind in kinds {
                let [was, is] = [before, now].map(|counts| counts.get(kind).copied().unwrap_or(0));
                let noise = if *class == DESCRIPTORS { OF_ITS_OWN } else { 0 };
                if was.abs_diff(is) > noise {
                    found.push(format!("{class} of the daemon: {was} of {kind} before, {is} now"));
                }
            }
        }
        found
    }
}

fn counted(items: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    items.fold(BTreeMap::new(), |mut counts, item| {
        *counts.entry(item).or_default() += 1;
        counts
    })
}

/// `socket:[123]` is a socket, and a path is a file.
fn kind(target: &str) -> String {
    target.split_once(':').map_or("file", |(kind, _)| kind).to_owned()
}
