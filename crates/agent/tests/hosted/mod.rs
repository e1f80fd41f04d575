//! Sandboxes as a daemon would make them, from the tools that every Linux has: `unshare` for the namespaces and the root,
//! `nsenter` for what daemons call exec. Process 1 and its bridges get the rights that the engines ask daemons for.

#![allow(dead_code, reason = "two test programs share this and each uses its part")]

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use agent::Connection;
use async_trait::async_trait;
use sandbox::{
    Capabilities, Connections, Engine, EngineSandbox, Environment, Error, ErrorKind, ExecLog, ExecRequest, Files,
    GuestPath, GuestPort, GuestStream, Image, ImageProgram, IsolationReport, Made, Owner, Persistence, Process, Result,
    SandboxId, SandboxName, SandboxSpec, Usage,
};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// What process 1 needs before the first program: to become it, to end it, to give it its places, to empty the bounding set.
const RIGHTS: &str = "-all,+setuid,+setgid,+setpcap,+kill,+chown";

/// And what it needs to catch connections.
const NETWORK_RIGHTS: &str = "-all,+setuid,+setgid,+setpcap,+kill,+chown,+net_admin,+net_bind_service";

pub const TOKEN: &str = "a token of the tests";

/// Builds a root over the machine's own tree and becomes process 1 in it.
const BUILD: &str = r#"
set -e
[ ! -x /usr/sbin/ip ] || /usr/sbin/ip link set lo up
mount -t tmpfs tmpfs "$PLACE"
mkdir "$PLACE/upper" "$PLACE/work" "$PLACE/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$PLACE/upper,workdir=$PLACE/work" "$PLACE/root"
cd "$PLACE/root"
mkdir -p workspace home/sandbox tmp run proc dev .sandpen
mount -t tmpfs -o "size=$DISK" tmpfs workspace
mount -t tmpfs -o "size=$DISK" tmpfs home/sandbox
mount -t tmpfs -o "size=$DISK,mode=1777" tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs run
mount -t proc proc proc
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    touch dev/$device && mount --bind /dev/$device dev/$device
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
touch .sandpen/init
mount --bind "$PROGRAM" .sandpen/init
mount -o remount,bind,ro .sandpen/init
exec chroot . /usr/bin/setpriv --no-new-privs --inh-caps=-all --bounding-set="$RIGHTS" /.sandpen/init "$@"
"#;

/// Why such sandboxes cannot be made here.
pub fn lacking() -> Option<&'static str> {
    let is_root = rustix::process::geteuid().is_root();
    let has_tools = ["unshare", "nsenter", "setpriv"].iter().all(|tool| Path::new("/usr/bin").join(tool).exists());
    match (is_root, has_tools) {
        (false, _) => Some("only root makes sandboxes of its own for these tests"),
        (true, false) => Some("unshare, nsenter or setpriv are not installed"),
        (true, true) => None,
    }
}

/// The program as a file, once for all.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = PROGRAM.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("init");
        std::fs::write(&path, agent::PROGRAM).expect("the program");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o555)).expect("its mode");
        (directory, path)
    });
    path
}

/// What process 1 is told.
#[derive(Clone, Debug)]
pub struct Settings {
    pub process_1: agent::Hosted,
    pub disk: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let places = ["/workspace", "/home/sandbox", "/tmp"];
        let process_1 = agent::Hosted {
            token: TOKEN.to_owned(),
            user: 1000,
            group: 1000,
            persistence: Persistence::Ephemeral,
            idle: Duration::from_secs(600),
            role: agent::HostedRole::Guest,
            rest: agent::HostedRest::None,
            open_files: 1024,
            largest_file: None,
            network: agent::HostedNetwork::Untouched,
            streams: agent::HostedStreams::Unused,
            places: places.iter().map(|place| place.parse().expect("a path")).collect(),
        };
        Self { process_1, disk: 64 << 20 }
    }
}

/// One sandbox.
#[derive(Debug)]
pub struct Hosted {
    child: Child,
    /// As the machine counts.
    pub process_1: i32,
    streams: Option<(ChildStdin, ChildStdout)>,
    _place: tempfile::TempDir,
}

