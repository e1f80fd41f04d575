//! A server process to be killed: this very test program, started again with an argument, using the engine as a server does.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use egress::{Gateway, GatewaySettings};
use engine_native::{NativeConfig, NativeEngine, Reopen};
use sandbox::{
    ByteRange, Checkpoints, Engine, ExecRequest, InstanceId, Layer, Network, OnDisconnect, Owner, Persistence,
    SandboxId, SandboxSpec, WriteOptions,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::census::reap;
use crate::lab::{guest, missing};
use crate::processes::{self, Process};
use crate::random::Random;
use crate::{Result, Trouble};

/// Understood by an engine that is built for tests.
const CRASH_VARIABLE: &str = "SANDPEN_TEST_CRASH_AT";
const ARGUMENT: &str = "--be-the-server";

/// What the server does until it is killed or done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Make, use and end sandboxes without pause.
    Busy { seed: u64 },
    /// Start as after a crash, let the engine clear away, use one sandbox, end.
    Recover,
    /// Make, use and end one sandbox; whoever reaches the named step dies there.
    CrashAt { step: String },
    /// Start, use one sandbox, end; and say what stands in the way.
    Probe,
    /// Make a persistent sandbox with a file and a detached command in it, say which, and wait to be killed.
    Persist,
    /// Make a persistent sandbox with a file in it, say which, and remember its files; whoever reaches the named step of
    /// that dies there.
    Remember { step: String },
    /// Find the sandbox of an earlier server, look for its file and its command, and end it.
    Reach { id: String },
}

impl Work {
    fn arguments(&self) -> Vec<String> {
        match self {
            Self::Busy { seed } => vec!["busy".to_owned(), seed.to_string()],
            Self::Recover => vec!["recover".to_owned()],
            Self::CrashAt { step } => vec!["crash-at".to_owned(), step.clone()],
            Self::Probe => vec!["probe".to_owned()],
            Self::Persist => vec!["persist".to_owned()],
            Self::Remember { step } => vec!["remember".to_owned(), step.clone()],
            Self::Reach { id } => vec!["reach".to_owned(), id.clone()],
        }
    }

    fn parse(arguments: &[String]) -> Option<Self> {
        match arguments {
            [word, seed] if word == "busy" => Some(Self::Busy { seed: seed.parse().ok()? }),
            [word] if word == "recover" => Some(Self::Recover),
            [word, step] if word == "crash-at" => Some(Self::CrashAt { step: step.clone() }),
            [word] if word == "probe" => Some(Self::Probe),
            [word] if word == "persist" => Some(Self::Persist),
            [word, step] if word == "remember" => Some(Self::Remember { step: step.clone() }),
            [word, id] if word == "reach" => Some(Self::Reach { id: id.clone() }),
            _ => None,
        }
    }
}

/// Called early in `main` of programs that start servers.
pub fn main_if_asked() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, word, state_dir, missing, rest @ ..] = arguments.as_slice() else { return None };
    if word != ARGUMENT {
        return None;
    }
    let work = Work::parse(rest).expect("the test program gives right arguments");
    let missing =
        missing.split(',').filter(|name| !name.is_empty()).map(|name| name.parse().expect("a layer")).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let done = runtime.expect("a runtime starts").block_on(serve(Path::new(state_dir), missing, &work));
    match done {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(trouble) => {
            println!("trouble {trouble}");
            Some(ExitCode::FAILURE)
        }
    }
}

