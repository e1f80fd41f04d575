//! A Docker daemon of the test's own: nothing of the machine's is used, and nothing is left when it ends.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandpen_tests::program::{Program, Ran, run};
use sandpen_tests::{Result, cgroups, mounts, processes};
use tempfile::TempDir;

use crate::tree::Tree;

/// For one command of Docker, on a machine that does other things too.
const LIMIT: Duration = Duration::from_secs(180);

/// Everything that it starts is in namespaces that end with the shell: containerd, which it starts and does not always end,
/// the processes of containers, and all that it mounts. It writes to `/run` whatever it is told. The loopback stays the
/// host's, because a registry is there.
const SCRIPT: &str = r#"mount -t tmpfs tmpfs /run && exec dockerd --config-file "$1/daemon.json" --host "unix://$1/socket" \
    --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/pid" --cgroup-parent "$2" \
    --exec-opt native.cgroupdriver=cgroupfs --bridge none --iptables=false --ip6tables=false --ip-forward=false \
    --ip-masq=false --userland-proxy=false"#;

pub(crate) struct Daemon {
    process: Option<Program>,
    directory: TempDir,
    /// In the names of its control groups.
    mark: String,
}

impl Daemon {
    pub fn start() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("sandpen-docker-").tempdir()?;
        let place = directory.path();
        for name in ["home", "data", "exec"] {
            fs::create_dir(place.join(name))?;
        }
        fs::write(place.join("daemon.json"), "{}")?;
        let mark = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "sh", "-c", SCRIPT, "sh"])
            .arg(place)
            .arg(&mark)
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", place.join("home"))
            .env("TMPDIR", place)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let process = Program::start(&mut command, &place.join("log"))?;
        let mut daemon = Self { process: Some(process), directory, mark };
        daemon.wait()?;
        Ok(daemon)
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
                return Err(process.tell("dockerd does not answer"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn docker(&self) -> Command {
        let place = self.directory.path();
        let mut command = Command::new("docker");
        command
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", place.join("home"))
            .env("DOCKER_HOST", format!("unix://{}", place.join("socket").display()))
            .env("DOCKER_BUILDKIT", "1")
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

    /// All files of an image, as a container has them before anything ran in it.
    pub fn tree(&self, image: &str) -> Result<Tree> {
        // An image need not name a program, and this one is never started.
        let id = self.run(&["create", "--network", "none", image, "nothing"])?;
        let archive = self.directory.path().join(format!("{}.tar", id.trim()));
        let exported = self.run(&["export", "--output", &archive.to_string_lossy(), id.trim()]);
        self.run(&["rm", id.trim()])?;
        exported?;
        let tree = Tree::read(fs::File::open(&archive)?);
        fs::remove_file(archive)?;
        tree
    }

    /// What is left of it on the machine. It is gone when this returns.
    pub fn end(mut self) -> Vec<String> {
        self.stop();
        let mark = self.mark.clone();
        drop(self);
        remains(&mark)
    }

    fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        // The shell in the namespaces became the daemon; it puts away what containers use of the machine.
        if let Some(daemon) = processes::descendants(process.child.id()).first() {
            let _ = Command::new("kill").args(["-TERM", &daemon.pid.to_string()]).status();
            let _ = process.wait_within(Duration::from_secs(30));
        }
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

/// The client that came with the daemon goes before others: a newer one builds by a plugin that may not be there.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin";

fn remains(mark: &str) -> Vec<String> {
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

/// Nothing is left of a daemon that has run something, and what would be left is seen.
pub(crate) fn nothing_is_left(program: &Path) -> Result<()> {
    let daemon = Daemon::start()?;
    let context = daemon.directory.path().join("context");
    fs::create_dir(&context)?;
    fs::copy(program, context.join("program"))?;
    fs::write(context.join("Dockerfile"), "FROM scratch\nCOPY program /program\nRUN [\"/program\"]\n")?;
    daemon.run(&["build", "--quiet", "--network", "none", "--tag", "left", &context.to_string_lossy()])?;
    daemon.run(&["run", "--network", "none", "left", "/program"])?;
    if remains(&daemon.mark).len() < 3 {
        return Err(format!("a daemon that runs is not seen: {:?}", remains(&daemon.mark)).into());
    }
    let left = daemon.end();
    if left.is_empty() { Ok(()) } else { Err(left.join("\n").into()) }
}
