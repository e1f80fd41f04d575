//! A Docker or Podman daemon of the test's own: nothing of the machine's is used, and nothing is left when it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub use self::flavour::Flavour;
pub use self::given::{Given, engine_name};
pub use self::holdings::Holdings;
use crate::program::{Program, Ran, run};
use crate::{Result, cgroups, mounts, processes};

#[cfg(feature = "weaken")]
mod engine;
mod flavour;
mod given;
mod holdings;

/// For one command of Docker, on a machine that does other things too.
const LIMIT: Duration = Duration::from_secs(180);
const SURROUNDINGS: &str = include_str!("daemon/surroundings.sh");
/// What every daemon has for a proxy, so that a sandbox which is told of it is noticed. It leads nowhere.
pub const PROXY: &str = "http://proxy.invalid:3128";
/// The client that came with the daemon goes before others: a newer one builds by a plugin that may not be there.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin";

pub struct Daemon {
    flavour: Flavour,
    process: Option<Program>,
    directory: TempDir,
    /// In the names of its directory and its control groups.
    mark: String,
    more: Vec<String>,
}

impl Daemon {
    pub fn start(flavour: Flavour) -> Result<Self> {
        Self::start_with_registries(flavour, &[])
    }

    /// One that speaks to these registries without encryption. Docker does so on the loopback by itself.
    pub fn start_with_registries(flavour: Flavour, insecure: &[&str]) -> Result<Self> {
        Self::start_with(flavour, insecure, Vec::new())
    }