async fn serve(state_dir: &Path, allow_missing: BTreeSet<Layer>, work: &Work) -> Result<()> {
    let instance = InstanceId::random()?;
    println!("instance {instance}");
    let gateway = Arc::new(Gateway::new(GatewaySettings::default()));
    let config = NativeConfig {
        allow_missing,
        spares: 2,
        reopen: Reopen::WhenListed,
        ..NativeConfig::new(state_dir.to_owned(), instance, gateway)
    };
    let native = Arc::new(NativeEngine::start(config).await?);
    let engine: Arc<dyn Engine> = native.clone();
    println!("listed {}", engine.list().await?.len());
    match work {
        Work::Recover | Work::CrashAt { .. } | Work::Probe => {
            use_one(&engine, 1).await?;
            // Ending a sandbox is a success also when the launcher died of it: then nothing of it is left either.
            println!("done, launchers {}", launchers_of(std::process::id()).len());
            Ok(())
        }
        Work::Persist => persist(&engine).await,
        Work::Remember { .. } => {
            let id = make_persistent(&engine).await?;
            println!("persistent {id}");
            native.checkpoint(&id).await?;
            println!("done");
            Ok(())
        }
        Work::Reach { id } => reach(&engine, &id.parse()?).await,
        Work::Busy { seed } => {
            let mut random = Random::seeded(*seed);
            // One that always runs something which does not want to end.
            let held = SandboxId::random()?;
            engine.create(&held, &SandboxSpec::new(Owner::local())).await?;
            let stubborn = "trap '' TERM HUP INT; (setsid sleep 300 &) ; sleep 300 & while :; do sleep 1; done";
            let _running = engine.start(&held, &ExecRequest::shell(stubborn, Duration::from_secs(600))?).await?;
            println!("busy");
            std::io::stdout().flush()?;
            loop {
                let both = (use_one(&engine, random.draw()), use_one(&engine, random.draw()));
                tokio::try_join!(both.0, both.1)?;
            }
        }
    }
}

async fn persist(engine: &Arc<dyn Engine>) -> Result<()> {
    let id = make_persistent(engine).await?;
    let mut request = ExecRequest::shell("exec sleep 300", Duration::from_secs(600))?;
    request.on_disconnect = OnDisconnect::Continue;
    let _running = engine.start(&id, &request).await?;
    println!("persistent {id}");
    std::future::pending().await
}

/// With a file in it.
async fn make_persistent(engine: &Arc<dyn Engine>) -> Result<SandboxId> {
    let id = SandboxId::random()?;
    let (persistence, network) = (Persistence::Persistent, "api.example.com".parse()?);
    let spec = SandboxSpec { persistence, network, ..SandboxSpec::new(Owner::local()) };
    engine.create(&id, &spec).await?;
    let mut file = engine.files(&id).write(&guest("/workspace/kept")?, WriteOptions::default()).await?;
    file.write_all(b"kept").await?;
    file.commit().await?;
    Ok(id)
}

async fn reach(engine: &Arc<dyn Engine>, id: &SandboxId) -> Result<()> {
    if !engine.list().await?.iter().any(|sandbox| sandbox.id == *id) {
        return Err("the sandbox is not listed".into());
    }
    let mut kept = String::new();
    let mut read = engine.files(id).read(&guest("/workspace/kept")?, ByteRange::default()).await?;
    read.stream.read_to_string(&mut kept).await?;
    let script = "cat /proc/[0-9]*/comm | grep -c '^sleep$'";
    let mut process = engine.start(id, &ExecRequest::shell(script, Duration::from_secs(20))?).await?;
    drop(process.stdin.take());
    let mut running = String::new();
    process.stdout.read_to_string(&mut running).await?;
    process.control.wait().await?;
    engine.destroy(id).await?;
    println!("reached {} {}", kept.trim(), running.trim());
    Ok(())
}

