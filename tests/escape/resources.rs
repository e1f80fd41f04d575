//! Limits, one sandbox at a time: memory, disk, descriptors, processor.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use sandbox::{ByteSize, ExecStatus, Layer, Limits, Owner, SandboxSpec};
use sandpen_tests::check::{About, Check, Control, Finding};
use sandpen_tests::daemon::{Flavour, Given};
use sandpen_tests::lab::{Lab, is_on_daemon, probe_on_host, readable};
use sandpen_tests::probe::Findings;
use sandpen_tests::processes::Process;
use sandpen_tests::{Result, is_root};

pub const CHECKS: &[&dyn Check] = &[&Memory, &Disk, &Descriptors, &KernelObjects, &Processor];

pub fn with_limits(limits: Limits) -> SandboxSpec {
    SandboxSpec { limits, ..SandboxSpec::new(Owner::local()) }
}

/// Touches more memory than there is.
struct Memory;

const MEMORY_MIB: u64 = 64;

#[async_trait]
impl Check for Memory {
    fn about(&self) -> About {
        About {
            id: "RX-02",
            tries: "touches four times the memory limit, in one process and in fifty",
            stopped_by: "memory limit, without swap",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::MemoryLimit])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let mut witness = std::process::Command::new("sleep").arg("120").spawn()?;
        let limits = Limits { memory: ByteSize::mebibytes(MEMORY_MIB), ..Limits::default() };
        let mut breaches = Vec::new();
        for processes in ["1", "50"] {
            let sandbox = lab.sandbox_of(with_limits(limits)).await?;
            let ran = sandbox.probe(&["eat", &(MEMORY_MIB * 4).to_string(), processes]).await?;
            if ran.outcome.status != ExecStatus::OutOfMemory {
                breaches.push(format!("{processes} processes: {:?} {}", ran.outcome.status, ran.stdout.trim()));
            }
            if let Some(peak) = lab_usage(lab, &sandbox.id).await
                && peak > (MEMORY_MIB << 20) + (1 << 20)
            {
                breaches.push(format!("{processes} processes: {peak} bytes were used"));
            }
            sandbox.end().await?;
        }
        if Process::read(witness.id()).is_none_or(|process| process.is_zombie()) {
            breaches.push("a process of the host was killed".to_owned());
        }
        witness.kill()?;
        witness.wait()?;
        let after = lab.sandbox().await?;
        after.probe(&["ids"]).await?.complete()?;
        after.end().await?;
        Ok(Finding::from_breaches(&breaches, "killed inside, told as out of memory"))
    }
}

async fn lab_usage(lab: &Lab, id: &sandbox::SandboxId) -> Option<u64> {
    lab.engine.usage(id).await.ok()?.peak_memory
}

/// Writes until an error wherever it can.
struct Disk;

const DISK_MIB: u64 = 64;
const INODES: u64 = 1000;

