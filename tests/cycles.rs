//! Makes, uses and ends sandboxes many times over, and counts what stays behind.
//!
//! `SANDPEN_TEST_CYCLES` sets how often.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use sandbox::{Engine, ExecRequest, ExecStatus, Network, Owner, SandboxId, SandboxSpec};
use sandpen_tests::census::{self, Census, adopt_orphans};
use sandpen_tests::check::shortened;
use sandpen_tests::lab::{Lab, Running};
use sandpen_tests::table::{Table, Verdict};
use sandpen_tests::{Result, number_from};

/// Pools fill and caches warm up in these, before anything is counted.
const WARM_UP: u64 = 50;
/// Two cores, so a little more than two at once.
const AT_ONCE: u64 = 4;
/// Growth of the memory of the server and its launcher that is noise of the allocator.
const MEMORY_KIB: u64 = 10 * 1024;

fn main() -> ExitCode {
    engine_native::launcher_main_if_asked();
    let started = Instant::now();
    let control = census::control();
    let mut table = Table::titled("cycles, engine native");
    match control {
        Ok(()) => table.add("census", Verdict::Pass, "one leak of each kind was seen", started.elapsed()),
        Err(trouble) => table.add("census", Verdict::Void, &trouble.to_string(), started.elapsed()),
    }
    // One thread: what the census counts is then the engine's, not the runtime's.
    // Helper threads of the runtime end soon after their work, so that they are gone when it is counted.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(Duration::from_millis(500))
        .build()
        .expect("a runtime starts");
    for (name, spares, network) in [
        ("cycles", 0, Network::None),
        ("cycles with spares", 4, Network::None),
        ("cycles with a network", 0, Network::Internet),
    ] {
        let started = Instant::now();
        match runtime.block_on(cycles(spares, &network)) {
            Ok((verdict, detail)) => table.add(name, verdict, &detail, started.elapsed()),
            Err(trouble) => table.add(name, Verdict::Fail, &trouble.to_string(), started.elapsed()),
        }
    }
    table.finish()
}

async fn cycles(spares: usize, network: &Network) -> Result<(Verdict, String)> {
    adopt_orphans()?;
    let count = number_from("SANDPEN_TEST_CYCLES", 1000);
    let lab = Lab::with_spares(&[], spares).await?;
    let scope = lab.scope();
    for _ in 0..WARM_UP / AT_ONCE {
        round(&lab, network).await?;
    }
    // Until there are as many spares as there will be.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = Census::take(&scope);
    let started = Instant::now();
    for _ in 0..count.div_ceil(AT_ONCE) {
        round(&lab, network).await?;
    }
    let took = started.elapsed();
    let leaks = before.leaks_within(&scope, Duration::from_secs(5));
    let after = Census::take(&scope);
    let grown = after.memory_kib.saturating_sub(before.memory_kib);
    let speed = count as f64 / took.as_secs_f64();
    let summary = format!("{count} cycles, {speed:.0} a second, memory {grown} KiB more, {} classes", before.classes());
    if !leaks.is_empty() {
        return Ok((Verdict::Fail, format!("{summary}; {}", shortened(&leaks))));
    }
    if grown > MEMORY_KIB {
        return Ok((Verdict::Fail, format!("{summary}: memory grows")));
    }
    Ok((Verdict::Pass, summary))
}

async fn round(lab: &Lab, network: &Network) -> Result<()> {
    tokio::try_join!(cycle(lab, network), cycle(lab, network), cycle(lab, network), cycle(lab, network))?;
    Ok(())
}

async fn cycle(lab: &Lab, network: &Network) -> Result<()> {
    let id = SandboxId::random()?;
    let spec = SandboxSpec { network: network.clone(), ..SandboxSpec::new(Owner::local()) };
    lab.engine.create(&id, &spec).await?;
    let request = ExecRequest::shell("echo $((6 * 7)); (setsid sleep 60 >/dev/null 2>&1 &)", Duration::from_secs(20))?;
    let ran = Running::of(lab.engine.start(&id, &request).await?).finish().await?;
    if ran.stdout != "42\n" || ran.outcome.status != ExecStatus::Exited(0) {
        return Err(format!("a run went wrong: {ran:?}").into());
    }
    Ok(lab.engine.destroy(&id).await?)
}