/// Every kind of operation once, in one fresh sandbox.
async fn use_one(engine: &Arc<dyn Engine>, variant: u64) -> Result<()> {
    let id = SandboxId::random()?;
    // Nothing outside is asked for anything; what counts is that the way out is made.
    let network = if variant % 2 == 1 { "api.example.com".parse()? } else { Network::None };
    engine.create(&id, &SandboxSpec { network, ..SandboxSpec::new(Owner::local()) }).await?;
    let path = guest("/workspace/data")?;
    let mut file = engine.files(&id).write(&path, WriteOptions::default()).await?;
    file.write_all(&vec![7; 1 << (10 + variant % 12)]).await?;
    file.commit().await?;
    let script = ["true", "sleep 0.02", "(setsid sleep 60 &); true", "head -c 100000 /dev/zero"][variant as usize % 4];
    let mut process = engine.start(&id, &ExecRequest::shell(script, Duration::from_secs(20))?).await?;
    drop(process.stdin.take());
    let mut output = Vec::new();
    if variant % 4 != 2 {
        process.stdout.read_to_end(&mut output).await?;
    }
    process.control.wait().await?;
    let mut read = engine.files(&id).read(&path, ByteRange::default()).await?;
    read.stream.read_to_end(&mut output).await?;
    Ok(engine.destroy(&id).await?)
}

fn launchers_of(server: u32) -> Vec<Process> {
    let is_launcher = |process: &Process| process.command_line.starts_with("sandpen-launcher") && !process.is_zombie();
    processes::descendants(server)
        .into_iter()
        .filter(|process| process.parent == server && is_launcher(process))
        .collect()
}

/// A server process, seen from the test program that started it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
    pub instance: String,
}

/// How long a server may take to start or to do one round of work on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

impl Server {
    /// Waits until it has said which instance it is.
    pub fn start(state_dir: &Path, work: &Work) -> Result<Self> {
        let missing: Vec<Layer> = missing().into_iter().collect();
        let program = std::env::current_exe()?;
        Self::start_allowing(&mut Command::new(program), state_dir, work, &missing)
    }

    /// By a command that ends in this program, for example `unshare … THIS`, with leave to do without some walls.
    pub fn start_allowing(command: &mut Command, state_dir: &Path, work: &Work, missing: &[Layer]) -> Result<Self> {
        let missing: Vec<&str> = missing.iter().map(|layer| layer.as_str()).collect();
        if let Work::CrashAt { step } | Work::Remember { step } = work {
            command.env(CRASH_VARIABLE, step);
        }
        let mut child = command
            .arg(ARGUMENT)
            .arg(state_dir)
            .arg(missing.join(","))
            .args(work.arguments())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no output")?);
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(std::io::Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut server = Self { child, lines, instance: String::new() };
        server.instance = server.wait_for("instance ")?;
        Ok(server)
    }

    /// The rest of the first line that begins with `word`.
    pub fn wait_for(&self, word: &str) -> Result<String> {
        loop {
            let line =
                self.lines.recv_timeout(PATIENCE).map_err(|_| Trouble(format!("the server never said {word:?}")))?;
            if let Some(rest) = line.strip_prefix(word) {
                return Ok(rest.to_owned());
            }
            if line.starts_with("trouble") {
                return Err(line.into());
            }
        }
    }

    /// Everything that it says until it ends by itself, or until patience ends.
    pub fn finish(mut self) -> Result<(bool, Vec<String>)> {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if started.elapsed() > PATIENCE {
                self.child.kill()?;
                self.child.wait()?;
                return Err("the server does not end".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut lines = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(200)) {
            lines.push(line);
        }
        reap(&[]);
        Ok((status.success(), lines))
    }

    pub fn kill(mut self, victims: Victims) -> Result<()> {
        let launchers = match victims {
            Victims::Server => Vec::new(),
            Victims::ServerAndLauncher | Victims::Launcher => launchers_of(self.child.id()),
        };
        if victims != Victims::Launcher {
            self.child.kill()?;
        }
        for launcher in launchers {
            if let Some(pid) = rustix::process::Pid::from_raw(launcher.pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        if victims == Victims::Launcher {
            // A server without its launcher cannot go on; here it only has to leave nothing behind.
            std::thread::sleep(Duration::from_millis(50));
            self.child.kill()?;
        }
        self.child.wait()?;
        Ok(())
    }
}

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victims {
    Server,
    /// Both in the same moment, so that nobody is left to clean up.
    ServerAndLauncher,
    Launcher,
}
