//! Daemons of an ordinary user, found where that user's own client finds them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sandpen_tests::daemon::Flavour;
use sandpen_tests::program::{Program, Ran, is_installed, run};
use sandpen_tests::{Result, images};

use crate::scene::{LIMIT, Scene};

/// Whom the test command makes.
const USER: &str = "sandpen-test";
const IMAGE: &str = "own:test";
const LIMITS: [&str; 3] = ["memory-limit", "process-limit", "cpu-limit"];

/// Limits that such a daemon cannot set are missing walls: nothing starts, unless that is accepted, and then it is told.
pub(crate) fn of_an_ordinary_user(scene: &mut Scene) -> Result<()> {
    let flavour = scene.daemon.flavour();
    let user = match ordinary_user(flavour) {
        Ok(user) => user,
        Err(why) => return scene.skip(why),
    };
    let rootless = Rootless::start(scene, flavour, user)?;
    let said: serde_json::Value = serde_json::from_str(&rootless.sandpen(&["doctor", "--json"])?.stdout)
        .map_err(|error| format!("the doctor does not say what it found: {error}"))?;
    if said["daemon"]["rootless"] != true {
        return Err(format!("the doctor found {said}").into());
    }
    let plain = rootless.sandpen(&["create"])?;
    if !plain.status.success() && !LIMITS.iter().any(|limit| plain.stderr.contains(limit)) {
        return Err(plain.told("it is refused for another reason than a limit"));
    }
    if said["daemon"]["cgroup_version"] == 1 && plain.status.success() {
        return Err(plain.told("a sandbox was made although an ordinary user has no limits with version 1"));
    }
    let accepted: Vec<&str> = LIMITS.iter().flat_map(|limit| ["--allow-missing", limit]).collect();
    let made = rootless.sandpen(&[&["create"][..], &accepted[..]].concat())?.succeeded()?;
    let id = made.stdout.trim();
    let ran = rootless.sandpen(&[&["exec", id][..], &accepted[..], &["--", "/program"]].concat())?.succeeded()?;
    rootless.sandpen(&[&["stop", id][..], &accepted[..]].concat())?.succeeded()?;
    if ran.stdout == "hello\n" { Ok(()) } else { Err(ran.told("its program does not run")) }
}

struct Rootless {
    directory: tempfile::TempDir,
    flavour: Flavour,
    user: User,
    _daemon: Program,
}

#[derive(Clone, Copy)]
struct User {
    id: u32,
    group: u32,
}

impl Rootless {
    fn start(scene: &Scene, flavour: Flavour, user: User) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("sandpen-rootless-").tempdir()?;
        let place = directory.path();
        fs::set_permissions(place, fs::Permissions::from_mode(0o755))?;
        for name in ["run", "run/podman", "home", "home/.config", "home/.config/containers", "state"] {
            fs::create_dir(place.join(name))?;
        }
        let settings = "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
                        [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n";
        fs::write(place.join("home/.config/containers/containers.conf"), settings)?;
        fs::copy(scene.program(), place.join("sandpen"))?;
        for entry in ["", "run", "run/podman", "home", "home/.config", "home/.config/containers", "state"] {
            chown(place.join(entry), Some(user.id), Some(user.group))?;
        }
        let socket = match flavour {
            Flavour::Docker => place.join("run/docker.sock"),
            Flavour::Podman => place.join("run/podman/podman.sock"),
        };
        let host = format!("unix://{}", socket.display());
        let mut command = as_user(place, user, "sh");
        command.args(["-c", &script(flavour, &host)]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut daemon = Program::start(&mut command, &place.join("log"))?;
        let deadline = Instant::now() + LIMIT;
        let docker = |arguments: &[&str]| {
            let mut command = Command::new("docker");
            run(command.env("DOCKER_HOST", &host).args(arguments), scene.path(), LIMIT)
        };
        while !docker(&["version"])?.status.success() {
            if daemon.child.try_wait()?.is_some() || Instant::now() > deadline {
                return Err(daemon.tell("the daemon of an ordinary user does not answer"));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        let archive = scene.daemon.export(images::SCRATCH)?;
        docker(&["import", &archive.to_string_lossy(), IMAGE])?.succeeded()?;
        Ok(Self { directory, flavour, user, _daemon: daemon })
    }

    /// Our program as that user, which is told nothing of where the daemon is.
    fn sandpen(&self, arguments: &[&str]) -> Result<Ran> {
        let place = self.directory.path();
        let mut command = as_user(place, self.user, &place.join("sandpen").to_string_lossy());
        command
            .env("SANDPEN_STATE_DIR", place.join("state"))
            .env("SANDPEN_ENGINE", self.flavour.as_str())
            .env("SANDPEN_CONTAINER_IMAGE", IMAGE)
            .args(arguments);
        run(&mut command, std::env::temp_dir().as_path(), LIMIT)
    }
}

impl Drop for Rootless {
    /// Podman leaves a process that holds the user's namespaces.
    fn drop(&mut self) {
        let noted = fs::read_to_string(self.directory.path().join("run/libpod/tmp/pause.pid")).unwrap_or_default();
        if let Some(pid) = noted.trim().parse().ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Its network is the host's, because sandboxes have none and a device for another may be out of reach.
fn script(flavour: Flavour, host: &str) -> String {
    match flavour {
        Flavour::Docker => format!(
            "exec rootlesskit --net=host --copy-up=/etc --copy-up=/run sh -c 'rm -f /run/docker /run/containerd; \
             exec dockerd --rootless --host {host} --storage-driver vfs --iptables=false --ip6tables=false --ip-forward=false --bridge=none'"
        ),
        Flavour::Podman => format!("exec podman --storage-driver vfs system service --time 0 {host}"),
    }
}

fn as_user(place: &Path, user: User, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", &user.id.to_string(), "--regid", &user.group.to_string(), "--clear-groups", "--", program])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", place.join("home"))
        .env("XDG_RUNTIME_DIR", place.join("run"))
        .current_dir(place);
    command
}

fn ordinary_user(flavour: Flavour) -> std::result::Result<User, String> {
    let needed: &[&str] = match flavour {
        Flavour::Docker => &["newuidmap", "setpriv", "rootlesskit"],
        Flavour::Podman => &["newuidmap", "setpriv"],
    };
    if let Some(absent) = needed.iter().find(|name| !is_installed(name)) {
        return Err(format!("{absent} is not installed"));
    }
    let table = |path: &str| fs::read_to_string(path).unwrap_or_default();
    if flavour == Flavour::Docker && Path::new("/var/run/docker.sock").exists() {
        return Err("this machine has a daemon of its own, which would be found first".to_owned());
    }
    if !table("/etc/subuid").lines().any(|line| line.starts_with(&format!("{USER}:"))) {
        return Err(format!("there is no user {USER} with subordinate ids"));
    }
    let users = table("/etc/passwd");
    let entry = users.lines().find(|line| line.starts_with(&format!("{USER}:")));
    let number = |index: usize| entry?.split(':').nth(index)?.parse().ok();
    match (number(2), number(3)) {
        (Some(id), Some(group)) => Ok(User { id, group }),
        _ => Err(format!("there is no user {USER}")),
    }
}