impl Hosted {
    pub async fn start(settings: &Settings) -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let rights = match settings.process_1.network {
            agent::HostedNetwork::Untouched => RIGHTS,
            agent::HostedNetwork::Caught { .. } => NETWORK_RIGHTS,
        };
        let stream = || match settings.process_1.streams {
            agent::HostedStreams::Unused => Stdio::null(),
            agent::HostedStreams::Bridge => Stdio::piped(),
        };
        let mut child = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "--mount", "--net", "--ipc", "--uts", "sh", "-c", BUILD, "init"])
            .args(settings.process_1.arguments())
            .env("PLACE", place.path())
            .env("PROGRAM", program())
            .env("RIGHTS", rights)
            .env("DISK", settings.disk.to_string())
            .stdin(stream())
            .stdout(stream())
            .kill_on_drop(true)
            .spawn()
            .expect("unshare");
        let parent = child.id().expect("it runs");
        let process_1 = first_child(parent).await;
        let streams = child.stdin.take().zip(child.stdout.take());
        Self { child, process_1, streams, _place: place }
    }

    /// The connection over its own streams.
    pub async fn attach(&mut self) -> Result<Connection> {
        let (stdin, stdout) = self.streams.take().ok_or_else(|| Error::internal("it has no streams"))?;
        Connection::open(stdout, stdin, TOKEN).await
    }

    /// A bridge into it, with its streams. It waits for a token.
    pub fn bridge(&self) -> io::Result<Bridge> {
        let mut child = Command::new("nsenter")
            .args(["--target", &self.process_1.to_string(), "--pid", "--mount", "--net", "--ipc", "--uts", "--root"])
            .args(["--wd=/", "/usr/bin/setpriv", "--no-new-privs", "--inh-caps=-all"])
            .args([&format!("--bounding-set={RIGHTS}"), "/.sandpen/init"])
            .args(agent::Hosted::bridge_arguments())
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Ok(Bridge { child, stdin, stdout })
    }

    pub async fn connect(&self) -> Result<Link> {
        self.wait_for_program().await;
        let Bridge { child, stdin, stdout } =
            self.bridge().map_err(|cause| Error::internal("no bridge").with_cause(cause))?;
        Ok(Link { connection: Connection::open(stdout, stdin, TOKEN).await?, bridge: child })
    }

    /// Until its root stands: before, there would be nothing to enter.
    pub async fn wait_for_program(&self) {
        let link = format!("/proc/{}/exe", self.process_1);
        for _ in 0..3000 {
            match std::fs::read_link(&link) {
                Ok(path) if path.ends_with(".sandpen/init") => return,
                Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(_) => return,
            }
        }
        panic!("process 1 did not start");
    }

    pub async fn kill(&mut self) {
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(self.process_1).expect("a process"),
            rustix::process::Signal::KILL,
        );
        self.ended().await;
    }

    pub async fn ended(&mut self) -> ExitStatus {
        self.child.wait().await.expect("unshare ends")
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("unshare is ours").is_some()
    }
}

pub struct Bridge {
    pub child: Child,
    pub stdin: ChildStdin,
    pub stdout: ChildStdout,
}

pub struct Link {
    pub connection: Connection,
    pub bridge: Child,
}

