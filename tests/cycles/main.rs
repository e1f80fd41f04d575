//! Makes, uses and ends sandboxes many times over, and counts what stays behind: on the embedded engine, or on a daemon that
//! the environment names.
//!
//! `SANDPEN_TEST_CYCLES` sets how often.

mod daemon;
mod embedded;
mod view;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use sandbox::{
    Engine, Environment, ExecRequest, ExecStatus, Expected, GuestPath, Network, Owner, SandboxId, SandboxSpec, Script,
};
use sandpen_tests::census;
use sandpen_tests::check::shortened;
use sandpen_tests::daemon::Given;
use sandpen_tests::lab::Running;
use sandpen_tests::table::{Table, Verdict};
use sandpen_tests::{Result, Trouble};

/// Two cores, so a little more than two at once.
const AT_ONCE: u64 = 4;
/// Growth of the memory of the server and its launcher that is noise of the allocator.
const MEMORY_KIB: u64 = 10 * 1024;

/// Name, spares, and what the sandboxes are like.
const KINDS: [(&str, usize, Like); 4] = [
    ("cycles", 0, Like::PLAIN),
    ("cycles with spares", 4, Like::PLAIN),
    ("cycles with commands begun ahead", 4, Like { network: Network::None, is_expected: true }),
    ("cycles with a network", 0, Like { network: Network::Internet, is_expected: false }),
];

struct Like {
    network: Network,
    /// Whether what is run in them is told before.
    is_expected: bool,
}

fn main() -> ExitCode {
    engine_native::launcher_main_if_asked();
    match run() {
        Ok(code) => code,
        Err(Trouble(why)) => {
            println!("the cycles could not run: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let daemon = Given::of_environment()?;
    let started = Instant::now();
    let control = census::control();
    let name = daemon.as_ref().map_or("native", |daemon| daemon.flavour.as_str());
    let mut table = Table::titled(&format!("cycles, engine {name}"));
    add_control(&mut table, "census", control, started);
    // One thread: what the census counts is then the engine's, not the runtime's.
    // Helper threads of the runtime end soon after their work, so that they are gone when it is counted.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(Duration::from_millis(500))
        .build()?;
    if let Some(daemon) = &daemon {
        let started = Instant::now();
        add_control(&mut table, "census of the daemon", runtime.block_on(daemon::control(daemon)), started);
    }
    for (name, spares, like) in KINDS {
        let started = Instant::now();
        let counted = match &daemon {
            None => runtime.block_on(embedded::cycles(spares, &like)),
            Some(daemon) => runtime.block_on(daemon::cycles(daemon, spares, &like)),
        };
        match counted {
            Ok(counted) => table.add(name, counted.verdict(), &counted.summary(), started.elapsed()),
            Err(trouble) => table.add(name, Verdict::Fail, &trouble.to_string(), started.elapsed()),
        }
    }
    Ok(table.finish())
}

fn add_control(table: &mut Table, name: &str, control: Result<()>, started: Instant) {
    match control {
        Ok(()) => table.add(name, Verdict::Pass, "one leak of each kind was seen", started.elapsed()),
        Err(trouble) => table.add(name, Verdict::Void, &trouble.to_string(), started.elapsed()),
    }
}

/// What was found after so many cycles.
struct Counted {
    cycles: u64,
    took: Duration,
    leaks: Vec<String>,
    grown_kib: u64,
    classes: usize,
}

impl Counted {
    fn verdict(&self) -> Verdict {
        if self.leaks.is_empty() && self.grown_kib <= MEMORY_KIB { Verdict::Pass } else { Verdict::Fail }
    }

    fn summary(&self) -> String {
        let Self { cycles, took, leaks, grown_kib, classes } = self;
        let speed = *cycles as f64 / took.as_secs_f64();
        let summary = format!("{cycles} cycles, {speed:.0} a second, memory {grown_kib} KiB more, {classes} classes");
        if !leaks.is_empty() {
            return format!("{summary}; {}", shortened(leaks));
        }
        if *grown_kib > MEMORY_KIB { format!("{summary}: memory grows") } else { summary }
    }
}

async fn round(engine: &dyn Engine, like: &Like) -> Result<()> {
    let one = || cycle(engine, like);
    tokio::try_join!(one(), one(), one(), one())?;
    Ok(())
}

const WORK: &str = "echo $((6 * 7)); (setsid sleep 60 >/dev/null 2>&1 &)";

async fn cycle(engine: &dyn Engine, like: &Like) -> Result<()> {
    let id = SandboxId::random()?;
    engine.create(&id, &like.spec()).await?;
    let request = like.request()?;
    let ran = Running::of(engine.start(&id, &request).await?).finish().await?;
    if ran.stdout != "42\n" || ran.outcome.status != ExecStatus::Exited(0) {
        return Err(format!("a run went wrong: {ran:?}").into());
    }
    Ok(engine.destroy(&id).await?)
}

impl Like {
    const PLAIN: Self = Self { network: Network::None, is_expected: false };

    fn spec(&self) -> SandboxSpec {
        let shell = || Expected {
            argv: vec!["/bin/sh".to_owned()],
            script: "script".to_owned(),
            environment: Environment::default(),
            prelude: None,
        };
        SandboxSpec {
            network: self.network.clone(),
            expected: self.is_expected.then(shell),
            ..SandboxSpec::new(Owner::local())
        }
    }

    fn request(&self) -> Result<ExecRequest> {
        let timeout = Duration::from_secs(20);
        if !self.is_expected {
            return Ok(ExecRequest::shell(WORK, timeout)?);
        }
        let script: GuestPath = "script".parse()?;
        let mut request = ExecRequest::new(["/bin/sh".to_owned(), script.to_string()], timeout)?;
        request.script = Script::new(&script, WORK.as_bytes());
        Ok(request)
    }
}
