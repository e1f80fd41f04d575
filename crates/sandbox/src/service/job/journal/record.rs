//! The record of one job on disk, and its one conversion to the domain's types.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::artifact::Artifact;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::{ExecOutcome, ExecUsage};
use crate::id::{JobId, Owner, SandboxId};
use crate::job::{JobFailure, JobResult, JobStatus};
use crate::network::{Network, NetworkActivity};
use crate::output::OutputCaps;
use crate::service::ledger::{WrittenBytes, WrittenStatus};
use crate::tree::Checkpoint;

const VERSION: u32 = 1;

/// What is known of a job besides its output.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::service::job) struct Entry {
    pub id: JobId,
    pub owner: Owner,
    pub sandbox: SandboxId,
    /// Which engine has its sandbox; others leave it alone.
    pub engine: String,
    pub network: Network,
    pub started_at: SystemTime,
    pub title: String,
    pub caps: OutputCaps,
    /// How long it can be read when it has ended.
    pub kept_for: Duration,
    /// When it ended and how; never `Running`.
    pub end: Option<(SystemTime, JobStatus)>,
}

/// Kept apart from the domain's types, so that renaming a field there cannot orphan what is on disk.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    id: String,
    owner: String,
    sandbox: String,
    engine: String,
    network: String,
    started_at_ms: u64,
    title: String,
    head: usize,
    tail: usize,
    kept_for_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    end: Option<WrittenEnd>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenEnd {
    at_ms: u64,
    how: WrittenHow,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum WrittenHow {
    Ran {
        status: WrittenStatus,
        wall_us: u64,
        cpu_us: u64,
        peak_memory: u64,
        artifacts: Vec<(WrittenBytes, u64)>,
        artifacts_left_out: usize,
        missing_layers: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        checkpoint: Option<u32>,
    },
    Failed {
        kind: String,
        message: String,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        hint: Option<String>,
    },
    Interrupted,
}

impl Entry {
    pub fn encode(&self) -> Result<Vec<u8>> {
        let written = Written {
            version: VERSION,
            id: self.id.to_string(),
            owner: self.owner.to_string(),
            sandbox: self.sandbox.to_string(),
            engine: self.engine.clone(),
            network: self.network.to_string(),
            started_at_ms: milliseconds(self.started_at),
            title: self.title.clone(),
            head: self.caps.head,
            tail: self.caps.tail,
            kept_for_ms: u64::try_from(self.kept_for.as_millis()).unwrap_or(u64::MAX),
            end: self
                .end
                .as_ref()
                .and_then(|(at, status)| Some(WrittenEnd { at_ms: milliseconds(*at), how: WrittenHow::new(status)? })),
        };
        serde_json::to_vec_pretty(&written)
            .map_err(|cause| Error::internal("a job cannot be written down").with_cause(cause))
    }

    /// Fails for garbage, and for what a later version wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let written: Written = serde_json::from_slice(bytes)
            .map_err(|cause| Error::invalid_input("the record of a job cannot be read").with_cause(cause))?;
        if written.version != VERSION {
            return Err(Error::invalid_input("the record of a job is of another version"));
        }
        Ok(Self {
            id: written.id.parse()?,
            owner: written.owner.parse()?,
            sandbox: written.sandbox.parse()?,
            engine: written.engine,
            network: written.network.parse()?,
            started_at: moment(written.started_at_ms)?,
            title: written.title,
            caps: OutputCaps { head: written.head, tail: written.tail },
            kept_for: Duration::from_millis(written.kept_for_ms),
            end: match written.end {
                Some(end) => Some((moment(end.at_ms)?, end.how.into_status()?)),
                None => None,
            },
        })
    }
}

