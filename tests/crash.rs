//! Kills a server at random points and at every named step, and looks for what it leaves behind.
//!
//! `SANDPEN_TEST_KILLS` sets the number of kills, `SANDPEN_TEST_SEED` repeats a run.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use sandpen_tests::aftermath::{self, Scene};
use sandpen_tests::census::{self, adopt_orphans};
use sandpen_tests::lab::Lab;
use sandpen_tests::random::Random;
use sandpen_tests::server::{self, Victims};
use sandpen_tests::table::{Table, Verdict};
use sandpen_tests::{Result, number_from};

fn main() -> ExitCode {
    engine_native::launcher_main_if_asked();
    if let Some(code) = server::main_if_asked() {
        return code;
    }
    match run() {
        Ok(code) => code,
        Err(trouble) => {
            println!("the crashes could not run: {trouble}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    adopt_orphans()?;
    learn_what_is_missing()?;
    let mut table = Table::titled("crashes, engine native");
    let started = Instant::now();
    match census::control() {
        Ok(()) => table.add("census", Verdict::Pass, "one leak of each kind was seen", started.elapsed()),
        Err(trouble) => table.add("census", Verdict::Void, &trouble.to_string(), started.elapsed()),
    }
    let started = Instant::now();
    match aftermath::control() {
        Ok(left) if !left.is_empty() => table.add("orphan", Verdict::Pass, "one was seen", started.elapsed()),
        Ok(_) => table.add("orphan", Verdict::Void, "an orphan left on purpose was not seen", started.elapsed()),
        Err(trouble) => table.add("orphan", Verdict::Void, &trouble.to_string(), started.elapsed()),
    }
    kills(&mut table)?;
    persistence(&mut table)?;
    steps(&mut table)?;
    restarts(&mut table)?;
    Ok(table.finish())
}

/// In a short-lived runtime: afterwards this process is single-threaded again, so that the census sees no thread of it.
fn learn_what_is_missing() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { Lab::start(&[]).await.map(drop) })
}

/// The longest time after which a busy server is killed: about twenty rounds of its work.
const LONGEST: Duration = Duration::from_millis(400);

fn kills(table: &mut Table) -> Result<()> {
    let mut random = Random::announced();
    let scene = Scene::new()?;
    let count = number_from("SANDPEN_TEST_KILLS", 100);
    let started = Instant::now();
    let mut bad = Vec::new();
    for round in 0..count {
        let seed = random.draw();
        let delay = random.duration_below(LONGEST);
        let victims = match random.below(4) {
            0 => Victims::ServerAndLauncher,
            1 => Victims::Launcher,
            _ => Victims::Server,
        };
        match scene.kill_busy(seed, delay, victims) {
            Ok(left) if left.is_empty() => {}
            Ok(left) => bad.push(format!("kill {round} of {victims:?} after {delay:?}: {}", left.join("; "))),
            Err(trouble) => bad.push(format!("kill {round} of {victims:?} after {delay:?}: {trouble}")),
        }
        if bad.len() >= 5 {
            break;
        }
    }
    let verdict = if bad.is_empty() { Verdict::Pass } else { Verdict::Fail };
    let bound = 300.0 / count as f64;
    let detail = if bad.is_empty() {
        format!("{count} kills, 0 orphans, nothing left after the restart (at most {bound:.1} % at 95 %)")
    } else {
        bad.join("\n")
    };
    table.add("kills", verdict, &detail, started.elapsed());
    Ok(())
}

/// What was asked to stay must stay, whoever is killed.
fn persistence(table: &mut Table) -> Result<()> {
    let scene = Scene::new()?;
    for (name, victims) in [
        ("persistent, server killed", Victims::Server),
        ("persistent, launcher killed", Victims::Launcher),
        ("persistent, both killed", Victims::ServerAndLauncher),
    ] {
        let started = Instant::now();
        match scene.persist(victims) {
            Ok(left) if left.is_empty() => table.add(name, Verdict::Pass, "found again, then gone", started.elapsed()),
            Ok(left) => table.add(name, Verdict::Fail, &left.join("\n"), started.elapsed()),
            Err(trouble) => table.add(name, Verdict::Fail, &trouble.to_string(), started.elapsed()),
        }
    }
    Ok(())
}

/// One of the two process 1 must be found, wherever the server dies.
fn restarts(table: &mut Table) -> Result<()> {
    let scene = Scene::new()?;
    for step in engine_native::restart_steps() {
        let (name, started) = (format!("restart, server dies at {step}"), Instant::now());
        match scene.crash_in_restart(step) {
            Ok(left) if left.is_empty() => table.add(&name, Verdict::Pass, "found again, then gone", started.elapsed()),
            Ok(left) => table.add(&name, Verdict::Fail, &left.join("\n"), started.elapsed()),
            Err(trouble) => table.add(&name, Verdict::Fail, &trouble.to_string(), started.elapsed()),
        }
    }
    Ok(())
}

fn steps(table: &mut Table) -> Result<()> {
    let scene = Scene::new()?;
    let steps = engine_native::steps();
    if steps.is_empty() {
        table.add("steps", Verdict::Fail, "the engine names no steps", Duration::ZERO);
    }
    for step in steps {
        let started = Instant::now();
        match scene.crash_at(step) {
            Ok(left) if left.is_empty() => {
                table.add(&format!("crash at {step}"), Verdict::Pass, "nothing left", started.elapsed());
            }
            Ok(left) => table.add(&format!("crash at {step}"), Verdict::Fail, &left.join("\n"), started.elapsed()),
            Err(trouble) => {
                table.add(&format!("crash at {step}"), Verdict::Fail, &trouble.to_string(), started.elapsed());
            }
        }
    }
    Ok(())
}
