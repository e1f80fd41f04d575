//! An engine in a directory of its own, embedded or on the daemon that the environment names, and sandboxes with the probe in
//! them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use egress::{Gateway, GatewaySettings};
use engine_docker::{DockerConfig, DockerEngine, Fetch};
use engine_native::{NativeConfig, NativeEngine};
use sandbox::{
    Engine, ErrorKind, ExecOutcome, ExecRequest, ExecStatus, Files, GuestPath, Image, Insistence, InstanceId, Layer,
    Owner, Process, ProcessControl, Role, SandboxId, SandboxSpec, Snapshots, TerminalSize, WriteOptions,
};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::census::Scope;
use crate::daemon::Given;
use crate::probe::{self, Findings};
use crate::processes::{self, Process as HostProcess};
use crate::random::unique;
use crate::{Result, Trouble};
use unwalled::Unwalled;

mod trees;
mod unwalled;

/// Longer than any probe takes; a hang becomes a failed check instead of a stuck run.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Nothing that the probe says is longer.
const MAX_OUTPUT: u64 = 4 << 20;
const PROBE: &str = "/tmp/probe";

/// What this host cannot enforce: found out once, by asking the engine.
static MISSING: OnceLock<BTreeSet<Layer>> = OnceLock::new();

/// Walls that a test run may do without when the host has no way to build them, each then a skip.
const MAY_BE_MISSING: &[Layer] = &[
    Layer::CgroupNamespace,
    Layer::UidRange,
    Layer::Landlock,
    Layer::MemoryLimit,
    Layer::ProcessLimit,
    Layer::CpuLimit,
];

pub struct Lab {
    pub engine: Arc<dyn Engine>,
    /// `None` where walls are left out of containers, by somebody else's client.
    pub snapshots: Option<Arc<dyn Snapshots>>,
    pub gateway: Arc<Gateway>,
    pub instance: InstanceId,
    pub without: BTreeSet<Layer>,
    state: Arc<TempDir>,
    probe: Arc<Vec<u8>>,
}

impl Lab {
    pub async fn start(without: &[Layer]) -> Result<Self> {
        Self::with_spares(without, 0).await
    }

    /// With so many sandboxes made ahead of each kind that was asked for.
    pub async fn with_spares(without: &[Layer], spares: usize) -> Result<Self> {
        Self::with(&known_missing().await?, without, spares, GatewaySettings::default()).await
    }

    /// With a gateway of its own settings.
    pub async fn with_gateway(without: &[Layer], settings: GatewaySettings) -> Result<Self> {
        Self::with(&known_missing().await?, without, 0, settings).await
    }

    async fn with(
        allow_missing: &BTreeSet<Layer>,
        without: &[Layer],
        spares: usize,
        settings: GatewaySettings,
    ) -> Result<Self> {
        let state = shared_state()?;
        let instance = InstanceId::random()?;
        let without: BTreeSet<Layer> = without.iter().copied().collect();
        let gateway = Arc::new(Gateway::new(settings));
        let (engine, snapshots): (Arc<dyn Engine>, Option<Arc<dyn Snapshots>>) = match Given::of_environment()? {
            None => {
                let config = NativeConfig {
                    allow_missing: allow_missing.clone(),
                    spares,
                    without: without.clone(),
                    ..NativeConfig::new(state.path().to_owned(), instance.clone(), gateway.clone())
                };
                let engine = Arc::new(NativeEngine::start(config).await?);
                (engine.clone(), Some(engine))
            }
            Some(daemon) if without.is_empty() => {
                let config = DockerConfig {
                    instance: instance.clone(),
                    spares,
                    gateway: gateway.clone(),
                    // What is not there must not be looked for elsewhere.
                    fetch: Fetch::Never,
                    ..daemon.config(state.path())?
                };
                let engine = Arc::new(DockerEngine::start(config).await?);
                (engine.clone(), Some(engine))
            }
            // A daemon's walls are taken away by asking it for less.
            Some(daemon) => (Arc::new(Unwalled { daemon, without: without.clone() }), None),
        };
        Ok(Self { engine, snapshots, gateway, instance, without, state, probe: probe_bytes()? })
    }

    /// As a container without walls is made, with all of them: what is different without one is then the wall's doing.
    pub async fn with_walls_of_the_daemon(daemon: Given) -> Result<Self> {
        let engine = Arc::new(Unwalled { daemon, without: BTreeSet::new() });
        Ok(Self { engine, snapshots: None, ..Self::start(&[]).await? })
    }