impl WrittenHow {
    fn new(status: &JobStatus) -> Option<Self> {
        Some(match status {
            JobStatus::Running => return None,
            JobStatus::Interrupted => Self::Interrupted,
            JobStatus::Failed(JobFailure { kind, message, hint }) => {
                Self::Failed { kind: kind.as_str().to_owned(), message: message.clone(), hint: hint.clone() }
            }
            JobStatus::Ended(result) => {
                let ExecUsage { wall, cpu, peak_memory } = result.outcome.usage;
                let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
                let artifacts = result.artifacts.iter();
                Self::Ran {
                    status: result.outcome.status.into(),
                    wall_us: microseconds(wall),
                    cpu_us: microseconds(cpu),
                    peak_memory,
                    artifacts: artifacts.map(|Artifact { path, bytes }| (path.into(), *bytes)).collect(),
                    artifacts_left_out: result.artifacts_left_out,
                    missing_layers: result.missing_layers.iter().map(|layer| layer.as_str().to_owned()).collect(),
                    checkpoint: result.checkpoint.map(|Checkpoint(number)| number),
                }
            }
        })
    }

    fn into_status(self) -> Result<JobStatus> {
        Ok(match self {
            Self::Interrupted => JobStatus::Interrupted,
            Self::Failed { kind, message, hint } => {
                let kind = ErrorKind::from_word(&kind).unwrap_or(ErrorKind::Internal);
                JobStatus::Failed(JobFailure { kind, message, hint })
            }
            Self::Ran {
                status,
                wall_us,
                cpu_us,
                peak_memory,
                artifacts,
                artifacts_left_out,
                missing_layers,
                checkpoint,
            } => JobStatus::Ended(JobResult {
                outcome: ExecOutcome {
                    status: status.into(),
                    usage: ExecUsage {
                        wall: Duration::from_micros(wall_us),
                        cpu: Duration::from_micros(cpu_us),
                        peak_memory,
                    },
                    network: NetworkActivity::default(),
                },
                artifacts: artifacts
                    .into_iter()
                    .map(|(path, bytes)| Ok(Artifact { path: path.into_path()?, bytes }))
                    .collect::<Result<_>>()?,
                artifacts_left_out,
                missing_layers: missing_layers.iter().map(|layer| layer.parse()).collect::<Result<_>>()?,
                context: None,
                results: Box::default(),
                checkpoint: checkpoint.map(Checkpoint),
            }),
        })
    }
}

fn milliseconds(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

fn moment(milliseconds: u64) -> Result<SystemTime> {
    UNIX_EPOCH
        .checked_add(Duration::from_millis(milliseconds))
        .ok_or_else(|| Error::invalid_input("a time of a job is out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::ExecStatus;
    use crate::isolation::Layer;
    use crate::path::GuestPath;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let path = |path: &[u8]| GuestPath::resolve(&GuestPath::root(), path).unwrap();
        let result = JobResult {
            outcome: ExecOutcome {
                status: ExecStatus::Exited(3),
                usage: ExecUsage {
                    wall: Duration::from_micros(1_234_567),
                    cpu: Duration::from_micros(89),
                    peak_memory: 1 << 40,
                },
                network: NetworkActivity::default(),
            },
            artifacts: vec![
                Artifact { path: path(b"/workspace/a.png"), bytes: 7 },
                Artifact { path: path(b"/workspace/\xff"), bytes: 0 },
            ],
            artifacts_left_out: 2,
            missing_layers: vec![Layer::Landlock],
            context: None,
            results: Box::default(),
            checkpoint: Some(Checkpoint(4)),
        };
        let failure =
            JobFailure { kind: ErrorKind::LimitExceeded, message: "no room".to_owned(), hint: Some("less".to_owned()) };
        let statuses = [JobStatus::Interrupted, JobStatus::Failed(failure), JobStatus::Ended(result)];
        for end in statuses.into_iter().map(Some).chain([None]) {
            let entry = Entry {
                id: JobId::random().unwrap(),
                owner: "somebody@example".parse().unwrap(),
                sandbox: SandboxId::random().unwrap(),
                engine: "native".to_owned(),
                network: Network::default(),
                started_at: moment(1_800_000_000_123).unwrap(),
                title: "sleep 1 …".to_owned(),
                caps: OutputCaps { head: 1, tail: 2 },
                kept_for: Duration::from_secs(600),
                end: end.map(|status| (moment(1_800_000_000_456).unwrap(), status)),
            };
            assert_eq!(Entry::decode(&entry.encode().unwrap()).unwrap(), entry);
        }
        assert!(Entry::decode(b"{}").is_err() && Entry::decode(b"{\"version\": 2}").is_err());
    }
}
