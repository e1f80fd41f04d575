//! Processes and namespaces: how they stand, whom they see, whom they can touch.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use async_trait::async_trait;
use sandbox::{Layer, TerminalSize};
use sandpen_tests::check::{About, Check, Control, Finding};
use sandpen_tests::daemon::{Flavour, Given};
use sandpen_tests::lab::{Lab, Sandbox, is_about_root, is_on_daemon, missing};
use sandpen_tests::probe::Findings;
use sandpen_tests::processes::{NAMESPACES, Process, companions};
use sandpen_tests::{Result, is_root};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::posture::{IdMap, Posture};

pub const CHECKS: &[&dyn Check] = &[
    &PostureIsGolden,
    &SpareIsGolden,
    &SeesProcesses,
    &TouchesProcesses,
    &OpensHelpers,
    &InjectsInput,
    &ExecIsNotWeaker,
];

const GOLDEN_ROOT: &str = include_str!("golden/posture.txt");
const GOLDEN_ORDINARY: &str = include_str!("golden/posture-ordinary-user.txt");
const GOLDEN_IMAGE_USER: &str = include_str!("golden/posture-image-user.txt");
const GOLDEN_DOCKER: &str = include_str!("golden/posture-docker.txt");
const GOLDEN_PODMAN: &str = include_str!("golden/posture-podman.txt");

/// Compares how every process of a sandbox stands with the record in the repository.
struct PostureIsGolden;

impl PostureIsGolden {
    /// The first process, a command, its fork and its thread, and a command after four execs and two forks.
    async fn record(lab: &Lab, sandbox: Sandbox) -> Result<String> {
        let held = sandbox.hold(1, 1).await?;
        let chained = sandbox.hold_after(&["again", "4"], 0, 0).await?;
        // Without a pid namespace there is none.
        let init = init_of(&held.process).unwrap_or_else(|_| held.process.clone());
        let fork = held.marked.iter().find(|process| process.parent == held.process.pid);
        // A thread stands in `/proc` like a process.
        let thread = held.process.threads().into_iter().find(|thread| *thread != held.process.pid);
        let thread = thread.map(|pid| Process { pid, ..held.process.clone() }).ok_or("no thread is seen")?;
        let roles = [
            ("init", &init),
            ("command", &held.process),
            ("fork", fork.unwrap_or(&held.process)),
            ("thread", &thread),
            ("chained", &chained.process),
        ];
        let mut text: String = roles.iter().map(|(role, process)| Posture::of(process).text(role)).collect();
        // Supervisors of the two commands and whoever stands by for the next: however many, they stand alike.
        let known: Vec<u32> = roles.iter().map(|(_, process)| process.pid).collect();
        let is_helper = |process: &&Process| !known.contains(&process.pid) && !process.command_line.contains("probe");
        let helpers: BTreeSet<String> = companions(&init)
            .iter()
            .filter(is_helper)
            .map(|process| Posture::of(process).with_kinds_of_descriptors().text("helper"))
            .collect();
        text.extend(helpers);
        text += &Posture::mounts(&held.process).text("sandbox");
        text += &Posture::groups(&held.process).text("sandbox");
        text += &format!("siblings: {}\n", siblings(lab, &held.process).await?);
        held.release().await?;
        chained.release().await?;
        sandbox.end().await?;
        Ok(text)
    }

    /// A container of the client's is no sandbox, so only that counts in which one with all walls stands like a sandbox.
    async fn compare_unwalled(daemon: Given, golden: &str, found: &str) -> Result<Finding> {
        static WHOLE: OnceCell<String> = OnceCell::const_new();
        let whole = WHOLE.get_or_try_init(|| async {
            let lab = Lab::with_walls_of_the_daemon(daemon).await?;
            Self::record(&lab, lab.sandbox().await?).await
        });
        let whole = whole.await?;
        let is_in = |text: &str, line: &str| text.lines().any(|other| other == line);
        let lost = golden.lines().filter(|line| is_in(whole, line) && !is_in(found, line));
        let extra = found.lines().filter(|line| line.starts_with("sandbox: mount") && !is_in(whole, line));
        let breaches: Vec<String> =
            lost.map(|line| format!("not: {line}")).chain(extra.map(|line| format!("but: {line}"))).collect();
        Ok(Finding::from_breaches(&breaches, "as with all walls"))
    }
}

