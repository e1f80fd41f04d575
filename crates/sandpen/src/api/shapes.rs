//! Sandboxes and runs as the dashboard reads them.

use std::time::{Duration, SystemTime};

use sandbox::{Artifact, ExecUsage, Job, JobStatus, NetworkUsage, Owner, Persistence, SandboxInfo, Usage};
use serde::Serialize;
use serde_json::Value;

use super::answers::told;
use crate::time;

#[derive(Debug, Serialize)]
pub struct SandboxShape {
    id: String,
    owner: String,
    /// Whether its runs, files and terminals are the caller's too.
    own: bool,
    name: Option<String>,
    image: String,
    state: &'static str,
    persistent: bool,
    created_at: String,
    /// If nothing uses it from now on.
    expires_at: Option<String>,
    cpus: f64,
    memory_bytes: u64,
    disk_bytes: u64,
    processes: u32,
    network: String,
    work_directory: String,
    running: usize,
    usage: Option<UsageShape>,
}

#[derive(Debug, Serialize)]
pub struct UsageShape {
    /// Since it was made.
    cpu_ms: Option<u64>,
    memory_bytes: Option<u64>,
    peak_memory_bytes: Option<u64>,
    processes: Option<u64>,
    disk_bytes: Option<u64>,
    network: Option<NetworkShape>,
}

#[derive(Debug, Serialize)]
struct NetworkShape {
    connections: u64,
    refused: u64,
    bytes_in: u64,
    bytes_out: u64,
}

#[derive(Debug, Serialize)]
pub struct RunShape {
    pub id: String,
    sandbox_id: String,
    /// Whether its sandbox was there before and stays.
    sandbox_kept: bool,
    title: String,
    started_at: String,
    /// `running`, a word for how it ended, or `failed` when it could not be run at all.
    state: &'static str,
    exit_code: Option<i32>,
    signal: Option<i32>,
    error: Option<Value>,
    usage: Option<RunUsageShape>,
    artifacts: Vec<ArtifactShape>,
    artifacts_left_out: usize,
}

#[derive(Debug, Serialize)]
struct RunUsageShape {
    wall_ms: u64,
    cpu_ms: u64,
    peak_memory_bytes: u64,
}

#[derive(Debug, Serialize)]
struct ArtifactShape {
    path: String,
    mime_type: &'static str,
    bytes: u64,
}

pub fn sandbox(info: &SandboxInfo, caller: &Owner, usage: Option<Usage>) -> SandboxShape {
    SandboxShape {
        id: info.id.to_string(),
        owner: info.owner.to_string(),
        own: info.owner == *caller,
        name: info.name.as_ref().map(ToString::to_string),
        image: info.image.shown().to_owned(),
        state: info.condition(),
        persistent: info.persistence == Persistence::Persistent,
        created_at: time::rfc3339(info.created_at),
        expires_at: info.expires_at.map(time::rfc3339),
        cpus: f64::from(info.limits.cpu_millis) / 1000.0,
        memory_bytes: info.limits.memory.bytes(),
        disk_bytes: info.limits.disk.bytes(),
        processes: info.limits.processes,
        network: info.network.to_string(),
        work_directory: info.work_directory.to_string_lossy().into_owned(),
        running: info.running,
        usage: usage.map(UsageShape::from),
    }
}

impl From<Usage> for UsageShape {
    fn from(usage: Usage) -> Self {
        let Usage { cpu, memory, peak_memory, processes, disk, network, quiet: _ } = usage;
        let network = network.map(|NetworkUsage { connections, refused, bytes_in, bytes_out, .. }| NetworkShape {
            connections,
            refused,
            bytes_in,
            bytes_out,
        });
        let cpu_ms = cpu.map(milliseconds);
        Self { cpu_ms, memory_bytes: memory, peak_memory_bytes: peak_memory, processes, disk_bytes: disk, network }
    }
}

pub fn run(job: &Job) -> RunShape {
    let mut shape = RunShape {
        id: job.id().to_string(),
        sandbox_id: job.sandbox().to_string(),
        sandbox_kept: !job.is_fresh(),
        title: job.title().to_owned(),
        started_at: time::rfc3339(job.started_at()),
        state: "running",
        exit_code: None,
        signal: None,
        error: None,
        usage: None,
        artifacts: Vec::new(),
        artifacts_left_out: 0,
    };
    match job.status() {
        JobStatus::Running => shape,
        JobStatus::Interrupted => RunShape { state: "interrupted", ..shape },
        JobStatus::Failed(failure) => RunShape { state: "failed", error: Some(told(&failure.to_error())), ..shape },
        JobStatus::Ended(result) => {
            let status = result.outcome.status;
            shape.state = status.as_str();
            shape.exit_code = status.exit_code();
            shape.signal = status.signal();
            shape.usage = Some(result.outcome.usage.into());
            shape.artifacts = result.artifacts.iter().map(ArtifactShape::from).collect();
            shape.artifacts_left_out = result.artifacts_left_out;
            shape
        }
    }
}

impl From<ExecUsage> for RunUsageShape {
    fn from(ExecUsage { wall, cpu, peak_memory }: ExecUsage) -> Self {
        Self { wall_ms: milliseconds(wall), cpu_ms: milliseconds(cpu), peak_memory_bytes: peak_memory }
    }
}

impl From<&Artifact> for ArtifactShape {
    fn from(Artifact { path, bytes }: &Artifact) -> Self {
        let mime_type = tools::mime::by_name(path.file_name().unwrap_or_default());
        Self { path: path.to_string_lossy().into_owned(), mime_type, bytes: *bytes }
    }
}

/// Since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, milliseconds)
}

pub fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
