//! Storms: forks, programs that will not end, floods of output, creates without end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sandbox::{
    ErrorKind, ExecRequest, ExecStatus, InstanceId, Layer, Limits, OutputCaps, Owner, SandboxService, SandboxSpec,
    ServiceSettings,
};
use sandpen_tests::Result;
use sandpen_tests::check::{About, Check, Control, Finding};
use sandpen_tests::lab::{Lab, is_on_daemon, probe_bytes, probe_on_host};
use sandpen_tests::processes::{self, resident_kib};
use sandpen_tests::random::unique;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;

use crate::resources::with_limits;

pub const CHECKS: &[&dyn Check] = &[&Forks, &Stubborn, &Flood, &Creates];

/// What a control call may take while sandboxes storm.
pub const PING_LIMIT: Duration = Duration::from_millis(250);

/// The 99th percentile of a trivial command in a sandbox of its own, repeated for a while.
pub async fn ping(lab: &Lab, during: Duration) -> Result<Duration> {
    let sandbox = lab.sandbox().await?;
    let started = Instant::now();
    let mut times = Vec::new();
    while started.elapsed() < during {
        let begun = Instant::now();
        sandbox.probe(&["ids"]).await?.complete()?;
        times.push(begun.elapsed());
    }
    sandbox.end().await?;
    times.sort_unstable();
    Ok(times.get(times.len() * 99 / 100).or(times.last()).copied().unwrap_or(Duration::MAX))
}

/// Forks and starts threads without end, in eight sandboxes.
struct Forks;

const SANDBOXES: usize = 8;
const PROCESSES: u32 = 64;

#[async_trait]
impl Check for Forks {
    fn about(&self) -> About {
        About {
            id: "RX-01",
            tries: "fork and thread storms in eight sandboxes while control calls are timed and a peer works",
            stopped_by: "process limit",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::ProcessLimit])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let limits = Limits { processes: PROCESSES, ..Limits::default() };
        // A hundred thousand in all; where nothing stops them, as few as show it.
        let attempts = if lab.without.contains(&Layer::ProcessLimit) { "200" } else { "12500" };
        let mut storms = Vec::new();
        for index in 0..SANDBOXES {
            let sandbox = lab.sandbox_of(with_limits(limits)).await?;
            let kind = if index % 2 == 0 { "forks" } else { "threads" };
            let storm = sandbox.start(&[kind, attempts, "1500"]).await?;
            storms.push((sandbox, storm, kind));
        }
        let slowest = ping(lab, Duration::from_secs(1)).await?;
        let mut breaches = Vec::new();
        for (sandbox, storm, kind) in storms {
            let ran = storm.finish().await?.complete()?;
            let made = ran.findings.number(kind).unwrap_or(i64::MAX);
            let attempted = ran.findings.number("attempts").unwrap_or(0);
            if attempted.to_string() != attempts {
                breaches.push(format!("only {attempted} attempts"));
            }
            if made >= i64::from(PROCESSES) || ran.findings.get("refused") != Some("EAGAIN") {
                breaches
                    .push(format!("{made} {kind} with {PROCESSES} allowed, then {:?}", ran.findings.get("refused")));
            }
            // It must go on as before when the storm is over.
            sandbox.probe(&["ids"]).await?.complete()?;
            sandbox.end().await?;
        }
        if slowest > PING_LIMIT {
            breaches.push(format!("a control call took {slowest:?}"));
        }
        Ok(Finding::from_breaches(&breaches, format!("stopped at the limit, slowest control call {slowest:?}")))
    }
}

/// Programs that do not want to end when their time is over.
struct Stubborn;

const KINDS: &[&str] = &["sleep", "ignore", "stop", "daemon", "session", "spawn"];
const TIMEOUT: Duration = Duration::from_millis(400);
const GONE_WITHIN: Duration = Duration::from_secs(2);

