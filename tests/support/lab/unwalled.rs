//! Containers that Docker's own client makes, with the walls of a sandbox but for those that are left out: where the check of a
//! wall that a daemon builds must turn red. Nothing of process 1 is in them, so nothing of ours is in the way.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sandbox::{
    ByteRange, Capabilities, Engine, EngineSandbox, Error, ExecLog, ExecOutcome, ExecRequest, ExecStatus, ExecUsage,
    FileStat, Files, GuestPath, ImageProgram, IsolationReport, Layer, Limits, ListOptions, Listing, Made,
    NetworkActivity, Process, ProcessControl, ReadFile, Result, SandboxId, SandboxSpec, Signal, TerminalSize, Usage,
    WriteFile, WriteOptions,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use crate::daemon::{Flavour, Given};

/// Where such a container sees the host's tree, when it does.
const HOST: &str = "/host";

#[derive(Clone, Debug)]
pub struct Unwalled {
    pub daemon: Given,
    pub without: BTreeSet<Layer>,
}

impl Unwalled {
    fn client(&self) -> Command {
        let mut command = Command::from(self.daemon.client());
        command.kill_on_drop(true);
        command
    }

    async fn run(&self, words: &[String]) -> Result<()> {
        let output = self.client().args(words).output().await.map_err(|error| failed(&error.to_string()))?;
        if output.status.success() { Ok(()) } else { Err(failed(&String::from_utf8_lossy(&output.stderr))) }
    }

    /// The words that build each wall, or that leave it out.
    fn words(&self, limits: &Limits) -> Vec<String> {
        let has = |layer: Layer| !self.without.contains(&layer);
        let mut words: Vec<String> = ["--user", "1000:1000", "--workdir", "/workspace"].map(str::to_owned).to_vec();
        let mut add = |text: String| words.extend(text.split(' ').map(str::to_owned));
        for (layer, apart, shared) in [
            (Layer::PidNamespace, "", "--pid host"),
            (Layer::NetworkNamespace, "--network none", "--network host"),
            (Layer::IpcNamespace, "--ipc private", "--ipc host"),
            (Layer::UtsNamespace, "", "--uts host"),
            (Layer::CgroupNamespace, "--cgroupns private", "--cgroupns host"),
            (Layer::NoCapabilities, "--cap-drop ALL", "--cap-add ALL"),
            (Layer::NoNewPrivileges, "--security-opt no-new-privileges", ""),
            (Layer::Seccomp, "", "--security-opt seccomp=unconfined"),
            (Layer::PivotedRoot, "", &format!("--volume /:{HOST}:ro")),
            (Layer::MaskedPaths, "", self.unmasked()),
        ] {
            let text = if has(layer) { apart } else { shared };
            if !text.is_empty() {
                add(text.to_owned());
            }
        }
        add("--read-only".to_owned());
        // What is written is in memory, which would be the bound of what has none.
        if has(Layer::MemoryLimit) && has(Layer::DiskLimit) {
            let memory = limits.memory.bytes();
            add(format!("--memory {memory} --memory-swap {memory}"));
        }
        if has(Layer::ProcessLimit) {
            add(format!("--pids-limit {}", limits.processes + 4));
        }
        if has(Layer::CpuLimit) {
            add(format!("--cpus {}", f64::from(limits.cpu_millis) / 1000.0));
        }
        for place in ["/workspace", "/home/sandbox", "/tmp"] {
            add(format!("--tmpfs {place}:{}", self.writable(limits)));
        }
        words
    }

