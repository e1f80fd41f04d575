//! The leak census: what exists on the host, in classes, before and after.
//!
//! Everything is looked up from outside, by asking the kernel; nothing is asked of the engine. Only what belongs to this test
//! program is counted (its descendants, its state directory, its instance), so that other programs on the machine do not
//! disturb it; the mount table and the network devices of the host are compared as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::mounts::{self, Mount};
use crate::processes::{self, NAMESPACES, Process, own_descriptors, own_namespaces, resident_kib};
use crate::{Result, cgroups};

/// What to look for.
#[derive(Clone, Debug)]
pub struct Scope {
    pub state_dir: PathBuf,
    /// Parts of names by which groups, sockets and directories of ours are known.
    pub marks: Vec<String>,
    /// The process whose descendants are ours.
    pub root: u32,
}

impl Scope {
    pub fn new(state_dir: &Path, marks: impl IntoIterator<Item = String>) -> Self {
        Self { state_dir: state_dir.to_owned(), marks: marks.into_iter().collect(), root: std::process::id() }
    }
}

/// The classes with an exact count, and memory, which is compared with a bound.
#[derive(Clone, Debug, Default)]
pub struct Census {
    classes: BTreeMap<&'static str, BTreeMap<String, usize>>,
    mounts: Vec<Mount>,
    pub memory_kib: u64,
}

impl Census {
    pub fn take(scope: &Scope) -> Self {
        let descendants = processes::descendants(scope.root);
        let alive: Vec<&Process> = descendants.iter().filter(|process| !process.is_zombie()).collect();
        let mut census = Self { mounts: mounts::of("self"), ..Self::default() };
        census.count("processes", alive.iter().map(|process| format!("{} {}", process.name, process.command_line)));
        let zombies = descendants.iter().filter(|process| process.is_zombie());
        census.count("zombies", zombies.map(|process| format!("{} of {}", process.name, process.parent)));
        let threads = alive.iter().map(|process| process.threads().len()).sum::<usize>()
            + Process::read(scope.root).map_or(0, |process| process.threads().len());
        census.count("threads", (0..threads).map(|_| "thread".to_owned()));
        census.count("namespaces", namespaces(&alive));
        census.count("groups", scope.marks.iter().flat_map(|mark| cgroups::marked(mark)).map(shown));
        let inside = alive.iter().flat_map(|process| foreign_mounts(process, scope));
        census.count("mounts of processes", inside);
        census.count("network devices", names_in(Path::new("/sys/class/net")));
        census.count("loop devices", loop_devices());
        census.count("sockets", sockets(scope));
        census.count("directories", tree(&scope.state_dir));
        census.count("temporary files", temporary_files(scope));
        census.count("descriptors", descriptors(scope.root));
        for process in &alive {
            census.count("descriptors of processes", process.descriptors().into_values().map(kind_of_descriptor));
        }
        census.memory_kib =
            resident_kib(scope.root) + alive.iter().map(|process| resident_kib(process.pid)).sum::<u64>();
        census
    }

    fn count(&mut self, class: &'static str, items: impl IntoIterator<Item = String>) {
        let counted = self.classes.entry(class).or_default();
        for item in items {
            *counted.entry(without_ids(&item)).or_default() += 1;
        }
    }

    /// What `after` has more than this, as one line each. Less is no leak.
    pub fn leaks(&self, after: &Self) -> Vec<String> {
        let mut leaks = Vec::new();
        for (class, items) in &after.classes {
            for (item, &count) in items {
                let before = self.classes.get(class).and_then(|items| items.get(item)).copied().unwrap_or(0);
                if count > before {
                    leaks.push(format!("{class}: {} more of {item}", count - before));
                }
            }
        }
        leaks.extend(mounts::added(&self.mounts, &after.mounts).iter().map(|mount| format!("mounts: {mount}")));
        leaks
    }