pub async fn first_child(parent: u32) -> i32 {
    for _ in 0..3000 {
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        if let Some(child) = children.split_whitespace().next().and_then(|child| child.parse().ok()) {
            return child;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("process {parent} has no child");
}

/// As much of an engine as the shared suite needs.
#[derive(Default)]
pub struct HostedEngine {
    sandboxes: Arc<Mutex<HashMap<SandboxId, Arc<Held>>>>,
}

struct Held {
    hosted: tokio::sync::Mutex<Hosted>,
    connection: Connection,
    owner: Owner,
    name: Option<SandboxName>,
    environment: Environment,
    work_directory: GuestPath,
}

impl HostedEngine {
    fn held(&self, id: &SandboxId) -> Result<Arc<Held>> {
        let held = self.sandboxes.lock().expect("the lock").get(id).cloned();
        held.filter(|held| !held.connection.is_closed()).ok_or_else(|| Error::not_found("there is no such sandbox"))
    }
}

#[async_trait]
impl Connections for HostedEngine {
    async fn connect(&self, id: &SandboxId, port: GuestPort) -> Result<GuestStream> {
        Ok(GuestStream::new(self.held(id)?.connection.dial(port).await?))
    }
}

#[async_trait]
impl Engine for HostedEngine {
    async fn capabilities(&self) -> Result<Capabilities> {
        Ok(Capabilities {
            name: "hosted",
            realm: None,
            persistence: false,
            terminal: true,
            usage: true,
            network: false,
        })
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Made> {
        if self.held(id).is_ok() {
            return Err(Error::new(ErrorKind::AlreadyExists, "there is one"));
        }
        if spec.image != Image::Host || spec.persistence != Persistence::Ephemeral {
            return Err(Error::unsupported("ephemeral ones over the machine's own tree are all that there is"));
        }
        let work_directory = spec.work_directory.clone().unwrap_or_else(GuestPath::workspace);
        let mut settings = Settings { disk: spec.limits.disk.bytes(), ..Settings::default() };
        settings.process_1.places.push(work_directory.clone());
        let hosted = Hosted::start(&settings).await;
        let Link { connection, bridge } = hosted.connect().await?;
        let watched = connection.clone();
        tokio::spawn(async move {
            let _bridge = bridge;
            watched.closed().await;
            watched.sandbox_is_gone();
        });
        if let Some(total) = spec.lifetime.total {
            connection.set_deadline(Some(total)).await?;
        }
        if !connection.files().stat(&work_directory).await.is_ok_and(|stat| stat.mode > 0) {
            return Err(Error::internal("there is no work directory"));
        }
        let mut environment = Environment::default();
        for (name, value) in [
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("HOME", "/home/sandbox"),
            ("LANG", "C.UTF-8"),
            ("USER", "sandbox"),
        ] {
            environment.insert(name, value)?;
        }
        let held = Held {
            hosted: tokio::sync::Mutex::new(hosted),
            connection,
            owner: spec.owner.clone(),
            name: spec.name.clone(),
            environment: environment.overlaid_by(&spec.environment),
            work_directory: work_directory.clone(),
        };
        self.sandboxes.lock().expect("the lock").insert(id.clone(), Arc::new(held));
        Ok(Made { work_directory, program: ImageProgram::default() })
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        let held = self.sandboxes.lock().expect("the lock").get(id).cloned();
        if let Some(held) = held {
            held.hosted.lock().await.kill().await;
            held.connection.sandbox_is_gone();
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<EngineSandbox>> {
        let sandboxes = self.sandboxes.lock().expect("the lock");
        Ok(sandboxes
            .iter()
            .filter(|(_, held)| !held.connection.is_closed())
            .map(|(id, held)| EngineSandbox {
                id: id.clone(),
                owner: held.owner.clone(),
                name: held.name.clone(),
                persistence: Persistence::Ephemeral,
                rest: None,
            })
            .collect())
    }

    async fn start(&self, id: &SandboxId, request: &ExecRequest) -> Result<Process> {
        let held = self.held(id)?;
        let mut request = request.clone();
        request.environment = held.environment.clone().overlaid_by(&request.environment);
        request.work_directory.get_or_insert_with(|| held.work_directory.clone());
        held.connection.start(&request).await
    }

    async fn logs(&self, id: &SandboxId) -> Result<Vec<ExecLog>> {
        self.held(id)?.connection.logs().await
    }

    fn files(&self, id: &SandboxId) -> Box<dyn Files> {
        match self.sandboxes.lock().expect("the lock").get(id) {
            Some(held) => held.connection.files(),
            None => panic!("the suite asks for files of sandboxes that it made"),
        }
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage> {
        let measured = self.held(id)?.connection.measure().await?;
        Ok(Usage { disk: Some(measured.disk), quiet: measured.quiet, ..Usage::default() })
    }

    async fn isolation(&self, id: &SandboxId) -> Result<IsolationReport> {
        self.held(id)?;
        Err(Error::unsupported("there is no report"))
    }

    async fn set_deadline(&self, id: &SandboxId, from_now: Option<Duration>) -> Result<()> {
        self.held(id)?.connection.set_deadline(from_now).await
    }
}