    pub fn state_dir(&self) -> &Path {
        self.state.path()
    }

    pub fn scope(&self) -> Scope {
        Scope::new(self.state_dir(), [self.instance.to_string()])
    }

    /// A sandbox of the host image with the probe in it.
    pub async fn sandbox(&self) -> Result<Sandbox> {
        self.sandbox_of(SandboxSpec::new(Owner::local())).await
    }

    pub async fn sandbox_of(&self, spec: SandboxSpec) -> Result<Sandbox> {
        Sandbox::with_probe(self.engine.clone(), self.as_asked(spec)).await
    }

    /// With programs that are whom this run is about. Without some walls nobody can be root, and then nobody is.
    fn as_asked(&self, spec: SandboxSpec) -> SandboxSpec {
        let insistence = if self.without.is_empty() { Insistence::Must } else { Insistence::IfPossible };
        let role = if is_about_root() { Role::ImageUser(insistence) } else { spec.role };
        SandboxSpec { role, ..spec }
    }

    /// Without the probe: for root trees that bring it, and for those that must not be touched.
    pub async fn bare_sandbox_of(&self, spec: SandboxSpec) -> Result<Sandbox> {
        let id = SandboxId::random()?;
        self.engine.create(&id, &self.as_asked(spec)).await?;
        Ok(Sandbox { engine: self.engine.clone(), id, probe: PROBE })
    }

    /// A root tree that holds nothing but the probe: the same on every machine.
    pub fn small_tree(&self) -> Result<TempDir> {
        root_tree(&self.probe)
    }

    /// Such a tree as the engine's kind of image.
    pub fn image(&self, tree: &TempDir) -> Result<Image> {
        match Given::of_environment()? {
            None => Ok(Image::Directory(tree.path().to_owned())),
            Some(daemon) => Ok(Image::Named(daemon.import(tree.path())?.parse()?)),
        }
    }

    /// A sandbox of such a tree.
    pub async fn small_sandbox(&self, tree: &TempDir) -> Result<Sandbox> {
        if is_on_daemon() {
            // The image of a daemon is the same on every machine too.
            return self.sandbox().await;
        }
        let spec = SandboxSpec { image: self.image(tree)?, ..SandboxSpec::new(Owner::local()) };
        let mut sandbox = self.bare_sandbox_of(spec).await?;
        sandbox.probe = "/bin/probe";
        Ok(sandbox)
    }
}

/// Whether programs are root of their sandboxes in this run: `SANDPEN_TEST_USER=image`.
pub fn is_about_root() -> bool {
    std::env::var_os("SANDPEN_TEST_USER").is_some_and(|user| user == "image")
}

/// Whether sandboxes are a daemon's.
pub fn is_on_daemon() -> bool {
    Given::of_environment().is_ok_and(|daemon| daemon.is_some())
}

/// One directory for all labs of a program, gone with the last: preparing the host image takes longer than any check.
fn shared_state() -> Result<Arc<TempDir>> {
    static STATE: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
    let mut shared = STATE.lock().map_err(|_| "a test panicked")?;
    if let Some(state) = shared.upgrade() {
        return Ok(state);
    }
    let state = Arc::new(tempfile::Builder::new().prefix("sandpen-test-").tempdir()?);
    *shared = Arc::downgrade(&state);
    Ok(state)
}

/// A directory that can be the root of a sandbox, with the probe as its only program.
pub fn root_tree(probe: &[u8]) -> Result<TempDir> {
    let tree = tempfile::Builder::new().prefix("sandpen-test-root-").tempdir()?;
    readable(tree.path(), 0o755)?;
    for directory in ["bin", "dev", "etc", "home/sandbox", "proc", "sys", "tmp", "usr", "var", "workspace"] {
        std::fs::create_dir_all(tree.path().join(directory))?;
    }
    std::fs::write(tree.path().join("bin/probe"), probe)?;
    readable(&tree.path().join("bin/probe"), 0o755)?;
    Ok(tree)
}