/// Whether another sandbox shares a namespace or an id with this one.
async fn siblings(lab: &Lab, process: &Process) -> Result<String> {
    let sibling = lab.sandbox().await?;
    let held = sibling.hold(0, 0).await?;
    let shared: Vec<&str> = NAMESPACES
        .into_iter()
        .filter(|kind| *kind != "time" && process.namespace(kind) == held.process.namespace(kind))
        .collect();
    let ranges = [process, &held.process].map(|process| IdMap::of(process, "uid_map").0);
    let overlap = ranges[0].iter().any(|[_, start, count]| {
        ranges[1].iter().any(|[_, other, others]| start < &(other + others) && other < &(start + count))
    });
    held.release().await?;
    sibling.end().await?;
    let ids = if overlap { "shared ids" } else { "ids of their own" };
    Ok(format!("{ids}, shared namespaces: {}", if shared.is_empty() { "none".to_owned() } else { shared.join(" ") }))
}

#[async_trait]
impl Check for PostureIsGolden {
    fn about(&self) -> About {
        About {
            id: "PN-01",
            tries: "reads ids, capabilities, filter, namespaces, maps, descriptors, mounts, limits, environment from the host",
            stopped_by: "every layer; the record is golden/posture.txt",
        }
    }

    fn controls(&self) -> Vec<Control> {
        use Layer::{
            CgroupNamespace, CpuLimit, Descriptors, DiskLimit, IpcNamespace, MaskedPaths, MemoryLimit,
            NetworkNamespace, NoCapabilities, NoNewPrivileges, PidNamespace, PivotedRoot, ProcessLimit, Rlimits,
            Seccomp, UidRange, UserNamespace, UtsNamespace,
        };
        let layers: &[&'static [Layer]] = &[
            &[UserNamespace],
            &[PidNamespace],
            &[NetworkNamespace],
            &[IpcNamespace],
            &[UtsNamespace],
            &[CgroupNamespace],
            &[UidRange],
            &[PivotedRoot],
            &[MaskedPaths],
            &[NoCapabilities],
            &[NoNewPrivileges],
            &[Seccomp],
            &[Rlimits],
            &[MemoryLimit],
            &[ProcessLimit],
            &[CpuLimit],
            &[DiskLimit],
            &[Descriptors],
        ];
        let missing = missing();
        // An ordinary user cannot see the descriptors of the sandbox's ids; FS-02 asks the command itself. And it cannot
        // build any other namespace without one for users.
        let visible =
            |layer: Layer| !missing.contains(&layer) && (is_root() || ![Descriptors, UserNamespace].contains(&layer));
        layers.iter().filter(|layers| visible(layers[0])).map(|layers| Control::Without(layers)).collect()
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let tree = lab.small_tree()?;
        let found = Self::record(lab, lab.small_sandbox(&tree).await?).await?;
        let (name, golden) = golden()?;
        if std::env::var_os("SANDPEN_TEST_BLESS").is_some() && lab.without.is_empty() {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("escape/golden").join(name);
            if std::fs::write(path, &found).is_err() {
                println!("{found}");
            }
            return Ok(Finding::Skip("the record was written, run again".to_owned()));
        }
        match Given::of_environment()? {
            Some(daemon) if !lab.without.is_empty() => Self::compare_unwalled(daemon, golden, &found).await,
            Some(_) | None => Ok(compare_with(golden, &found)),
        }
    }
}

/// The record of this engine, and what it is called.
fn golden() -> Result<(&'static str, &'static str)> {
    Ok(match Given::of_environment()?.map(|daemon| daemon.flavour) {
        Some(Flavour::Docker) => ("posture-docker.txt", GOLDEN_DOCKER),
        Some(Flavour::Podman) => ("posture-podman.txt", GOLDEN_PODMAN),
        None if is_root() && is_about_root() => ("posture-image-user.txt", GOLDEN_IMAGE_USER),
        None if is_root() => ("posture.txt", GOLDEN_ROOT),
        None => ("posture-ordinary-user.txt", GOLDEN_ORDINARY),
    })
}

