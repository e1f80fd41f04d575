//! What is left when a server was killed: at once, and after the next one has started.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::Result;
use crate::census::{Census, Scope, reap};
use crate::server::{Server, Victims, Work};

/// The time in which everything ephemeral must be gone without anybody's help.
pub const ORPHAN_LIMIT: Duration = Duration::from_secs(2);

/// Classes that only somebody alive can clear, so they are asked for after the restart when nobody was left.
const NEEDS_SOMEBODY: &[&str] = &["groups", "directories", "temporary files", "sockets"];

/// A state directory and what it looks like after a server that ended in order.
pub struct Scene {
    state: TempDir,
    clean: Census,
}

impl Scene {
    pub fn new() -> Result<Self> {
        let state = tempfile::Builder::new().prefix("sandpen-crash-").tempdir()?;
        recover(state.path())?;
        let clean = Census::take(&Scope::new(state.path(), Vec::new()));
        Ok(Self { state, clean })
    }

    pub fn path(&self) -> &Path {
        self.state.path()
    }

    /// Kill a busy server after `delay` and say what it leaves: without a restart, then after one.
    pub fn kill_busy(&self, seed: u64, delay: Duration, victims: Victims) -> Result<Vec<String>> {
        let server = Server::start(self.path(), &Work::Busy { seed })?;
        let instance = server.instance.clone();
        let settled = delay > EARLY;
        if settled {
            server.wait_for("busy")?;
        }
        std::thread::sleep(delay);
        server.kill(victims)?;
        self.examine(&instance, victims, settled)
    }

    /// Let a server die at a named step and say what it leaves.
    pub fn crash_at(&self, step: &str) -> Result<Vec<String>> {
        let server = Server::start(self.path(), &Work::CrashAt { step: step.to_owned() })?;
        let instance = server.instance.clone();
        let (_, lines) = server.finish()?;
        let mut left = self.examine(&instance, Victims::ServerAndLauncher, true)?;
        if lines.iter().any(|line| line == "done, launchers 1") {
            left.push(format!("nobody died at step {step}"));
        }
        Ok(left)
    }

    /// Kill everything around a persistent sandbox; the next server must find it as it was, and its end must leave nothing.
    pub fn persist(&self, victims: Victims) -> Result<Vec<String>> {
        let server = Server::start(self.path(), &Work::Persist)?;
        let instance = server.instance.clone();
        let id = server.wait_for("persistent ")?;
        server.kill(victims)?;
        std::thread::sleep(ORPHAN_LIMIT);
        let next = Server::start(self.path(), &Work::Reach { id: id.clone() })?;
        let mut left = match next.wait_for("reached ")?.as_str() {
            "kept 1" => Vec::new(),
            other => vec![format!("its file and its command are {other:?}")],
        };
        next.finish()?;
        let scope = Scope::new(self.path(), [instance, id]);
        let leaks = self.leaks_within(&scope, ORPHAN_LIMIT, |_| true);
        left.extend(leaks.into_iter().map(|leak| format!("after its end: {leak}")));
        Ok(left)
    }

    /// Let a server die while it puts another process 1 into a persistent sandbox; the next must find it with its files,
    /// and its end must leave nothing.
    pub fn crash_in_restart(&self, step: &str) -> Result<Vec<String>> {
        let server = Server::start(self.path(), &Work::Remember { step: step.to_owned() })?;
        let instance = server.instance.clone();
        let id = server.wait_for("persistent ")?;
        let (_, lines) = server.finish()?;
        std::thread::sleep(ORPHAN_LIMIT);
        let next = Server::start(self.path(), &Work::Reach { id: id.clone() })?;
        let mut left = match next.wait_for("reached ")?.as_str() {
            "kept 0" => Vec::new(),
            other => vec![format!("its file and its commands are {other:?}")],
        };
        if lines.iter().any(|line| line == "done") {
            left.push(format!("nobody died at step {step}"));
        }
        next.finish()?;
        let scope = Scope::new(self.path(), [instance, id]);
        let leaks = self.leaks_within(&scope, ORPHAN_LIMIT, |_| true);
        left.extend(leaks.into_iter().map(|leak| format!("after its end: {leak}")));
        Ok(left)
    }

    /// What is left of `instance`, first by itself, then after a restart.
    pub fn examine(&self, instance: &str, victims: Victims, settled: bool) -> Result<Vec<String>> {
        let scope = Scope::new(self.path(), [instance.to_owned()]);
        let mut left = Vec::new();
        // The name of an instance that has no launcher yet stays until the next one starts: a file that is empty and
        // locked by nobody.
        let at_once = |leak: &String| {
            let somebody_is_left = victims == Victims::Server && (settled || !leak.contains("/instances/"));
            somebody_is_left || !NEEDS_SOMEBODY.iter().any(|class| leak.starts_with(class))
        };
        for leak in self.leaks_within(&scope, ORPHAN_LIMIT, at_once) {
            left.push(format!("2 s after the kill: {leak}"));
        }
        recover(self.path())?;
        for leak in self.leaks_within(&scope, Duration::from_secs(1), |_| true) {
            left.push(format!("after the restart: {leak}"));
        }
        Ok(left)
    }

    fn leaks_within(&self, scope: &Scope, patience: Duration, counts: impl Fn(&String) -> bool) -> Vec<String> {
        let started = std::time::Instant::now();
        loop {
            reap(&[]);
            let leaks: Vec<String> = self
                .clean
                .leaks(&Census::take(scope))
                .into_iter()
                // The thread that read the server's output ends in its own time.
                .filter(|leak| !leak.starts_with("threads"))
                .filter(&counts)
                .collect();
            if leaks.is_empty() || started.elapsed() > patience {
                return leaks;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Before this the server is still starting; killing it there is part of the test.
const EARLY: Duration = Duration::from_millis(60);

/// A server that starts on this directory, uses one sandbox and ends in order.
fn recover(state_dir: &Path) -> Result<()> {
    let (succeeded, lines) = Server::start(state_dir, &Work::Recover)?.finish()?;
    if succeeded {
        return Ok(());
    }
    Err(format!("a restart does not work: {}", lines.join("; ")).into())
}

/// The negative control: an orphan that is left on purpose must be found.
pub fn control() -> Result<Vec<String>> {
    let scene = Scene::new()?;
    let mut orphan = std::process::Command::new("sh").args(["-c", "setsid sleep 20 >/dev/null 2>&1 & "]).spawn()?;
    orphan.wait()?;
    let scope = Scope::new(scene.path(), Vec::new());
    let left = scene.leaks_within(&scope, Duration::from_millis(300), |_| true);
    for process in crate::processes::descendants(std::process::id()) {
        if process.name == "sleep"
            && let Some(pid) = rustix::process::Pid::from_raw(process.pid as i32)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        }
    }
    Ok(left)
}
