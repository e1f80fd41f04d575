//! How a program ended, told to a person in a line and to a program in an object.

use std::time::Duration;

use sandbox::{
    ByteSize, Captured, Checkpoint, Denial, ExecOutcome, ExecStatus, ExecUsage, IsolationReport, Layer, Limits,
    Network, NetworkActivity, Prepared, SandboxInfo,
};
use serde::Serialize;
use tools::network::{self, NetworkObject, Wish};

use crate::attach::Streamed;
use crate::config::SandboxConfig;
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
    /// Of a sandbox that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<NetworkObject>,
    isolation: IsolationObject,
    /// Variables of ours that the code could read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    passed_through_env: Vec<String>,
    /// What was installed for it, with versions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    packages: Vec<String>,
    /// The files as they were before, when that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<u32>,
}

#[derive(Debug, Serialize)]
pub struct UsageObject {
    wall_ms: u64,
    cpu_ms: u64,
    peak_memory_bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct IsolationObject {
    /// The walls that are not known to stand; empty when all do.
    missing: Vec<&'static str>,
    /// The number of the user that programs are, in the sandbox.
    user: u32,
}

impl ResultObject {
    #[must_use]
    pub fn with_packages(self, prepared: &[Prepared]) -> Self {
        Self { packages: prepared.iter().flat_map(Prepared::versions).collect(), ..self }
    }

    pub fn new(
        sandbox: &SandboxInfo,
        captured: &Captured,
        isolation: &IsolationReport,
        config: &SandboxConfig,
    ) -> Self {
        let Captured { outcome, stdout, stderr } = captured;
        Self {
            sandbox_id: sandbox.id.to_string(),
            status: outcome.status.as_str(),
            exit_code: outcome.status.exit_code(),
            signal: outcome.status.signal(),
            stdout: stdout.to_text(),
            stderr: stderr.to_text(),
            truncated: stdout.is_truncated() || stderr.is_truncated(),
            usage: outcome.usage.into(),
            network: (!sandbox.network.is_none()).then(|| (&outcome.network).into()),
            isolation: isolation.into(),
            passed_through_env: config.passed_through().map(str::to_owned).collect(),
            packages: Vec::new(),
            checkpoint: None,
        }
    }

    #[must_use]
    pub fn with_checkpoint(self, checkpoint: Option<Checkpoint>) -> Self {
        Self { checkpoint: checkpoint.map(|Checkpoint(number)| number), ..self }
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
        Self { missing: report.missing().into_iter().map(Layer::as_str).collect(), user: report.user.id }
    }
}

/// Whether a limit can be raised in the same breath or only for the next sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    SameCommand,
    NewSandbox,
}

/// One line on stderr when the end was not the program's own doing, and another with what to do about it.
pub fn explain(streamed: &Streamed, timeout: Duration, sandbox: &SandboxInfo, remedy: Remedy) {
    let Streamed { outcome, missed_network } = streamed;
    let ended = explanation(outcome, timeout, &sandbox.limits, remedy);
    let refused = refusals(&outcome.network, &sandbox.network, remedy);
    for (message, hint) in ended.into_iter().chain(refused) {
        output::note(&message, hint.as_deref());
    }
    if *missed_network && sandbox.network.is_none() {
        output::note(
            "this sandbox has no network",
            Some(match remedy {
                Remedy::SameCommand => "give it one: --network HOST for what it needs, or --network internet",
                Remedy::NewSandbox => {
                    "make a sandbox that has one: sandpen create --network HOST, or --network internet"
                }
            }),
        );
    }
}

