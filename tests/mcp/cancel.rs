//! Cancellation at any moment: while a run waits, while its sandbox is made, while it starts, while it runs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sandpen_tests::daemon::Given;
use sandpen_tests::random::Random;
use sandpen_tests::{Result, number_from, processes};
use serde_json::{Value, json};

use sandpen_tests::wire::Wire;

const AT_ONCE: usize = 8;
/// Far longer than the end of a run takes.
const GONE_WITHIN: Duration = Duration::from_secs(20);

pub fn at_random_moments() -> Result<()> {
    let mut random = Random::announced();
    let (count, longest) = extent()?;
    // A time to sleep that no other process on this machine has in its arguments.
    let mark = format!("600.{:09}", random.below(1_000_000_000));
    let mut wire = Wire::start()?;
    let sandbox = wire.good("create_sandbox", &json!({}))?["sandbox_id"].take();
    let mut running: VecDeque<(Instant, u64)> = VecDeque::new();
    for _ in 0..count {
        if running.len() >= AT_ONCE
            && let Some((due, id)) = running.pop_front()
        {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            wire.cancel(id)?;
        }
        let (tool, arguments) = sleeper(&mut random, &mark, &sandbox);
        let id = wire.call(tool, &arguments)?;
        // Some are cancelled before the server can have read them to their end.
        let delay = if random.below(8) == 0 { Duration::ZERO } else { random.duration_below(longest) };
        running.push_back((Instant::now() + delay, id));
    }
    for (due, id) in running {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        wire.cancel(id)?;
    }
    nothing_runs(&mut wire, &mark)?;
    only_ours_is_left(&mut wire, &sandbox)?;
    wire.good("run_command", &json!({"command": "true", "sandbox_id": sandbox}))?;
    wire.listen(Duration::from_millis(500))?;
    if !wire.late.is_empty() {
        return Err(
            format!("{} cancelled requests were answered, the first with {}", wire.late.len(), wire.late[0]).into()
        );
    }
    Ok(())
}

/// How often, and how late at the latest: long enough for the slowest start, on most rounds. A daemon takes longer for it.
fn extent() -> Result<(u64, Duration)> {
    let (count, longest) = match Given::of_environment()? {
        None => (1000, Duration::from_millis(80)),
        Some(_) => (200, Duration::from_millis(1500)),
    };
    Ok((number_from("SANDPEN_TEST_CANCELS", count), longest))
}

/// A run that would go on for ten minutes, in a fresh sandbox or in the one that stays.
fn sleeper(random: &mut Random, mark: &str, sandbox: &Value) -> (&'static str, Value) {
    let (tool, mut arguments) = match random.below(4) {
        0 => {
            let code = "import sys, time; print('ready', flush=True); time.sleep(float(sys.argv[1]))";
            ("run_code", json!({"language": "python", "code": code, "args": [mark]}))
        }
        1 => ("run_command", json!({"argv": ["sleep", mark]})),
        2 => ("run_command", json!({"command": format!("sleep {mark} & sleep {mark}; wait")})),
        _ => ("run_command", json!({"command": format!("setsid sleep {mark} & trap '' TERM; sleep {mark}")})),
    };
    arguments["timeout_s"] = json!(900);
    if random.below(2) == 0 {
        arguments["sandbox_id"] = sandbox.clone();
    }
    (tool, arguments)
}

fn nothing_runs(wire: &mut Wire, mark: &str) -> Result<()> {
    let started = Instant::now();
    loop {
        let left: Vec<String> = processes::marked(mark).iter().map(ToString::to_string).collect();
        if left.is_empty() {
            return Ok(());
        }
        if started.elapsed() > GONE_WITHIN {
            return Err(format!("{} processes of cancelled runs are left: {}", left.len(), left.join("; ")).into());
        }
        wire.listen(Duration::from_millis(100))?;
    }
}

/// A sandbox that was made for a cancelled run ends with it, even when it was half made.
fn only_ours_is_left(wire: &mut Wire, sandbox: &Value) -> Result<()> {
    let started = Instant::now();
    loop {
        let listed = wire.good("list_sandboxes", &json!({}))?["sandboxes"].take();
        let ids: Vec<&Value> = listed.as_array().into_iter().flatten().map(|one| &one["sandbox_id"]).collect();
        if ids == [sandbox] {
            return Ok(());
        }
        if started.elapsed() > GONE_WITHIN {
            return Err(format!("instead of {sandbox} alone there is {listed}; the log:\n{}", wire.log()).into());
        }
        wire.listen(Duration::from_millis(100))?;
    }
}
