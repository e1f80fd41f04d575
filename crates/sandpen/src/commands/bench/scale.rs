//! What many sandboxes cost: memory, creation while others live, and how many a second.

use std::time::{Duration, Instant};

use sandbox::{Error, ExecRequest, OutputCaps, Owner, Result, SandboxId, SandboxService, SandboxSpec};
use serde::Serialize;

use super::sample::Sample;

pub const NAMES: [&str; 3] = ["alive", "idle-memory", "throughput"];

const CREATIONS: usize = 30;
const WORKERS: usize = 2;
const THROUGHPUT_TIME: Duration = Duration::from_secs(5);

#[derive(Debug, Default, Serialize)]
pub struct Scale {
    pub alive: Option<usize>,
    /// Of `create`, with no other sandbox and with all of them.
    pub create_alone_ms: Option<f64>,
    pub create_among_ms: Option<f64>,
    /// The drop of the machine's available memory per sandbox.
    pub idle_memory_bytes: Option<u64>,
    pub runs_per_second: Option<f64>,
}

pub async fn measure(service: &SandboxService, alive: usize, wanted: impl Fn(&str) -> bool) -> Result<Scale> {
    let crowd = Crowd { service, owner: Owner::local() };
    let mut scale = Scale::default();
    if wanted("alive") || wanted("idle-memory") {
        scale.alive = Some(alive);
        scale.create_alone_ms = Some(crowd.creation().await?);
        let before = available_memory()?;
        let mut sandboxes = Vec::with_capacity(alive);
        let filled = crowd.fill(&mut sandboxes, alive).await;
        if filled.is_ok() {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let used = before.saturating_sub(available_memory()?);
            scale.idle_memory_bytes = Some(used / alive.max(1) as u64);
            scale.create_among_ms = Some(crowd.creation().await?);
        }
        for id in &sandboxes {
            service.stop(&crowd.owner, id).await?;
        }
        filled?;
    }
    if wanted("throughput") {
        scale.runs_per_second = Some(throughput(service).await?);
    }
    Ok(scale)
}

struct Crowd<'a> {
    service: &'a SandboxService,
    owner: Owner,
}

impl Crowd<'_> {
    async fn create(&self) -> Result<SandboxId> {
        self.service.create(&self.owner, SandboxSpec::new(self.owner.clone())).await.map(|sandbox| sandbox.id)
    }

    async fn fill(&self, sandboxes: &mut Vec<SandboxId>, count: usize) -> Result<()> {
        while sandboxes.len() < count {
            sandboxes.push(self.create().await?);
        }
        Ok(())
    }

    async fn creation(&self) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..CREATIONS {
            let started = Instant::now();
            let id = self.create().await?;
            times.push(started.elapsed());
            self.service.stop(&self.owner, &id).await?;
        }
        Ok(Sample::new(times).median)
    }
}

/// Create, run `/bin/true`, destroy, by two workers that share one service.
async fn throughput(service: &SandboxService) -> Result<f64> {
    let started = Instant::now();
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let service = service.clone();
            tokio::spawn(async move {
                let crowd = Crowd { service: &service, owner: Owner::local() };
                let mut count = 0u32;
                while started.elapsed() < THROUGHPUT_TIME {
                    let id = crowd.create().await?;
                    let request = ExecRequest::new(["/bin/true"], Duration::from_secs(30))?;
                    service.exec(&crowd.owner, &id, request).await?.capture(OutputCaps::default()).await?;
                    service.stop(&crowd.owner, &id).await?;
                    count += 1;
                }
                Ok::<u32, Error>(count)
            })
        })
        .collect();
    let mut total = 0;
    for worker in workers {
        total += worker.await.map_err(|cause| Error::internal("a worker was torn down").with_cause(cause))??;
    }
    Ok(f64::from(total) / started.elapsed().as_secs_f64())
}

fn available_memory() -> Result<u64> {
    let unknown = || Error::unsupported("this machine does not tell how much memory is available");
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|_| unknown())?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).ok_or_else(unknown)?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().map_err(|_| unknown())?;
    Ok(kibibytes * 1024)
}