#[async_trait]
impl Check for Disk {
    fn about(&self) -> About {
        About {
            id: "RX-04",
            tries: "writes four times the disk limit over all writable places, and makes files without end",
            stopped_by: "disk limit: one bounded filesystem for all of them",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::DiskLimit])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let limits = Limits {
            disk: ByteSize::mebibytes(DISK_MIB),
            inodes: INODES,
            memory: ByteSize::mebibytes(512),
            ..Limits::default()
        };
        let sandbox = lab.sandbox_of(with_limits(limits)).await?;
        let made = sandbox.probe(&["inodes", "4000"]).await?.complete()?.findings;
        sandbox.end().await?;
        let sandbox = lab.sandbox_of(with_limits(limits)).await?;
        let filled = sandbox.probe(&["fill", &(DISK_MIB * 4).to_string()]).await?.complete()?.findings;
        let mut breaches = Vec::new();
        let each = filled.all("filled").filter_map(|line| line.split(' ').nth(1)?.parse::<u64>().ok());
        // Each place of a container has the whole limit, as its report says, and the memory bounds them all together.
        let amounts: Vec<u64> = if is_on_daemon() { each.collect() } else { vec![each.sum()] };
        let limit = DISK_MIB << 20;
        // The probe itself lies there too.
        if amounts.iter().any(|bytes| *bytes > limit + limit / 20 || *bytes < limit - limit / 10) {
            breaches.push(format!("{amounts:?} bytes were written: {:?}", filled.all("filled").collect::<Vec<_>>()));
        }
        if !filled.all("filled").all(|line| line.ends_with("ENOSPC")) {
            breaches.push(format!("not stopped for lack of space: {:?}", filled.all("filled").collect::<Vec<_>>()));
        }
        let count = made.number("made").unwrap_or(0);
        if counts_files()? && (count > INODES as i64 || made.get("refused") != Some("ENOSPC")) {
            breaches.push(format!("{count} files were made, then {:?}", made.get("refused")));
        }
        let other = lab.sandbox().await?;
        other.probe(&["ids"]).await?.complete()?;
        other.end().await?;
        sandbox.end().await?;
        Ok(Finding::from_breaches(
            &breaches,
            format!("{} MiB, then no space; {count} files", amounts.iter().sum::<u64>() >> 20),
        ))
    }
}

/// Podman has no word for it: the number of files is bounded by their memory alone, as the report says.
fn counts_files() -> Result<bool> {
    Ok(Given::of_environment()?.is_none_or(|daemon| daemon.flavour == Flavour::Docker))
}

/// Opens files to the limit.
struct Descriptors;

#[async_trait]
impl Check for Descriptors {
    fn about(&self) -> About {
        About { id: "RX-06", tries: "opens files to the limit", stopped_by: "rlimits" }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::Rlimits])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox_of(with_limits(Limits { open_files: 64, ..Limits::default() })).await?;
        let ran = sandbox.probe(&["open-files", "500"]).await?.complete()?.findings;
        sandbox.end().await?;
        let mut breaches = Vec::new();
        if ran.number("opened") != Some(64) || ran.get("refused") != Some("EMFILE") {
            breaches.push(format!("{:?} open files, then {:?}", ran.number("opened"), ran.get("refused")));
        }
        Ok(Finding::from_breaches(&breaches, "64 files"))
    }
}

/// Takes things that the kernel counts per user.
struct KernelObjects;

