//! How a program ended, told to a person in a line and to a program in an object.

use std::time::Duration;

use sandbox::{ByteSize, Captured, ExecOutcome, ExecStatus, ExecUsage, IsolationReport, Layer, Limits, SandboxId};
use serde::Serialize;

use crate::{output, time};

/// The fields of a result that MCP tools have too; their names are the interface.
#[derive(Debug, Serialize)]
pub struct ResultObject {
    sandbox_id: String,
    status: &'static str,
    exit_code: Option<i32>,
    signal: Option<i32>,
    stdout: String,
    stderr: String,
    truncated: bool,
    usage: UsageObject,
    isolation: IsolationObject,
}

#[derive(Debug, Serialize)]
pub struct UsageObject {
    wall_ms: u64,
    cpu_ms: u64,
    peak_memory_bytes: u64,
}

/// The walls that are not known to stand; empty when all do.
#[derive(Debug, Serialize)]
pub struct IsolationObject {
    missing: Vec<&'static str>,
}

impl ResultObject {
    pub fn new(id: &SandboxId, captured: &Captured, isolation: &IsolationReport) -> Self {
        let Captured { outcome, stdout, stderr } = captured;
        Self {
            sandbox_id: id.to_string(),
            status: outcome.status.as_str(),
            exit_code: outcome.status.exit_code(),
            signal: outcome.status.signal(),
            stdout: stdout.to_text(),
            stderr: stderr.to_text(),
            truncated: stdout.is_truncated() || stderr.is_truncated(),
            usage: outcome.usage.into(),
            isolation: isolation.into(),
        }
    }
}

impl From<ExecUsage> for UsageObject {
    fn from(usage: ExecUsage) -> Self {
        let milliseconds = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            wall_ms: milliseconds(usage.wall),
            cpu_ms: milliseconds(usage.cpu),
            peak_memory_bytes: usage.peak_memory,
        }
    }
}

impl From<&IsolationReport> for IsolationObject {
    fn from(report: &IsolationReport) -> Self {
        Self { missing: report.missing().into_iter().map(Layer::as_str).collect() }
    }
}

/// Whether a limit can be raised in the same breath or only for the next sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    SameCommand,
    NewSandbox,
}

/// One line on stderr when the end was not the program's own doing, and another with what to do about it.
pub fn explain(outcome: &ExecOutcome, timeout: Duration, limits: &Limits, remedy: Remedy) {
    if let Some((message, hint)) = explanation(outcome, timeout, limits, remedy) {
        output::note(&message, hint.as_deref());
    }
}

fn explanation(
    outcome: &ExecOutcome,
    timeout: Duration,
    limits: &Limits,
    remedy: Remedy,
) -> Option<(String, Option<String>)> {
    match outcome.status {
        ExecStatus::Exited(_) | ExecStatus::Cancelled => None,
        ExecStatus::TimedOut => Some((
            format!("the program was stopped after {}, its time limit", time::spoken(timeout)),
            Some(format!("give it more with --timeout {}", time::short(timeout * 2).replace(' ', ""))),
        )),
        ExecStatus::OutOfMemory => {
            let more = ByteSize::new(limits.memory.bytes().saturating_mul(2)).to_string().replace(' ', "");
            Some((
                format!("the program was stopped because it used up its {} of memory", limits.memory),
                Some(match remedy {
                    Remedy::SameCommand => format!("give it more with --memory {more}"),
                    Remedy::NewSandbox => format!("make a sandbox with more: sandpen create --memory {more}"),
                }),
            ))
        }
        ExecStatus::Killed => Some(("the sandbox was stopped while the program ran".to_owned(), None)),
        ExecStatus::Signalled(number) => {
            signal_name(number).map(|name| (format!("the program was ended by signal {number} ({name})"), None))
        }
    }
}

/// A run behind fewer walls than usual says so, every time.
pub fn name_missing(missing: &[Layer]) {
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|layer| layer.as_str()).collect();
        output::note(&format!("this sandbox stands without {}", names.join(", ")), None);
    }
}

/// Only signals that surprise: whoever sent an interrupt knows that they did.
fn signal_name(number: i32) -> Option<&'static str> {
    match number {
        4 => Some("illegal instruction"),
        6 => Some("aborted"),
        7 => Some("bus error"),
        8 => Some("arithmetic error"),
        9 => Some("killed"),
        11 => Some("segmentation fault"),
        24 => Some("processor time used up"),
        25 => Some("file too large"),
        31 => Some("forbidden system call"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use sandbox::NetworkActivity;

    use super::*;

    fn told(status: ExecStatus, remedy: Remedy) -> Option<(String, Option<String>)> {
        let outcome = ExecOutcome { status, usage: ExecUsage::default(), network: NetworkActivity::default() };
        explanation(&outcome, Duration::from_secs(30), &Limits::default(), remedy)
    }

    #[test]
    fn a_limit_is_named_with_the_way_to_raise_it() {
        let (message, hint) = told(ExecStatus::TimedOut, Remedy::SameCommand).unwrap();
        assert_eq!(message, "the program was stopped after 30 s, its time limit");
        assert_eq!(hint.unwrap(), "give it more with --timeout 1m");
        let (message, hint) = told(ExecStatus::OutOfMemory, Remedy::SameCommand).unwrap();
        assert_eq!(message, "the program was stopped because it used up its 512 MiB of memory");
        assert_eq!(hint.unwrap(), "give it more with --memory 1GiB");
        let (_, hint) = told(ExecStatus::OutOfMemory, Remedy::NewSandbox).unwrap();
        assert_eq!(hint.unwrap(), "make a sandbox with more: sandpen create --memory 1GiB");
    }

    #[test]
    fn an_end_of_the_programs_own_is_not_explained() {
        assert_eq!(told(ExecStatus::Exited(1), Remedy::SameCommand), None);
        assert_eq!(told(ExecStatus::Signalled(2), Remedy::SameCommand), None);
        assert!(told(ExecStatus::Signalled(11), Remedy::SameCommand).is_some());
    }
}
