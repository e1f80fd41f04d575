//! What many sandboxes cost: memory, creation while others live, and how many a second.

use std::time::{Duration, Instant};

use sandbox::{Error, ExecRequest, OutputCaps, Owner, Result, SandboxId, SandboxService, SandboxSpec};
use serde::Serialize;

use super::sample::Sample;

pub const NAMES: [&str; 3] = ["alive", "idle-memory", "throughput"];

/// How many sandboxes are made and removed beside those that stay.
const CREATIONS: usize = 30;
/// Fewer say little of what each of them takes.
const FEW: usize = 10;
/// What the kernel frees in the background is free by then.
const SETTLING: Duration = Duration::from_millis(500);
const WORKERS: usize = 2;
const THROUGHPUT_TIME: Duration = Duration::from_secs(5);

/// What an owner must be allowed to have for `alive` of them to be measured.
pub fn sandboxes_needed(alive: usize) -> usize {
    alive + 1
}

#[derive(Debug, Default, Serialize)]
pub struct Scale {
    /// The first is with no other sandbox.
    pub alive: Vec<Alive>,
    pub runs_per_second: Option<f64>,
}

/// With so many idle sandboxes.
#[derive(Debug, Serialize)]
pub struct Alive {
    pub count: usize,
    /// Of the making of one more.
    pub create_ms: f64,
    /// How fast these were made, one after the other, since there were fewer.
    pub made_per_second: Option<f64>,
    /// The drop of the machine's available memory per sandbox.
    pub memory_bytes: Option<u64>,
}

pub async fn measure(service: &SandboxService, most: usize, wanted: impl Fn(&str) -> bool) -> Result<Scale> {
    let crowd = Crowd { service, owner: Owner::local() };
    let mut scale = Scale::default();
    if wanted("alive") || wanted("idle-memory") {
        let mut sandboxes = Vec::with_capacity(most);
        let measured = crowd.grow(&mut sandboxes, most).await;
        for id in &sandboxes {
            service.stop(&crowd.owner, id).await?;
        }
        scale.alive = measured?;
    }
    if wanted("throughput") {
        scale.runs_per_second = Some(throughput(service).await?);
    }
    Ok(scale)
}

/// None, few, a tenth of the most, the most.
fn counts(most: usize) -> Vec<usize> {
    let mut counts = vec![0, FEW.min(most), (most / 10).clamp(FEW.min(most), most), most];
    counts.dedup();
    counts
}

struct Crowd<'a> {
    service: &'a SandboxService,
    owner: Owner,
}

impl Crowd<'_> {
    async fn create(&self) -> Result<SandboxId> {
        self.service.create(&self.owner, SandboxSpec::new(self.owner.clone())).await.map(|sandbox| sandbox.id)
    }

    async fn grow(&self, sandboxes: &mut Vec<SandboxId>, most: usize) -> Result<Vec<Alive>> {
        let mut measured = Vec::new();
        let before = available_memory()?;
        for count in counts(most) {
            let (started, more) = (Instant::now(), count - sandboxes.len());
            while sandboxes.len() < count {
                sandboxes.push(self.create().await?);
            }
            let rate = more as f64 / started.elapsed().as_secs_f64();
            tokio::time::sleep(SETTLING).await;
            let used = before.saturating_sub(available_memory()?);
            measured.push(Alive {
                count,
                create_ms: self.creation().await?,
                made_per_second: (more > 0).then_some(rate),
                memory_bytes: used.checked_div(count as u64),
            });
        }
        Ok(measured)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_grows_in_steps() {
        assert_eq!(counts(1000), [0, 10, 100, 1000]);
        assert_eq!(counts(50), [0, 10, 50]);
        assert_eq!(counts(3), [0, 3]);
        assert_eq!(counts(0), [0]);
    }
}