fn compare_with(golden: &str, found: &str) -> Finding {
    let expected = |line: &&str| !depends_on_missing(line);
    let lost = golden.lines().filter(expected).filter(|line| !found.lines().any(|other| other == *line));
    let extra = found.lines().filter(expected).filter(|line| !golden.lines().any(|other| other == *line));
    let breaches: Vec<String> =
        lost.map(|line| format!("not: {line}")).chain(extra.map(|line| format!("but: {line}"))).collect();
    Finding::from_breaches(&breaches, format!("{} lines equal", golden.lines().count()))
}

/// A sandbox that was made ahead must stand like one that was not.
struct SpareIsGolden;

impl SpareIsGolden {
    /// The second sandbox of a kind, made before anybody asked for it.
    async fn spare(lab: &Lab, tree: &TempDir) -> Result<Sandbox> {
        lab.small_sandbox(tree).await?.end().await?;
        // The start of a process is told in hundredths of a second since the machine started.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let uptime = std::fs::read_to_string("/proc/uptime")?;
        let seconds: f64 = uptime.split(' ').next().and_then(|text| text.parse().ok()).ok_or("no uptime")?;
        let asked = (seconds * 100.0) as u64;
        let sandbox = lab.small_sandbox(tree).await?;
        let held = sandbox.hold(0, 0).await?;
        let started = init_of(&held.process)?.started;
        held.release().await?;
        if started + 10 > asked {
            return Err("no sandbox was made ahead".into());
        }
        Ok(sandbox)
    }
}

#[async_trait]
impl Check for SpareIsGolden {
    fn about(&self) -> About {
        About {
            id: "PN-01-spare",
            tries: "reads the same of a sandbox that was made ahead of demand",
            stopped_by: "one way to make a sandbox: the same plan",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, _lab: &Lab) -> Result<Finding> {
        let lab = Lab::with_spares(&[], 2).await?;
        let tree = lab.small_tree()?;
        let found = PostureIsGolden::record(&lab, Self::spare(&lab, &tree).await?).await?;
        Ok(compare_with(golden()?.1, &found))
    }

    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        if is_on_daemon() {
            // Without a wall there is nobody who would make one ahead.
            return PostureIsGolden.run(&Lab::start(&[Layer::NoNewPrivileges]).await?).await;
        }
        let lab = Lab::with_spares(&[Layer::NoNewPrivileges], 2).await?;
        let tree = lab.small_tree()?;
        let found = PostureIsGolden::record(&lab, Self::spare(&lab, &tree).await?).await?;
        Ok(compare_with(golden()?.1, &found))
    }
}

/// Whether a line tells of a wall that this host cannot build; those are skips of their own.
fn depends_on_missing(line: &str) -> bool {
    missing().into_iter().any(|layer| match layer {
        // Where there are no groups, processes are still bounded by the user's own limit.
        Layer::MemoryLimit => line.contains("memory limit") || line.contains("sandbox: process limit"),
        Layer::ProcessLimit => line.contains("process limit") || line.contains("Max processes"),
        Layer::CpuLimit => line.contains("processor quota"),
        Layer::CgroupNamespace => line.contains("namespace cgroup") || line.contains("siblings"),
        Layer::UidRange => line.contains("ids") || line.contains("id map"),
        _ => false,
    })
}

/// Process 1 of the sandbox that `process` is in.
fn init_of(process: &Process) -> Result<Process> {
    companions(process)
        .into_iter()
        .find(|other| other.status("NSpid").split_whitespace().last() == Some("1"))
        .ok_or_else(|| "the sandbox has no process 1".into())
}

/// Sends signal 0 to every id.
struct SeesProcesses;

#[async_trait]
impl Check for SeesProcesses {
    fn about(&self) -> About {
        About {
            id: "PN-02",
            tries: "lists processes and sends signal 0 to all ids up to the maximum",
            stopped_by: "pid namespace",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::PidNamespace])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let most = std::fs::read_to_string("/proc/sys/kernel/pid_max")?.trim().to_owned();
        let sandbox = lab.sandbox().await?;
        let held = sandbox.hold(0, 0).await?;
        let ran = sandbox.probe(&["signals", &most]).await?.complete()?;
        let inside = companions(&held.process);
        held.release().await?;
        sandbox.end().await?;
        let answering = ran.findings.number("answering").unwrap_or(i64::MAX);
        // Those that the host sees there, and the probe with its supervisor, which have ended meanwhile.
        let expected = inside.len() as i64 + 2;
        let mut breaches = Vec::new();
        if answering > expected {
            let seen: Vec<&str> = ran.findings.all("answers").take(8).collect();
            breaches.push(format!("{answering} answer where {expected} live: {}…", seen.join(", ")));
        }
        Ok(Finding::from_breaches(&breaches, format!("{answering} answer of {most} ids")))
    }
}

