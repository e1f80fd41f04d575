//! Makes, uses and ends sandboxes many times over, and counts what stays behind: on the embedded engine, or on a daemon that
//! the environment names.
//!
//! `SANDPEN_TEST_CYCLES` sets how often.

mod daemon;
mod embedded;
mod view;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use sandbox::{Engine, ExecRequest, ExecStatus, Network, Owner, SandboxId, SandboxSpec};
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

/// Name, spares, and the network of the sandboxes.
const KINDS: [(&str, usize, Network); 3] = [
    ("cycles", 0, Network::None),
    ("cycles with spares", 4, Network::None),
    ("cycles with a network", 0, Network::Internet),
];

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
    for (name, spares, network) in KINDS {
        let started = Instant::now();
        let counted = match &daemon {
            None => runtime.block_on(embedded::cycles(spares, &network)),
            Some(daemon) => runtime.block_on(daemon::cycles(daemon, spares, &network)),
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

async fn round(engine: &dyn Engine, network: &Network) -> Result<()> {
    let one = || cycle(engine, network);
    tokio::try_join!(one(), one(), one(), one())?;
    Ok(())
}

async fn cycle(engine: &dyn Engine, network: &Network) -> Result<()> {
    let id = SandboxId::random()?;
    engine.create(&id, &with(network)).await?;
    let request = ExecRequest::shell("echo $((6 * 7)); (setsid sleep 60 >/dev/null 2>&1 &)", Duration::from_secs(20))?;
    let ran = Running::of(engine.start(&id, &request).await?).finish().await?;
    if ran.stdout != "42\n" || ran.outcome.status != ExecStatus::Exited(0) {
        return Err(format!("a run went wrong: {ran:?}").into());
    }
    Ok(engine.destroy(&id).await?)
}

fn with(network: &Network) -> SandboxSpec {
    SandboxSpec { network: network.clone(), ..SandboxSpec::new(Owner::local()) }
}