impl Stubborn {
    /// Who is still there when patience ends.
    async fn survivors(mark: &str, patience: Duration) -> Vec<String> {
        let started = Instant::now();
        loop {
            let alive: Vec<String> = processes::marked(mark)
                .iter()
                .filter(|process| !process.is_zombie())
                .map(ToString::to_string)
                .collect();
            if alive.is_empty() || started.elapsed() > patience {
                return alive;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[async_trait]
impl Check for Stubborn {
    fn about(&self) -> About {
        About {
            id: "RX-11",
            tries: "times out programs that sleep, ignore signals, stop themselves, daemonise, change session, respawn",
            stopped_by: "the supervisor of a command, which kills its whole tree and proves it empty",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let mut breaches = Vec::new();
        for kind in KINDS {
            let sandbox = lab.sandbox().await?;
            let mark = unique("mark");
            let request = ExecRequest::new([sandbox.probe, "tree", kind, &mark], TIMEOUT)?;
            let ran = sandbox.run(request, "").await?;
            // `wait` promises that nothing of the tree is left, so the host must not see anything from here on.
            let survivors = Self::survivors(&mark, Duration::ZERO).await;
            let late = ran.outcome.usage.wall.saturating_sub(TIMEOUT);
            if ran.outcome.status != ExecStatus::TimedOut {
                breaches.push(format!("{kind}: {:?}", ran.outcome.status));
            }
            if late > GONE_WITHIN {
                breaches.push(format!("{kind}: ended {late:?} too late"));
            }
            if !survivors.is_empty() {
                breaches.push(format!("{kind}: alive after its end: {}", survivors.join(", ")));
            }
            if !sandbox.probe(&["ids"]).await.is_ok_and(|ran| ran.complete().is_ok()) {
                breaches.push(format!("{kind}: its sandbox is of no use afterwards"));
            }
            sandbox.end().await?;
        }
        Ok(Finding::from_breaches(&breaches, format!("{} kinds, all gone at their end", KINDS.len())))
    }

    /// On the host, killing the program that was started leaves its daemon.
    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        let directory = tempfile::tempdir()?;
        let probe = probe_on_host(directory.path())?;
        let mark = unique("mark");
        let mut child = std::process::Command::new(probe)
            .args(["tree", "daemon", &mark])
            .stdout(std::process::Stdio::null())
            .spawn()?;
        tokio::time::sleep(TIMEOUT).await;
        child.kill()?;
        child.wait()?;
        let survivors = Self::survivors(&mark, Duration::ZERO).await;
        for process in processes::marked(&mark) {
            if let Some(pid) = rustix::process::Pid::from_raw(process.pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        Ok(Finding::from_breaches(&survivors, "nobody is left"))
    }
}

/// A service on top of the lab's engine, with a ledger of its own.
async fn service(lab: &Lab, change: impl FnOnce(&mut ServiceSettings)) -> Result<(TempDir, SandboxService)> {
    let directory = tempfile::tempdir()?;
    let mut settings = ServiceSettings::new(directory.path(), InstanceId::random()?);
    change(&mut settings);
    Ok((directory, SandboxService::start(lab.engine.clone(), settings).await?))
}

/// Writes without end to both outputs.
struct Flood;

/// Per run, in four kinds of it: 10 GiB in all.
const FLOOD_MIB: u64 = 2560;
/// Runs at once, and what each of them writes.
const TOGETHER: usize = 50;
const TOGETHER_MIB: u64 = 1024;
const CAP_KIB: u64 = 256;
const GROWTH_KIB: u64 = 16 * 1024;

impl Flood {
    fn memory() -> u64 {
        let own = std::process::id();
        resident_kib(own)
    }
}

#[async_trait]
impl Check for Flood {
    fn about(&self) -> About {
        About {
            id: "RX-07",
            tries: "gibibytes of output: without newlines, in long lines, control bytes, invalid UTF-8; fifty at once",
            stopped_by: "caps while reading, in the service",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let (_ledger, service) = service(lab, |_| {}).await?;
        let owner = Owner::local();
        let caps = OutputCaps { head: CAP_KIB as usize * 512, tail: CAP_KIB as usize * 512 };
        let info = service.create(&owner, SandboxSpec::new(owner.clone())).await?;
        let path = sandpen_tests::lab::guest("/tmp/probe")?;
        let options = sandbox::WriteOptions { mode: 0o755, ..sandbox::WriteOptions::default() };
        let mut file = service.files(&owner, &info.id)?.write(&path, options).await?;
        file.write_all(&probe_bytes()?).await?;
        file.commit().await?;
        // A daemon passes every byte on three times, and what is measured is what is kept of them.
        let (most, together_most) =
            if is_on_daemon() { (FLOOD_MIB / 20, TOGETHER_MIB / 128) } else { (FLOOD_MIB, TOGETHER_MIB) };
        let flood = async |mebibytes: u64, kind: &str| -> Result<_> {
            let request =
                ExecRequest::new(["/tmp/probe", "flood", &mebibytes.to_string(), kind], Duration::from_secs(1000))?;
            Ok(service.exec(&owner, &info.id, request).await?.capture(caps).await?)
        };
        let mut breaches = Vec::new();
        let before = Self::memory();
        let mut encoded = Vec::new();
        for kind in ["plain", "lines", "control", "invalid"] {
            let captured = flood(most, kind).await?;
            if captured.outcome.status != ExecStatus::Exited(7) {
                breaches.push(format!("{kind}: {:?}", captured.outcome.status));
            }
            for output in [&captured.stdout, &captured.stderr] {
                if !output.is_truncated() {
                    breaches.push(format!("{kind}: nobody says that output was cut"));
                }
                // As an edge would send it: escapes make it longer, and it is held while memory is measured.
                encoded.push(serde_json::to_string(&output.to_text()).map_err(|error| error.to_string())?);
            }
        }
        let alone = Self::memory().saturating_sub(before);
        let kinds = ["plain", "lines", "control", "invalid"].into_iter().cycle().take(TOGETHER);
        futures_util::future::try_join_all(kinds.map(|kind| flood(together_most, kind))).await?;
        let together = Self::memory().saturating_sub(before);
        service.stop(&owner, &info.id).await?;
        service.shutdown().await?;
        if alone > CAP_KIB * 2 + GROWTH_KIB {
            breaches.push(format!("memory grew by {alone} KiB"));
        }
        if together > TOGETHER as u64 * CAP_KIB * 2 + 4 * GROWTH_KIB {
            breaches.push(format!("memory grew by {together} KiB with {TOGETHER} at once"));
        }
        let bytes = most * 4 + together_most * TOGETHER as u64;
        Ok(Finding::from_breaches(&breaches, format!("{bytes} MiB, memory {alone} KiB and {together} KiB more")))
    }

    /// Read without a cap, the same flood is in memory.
    async fn instrument(&self, lab: &Lab) -> Result<Finding> {
        use tokio::io::AsyncReadExt;
        let sandbox = lab.sandbox().await?;
        let before = Self::memory();
        let request = ExecRequest::new([sandbox.probe, "flood", "64", "plain"], Duration::from_secs(60))?;
        let process = lab.engine.start(&sandbox.id, &request).await?;
        let (mut stdout, mut stderr) = (process.stdout, process.stderr);
        let (mut one, mut two) = (Vec::new(), Vec::new());
        tokio::try_join!(stdout.read_to_end(&mut one), stderr.read_to_end(&mut two))?;
        let grown = Self::memory().saturating_sub(before);
        sandbox.end().await?;
        let breaches: Vec<String> = (grown > CAP_KIB * 2 + GROWTH_KIB)
            .then(|| format!("memory grew by {grown} KiB for {} bytes", one.len() + two.len()))
            .into_iter()
            .collect();
        Ok(Finding::from_breaches(&breaches, "memory did not grow"))
    }
}

/// Asks for a thousand sandboxes at once.
struct Creates;

const CREATES: usize = 1000;
/// One create is a throw of the dice of the scheduler; of these the one in the middle counts.
const ROUNDS: usize = 9;
/// How many of somebody else's may be made while one waits for its own. The greedy one has half of the slots, so it is about
/// one; behind a queue of its places it would be all that wait there. Places are counted and not moments: however slow the
/// machine is, it is so for both.
const OVERTAKEN: usize = 4;
const OVERTAKEN_ONCE: usize = 16;
const PLACES: usize = 32;

impl Creates {
    /// While one owner asks for `count`, another one asks for a sandbox.
    async fn storm(lab: &Lab, places: usize, count: usize, another: &str) -> Result<Finding> {
        let (_ledger, service) = service(lab, |settings| settings.create_queue = places).await?;
        let (greedy, modest): (Owner, Owner) = ("greedy".parse()?, another.parse()?);
        let (made, mut busy, mut breaches) = (Arc::new(AtomicUsize::new(0)), 0, Vec::new());
        let mut overtaken = Vec::new();
        for _ in 0..ROUNDS {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..count {
                let (service, owner, made) = (service.clone(), greedy.clone(), made.clone());
                tasks.spawn(async move {
                    match service.create(&owner, SandboxSpec::new(owner.clone())).await {
                        Ok(info) => {
                            made.fetch_add(1, Ordering::Relaxed);
                            service.stop(&owner, &info.id).await.map(|()| true)
                        }
                        Err(error) if [ErrorKind::Unavailable, ErrorKind::LimitExceeded].contains(&error.kind()) => {
                            Ok(false)
                        }
                        Err(error) => Err(error),
                    }
                });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            match Self::overtaken(&service, &modest, &made).await {
                Ok(count) => overtaken.push(count),
                Err(trouble) => breaches.push(format!("another owner was refused: {trouble}")),
            }
            while let Some(ended) = tasks.join_next().await {
                match ended {
                    Ok(Ok(true)) => {}
                    Ok(Ok(false)) => busy += 1,
                    Ok(Err(error)) => breaches.push(format!("{error:?}")),
                    Err(error) => breaches.push(error.to_string()),
                }
            }
        }
        breaches.dedup();
        let made = made.load(Ordering::Relaxed);
        if busy == 0 {
            breaches.push(format!("nobody was told to wait: {made} were made"));
        }
        overtaken.sort_unstable();
        let middle = overtaken.get(overtaken.len() / 2).copied().unwrap_or(usize::MAX);
        if middle > OVERTAKEN || overtaken.last().is_some_and(|most| *most > OVERTAKEN_ONCE) {
            breaches.push(format!("so many others came first: {overtaken:?}"));
        }
        service.shutdown().await?;
        Ok(Finding::from_breaches(&breaches, format!("{made} made, {busy} told to come back, {middle} came first")))
    }

    /// How many others were made while this one was.
    async fn overtaken(service: &SandboxService, owner: &Owner, made: &AtomicUsize) -> Result<usize> {
        let before = made.load(Ordering::Relaxed);
        let info = service.create(owner, SandboxSpec::new(owner.clone())).await?;
        let meanwhile = made.load(Ordering::Relaxed) - before;
        service.stop(owner, &info.id).await?;
        Ok(meanwhile)
    }
}

#[async_trait]
impl Check for Creates {
    fn about(&self) -> About {
        About {
            id: "RX-15",
            tries: "a thousand creates at once by one owner while another owner wants one",
            stopped_by: "a bounded queue in the service",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    fn embedded_only(&self) -> Option<&'static str> {
        Some("the queue is the service's, which is the same before every engine")
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        Self::storm(lab, PLACES, CREATES, "modest").await
    }

    /// With places for everybody nobody is told to come back, and whoever has a place in the same owner's queue waits for it.
    async fn instrument(&self, lab: &Lab) -> Result<Finding> {
        Self::storm(lab, CREATES, 100, "greedy").await
    }
}
