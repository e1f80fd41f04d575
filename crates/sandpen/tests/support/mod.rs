//! The real binary with a state directory of its own and nothing of the caller's settings.

#![allow(dead_code, reason = "each test program uses its own part of this")]

pub mod caller;
pub mod client;
mod daemon;
pub mod exported;
pub mod image;
pub mod index;
pub mod plain;
pub mod server;
pub mod shop;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A place to run the binary in, removed at the end.
pub struct World {
    directory: TempDir,
}

impl World {
    pub fn new() -> Self {
        let directory = TempDir::with_prefix("sandpen-test-").unwrap();
        std::fs::create_dir(directory.path().join("work")).unwrap();
        Self { directory }
    }

    /// The current directory of the commands.
    pub fn work(&self) -> std::path::PathBuf {
        self.directory.path().join("work")
    }

    pub fn write(&self, name: &str, content: &str) {
        let path = self.work().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.work().join(name)).unwrap()
    }

    pub fn state_dir(&self) -> std::path::PathBuf {
        self.directory.path().join("state")
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandpen"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SANDPEN_") {
                command.env_remove(name);
            }
        }
        for (name, value) in Engine::of_test().settings() {
            command.env(name, value);
        }
        command
            .env("SANDPEN_STATE_DIR", self.state_dir())
            .env("XDG_CONFIG_HOME", self.directory.path().join("config"))
            .current_dir(self.work())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Done {
        Done::from(self.command(arguments).output().unwrap())
    }

    pub fn run_with_stdin(&self, arguments: &[&str], stdin: &str) -> Done {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        // A program that does not read its input closes the pipe, and that is its right.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        Done::from(child.wait_with_output().unwrap())
    }
}

/// The engine that a run of these tests is about: the embedded one, or a daemon that `SANDPEN_TEST_ENGINE`,
/// `SANDPEN_TEST_DAEMON` (its address) and `SANDPEN_TEST_IMAGE` (an image with Python and a shell) name.
pub enum Engine {
    Embedded,
    OfDaemon { name: String, address: String, image: String },
}

impl Engine {
    pub fn of_test() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(name) = variable("SANDPEN_TEST_ENGINE") else { return Self::Embedded };
        let named = |name: &str| variable(name).unwrap_or_else(|| panic!("{name} is not set"));
        Self::OfDaemon { name, address: named("SANDPEN_TEST_DAEMON"), image: named("SANDPEN_TEST_IMAGE") }
    }

    /// What sandboxes are made from when nothing is said.
    pub fn image(&self) -> &str {
        match self {
            Self::Embedded => "host",
            Self::OfDaemon { image, .. } => image,
        }
    }

    fn settings(&self) -> Vec<(&'static str, &str)> {
        match self {
            Self::Embedded => Vec::new(),
            Self::OfDaemon { name, address, image } => vec![
                ("SANDPEN_ENGINE", name),
                ("SANDPEN_DAEMON_HOST", address),
                ("SANDPEN_IMAGE", image),
                ("SANDPEN_CONTAINER_IMAGE", image),
            ],
        }
    }
}

/// The layers that sandboxes stand without, of those that the engine of this run has.
pub fn missing_layers() -> Vec<&'static str> {
    match Engine::of_test() {
        Engine::Embedded => Vec::new(),
        Engine::OfDaemon { name, .. } => {
            // Podman gives a namespace of control groups with their version 2 alone.
            let is_version_2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
            let more = if name == "podman" && !is_version_2 { Some("cgroup-namespace") } else { None };
            ["user-namespace"].into_iter().chain(more).chain(["uid-range", "landlock"]).collect()
        }
    }
}