/// Reaches for the memory and descriptors of process 1 and of helpers while they become commands.
struct TouchesProcesses;

/// Calls that even a child of one's own is safe from.
const REFUSED_CALLS: &[&str] = &["ptrace", "process_vm_readv", "pidfd_getfd"];
const FILES: &[&str] = &["mem", "maps", "environ", "fd", "cwd", "root", "exe", "map_files", "ns/mnt"];

async fn watch_while_starting(sandbox: &Sandbox) -> Result<Findings> {
    let watching = sandbox.start(&["watch", "1500"]).await?;
    for _ in 0..60 {
        sandbox.probe(&["ids"]).await?;
    }
    Ok(watching.finish().await?.complete()?.findings)
}

#[async_trait]
impl Check for TouchesProcesses {
    fn about(&self) -> About {
        About {
            id: "PN-04",
            tries: "ptrace, memory, descriptors and links in /proc of process 1 and of helpers in the act of starting a command",
            stopped_by: "seccomp; other ids for process 1; helpers that cannot be dumped",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::Seccomp]), Control::Instrument]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let peers = sandbox.probe(&["peers"]).await?.complete()?.findings;
        let watched = watch_while_starting(&sandbox).await?;
        sandbox.end().await?;
        let mut breaches = touched(&peers, "init");
        for call in REFUSED_CALLS {
            if peers.get(&format!("child {call}")) != Some("EPERM") {
                breaches.push(format!("child {call}: {:?}", peers.get(&format!("child {call}"))));
            }
        }
        breaches.extend(watched.all("caught").map(|caught| format!("caught {caught}")));
        let tries = watched.number("tries").unwrap_or(0);
        let seen = watched.number("helpers seen").unwrap_or(0);
        Ok(Finding::from_breaches(&breaches, format!("{tries} looks, {seen} at helpers, none given")))
    }

    /// What is refused for process 1 is given for a child of one's own, by the same probe in the same sandbox.
    async fn instrument(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let peers = sandbox.probe(&["peers"]).await?.complete()?.findings;
        sandbox.end().await?;
        let touched = touched(&peers, "child");
        // Each of them must be seen to be possible.
        if touched.len() < FILES.len() {
            return Ok(Finding::Holds(format!("of a child only {} are given", touched.join(", "))));
        }
        Ok(Finding::Breach(touched.join("; ")))
    }
}

fn touched(peers: &Findings, whom: &str) -> Vec<String> {
    let items = REFUSED_CALLS.iter().chain(FILES).map(|what| format!("{whom} {what}"));
    items.filter(|item| !peers.get(item).is_some_and(|answer| answer.starts_with('E'))).collect()
}

/// Opens the programs of helpers through `/proc`.
struct OpensHelpers;

