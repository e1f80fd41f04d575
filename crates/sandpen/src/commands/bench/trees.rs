//! What whole trees cost: starting from many layers, branching and saving a sandbox that has much in it.
//!
//! Each is beside the same thing with little, in the same rounds.

use std::time::{Duration, Instant};

use sandbox::{
    ByteSize, Error, ExecRequest, ExecStatus, ForkRequest, GuestPath, Image, Limits, OutputCaps, Owner, Result,
    SandboxId, SandboxService, SandboxSpec, SavedName, WriteOptions,
};
use serde::Serialize;
use tokio::io::AsyncWriteExt;

use super::PAUSE;
use super::report::Skipped;
use super::sample::Sample;
use super::stock::Stock;
use crate::config::Config;

pub const NAMES: [&str; 3] = ["layers", "fork", "save"];

const LAYERS: usize = 20;
const TREE_BYTES: u64 = 1 << 30;
const CHANGE_BYTES: u64 = 10_000_000;
const PROGRAM: &str = "/bin/true";
/// Each of them moves megabytes or has to fill a tree first.
const ROUNDS: u32 = 10;

#[derive(Debug, Default, Serialize)]
pub struct Trees {
    /// A program in a fresh sandbox, from its creation to its end: on the host's tree, and on an image of many layers.
    pub start_host_ms: Option<f64>,
    pub start_layers_ms: Option<f64>,
    pub layers: Option<usize>,
    /// Of an empty sandbox, and of one that has written a whole tree.
    pub fork_empty_ms: Option<f64>,
    pub fork_tree_ms: Option<f64>,
    /// The same change, in a sandbox from a small image and from a large one.
    pub save_small_ms: Option<f64>,
    pub save_large_ms: Option<f64>,
}

pub async fn measure(
    service: &SandboxService,
    config: &Config,
    runs: u32,
    wanted: impl Fn(&str) -> bool,
) -> Result<(Trees, Vec<Skipped>)> {
    let mut trees = Trees::default();
    let mut skipped = Vec::new();
    let bench = Bench { service, owner: Owner::local() };
    for name in NAMES.into_iter().filter(|name| wanted(name)) {
        let mut stock = Stock::open(config)?;
        let done = match name {
            "layers" => trees.starts(&bench, &mut stock, runs).await,
            "fork" => trees.forks(&bench, runs.min(ROUNDS)).await,
            _ => trees.saves(&bench, &mut stock, runs.min(ROUNDS)).await,
        };
        if let Err(error) = done {
            skipped.push(Skipped::new(name, &error));
        }
    }
    Ok((trees, skipped))
}

impl Trees {
    async fn starts(&mut self, bench: &Bench<'_>, stock: &mut Stock, runs: u32) -> Result<()> {
        let image = stock.layers(PROGRAM, LAYERS)?;
        let (host, layers) =
            bench.in_turn(runs, async |first| bench.start(if first { &Image::Host } else { &image }).await).await?;
        (self.start_host_ms, self.start_layers_ms) = (Some(host), Some(layers));
        self.layers = Some(LAYERS);
        Ok(())
    }

    async fn forks(&mut self, bench: &Bench<'_>, runs: u32) -> Result<()> {
        let empty = bench.create(&Image::Host).await?;
        let full = bench.create(&Image::Host).await?;
        let measured = async {
            let fill =
                format!("i=0; while [ $i -lt 256 ]; do head -c {} /dev/zero >$i; i=$((i+1)); done", TREE_BYTES / 256);
            bench.run(&full, &["/bin/sh", "-c", &fill]).await?;
            bench.in_turn(runs, async |first| bench.fork(if first { &empty } else { &full }).await).await
        };
        let measured = measured.await;
        bench.stop(&empty).await?;
        bench.stop(&full).await?;
        let (empty, full) = measured?;
        (self.fork_empty_ms, self.fork_tree_ms) = (Some(empty), Some(full));
        Ok(())
    }