    /// Each has a word of its own for it.
    fn unmasked(&self) -> &'static str {
        match self.daemon.flavour {
            Flavour::Docker => "--security-opt systempaths=unconfined",
            Flavour::Podman => "--security-opt unmask=ALL",
        }
    }

    /// Podman cannot bound the number of files.
    fn writable(&self, limits: &Limits) -> String {
        let size = limits.disk.bytes().min(limits.memory.bytes() / 4 * 3);
        let bounds = match self.daemon.flavour {
            _ if self.without.contains(&Layer::DiskLimit) => String::new(),
            Flavour::Docker => format!(",size={size},nr_inodes={}", limits.inodes),
            Flavour::Podman => format!(",size={size}"),
        };
        format!("rw,exec,nosuid,nodev,mode=1777{bounds}")
    }

    /// The words that run a command in one.
    fn exec(&self, id: &SandboxId, request: &ExecRequest) -> Vec<String> {
        let mut words = ["exec", "--interactive"].map(str::to_owned).to_vec();
        for (name, value) in request.environment.iter() {
            words.extend(["--env".to_owned(), format!("{name}={value}")]);
        }
        words.push(name_of(id));
        if request.terminal.is_some() {
            // The client has a terminal for a command only when it has one itself.
            words.extend(["script", "--quiet", "--command", &request.argv().join(" "), "/dev/null"].map(str::to_owned));
            return words;
        }
        // Podman takes a limit that is named for all that there are, and then not every one can be had.
        let limits = format!("ulimit -c 0 && ulimit -n {} && ", Limits::default().open_files);
        let limits = if self.without.contains(&Layer::Rlimits) { "" } else { &limits };
        let descriptor = if self.without.contains(&Layer::Descriptors) { "exec 9< / && " } else { "" };
        words.extend(["sh", "-c", &format!(r#"{limits}{descriptor}exec "$@""#), "sh"].map(str::to_owned));
        words.extend(request.argv().iter().cloned());
        words
    }
}

fn name_of(id: &SandboxId) -> String {
    format!("unwalled-{id}")
}

fn failed(why: &str) -> Error {
    Error::internal("the client of the daemon does not do it").with_cause(why.to_owned())
}

fn not_here() -> Error {
    Error::unsupported("a container that only a control uses cannot do this")
}

#[async_trait]
impl Engine for Unwalled {
    async fn capabilities(&self) -> Result<Capabilities> {
        Err(not_here())
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<Made> {
        const CANNOT: &[Layer] = &[Layer::UserNamespace, Layer::MountNamespace, Layer::UidRange, Layer::Landlock];
        if let Some(layer) = self.without.iter().find(|layer| CANNOT.contains(layer)) {
            return Err(Error::unsupported(format!("no container can be told to be without {layer}")));
        }
        let mut words = ["run", "--detach", "--name", &name_of(id)].map(str::to_owned).to_vec();
        words.extend(self.words(&spec.limits));
        words.extend([&self.daemon.image, "sleep", "600"].map(str::to_owned));
        if let Err(error) = self.run(&words).await {
            // It may be there and not run.
            let _ = self.destroy(id).await;
            return Err(error);
        }
        Ok(Made { work_directory: GuestPath::workspace(), program: ImageProgram::default() })
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        self.run(&["rm", "--force", "--volumes", &name_of(id)].map(str::to_owned)).await
    }

    async fn list(&self) -> Result<Vec<EngineSandbox>> {
        Ok(Vec::new())
    }

    async fn start(&self, id: &SandboxId, request: &ExecRequest) -> Result<Process> {
        let mut command = self.client();
        command.args(self.exec(id, request)).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(&error.to_string()))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdout), Some(stderr)) = (stdout, stderr) else { return Err(failed("it has no streams")) };
        let stdin = stdin.map(|stdin| Box::new(stdin) as Box<dyn AsyncWrite + Send + Unpin>);
        let control = Client { child: Mutex::new(child), begun: Instant::now(), timeout: request.timeout };
        Ok(Process { stdin, stdout: Box::new(stdout), stderr: Box::new(stderr), control: Box::new(control) })
    }

    async fn logs(&self, _id: &SandboxId) -> Result<Vec<ExecLog>> {
        Err(not_here())
    }

    fn files(&self, id: &SandboxId) -> Box<dyn Files> {
        Box::new(Tree { engine: self.clone(), id: id.clone() })
    }

    async fn usage(&self, _id: &SandboxId) -> Result<Usage> {
        Err(not_here())
    }

    async fn isolation(&self, _id: &SandboxId) -> Result<IsolationReport> {
        Err(not_here())
    }

    async fn set_deadline(&self, _id: &SandboxId, _from_now: Option<Duration>) -> Result<()> {
        Err(not_here())
    }
}

