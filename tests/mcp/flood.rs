//! Output without end, and readers without haste: what the server holds is bounded.

use std::sync::PoisonError;
use std::time::Duration;

use sandpen_tests::{Result, processes};
use serde_json::{Value, json};

use sandpen_tests::wire::Wire;

/// What a job keeps of its two streams.
const KEPT_KIB: u64 = 1024;
/// What the server may need beside it.
const ROOM_KIB: u64 = 16 * 1024;
const LINE: &str = "a line like any other, to be read by nobody";

pub fn one_gibibyte() -> Result<()> {
    flood(false)
}

pub fn one_gibibyte_watched() -> Result<()> {
    flood(true)
}

fn flood(watched: bool) -> Result<()> {
    const BYTES: u64 = 1 << 30;
    let mut wire = Wire::start()?;
    let before = settled(&mut wire)?;
    let command = format!("yes '{LINE}' | head -c {BYTES}");
    let arguments = json!({"command": command, "timeout_s": 600, "wait_s": 600});
    let id =
        if watched { wire.call_watched("run_command", &arguments)? } else { wire.call("run_command", &arguments)? };
    let result = answer_in_the_end(&mut wire, id)?;
    let run = &result["structuredContent"];
    let whole = run["status"] == "exited" && run["exit_code"] == 0 && run["truncated"] == true;
    if !whole {
        return Err(format!("the flood did not end as it must: {run}").into());
    }
    if watched && wire.progress == 0 {
        return Err("nothing was told while it ran".into());
    }
    grown_at_most(&wire, before, KEPT_KIB + ROOM_KIB)
}

pub fn a_reader_that_does_not_read() -> Result<()> {
    const RUNS: u64 = 8;
    let mut wire = Wire::start()?;
    let before = settled(&mut wire)?;
    let gate = wire.gate();
    let mut ids = Vec::new();
    {
        let _closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
        let command = format!("for i in $(seq 40); do yes '{LINE}' | head -c 1000000; sleep 0.1; done");
        for _ in 0..RUNS {
            ids.push(wire.call_watched("run_command", &json!({"command": command, "timeout_s": 600, "wait_s": 600}))?);
        }
        std::thread::sleep(Duration::from_secs(8));
        grown_at_most(&wire, before, RUNS * KEPT_KIB + ROOM_KIB)?;
    }
    for id in ids {
        let result = answer_in_the_end(&mut wire, id)?;
        if result["structuredContent"]["status"] != "exited" {
            return Err(format!("a run that nobody read did not end as it must: {result}").into());
        }
    }
    wire.good("list_sandboxes", &json!({}))?;
    grown_at_most(&wire, before, RUNS * KEPT_KIB + ROOM_KIB)
}

/// As long as something is written, that may take longer than other answers do.
fn answer_in_the_end(wire: &mut Wire, id: u64) -> Result<Value> {
    loop {
        match wire.answer(id) {
            Err(_) if !processes::marked(LINE).is_empty() => {}
            answer => return answer,
        }
    }
}

/// The peak of a server that has done everything once, from which growth is counted.
fn settled(wire: &mut Wire) -> Result<u64> {
    for _ in 0..3 {
        let id = wire.call_watched("run_command", &json!({"command": "yes | head -c 2000000"}))?;
        wire.answer(id)?;
    }
    wire.forget_peak()?;
    wire.peak_kib()
}

fn grown_at_most(wire: &Wire, before: u64, most: u64) -> Result<()> {
    let peak = wire.peak_kib()?;
    println!("{before} KiB before, {peak} KiB at the most");
    let grown = peak.saturating_sub(before);
    if grown <= most { Ok(()) } else { Err(format!("the server grew by {grown} KiB, {most} are allowed").into()) }
}