    /// Waits for what the kernel takes down in the background, then says what is still there.
    pub fn leaks_within(&self, scope: &Scope, patience: Duration) -> Vec<String> {
        let started = Instant::now();
        loop {
            let leaks = self.leaks(&Self::take(scope));
            if leaks.is_empty() || started.elapsed() > patience {
                return leaks;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn classes(&self) -> usize {
        self.classes.len() + 2
    }
}

/// A sandbox that was made ahead and is followed by another is no leak: things are counted by what they are, not by whose.
fn without_ids(item: &str) -> String {
    let parts = item.split_inclusive(|character: char| "/ .:".contains(character));
    parts
        .scan(false, |after_ids, part| {
            let name = part.trim_end_matches(|character: char| "/ .:".contains(character));
            let end = &part[name.len()..];
            let is_id = name.starts_with("sb-") || (*after_ids && name.bytes().all(|byte| byte.is_ascii_digit()));
            *after_ids = name == "ids";
            Some(if is_id { format!("*{end}") } else { part.to_owned() })
        })
        .collect()
}

fn shown(path: PathBuf) -> String {
    path.display().to_string()
}

/// Namespaces that are not this process's own: those that processes are in, and those that somebody holds open.
fn namespaces(alive: &[&Process]) -> Vec<String> {
    let own: BTreeSet<String> = own_namespaces().into_values().collect();
    let mut found = BTreeSet::new();
    for process in alive {
        found.extend(NAMESPACES.iter().filter_map(|kind| process.namespace(kind)));
        found.extend(process.descriptors().into_values().filter(|target| is_namespace(target)));
    }
    found.extend(own_descriptors().into_values().filter(|target| is_namespace(target)));
    // The number changes with every sandbox; a leak shows as one more of its kind.
    found.difference(&own).map(|name| name.split(':').next().unwrap_or(name).to_owned()).collect()
}

fn is_namespace(target: &str) -> bool {
    NAMESPACES.iter().any(|kind| target.starts_with(&format!("{kind}:[")))
}

/// Mounts that a helper in a mount namespace of its own keeps although the host does not have them.
fn foreign_mounts(process: &Process, scope: &Scope) -> Vec<String> {
    let state = scope.state_dir.display().to_string();
    let of_ours = |mount: &Mount| mount.point.starts_with(&state) || mount.source.contains(&state);
    mounts::of(&process.pid.to_string()).iter().filter(|mount| of_ours(mount)).map(ToString::to_string).collect()
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn loop_devices() -> Vec<String> {
    names_in(Path::new("/sys/block"))
        .into_iter()
        .filter(|name| Path::new("/sys/block").join(name).join("loop").exists())
        .collect()
}

fn sockets(scope: &Scope) -> Vec<String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let state = scope.state_dir.display().to_string();
    let names = table.lines().filter_map(|line| line.split_whitespace().nth(7));
    names
        .filter(|name| name.contains(&state) || scope.marks.iter().any(|mark| name.contains(mark)))
        .map(str::to_owned)
        .collect()
}

/// Every file below the state directory.
fn tree(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            found.push(shown(entry.path()));
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
        }
    }
    found
}

/// Files with one of our marks in their names where programs keep what must not survive a reboot.
fn temporary_files(scope: &Scope) -> Vec<String> {
    let user = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(|directory| PathBuf::from(directory).join("sandpen"));
    let deep =
        [Some(PathBuf::from("/run/sandpen")), runtime, Some(std::env::temp_dir().join(format!("sandpen-{user}")))];
    let flat = [std::env::temp_dir(), PathBuf::from("/dev/shm"), PathBuf::from("/run")];
    deep.iter()
        .flatten()
        .flat_map(|place| tree(place))
        .chain(flat.iter().flat_map(|place| names_in(place)))
        .filter(|name| scope.marks.iter().any(|mark| name.contains(mark)))
        .collect()
}

fn descriptors(root: u32) -> Vec<String> {
    let open = if root == std::process::id() {
        own_descriptors()
    } else {
        Process::read(root).map(|process| process.descriptors()).unwrap_or_default()
    };
    open.into_values().map(kind_of_descriptor).collect()
}

/// `socket:[123]` and `socket:[456]` are the same kind of thing.
fn kind_of_descriptor(target: String) -> String {
    match target.split_once(":[") {
        Some((kind, _)) => kind.to_owned(),
        None => target,
    }
}

/// Adopt what descendants leave behind, so that nothing can escape the census by losing its parent.
pub fn adopt_orphans() -> Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(std::io::Error::from)?;
    Ok(())
}