/// The client while it runs a command.
struct Client {
    child: Mutex<Child>,
    begun: Instant,
    timeout: Duration,
}

#[async_trait]
impl ProcessControl for Client {
    async fn signal(&self, _signal: Signal) -> Result<()> {
        Err(not_here())
    }

    async fn resize(&self, _size: TerminalSize) -> Result<()> {
        Err(not_here())
    }

    async fn kill(&self) -> Result<()> {
        Err(not_here())
    }

    async fn wait(&self) -> Result<ExecOutcome> {
        let mut child = self.child.lock().await;
        let left = self.timeout.saturating_sub(self.begun.elapsed());
        let status = match tokio::time::timeout(left, child.wait()).await {
            Err(_) => ExecStatus::TimedOut,
            Ok(ended) => {
                let ended = ended.map_err(|error| failed(&error.to_string()))?;
                ended.code().map_or(ExecStatus::Killed, ExecStatus::Exited)
            }
        };
        let usage = ExecUsage { wall: self.begun.elapsed(), ..ExecUsage::default() };
        Ok(ExecOutcome { status, usage, network: NetworkActivity::default() })
    }
}

/// Files go in, and nothing else is asked for.
struct Tree {
    engine: Unwalled,
    id: SandboxId,
}

#[async_trait]
impl Files for Tree {
    async fn stat(&self, _path: &GuestPath) -> Result<FileStat> {
        Err(not_here())
    }

    async fn list(&self, _path: &GuestPath, _options: ListOptions) -> Result<Listing> {
        Err(not_here())
    }

    async fn read(&self, _path: &GuestPath, _range: ByteRange) -> Result<ReadFile> {
        Err(not_here())
    }

    async fn write(&self, path: &GuestPath, options: WriteOptions) -> Result<Box<dyn WriteFile>> {
        let script = r#"cat > "$1" && chmod "$2" "$1""#;
        let mut command = self.engine.client();
        command.args(["exec", "--interactive", &name_of(&self.id), "sh", "-c", script, "sh"]);
        command.arg(path.to_string_lossy().as_ref()).arg(format!("{:o}", options.mode));
        Ok(Box::new(Written { bytes: Vec::new(), command }))
    }

    async fn make_directory(&self, _path: &GuestPath) -> Result<()> {
        Err(not_here())
    }

    async fn remove(&self, _path: &GuestPath) -> Result<()> {
        Err(not_here())
    }

    async fn rename(&self, _from: &GuestPath, _to: &GuestPath) -> Result<()> {
        Err(not_here())
    }

    async fn pack(&self, _path: &GuestPath) -> Result<Box<dyn AsyncRead + Send + Unpin>> {
        Err(not_here())
    }

    async fn unpack(&self, _path: &GuestPath) -> Result<Box<dyn WriteFile>> {
        Err(not_here())
    }
}

/// A file on its way in, and the command that takes it.
struct Written {
    bytes: Vec<u8>,
    command: Command,
}

#[async_trait]
impl WriteFile for Written {
    async fn commit(mut self: Box<Self>) -> Result<()> {
        let written = async {
            let mut child = self.command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(&self.bytes).await?;
            }
            child.wait().await
        };
        match written.await {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(failed(&status.to_string())),
            Err(error) => Err(failed(&error.to_string())),
        }
    }
}

impl AsyncWrite for Written {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.bytes.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
