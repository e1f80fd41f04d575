//! A client that goes away.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sandpen_tests::daemon::Given;
use sandpen_tests::random::Random;
use sandpen_tests::{Result, cgroups, processes};
use serde_json::json;

use sandpen_tests::wire::{PATIENCE, Wire};

/// What is promised.
const LIMIT: Duration = Duration::from_secs(5);
/// One that was asked for, and one for each run that has none.
const SANDBOXES: usize = 5;

pub fn stdin_closed_in_the_middle() -> Result<()> {
    let mut random = Random::announced();
    let mark = format!("600.{:09}", random.below(1_000_000_000));
    let mut wire = Wire::start()?;
    let sandbox = wire.good("create_sandbox", &json!({}))?["sandbox_id"].take();
    let stubborn = format!("trap '' TERM HUP; setsid sleep {mark} & sleep {mark}");
    for command in [format!("sleep {mark}"), stubborn] {
        wire.call("run_command", &json!({"command": command, "sandbox_id": sandbox, "timeout_s": 900}))?;
        wire.call("run_command", &json!({"command": command, "timeout_s": 900}))?;
        wire.good("run_command", &json!({"command": command, "timeout_s": 900, "background": true}))?;
    }
    let started = Instant::now();
    while processes::marked(&mark).iter().filter(|process| process.name == "sleep").count() < 9 {
        if started.elapsed() > PATIENCE {
            return Err("not everything has started".into());
        }
        wire.listen(Duration::from_millis(20))?;
    }
    let mut below = wire.descendants();
    // A daemon's sandboxes are not below the server.
    below.extend(processes::marked(&mark));
    let daemon = Given::of_environment()?;
    if let Some(daemon) = &daemon {
        let there = daemon.containers_of(&wire.state())?.len();
        if there < SANDBOXES {
            return Err(format!("the daemon knows of {there} sandboxes of {SANDBOXES}").into());
        }
    }
    wire.close();
    let status = wire.end_within(LIMIT)?;
    if !status.success() {
        return Err(format!("the server ended with {status}").into());
    }
    let alive: Vec<_> = below.iter().filter(|process| process.is_alive()).map(ToString::to_string).collect();
    if !alive.is_empty() {
        return Err(format!("still alive: {}", alive.join("; ")).into());
    }
    let id = sandbox.as_str().unwrap_or_default();
    let groups = cgroups::marked(id);
    let files = files_below(&wire.state()).into_iter().filter(|path| path.to_string_lossy().contains(id));
    let mut left: Vec<String> = groups.into_iter().chain(files).map(|path| path.display().to_string()).collect();
    if let Some(daemon) = &daemon {
        left.extend(what_stays(daemon, &wire.state())?);
    }
    if left.is_empty() { Ok(()) } else { Err(format!("something is left of a sandbox: {left:?}").into()) }
}

/// Containers that stay. None may run any more; to remove them a busy daemon takes its time, as it was asked to.
fn what_stays(daemon: &Given, state: &Path) -> Result<Vec<String>> {
    let started = Instant::now();
    loop {
        let there = daemon.containers_of(state)?;
        let one_runs = there.iter().any(|container| container.contains(" Up "));
        if there.is_empty() || one_runs || started.elapsed() > PATIENCE {
            return Ok(there);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        // By its own kind: a link may lead back up.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(files_below(&entry.path()));
        }
        found.push(entry.path());
    }
    found
}