    async fn saves(&mut self, bench: &Bench<'_>, stock: &mut Stock, runs: u32) -> Result<()> {
        let (small, large) = (stock.of_size("small", 1)?, stock.of_size("large", TREE_BYTES)?);
        let (small, large) = (bench.create(&small).await?, bench.create(&large).await?);
        let measured = bench.in_turn(runs, async |first| bench.save(if first { &small } else { &large }).await).await;
        bench.stop(&small).await?;
        bench.stop(&large).await?;
        let (small, large) = measured?;
        (self.save_small_ms, self.save_large_ms) = (Some(small), Some(large));
        Ok(())
    }
}

struct Bench<'a> {
    service: &'a SandboxService,
    owner: Owner,
}

impl Bench<'_> {
    /// Both medians, of rounds in which each is done once and goes first every other time.
    async fn in_turn(&self, runs: u32, once: impl AsyncFn(bool) -> Result<Duration>) -> Result<(f64, f64)> {
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..=runs {
            for place in 0..2 {
                let which = (round + place) % 2;
                let took = once(which == 0).await?;
                // The first round fills caches.
                if round > 0 {
                    times[which as usize].push(took);
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        let [first, second] = times.map(|times| Sample::new(times).median);
        Ok((first, second))
    }

    /// With room for a whole tree.
    async fn create(&self, image: &Image) -> Result<SandboxId> {
        let room = ByteSize::new(TREE_BYTES * 3 / 2);
        let limits = Limits { memory: ByteSize::new(TREE_BYTES * 2), disk: room, ..Limits::default() };
        let spec = SandboxSpec { image: image.clone(), limits, ..SandboxSpec::new(self.owner.clone()) };
        Ok(self.service.create(&self.owner, spec).await?.id)
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        self.service.stop(&self.owner, id).await
    }

    async fn run(&self, id: &SandboxId, argv: &[&str]) -> Result<()> {
        let request = ExecRequest::new(argv.iter().copied(), Duration::from_secs(120))?;
        let captured = self.service.exec(&self.owner, id, request).await?.capture(OutputCaps::default()).await?;
        match captured.outcome.status {
            ExecStatus::Exited(0) => Ok(()),
            status => Err(Error::unavailable(format!("{} ended as {}", argv[0], status.as_str()))),
        }
    }

    async fn start(&self, image: &Image) -> Result<Duration> {
        let started = Instant::now();
        let id = self.create(image).await?;
        let done = self.run(&id, &[PROGRAM]).await;
        let took = started.elapsed();
        self.stop(&id).await?;
        done.map(|()| took)
    }

    async fn fork(&self, id: &SandboxId) -> Result<Duration> {
        let started = Instant::now();
        let fork = self.service.fork(&self.owner, id, ForkRequest::default()).await?;
        let took = started.elapsed();
        self.stop(&fork.id).await?;
        Ok(took)
    }

    /// Of a change that was not saved before: what the store has is not written again.
    async fn save(&self, id: &SandboxId) -> Result<Duration> {
        let mut change = vec![0; CHANGE_BYTES as usize];
        getrandom::fill(&mut change).map_err(|_| Error::unavailable("this machine has no random numbers"))?;
        let path = GuestPath::resolve(&GuestPath::workspace(), b"change")?;
        let mut file = self.service.files(&self.owner, id)?.write(&path, WriteOptions::default()).await?;
        let unwritten = |cause| Error::unavailable("the change cannot be written").with_cause(cause);
        file.write_all(&change).await.map_err(unwritten)?;
        file.commit().await?;
        let name: SavedName = format!("sandpen-bench-{}", std::process::id()).parse()?;
        let started = Instant::now();
        self.service.save(&self.owner, id, &name).await?;
        let took = started.elapsed();
        self.service.forget(&self.owner, &name).await?;
        Ok(took)
    }
}