/// Reap dead children that nobody else waits for.
pub fn reap(known: &[u32]) {
    for process in processes::descendants(std::process::id()) {
        if process.is_zombie()
            && process.parent == std::process::id()
            && !known.contains(&process.pid)
            && let Some(pid) = rustix::process::Pid::from_raw(process.pid as i32)
        {
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
        }
    }
}

/// The negative control of the census: leak one thing of each kind on purpose, and see it counted in its class.
///
/// For programs that do nothing else meanwhile: whatever another thread opens would be counted too.
pub fn control() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let scope = Scope::new(directory.path(), [crate::random::unique("census")]);
    let expect = |class: &str, leak: &mut dyn FnMut() -> Result<Box<dyn std::any::Any>>| -> Result<()> {
        let before = Census::take(&scope);
        let again = before.leaks_within(&scope, Duration::from_millis(500));
        if !again.is_empty() {
            return Err(format!("the census does not see the same twice: {}", again.join("; ")).into());
        }
        let held = leak()?;
        let leaks = before.leaks(&Census::take(&scope));
        drop(held);
        if leaks.iter().any(|leak| leak.starts_with(class)) {
            return Ok(());
        }
        Err(format!("a leak of {class:?} was not seen, but {leaks:?}").into())
    };
    let sleep = || Command::new("sleep").arg("30").spawn();
    expect("descriptors: 1 more of /proc", &mut || Ok(Box::new(fs::File::open("/proc/self/status")?)))?;
    expect("descriptors: 1 more of net", &mut || Ok(Box::new(fs::File::open("/proc/self/ns/net")?)))?;
    expect("directories: 1 more of", &mut || {
        fs::write(directory.path().join("left"), "x")?;
        Ok(Box::new(()))
    })?;
    expect("processes: 1 more of sleep", &mut || Ok(Box::new(Ended(sleep()?))))?;
    expect("zombies: 1 more of sleep", &mut || {
        let mut child = sleep()?;
        child.kill()?;
        while Process::read(child.id()).is_some_and(|process| !process.is_zombie()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Box::new(Ended(child)))
    })?;
    expect("threads: 1 more of", &mut || {
        let (held, end) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || end.recv());
        Ok(Box::new(held))
    })?;
    expect("sockets: 1 more of", &mut || {
        Ok(Box::new(std::os::unix::net::UnixListener::bind(directory.path().join("socket"))?))
    })?;
    let extra = "1 1 0:1 / /census-control rw - tmpfs none rw";
    let mut with_mount = Census::take(&scope);
    with_mount.mounts.extend(Mount::parse(extra));
    if Census::take(&scope).leaks(&with_mount).iter().any(|leak| leak.starts_with("mounts: ")) {
        return Ok(());
    }
    Err("an added mount was not seen".into())
}

/// A child that is killed and waited for when it goes out of sight.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::without_ids;

    #[test]
    fn ids_are_not_counted_apart() {
        assert_eq!(without_ids("/groups/in-x/sb-7k2m9x4bqhtw3ecd/y"), "/groups/in-x/*/y");
        assert_eq!(without_ids("/run/sandpen/ids/426"), "/run/sandpen/ids/*");
        assert_eq!(without_ids("/state/sb-7k2m9x4bqhtw3ecd.json"), "/state/*.json");
        assert_eq!(without_ids("sleep sleep 30"), "sleep sleep 30");
    }
}