pub fn readable(path: &Path, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// The compiled probe, made once per test program.
pub fn probe_bytes() -> Result<Arc<Vec<u8>>> {
    static BYTES: OnceLock<Arc<Vec<u8>>> = OnceLock::new();
    if let Some(bytes) = BYTES.get() {
        return Ok(bytes.clone());
    }
    let directory = tempfile::tempdir()?;
    let bytes = Arc::new(std::fs::read(probe::compile(directory.path())?)?);
    Ok(BYTES.get_or_init(|| bytes).clone())
}

/// The probe as a file of the host, for runs without any sandbox.
pub fn probe_on_host(directory: &Path) -> Result<PathBuf> {
    let program = directory.join("probe");
    std::fs::write(&program, probe_bytes()?.as_slice())?;
    readable(&program, 0o755)?;
    Ok(program)
}

/// Walls that this host cannot build. Each of them is a skip, said aloud, never a pass.
pub fn missing() -> BTreeSet<Layer> {
    MISSING.get().cloned().unwrap_or_default()
}

async fn known_missing() -> Result<BTreeSet<Layer>> {
    if let Some(missing) = MISSING.get() {
        return Ok(missing.clone());
    }
    let found = find_missing().await?;
    Ok(MISSING.get_or_init(|| found).clone())
}

async fn find_missing() -> Result<BTreeSet<Layer>> {
    let complete = Lab::with(&BTreeSet::new(), &[], 0, GatewaySettings::default()).await?;
    let id = SandboxId::random()?;
    match complete.engine.create(&id, &SandboxSpec::new(Owner::local())).await {
        Ok(_) => {
            // A daemon does not promise every wall.
            let missing = complete.engine.isolation(&id).await?.missing();
            complete.engine.destroy(&id).await?;
            return Ok(missing.into_iter().collect());
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            println!("not every wall can be built here: {error} ({})", error.hint().unwrap_or("no hint"));
        }
        Err(error) => return Err(error.into()),
    }
    drop(complete);
    let lenient = Lab::with(&MAY_BE_MISSING.iter().copied().collect(), &[], 0, GatewaySettings::default()).await?;
    lenient.engine.create(&id, &SandboxSpec::new(Owner::local())).await?;
    let missing = lenient.engine.isolation(&id).await?.missing();
    lenient.engine.destroy(&id).await?;
    Ok(missing.into_iter().collect())
}

/// One sandbox. End it with [`Sandbox::end`]; one that is dropped ends with its lab.
pub struct Sandbox {
    engine: Arc<dyn Engine>,
    pub id: SandboxId,
    pub probe: &'static str,
}

impl Sandbox {
    /// Of any engine.
    pub async fn with_probe(engine: Arc<dyn Engine>, spec: SandboxSpec) -> Result<Self> {
        let id = SandboxId::random()?;
        engine.create(&id, &spec).await?;
        let sandbox = Self { engine, id, probe: PROBE };
        sandbox.write(PROBE, &probe_bytes()?, 0o755).await?;
        Ok(sandbox)
    }

    pub async fn end(self) -> Result<()> {
        Ok(self.engine.destroy(&self.id).await?)
    }

    pub fn files(&self) -> Box<dyn Files> {
        self.engine.files(&self.id)
    }

    pub async fn write(&self, path: &str, bytes: &[u8], mode: u32) -> Result<()> {
        let mut file = self.files().write(&guest(path)?, WriteOptions { mode, ..WriteOptions::default() }).await?;
        file.write_all(bytes).await?;
        Ok(file.commit().await?)
    }

    /// Run the probe to its end.
    pub async fn probe(&self, arguments: &[&str]) -> Result<Ran> {
        self.run_program(self.probe, arguments, "").await
    }

    pub async fn probe_with_input(&self, arguments: &[&str], input: &str) -> Result<Ran> {
        self.run_program(self.probe, arguments, input).await
    }

    pub async fn run_program(&self, program: &str, arguments: &[&str], input: &str) -> Result<Ran> {
        let argv = [program].into_iter().chain(arguments.iter().copied());
        self.run(ExecRequest::new(argv, PATIENCE)?, input).await
    }

    pub async fn run(&self, request: ExecRequest, input: &str) -> Result<Ran> {
        let mut running = Running::of(self.engine.start(&self.id, &request).await?);
        if let Some(mut stdin) = running.stdin.take() {
            // A program that ends without reading its input is no fault of the check.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        running.finish().await
    }

    /// Start the probe and leave it running.
    pub async fn start(&self, arguments: &[&str]) -> Result<Running> {
        self.start_in(arguments, None).await
    }

    pub async fn start_in(&self, arguments: &[&str], terminal: Option<TerminalSize>) -> Result<Running> {
        let argv = [self.probe].into_iter().chain(arguments.iter().copied());
        let mut request = ExecRequest::new(argv, PATIENCE)?;
        request.terminal = terminal;
        Ok(Running::of(self.engine.start(&self.id, &request).await?))
    }

    /// Start a probe that holds still, and find it from the host.
    pub async fn hold(&self, forks: u32, threads: u32) -> Result<Held> {
        self.hold_after(&[], forks, threads).await
    }

    /// The same, after `before` (for example `again 4`).
    pub async fn hold_after(&self, before: &[&str], forks: u32, threads: u32) -> Result<Held> {
        let mark = unique("mark");
        let (forks, threads) = (forks.to_string(), threads.to_string());
        let hold = ["hold", &mark, &forks, &threads];
        let arguments: Vec<&str> = before.iter().chain(hold.iter()).copied().collect();
        let mut running = self.start(&arguments).await?;
        let ready = running.line().await?;
        let inside = ready.rsplit('\t').next().unwrap_or_default();
        let mut found = processes::marked(&mark);
        // A client that holds the streams of a container's command has the same words.
        found.retain(|process| process.name != "docker");
        let is_it = |process: &&HostProcess| process.status("NSpid").split_whitespace().last() == Some(inside);
        let process = found.iter().find(is_it).cloned();
        Ok(Held { running, process: process.ok_or("the held probe is not seen from the host")?, marked: found })
    }
}

/// A command of the sandbox while it runs.
pub struct Running {
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    stdout: Box<dyn AsyncRead + Send + Unpin>,
    stderr: Box<dyn AsyncRead + Send + Unpin>,
    pub control: Box<dyn ProcessControl>,
}

impl Running {
    pub fn of(process: Process) -> Self {
        let Process { stdin, stdout, stderr, control } = process;
        Self { stdin, stdout, stderr, control }
    }

    /// One line of its output.
    pub async fn line(&mut self) -> Result<String> {
        let read = async {
            let mut line = Vec::new();
            loop {
                let byte = self.stdout.read_u8().await?;
                if byte == b'\n' {
                    return Ok::<_, std::io::Error>(String::from_utf8_lossy(&line).into_owned());
                }
                line.push(byte);
            }
        };
        let line = tokio::time::timeout(PATIENCE, read).await.map_err(|_| Trouble::from("no line came"))?;
        Ok(line?)
    }

    /// Close its input, read what it says, wait for its end.
    pub async fn finish(mut self) -> Result<Ran> {
        drop(self.stdin.take());
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut bounded = (self.stdout.take(MAX_OUTPUT), self.stderr.take(MAX_OUTPUT));
        let patience = PATIENCE * 2;
        let ended = tokio::join!(
            tokio::time::timeout(patience, bounded.0.read_to_end(&mut stdout)),
            tokio::time::timeout(patience, bounded.1.read_to_end(&mut stderr)),
            tokio::time::timeout(patience, self.control.wait()),
        );
        let outcome = match ended {
            (Ok(_), Ok(_), Ok(outcome)) => outcome?,
            (output, error, end) => {
                let state = |over: bool| if over { "closed" } else { "open" };
                return Err(format!(
                    "the command does not end: stdout {}, stderr {}, its end {:?}",
                    state(output.is_ok()),
                    state(error.is_ok()),
                    end.ok()
                )
                .into());
            }
        };
        let stdout = String::from_utf8_lossy(&stdout).into_owned();
        let findings = Findings::parse(&stdout);
        Ok(Ran { stdout, stderr: String::from_utf8_lossy(&stderr).into_owned(), findings, outcome })
    }
}

/// A probe that holds still, and how the host sees it.
pub struct Held {
    pub running: Running,
    pub process: HostProcess,
    /// It and its forks.
    pub marked: Vec<HostProcess>,
}

impl Held {
    pub async fn release(self) -> Result<Ran> {
        self.running.finish().await
    }
}

/// A command of the sandbox that has ended.
#[derive(Debug)]
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
    pub findings: Findings,
    pub outcome: ExecOutcome,
}

impl Ran {
    /// For probes that must have come to their end.
    pub fn complete(self) -> Result<Self> {
        if self.outcome.status == ExecStatus::Exited(0) {
            return Ok(self);
        }
        Err(format!("the probe ended with {:?}: {} {}", self.outcome.status, self.stdout, self.stderr).into())
    }
}

pub fn guest(path: &str) -> Result<GuestPath> {
    Ok(path.parse()?)
}
