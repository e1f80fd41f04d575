//! Programs of this machine, run and timed from outside.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandbox::{Error, Result};

use crate::output::reason;

/// From the start until all output is read and the process is reaped. `expected` is what it must print.
pub fn time(command: &mut Command, expected: &str) -> Result<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = Instant::now();
    let done = command.output();
    let took = started.elapsed();
    let name = command.get_program().to_string_lossy().into_owned();
    let done = done.map_err(|cause| match cause.kind() {
        std::io::ErrorKind::NotFound => Error::not_found(format!("{name} is not installed")),
        _ => Error::unavailable(format!("{name} cannot be started: {}", reason(&cause))),
    })?;
    if done.status.success() && done.stdout == expected.as_bytes() {
        return Ok(took);
    }
    let complaint = String::from_utf8_lossy(&done.stderr);
    let complaint = complaint.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed something else");
    Err(Error::unavailable(format!("{name} refuses: {}", complaint.trim())))
}

/// What a command prints, without the line end.
pub fn ask<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result<String> {
    let missing = || Error::not_found(format!("{program} is not installed"));
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().map_err(|_| missing())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if text.is_empty() { Err(missing()) } else { Ok(text) }
}