/// Whether the embedded engine is in use. A test of something that only it has says so when it is not.
pub fn is_embedded(what: &str) -> bool {
    match Engine::of_test() {
        Engine::Embedded => true,
        Engine::OfDaemon { name, .. } => {
            skip(&format!("on {name}: {what}"));
            false
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.state_dir().exists() {
            self.run(&["stop", "--all"]);
        }
        // Of an ordinary user's builds there are trees that only the program itself can remove.
        let built_upon = self.state_dir().join("images/v1/apart").read_dir();
        if built_upon.is_ok_and(|mut entries| entries.next().is_some()) {
            for image in self.run(&["image", "ls", "-q"]).stdout.lines() {
                self.run(&["image", "rm", image]);
            }
            self.run(&["image", "prune"]);
        }
    }
}

/// What came of a command.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Done {
    #[track_caller]
    pub fn expect(self, code: i32, stdout: &str) -> Self {
        assert_eq!((self.code, self.stdout.as_str()), (Some(code), stdout), "stderr: {}", self.stderr);
        self
    }

    /// What it printed.
    #[track_caller]
    pub fn succeeds(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        self.stdout
    }

    #[track_caller]
    pub fn says(self, part: &str) -> Self {
        assert!(self.stderr.contains(part), "{part:?} is not in: {}", self.stderr);
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.stdout.matches('\n').count(), 1, "not one line: {}", self.stdout);
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}

/// Say that the test at hand does nothing here. What is printed the usual way is kept back for tests that pass; this is not, so
/// that whoever counts them (`xtask`) takes it for skipped.
pub fn skip(why: &str) {
    let line = format!("SKIPPED: {}\n", why.trim_end().replace('\n', " / "));
    let _ = std::io::stdout().write_all(line.as_bytes());
}

/// Whether this machine can make sandboxes. A test that needs one and cannot have it says so; on a daemon, which somebody has
/// started for it, that is no reason.
pub fn sandboxes_work() -> bool {
    static BROKEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let broken = BROKEN.get_or_init(|| {
        let doctor = World::new().run(&["doctor"]);
        (doctor.code != Some(0)).then(|| format!("{}{}", doctor.stdout, doctor.stderr))
    });
    match (broken, Engine::of_test()) {
        (None, _) => true,
        (Some(why), Engine::Embedded) => {
            skip(&format!("this machine cannot make sandboxes: {why}"));
            false
        }
        (Some(why), Engine::OfDaemon { name, .. }) => panic!("{name} cannot make sandboxes: {why}"),
    }
}

#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let patience = match Engine::of_test() {
        Engine::Embedded => 10,
        Engine::OfDaemon { .. } => 30,
    };
    let deadline = Instant::now() + Duration::from_secs(patience);
    while !condition() {
        assert!(Instant::now() < deadline, "still waiting: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// What belongs to a server: its descendants, as the kernel knows them, and what its daemon has running for it.
pub fn processes_below(root: u32) -> Vec<u32> {
    let mut found = descendants(root);
    if let Engine::OfDaemon { address, .. } = Engine::of_test() {
        found.extend(processes_at_daemon(root, &address).unwrap_or_default());
    }
    found
}

/// The daemon of these tests is on this machine, in a namespace of its own: by their groups its processes are found.
fn processes_at_daemon(server: u32, address: &str) -> Option<Vec<u32>> {
    let environment = std::fs::read(format!("/proc/{server}/environ")).ok()?;
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let state = environment.split('\0').find_map(|pair| pair.strip_prefix("SANDPEN_STATE_DIR="))?;
    let installation = std::fs::read_to_string(Path::new(state).join("docker/installation")).ok()?;
    let filter = format!("label=org.sandpen.installation={}", installation.trim());
    let words = ["--host", address, "ps", "--quiet", "--no-trunc", "--filter", &filter];
    // One that goes while the daemon lists them all can be an error of the whole list, and others come and go all the time.
    let listed = (0..50).find_map(|_| {
        let output = Command::new("docker").args(words).output().ok()?;
        if !output.status.success() {
            std::thread::sleep(Duration::from_millis(100));
        }
        output.status.success().then_some(output.stdout)
    });
    let listed = String::from_utf8(listed?).ok()?;
    let is_theirs = |pid: &u32| {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        listed.lines().any(|id| groups.contains(id))
    };
    let all = std::fs::read_dir("/proc").ok()?.flatten();
    Some(all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_theirs).collect())
}

fn descendants(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut looked_at = 0;
    while let Some(&process) = found.get(looked_at) {
        looked_at += 1;
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    found.split_off(1)
}

/// Whether a process is there and not only waiting to be reaped.
pub fn is_running(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Control groups with this in their names, in all hierarchies.
pub fn groups_named(part: &str) -> Vec<std::path::PathBuf> {
    let mut waiting = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
    let mut found = Vec::new();
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().contains(part) {
                    found.push(entry.path());
                }
                waiting.push(entry.path());
            }
        }
    }
    found
}