/// What the network did not give, and the flags that would have made it.
fn refusals(activity: &NetworkActivity, network: &Network, remedy: Remedy) -> Option<(String, Option<String>)> {
    let message = format!("the network refused {}", network::refusals(activity)?);
    let wider = Wish::after(activity, network, &Network::Internet).spelled().map(|wider| format!("--network {wider}"));
    // Those that belong to the process which lets the sandbox out, and not to the sandbox.
    let mut flags = Vec::new();
    for refusal in &activity.refused {
        let flag = match (refusal.denial, refusal.port) {
            (Denial::PrivateAddress, Some(port)) => format!("--allow-private-host {}:{port}", refusal.host),
            (Denial::PrivateAddress, None) => format!("--allow-private-host {}", refusal.host),
            (Denial::TooManyConnections, _) => "--network-connections NUMBER".to_owned(),
            (Denial::BytesUsedUp, _) => "--network-bytes SIZE".to_owned(),
            (
                Denial::NoNetwork
                | Denial::HostNotAllowed
                | Denial::PortNotAllowed
                | Denial::MetadataAddress
                | Denial::SpecialAddress
                | Denial::ServerItself
                | Denial::NotHttp
                | Denial::Malformed,
                _,
            ) => continue,
        };
        if flags.len() < MOST_FLAGS && !flags.contains(&flag) {
            flags.push(flag);
        }
    }
    let flags = (!flags.is_empty()).then(|| flags.join(" "));
    let hints = match remedy {
        Remedy::SameCommand => {
            let all = wider.into_iter().chain(flags).collect::<Vec<_>>().join(" ");
            [(!all.is_empty()).then(|| format!("allow it with {all}")), None]
        }
        Remedy::NewSandbox => [
            wider.map(|wider| format!("make a sandbox that may: sandpen create {wider}")),
            flags.map(|flags| format!("allow it with sandpen exec {flags}")),
        ],
    };
    let hint = hints.into_iter().flatten().collect::<Vec<_>>().join("; ");
    Some((message, (!hint.is_empty()).then_some(hint)))
}

/// More would be no hint any more.
const MOST_FLAGS: usize = 4;

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

/// What is passed on is not kept from anybody, and that is said every time.
pub fn name_passed_through(config: &SandboxConfig) {
    let names: Vec<&str> = config.passed_through().collect();
    if !names.is_empty() {
        output::note(
            &format!("code in the sandbox can read {} of your environment", names.join(", ")),
            Some("a secret can be used without being seen: sandpen secret set NAME --host HOST"),
        );
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
    use sandbox::Refusal;

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

    fn refused(host: &str, port: u16, denial: Denial) -> NetworkActivity {
        let refusal = Refusal { host: host.parse().unwrap(), port: Some(port), denial, count: 1 };
        NetworkActivity { refused: vec![refusal], ..NetworkActivity::default() }
    }

    #[test]
    fn a_refusal_is_named_with_the_flag_that_would_allow_it() {
        let network: Network = "a.example".parse().unwrap();
        let activity = refused("b.example", 22, Denial::HostNotAllowed);
        let (message, hint) = refusals(&activity, &network, Remedy::SameCommand).unwrap();
        assert_eq!(
            message,
            "the network refused b.example:22 (host_not_allowed: the host is not in the sandbox's list)"
        );
        assert_eq!(hint.unwrap(), "allow it with --network a.example,b.example:22");
        let (_, hint) = refusals(&activity, &network, Remedy::NewSandbox).unwrap();
        assert_eq!(hint.unwrap(), "make a sandbox that may: sandpen create --network a.example,b.example:22");
        let hint = |denial| refusals(&refused("a.example", 80, denial), &network, Remedy::SameCommand).unwrap().1;
        assert_eq!(hint(Denial::PrivateAddress).unwrap(), "allow it with --allow-private-host a.example:80");
        assert_eq!(hint(Denial::BytesUsedUp).unwrap(), "allow it with --network-bytes SIZE");
        assert_eq!(hint(Denial::MetadataAddress), None);
        assert_eq!(refusals(&NetworkActivity::default(), &network, Remedy::SameCommand), None);
    }

    #[test]
    fn what_a_sandbox_that_stays_is_not_made_with_is_given_to_its_next_command() {
        let network: Network = "a.example".parse().unwrap();
        let activity = refused("a.example", 80, Denial::PrivateAddress);
        let (_, hint) = refusals(&activity, &network, Remedy::NewSandbox).unwrap();
        assert_eq!(hint.unwrap(), "allow it with sandpen exec --allow-private-host a.example:80");
    }

    #[test]
    fn an_end_of_the_programs_own_is_not_explained() {
        assert_eq!(told(ExecStatus::Exited(1), Remedy::SameCommand), None);
        assert_eq!(told(ExecStatus::Signalled(2), Remedy::SameCommand), None);
        assert!(told(ExecStatus::Signalled(11), Remedy::SameCommand).is_some());
    }
}