    /// The same, with more words on its command line.
    pub fn start_with(flavour: Flavour, insecure: &[&str], more: Vec<String>) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix(&format!("sandpen-{}-", flavour.as_str())).tempdir()?;
        let place = directory.path();
        for name in ["home", "data", "exec"] {
            fs::create_dir(place.join(name))?;
        }
        fs::write(place.join("surroundings.sh"), SURROUNDINGS)?;
        flavour.write_settings(place, insecure)?;
        let mark = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut daemon = Self { flavour, process: None, directory, mark, more };
        daemon.start_again()?;
        Ok(daemon)
    }

    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// As `DOCKER_HOST` wants it.
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// A place for files of the test, which goes with the daemon.
    pub fn place(&self) -> &Path {
        self.directory.path()
    }

    /// Its process and all processes of containers end; images and containers stay for [`Daemon::start_again`].
    pub fn stop_for_now(&mut self) -> Result<()> {
        let keep = self.directory.path().join("keep");
        fs::write(&keep, "")?;
        self.stop();
        fs::remove_file(keep)?;
        Ok(())
    }

    /// The same by a signal that it cannot answer. What it ran ends with it here, because its surroundings do.
    pub fn kill_for_now(&mut self) -> Result<()> {
        let keep = self.directory.path().join("keep");
        fs::write(&keep, "")?;
        self.signal(Signal::KILL)?;
        if let Some(mut process) = self.process.take() {
            process.wait_within(LIMIT)?;
        }
        fs::remove_file(keep)?;
        Ok(())
    }

    /// As if its host had lost its power and come up again: what lay in memory is gone, by which Podman knows a new boot.
    pub fn lose_power(&mut self) -> Result<()> {
        self.kill_for_now()?;
        let memory = self.directory.path().join("exec");
        fs::remove_dir_all(&memory)?;
        fs::create_dir(&memory)?;
        self.start_again()
    }

    /// It takes connections and answers nothing, until it goes on.
    pub fn hang(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    pub fn go_on(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let socket = self.socket().display().to_string();
        let is_daemon = |process: &&processes::Process| {
            ["dockerd", "podman"].contains(&process.name.as_str()) && process.command_line.contains(&socket)
        };
        let found = processes::marked(&self.mark);
        let daemon = found.iter().find(is_daemon).ok_or("the daemon has no process")?;
        let pid = i32::try_from(daemon.pid).ok().and_then(Pid::from_raw).ok_or("the daemon has no process")?;
        kill_process(pid, signal).map_err(|error| error.to_string().into())
    }

    pub fn start_again(&mut self) -> Result<()> {
        let place = self.directory.path();
        // One that was killed has left these, and their numbers may be somebody's in the new surroundings.
        for left in ["pid", "exec/containerd/containerd.pid"] {
            let _ = fs::remove_file(place.join(left));
        }
        // Should it not start, its log says why.
        let keep = place.join("keep");
        fs::write(&keep, "")?;
        let mut command = Command::new("sh");
        command
            .arg(place.join("surroundings.sh"))
            .arg("around")
            .args([place.as_os_str(), self.mark.as_ref()])
            .args(self.flavour.command_line(place))
            .args(&self.more)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", place.join("home"))
            .env("TMPDIR", place)
            .envs(["HTTP_PROXY", "http_proxy"].map(|name| (name, PROXY)))
            // Registries and indexes of the tests are there.
            .envs(["NO_PROXY", "no_proxy"].map(|name| (name, "localhost,127.0.0.1,::1")))
            .env("CONTAINERS_CONF", place.join("containers.conf"))
            .env("CONTAINERS_STORAGE_CONF", place.join("storage.conf"))
            .env("CONTAINERS_REGISTRIES_CONF", place.join("registries.conf"))
            // What watches over Podman's containers writes where it was started.
            .current_dir(place)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        self.process = Some(Program::start(&mut command, &place.join("log"))?);
        self.wait()?;
        fs::remove_file(keep)?;
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut asked = self.docker();
            asked.args(["version", "--format", "{{.Server.Version}}"]).stdin(Stdio::null()).stderr(Stdio::null());
            if asked.stdout(Stdio::null()).status()?.success() {
                return Ok(());
            }
            let Some(process) = &mut self.process else { return Err("the daemon was ended".into()) };
            if process.child.try_wait()?.is_some() || Instant::now() > deadline {
                return Err(process.tell(&format!("{} does not answer", self.flavour.as_str())));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Docker's own client, speaking to this daemon.
    pub fn docker(&self) -> Command {
        let place = self.directory.path();
        // Podman builds by itself what Docker leaves to BuildKit.
        let by_plugin = match self.flavour {
            Flavour::Docker => "1",
            Flavour::Podman => "0",
        };
        let mut command = Command::new("docker");
        command
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", place.join("home"))
            .env("DOCKER_HOST", self.host())
            .env("DOCKER_BUILDKIT", by_plugin)
            .current_dir(place);
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let ran = self.run_to_the_end(arguments)?;
        let words = arguments.join(" ");
        ran.succeeded().map(|ran| ran.stdout).map_err(|trouble| format!("docker {words}: {trouble}").into())
    }

    pub fn run_to_the_end(&self, arguments: &[&str]) -> Result<Ran> {
        run(self.docker().args(arguments), self.directory.path(), LIMIT)
    }

    /// The whole tree of an image as an archive, as a container has it before anything ran in it.
    pub fn export(&self, image: &str) -> Result<PathBuf> {
        // An image need not name a program, and this one is never started.
        let id = self.run(&["create", "--network", "none", image, "nothing"])?;
        let archive = self.directory.path().join(format!("{}.tar", id.trim()));
        let exported = self.run(&["export", "--output", &archive.to_string_lossy(), id.trim()]);
        self.run(&["rm", id.trim()])?;
        exported.map(|_| archive)
    }

    /// What is left of it on the machine. It is gone when this returns.
    pub fn end(mut self) -> Vec<String> {
        self.stop();
        let mark = self.mark.clone();
        drop(self);
        remains(&mark)
    }

    /// What it has on the machine now.
    pub fn remains(&self) -> Vec<String> {
        remains(&self.mark)
    }

    pub fn mark(&self) -> &str {
        &self.mark
    }

    fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        drop(process.child.stdin.take());
        let _ = process.wait_within(Duration::from_secs(60));
        // Kills what has not ended by then.
        drop(process);
        for group in cgroups::marked(&self.mark).iter().rev() {
            let _ = fs::remove_dir(group);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the machine has with the mark of a daemon.
pub fn remains(mark: &str) -> Vec<String> {
    let mut found: Vec<String> = processes::marked(mark)
        .iter()
        .filter(|process| !process.is_zombie())
        .map(|process| format!("process {process}"))
        .collect();
    found.extend(
        mounts::of("self").iter().filter(|mount| mount.point.contains(mark)).map(|mount| format!("mount {mount}")),
    );
    found.extend(cgroups::marked(mark).iter().map(|group| format!("group {}", group.display())));
    if std::env::temp_dir().join(mark).exists() {
        found.push("its directory".to_owned());
    }
    found
}