#[async_trait]
impl Check for KernelObjects {
    fn about(&self) -> About {
        About {
            id: "RX-06-neighbour",
            tries: "takes watches, timers and events to the limit; a neighbour must not feel it",
            stopped_by: "a range of user ids of its own",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    fn needs(&self) -> Vec<Layer> {
        // The embedded engine is asked whatever it can build.
        if is_on_daemon() { vec![Layer::UidRange] } else { Vec::new() }
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let mut breaches = Vec::new();
        let (greedy, neighbour) = (lab.sandbox().await?, lab.sandbox().await?);
        let mut taking = greedy.start(&["kernel-objects", "1000", "3000"]).await?;
        let taken = taking.line().await?;
        let ran = neighbour.probe(&["kernel-objects", "8"]).await?.complete()?.findings;
        if ran.number("inotify") != Some(8) {
            breaches.push(format!(
                "while a neighbour holds {taken:?}, one gets {:?} watches of 8: {:?}",
                ran.get("inotify"),
                ran.get("refused")
            ));
        }
        drop(taking);
        greedy.end().await?;
        neighbour.end().await?;
        Ok(Finding::from_breaches(&breaches, "the neighbour has all it wants"))
    }

    /// Two programs of one user on the host: the second finds nothing left.
    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        let directory = tempfile::tempdir()?;
        readable(directory.path(), 0o755)?;
        let probe = probe_on_host(directory.path())?;
        let as_somebody = |command: &mut Command| {
            if is_root() {
                command.uid(SOMEBODY).gid(SOMEBODY);
            }
        };
        let mut greedy = Command::new(&probe);
        as_somebody(greedy.args(["kernel-objects", "1000", "3000"]).stdout(Stdio::piped()));
        let mut taking = greedy.spawn()?;
        // It tells what it holds before it waits.
        let mut said = BufReader::new(taking.stdout.take().ok_or("no output")?);
        said.read_line(&mut String::new())?;
        let mut neighbour = Command::new(&probe);
        as_somebody(neighbour.args(["kernel-objects", "8"]));
        let found = Findings::parse(&String::from_utf8_lossy(&neighbour.output()?.stdout));
        taking.kill()?;
        taking.wait()?;
        drop(said);
        let short = found.number("inotify").filter(|count| *count < 8).map(|count| format!("{count} watches of 8"));
        Ok(Finding::from_breaches(&short.into_iter().collect::<Vec<_>>(), "all it wants"))
    }
}

/// A user id of the host that nobody has.
const SOMEBODY: u32 = 1_899_999_999;

/// Spins with more threads than processors.
struct Processor;

const SPIN: Duration = Duration::from_secs(2);

/// Of a processor: so little that a free sandbox has more on any machine that has anything left.
const QUOTA: f64 = 0.2;

/// A tenth more than the quota, and what one period more at the start is over the whole time.
fn most(quota: f64) -> f64 {
    quota * 1.1 + quota * 0.1 / SPIN.as_secs_f64()
}

fn share_of(ran: &Findings) -> f64 {
    let (used, wall) = (ran.number("cpu").unwrap_or(i64::MAX), ran.number("wall").unwrap_or(1));
    used as f64 / wall as f64
}

#[async_trait]
impl Check for Processor {
    fn about(&self) -> About {
        About {
            id: "RX-10",
            tries: "spins with four threads; 16 sandboxes spin at once while control calls are timed",
            stopped_by: "processor limit",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::CpuLimit])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let milliseconds = SPIN.as_millis().to_string();
        let mut breaches = Vec::new();
        let mut share = 0.0;
        // A machine that is busy with other things gives less, and is asked again; more it must never give.
        for _ in 0..5 {
            let sandbox = lab.sandbox_of(with_limits(Limits { cpu_millis: 200, ..Limits::default() })).await?;
            share = share_of(&sandbox.probe(&["spin", "4", &milliseconds]).await?.complete()?.findings);
            sandbox.end().await?;
            if share > most(QUOTA) {
                breaches.push(format!("{share:.3} of a processor with {QUOTA} allowed"));
                return Ok(Finding::from_breaches(&breaches, ""));
            }
            if share >= QUOTA * 0.9 {
                break;
            }
        }
        if share < QUOTA * 0.9 {
            breaches.push(format!("only {share:.3} of a processor with {QUOTA} allowed, five times"));
        }
        let spinners = Limits { cpu_millis: 100, ..Limits::default() };
        let mut running = Vec::new();
        for _ in 0..16 {
            let sandbox = lab.sandbox_of(with_limits(spinners)).await?;
            let spinning = sandbox.start(&["spin", "4", &milliseconds]).await?;
            running.push((sandbox, spinning));
        }
        let slowest = crate::storms::ping(lab, SPIN / 2).await?;
        for (sandbox, spinning) in running {
            let ran = spinning.finish().await?.complete()?.findings;
            // Half as much again: what one tick more in each period is of so little, where ticks are long.
            if share_of(&ran) > 0.15 {
                breaches.push(format!("{:.3} of a processor with a tenth allowed", share_of(&ran)));
            }
            sandbox.end().await?;
        }
        if slowest > crate::storms::PING_LIMIT {
            breaches.push(format!("a control call took {slowest:?}"));
        }
        Ok(Finding::from_breaches(&breaches, format!("share {share:.3} of {QUOTA}, slowest control call {slowest:?}")))
    }
}