#[async_trait]
impl Check for OpensHelpers {
    fn about(&self) -> About {
        About {
            id: "PN-06",
            tries: "opens the programs of process 1 and of joining helpers through /proc (CVE-2019-5736)",
            stopped_by: "other ids for process 1; helpers that cannot be dumped; a program that is sealed or read-only",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let before = programs(lab)?;
        let peers = sandbox.probe(&["peers"]).await?.complete()?.findings;
        let watched = watch_while_starting(&sandbox).await?;
        sandbox.end().await?;
        let mut breaches = opened(&peers, "init");
        breaches.extend(watched.all("caught").filter(|caught| caught.contains("exe=1")).map(str::to_owned));
        if programs(lab)? != before {
            breaches.push("a program of the engine has changed".to_owned());
        }
        Ok(Finding::from_breaches(&breaches, format!("refused, {} programs unchanged", before.len())))
    }

    async fn instrument(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let peers = sandbox.probe(&["peers"]).await?.complete()?.findings;
        sandbox.end().await?;
        Ok(Finding::from_breaches(&opened(&peers, "child"), "refused"))
    }
}

fn opened(peers: &Findings, whom: &str) -> Vec<String> {
    let items = [format!("{whom} exe"), format!("{whom} exe for writing")];
    items.into_iter().filter(|item| peers.get(item).is_none_or(|answer| answer == "ok")).collect()
}

/// The engine's own, and process 1's where it is a file.
fn programs(lab: &Lab) -> Result<Vec<Vec<u8>>> {
    let mut programs = vec![std::fs::read("/proc/self/exe")?];
    for build in std::fs::read_dir(lab.state_dir().join("programs")).into_iter().flatten() {
        programs.push(std::fs::read(build?.path().join("init"))?);
    }
    Ok(programs)
}

/// Types into the terminal of whoever looks on.
struct InjectsInput;

#[async_trait]
impl Check for InjectsInput {
    fn about(&self) -> About {
        About {
            id: "PN-07",
            tries: "with a terminal: input injection and console requests (CVE-2017-5226)",
            stopped_by: "seccomp; a terminal of its own",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::Seccomp])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let size = TerminalSize { rows: 24, columns: 80 };
        let ran = sandbox.start_in(&["terminal"], Some(size)).await?.finish().await?;
        let findings = Findings::parse(&ran.stdout.replace('\r', ""));
        let held = sandbox.hold(0, 0).await?;
        let inside = std::fs::metadata(held.process.file("root/dev/pts"));
        let host = std::fs::metadata("/dev/pts").map(|stat| stat.dev());
        held.release().await?;
        sandbox.end().await?;
        let mut breaches = Vec::new();
        if findings.get("is a terminal") != Some("1") {
            return Err(format!("there is no terminal: {findings:?}").into());
        }
        for request in ["TIOCSTI", "TIOCLINUX", "TIOCCONS"] {
            if findings.get(request) != Some("EPERM") {
                breaches.push(format!("{request} answers {:?}", findings.get(request)));
            }
        }
        if findings.get("console open") == Some("ok") {
            breaches.push("the console can be opened".to_owned());
        }
        if let (Ok(inside), Ok(host)) = (inside, host)
            && inside.dev() == host
        {
            breaches.push("its terminals are the host's".to_owned());
        }
        Ok(Finding::from_breaches(&breaches, "refused, terminal of its own"))
    }
}

/// Compares commands that are started later with the first one and with process 1.
struct ExecIsNotWeaker;

impl ExecIsNotWeaker {
    fn compare(first: &Process, later: &Process, init: &Process) -> Vec<String> {
        let mut breaches = Posture::of(first).differences(&Posture::of(later));
        for kind in NAMESPACES {
            if later.namespace(kind) != init.namespace(kind) {
                breaches.push(format!("another {kind} namespace than process 1"));
            }
        }
        let root =
            |process: &Process| std::fs::metadata(process.file("root/.")).map(|stat| (stat.dev(), stat.ino())).ok();
        if root(later) != root(init) {
            breaches.push("another root than process 1".to_owned());
        }
        let groups = |process: &Process| process.text("cgroup");
        if groups(later) != groups(init) {
            breaches.push(format!("another group than process 1: {:?} and {:?}", groups(later), groups(init)));
        }
        breaches
    }
}

#[async_trait]
impl Check for ExecIsNotWeaker {
    fn about(&self) -> About {
        About {
            id: "PN-09",
            tries: "compares later commands with the first one and with process 1 (CVE-2026-109569)",
            stopped_by: "one way to start a command: a fork of process 1",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let first = sandbox.hold(0, 0).await?;
        let init = init_of(&first.process)?;
        let mut breaches = Vec::new();
        for _ in 0..3 {
            let later = sandbox.hold(0, 0).await?;
            breaches.extend(Self::compare(&first.process, &later.process, &init));
            later.release().await?;
        }
        first.release().await?;
        sandbox.end().await?;
        breaches.dedup();
        Ok(Finding::from_breaches(&breaches, "3 later commands, all fields equal"))
    }

    /// A command of another sandbox is not the same.
    async fn instrument(&self, lab: &Lab) -> Result<Finding> {
        let (sandbox, other) = (lab.sandbox().await?, lab.sandbox().await?);
        let (first, foreign) = (sandbox.hold(0, 0).await?, other.hold(0, 0).await?);
        let breaches = Self::compare(&first.process, &foreign.process, &init_of(&first.process)?);
        first.release().await?;
        foreign.release().await?;
        sandbox.end().await?;
        other.end().await?;
        Ok(Finding::from_breaches(&breaches, "no difference"))
    }
}
