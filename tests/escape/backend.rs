//! Honesty: no silent downgrade, and a report that equals what the host sees.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use async_trait::async_trait;
use engine_native::seccomp::policy;
use sandbox::{ByteSize, Layer, LayerState, Limits};
use sandpen_tests::check::{About, Check, Control, Finding};
use sandpen_tests::lab::{Lab, Sandbox, is_on_daemon, missing, probe_on_host};
use sandpen_tests::processes::Process;
use sandpen_tests::server::{Server, Work};
use sandpen_tests::{Result, cgroups, is_root, mounts};

use crate::filesystem::{SACRIFICE, own_setting};
use crate::posture::{IdMap, Posture};
use crate::resources::with_limits;

pub const CHECKS: &[&dyn Check] = &[&NoDowngrade, &HonestReport];

/// Takes away what a layer needs of the host and starts a server there.
struct NoDowngrade;

/// Layer, what takes it away in the server's own user namespace.
const TAKEN: &[(Layer, &str)] = &[
    (Layer::UserNamespace, "echo 0 >/proc/sys/user/max_user_namespaces"),
    (Layer::PidNamespace, "echo 0 >/proc/sys/user/max_pid_namespaces"),
    (Layer::MountNamespace, "echo 0 >/proc/sys/user/max_mnt_namespaces"),
    (Layer::NetworkNamespace, "echo 0 >/proc/sys/user/max_net_namespaces"),
    (Layer::IpcNamespace, "echo 0 >/proc/sys/user/max_ipc_namespaces"),
    (Layer::UtsNamespace, "echo 0 >/proc/sys/user/max_uts_namespaces"),
];

/// What it is, and the system call without which it cannot be had.
const CALLS: &[(&str, &str)] =
    &[("seccomp", "seccomp"), ("landlock", "landlock_create_ruleset"), ("a bounded file system", "fsconfig")];

/// What an ordinary user's namespace cannot have anyway.
const ALLOWED: &[Layer] = &[
    Layer::MemoryLimit,
    Layer::ProcessLimit,
    Layer::CpuLimit,
    Layer::UidRange,
    Layer::CgroupNamespace,
    Layer::Landlock,
];

impl NoDowngrade {
    /// A server in a user namespace of its own, after `before` was done there.
    fn start_after(before: &str, allowed: &[Layer]) -> Result<Vec<String>> {
        let state = tempfile::tempdir()?;
        let program = std::env::current_exe()?;
        let script = format!("{before}\nexec \"$0\" \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "--", "sh", "-c", &script]).arg(program);
        let server = Server::start_allowing(&mut command, state.path(), &Work::Probe, allowed)?;
        Ok(server.finish()?.1)
    }
}

/// Whether a sandbox was made, or why not.
fn judge(what: &str, lines: &[String]) -> Option<String> {
    if lines.iter().any(|line| line.starts_with("done")) {
        return Some(format!("without {what} it runs all the same"));
    }
    match lines.iter().find(|line| line.starts_with("trouble")) {
        Some(line) if is_clear(line) => None,
        Some(line) => Some(format!("without {what} the reason is not clear: {line}")),
        None => Some(format!("without {what} it says nothing: {lines:?}")),
    }
}

/// A kind that callers can act upon, and a hint that names what the host lacks.
fn is_clear(line: &str) -> bool {
    let kind = ["unsupported", "limit_exceeded"].iter().any(|kind| line.contains(kind));
    let hint = line.split_once("(hint: ").map_or("", |(_, hint)| hint);
    kind && ["namespace", "cgroup", "kernel", "--allow-missing"].iter().any(|word| hint.contains(word))
}

#[async_trait]
impl Check for NoDowngrade {
    fn about(&self) -> About {
        About {
            id: "BK-05",
            tries: "starts the engine where one kind of namespace, the control groups, seccomp, Landlock or a bounded file system cannot be had",
            stopped_by: "refusal with a reason and a remedy",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    fn embedded_only(&self) -> Option<&'static str> {
        Some("it takes away what the embedded engine needs of the kernel; what a daemon lacks is refused by its report")
    }

    async fn run(&self, _lab: &Lab) -> Result<Finding> {
        if !is_root() {
            return Ok(Finding::Skip(
                "limits on namespaces are set by root; the run as root has covered it".to_owned(),
            ));
        }
        let mut breaches = Vec::new();
        for (layer, taken) in TAKEN {
            let lines = Self::start_after(taken, ALLOWED)?;
            breaches.extend(judge(layer.as_str(), &lines));
        }
        let directory = tempfile::tempdir()?;
        let probe = probe_on_host(directory.path())?;
        let but_landlock: Vec<Layer> = ALLOWED.iter().copied().filter(|layer| *layer != Layer::Landlock).collect();
        for (what, call) in CALLS {
            let number = policy().number(call).ok_or("a call without a number")?;
            let taken = format!("exec {} refuse {number} \"$0\" \"$@\"", probe.display());
            breaches.extend(judge(what, &Self::start_after(&taken, &but_landlock)?));
        }
        let lines = Self::start_after("mount -t tmpfs none /sys/fs/cgroup", &[])?;
        breaches.extend(judge("control groups", &lines));
        Ok(Finding::from_breaches(
            &breaches,
            format!("{} layers, all refused with a remedy", TAKEN.len() + CALLS.len() + 1),
        ))
    }

    /// With nothing taken away, and leave to do without what an ordinary user cannot have, it runs.
    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        let lines = Self::start_after("true", ALLOWED)?;
        let runs = judge("anything", &lines).filter(|breach| breach.contains("runs all the same"));
        Ok(runs.map_or_else(|| Finding::Holds(format!("it never runs: {lines:?}")), Finding::Breach))
    }
}

/// Compares the isolation report with what the host sees.
struct HonestReport;

/// What the host sees of one sandbox: which layers stand.
async fn measure(lab: &Lab, sandbox: &Sandbox, limits: &Limits) -> Result<BTreeMap<Layer, bool>> {
    let held = sandbox.hold(0, 0).await?;
    let process = &held.process;
    let posture = Posture::of(process);
    let table = mounts::of(&process.pid.to_string());
    let own = |kind: &str| posture.get(&format!("namespace {kind}")) == "its own";
    let capabilities = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    let group = |files: &[&str]| cgroups::value(process, files);
    let quota = group(&["cpu.max", "cpu.cfs_quota_us"]).and_then(|text| text.split(' ').next()?.parse::<i64>().ok());
    let host_root = std::fs::metadata("/").map(|stat| (stat.dev(), stat.ino()))?;
    let shows_host = table.iter().any(|mount| {
        let place = process.file("root").join(mount.point.trim_start_matches('/'));
        std::fs::metadata(place).is_ok_and(|stat| (stat.dev(), stat.ino()) == host_root)
    });
    let bounds_processes = if is_on_daemon() {
        // With four of ours on top, as the report says.
        group(&["pids.max"]) == Some((limits.processes + 4).to_string())
    } else {
        posture.get("Max processes") == format!("{0} {0}", limits.processes)
    };
    let size = format!("size={}k", limits.disk.bytes() >> 10);
    let mut measured = BTreeMap::from([
        (Layer::UserNamespace, own("user")),
        (Layer::PidNamespace, own("pid")),
        (Layer::MountNamespace, own("mnt")),
        (Layer::NetworkNamespace, own("net")),
        (Layer::IpcNamespace, own("ipc")),
        (Layer::UtsNamespace, own("uts")),
        (Layer::CgroupNamespace, own("cgroup")),
        (Layer::UidRange, !shares_ids(lab, process).await?),
        (Layer::PivotedRoot, !shows_host),
        (Layer::MaskedPaths, table.iter().any(|mount| mount.point == "/proc/sys" && mount.has("ro"))),
        (Layer::NoCapabilities, capabilities.iter().all(|set| posture.get(set) == "0000000000000000")),
        (Layer::NoNewPrivileges, posture.get("NoNewPrivs") == "1"),
        (Layer::Seccomp, posture.get("Seccomp") == "2"),
        (Layer::Rlimits, posture.get("Max open files") == format!("{0} {0}", limits.open_files)),
        (
            Layer::MemoryLimit,
            group(&["memory.max", "memory.limit_in_bytes"]) == Some(limits.memory.bytes().to_string()),
        ),
        (Layer::ProcessLimit, bounds_processes),
        (Layer::CpuLimit, quota == Some(i64::from(limits.cpu_millis) * 100)),
        // It leaves no trace that the host could read, but what it refuses does.
        (Layer::Landlock, own_setting(sandbox).await? != SACRIFICE),
        (Layer::DiskLimit, table.iter().any(|mount| mount.filesystem_options.contains(&size))),
    ]);
    // An ordinary user cannot look there; the command itself is asked by FS-02.
    if process.shows_descriptors() {
        measured.insert(Layer::Descriptors, process.descriptors().into_keys().eq([0, 1, 2]));
    }
    held.release().await?;
    Ok(measured)
}

async fn shares_ids(lab: &Lab, process: &Process) -> Result<bool> {
    let sibling = lab.sandbox().await?;
    let held = sibling.hold(0, 0).await?;
    let ranges = [process, &held.process].map(|process| IdMap::of(process, "uid_map").0);
    held.release().await?;
    sibling.end().await?;
    Ok(ranges[0].iter().any(|[_, start, count]| {
        ranges[1].iter().any(|[_, other, others]| start < &(other + others) && other < &(start + count))
    }))
}

/// Where report and measurement differ.
fn differences(report: &sandbox::IsolationReport, measured: &BTreeMap<Layer, bool>) -> Vec<String> {
    Layer::ALL
        .iter()
        .filter_map(|layer| Some((*layer, *measured.get(layer)?)))
        .filter(|(layer, stands)| (report.state(*layer) == LayerState::On) != *stands)
        .map(|(layer, stands)| {
            format!("{layer} is said {:?} and {}", report.state(layer), if stands { "stands" } else { "does not" })
        })
        .collect()
}

#[async_trait]
impl Check for HonestReport {
    fn about(&self) -> About {
        About {
            id: "BK-06",
            tries: "compares the isolation report with what the host sees, over 19 weakened and three ordinary sandboxes",
            stopped_by: "a report that is made from what was built",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let mut breaches = Vec::new();
        let mut configurations = 0;
        let ordinary = [
            Limits::default(),
            Limits { memory: ByteSize::mebibytes(256), disk: ByteSize::mebibytes(64), ..Limits::default() },
            Limits { cpu_millis: 250, processes: 32, open_files: 256, ..Limits::default() },
        ];
        for limits in ordinary {
            configurations += 1;
            breaches.extend(compare(lab, limits).await?);
        }
        if is_on_daemon() {
            // Walls are left out there by who makes no report.
            return Ok(Finding::from_breaches(
                &breaches,
                format!("{configurations} configurations, every field equal"),
            ));
        }
        let missing = missing();
        for layer in Layer::ALL.iter().filter(|layer| !missing.contains(layer) && !unremovable().contains(layer)) {
            configurations += 1;
            let weakened = Lab::start(&[*layer]).await?;
            match compare(&weakened, Limits::default()).await {
                Ok(found) => breaches.extend(found.into_iter().map(|breach| format!("without {layer}: {breach}"))),
                Err(trouble) => breaches.push(format!("without {layer}: {trouble}")),
            }
        }
        Ok(Finding::from_breaches(&breaches, format!("{configurations} configurations, every field equal")))
    }

    async fn instrument(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let report = lab.engine.isolation(&sandbox.id).await?;
        let mut measured = measure(lab, &sandbox, &report.limits).await?;
        sandbox.end().await?;
        measured.entry(Layer::Seccomp).and_modify(|stands| *stands = !*stands);
        Ok(Finding::from_breaches(&differences(&report, &measured), "no difference"))
    }
}

/// Without these there is no sandbox to compare with.
fn unremovable() -> &'static [Layer] {
    if is_root() { &[Layer::MountNamespace] } else { &[Layer::MountNamespace, Layer::UserNamespace] }
}

async fn compare(lab: &Lab, limits: Limits) -> Result<Vec<String>> {
    let sandbox = lab.sandbox_of(with_limits(limits)).await?;
    let report = lab.engine.isolation(&sandbox.id).await?;
    let measured = measure(lab, &sandbox, &report.limits).await?;
    sandbox.end().await?;
    let mut found = differences(&report, &measured);
    let mut expected: Vec<Layer> = lab.without.iter().copied().chain(missing()).collect();
    if expected.contains(&Layer::UserNamespace) {
        expected.push(Layer::UidRange);
    }
    found.extend(
        report.missing().iter().filter(|layer| !expected.contains(layer)).map(|layer| format!("{layer} is off")),
    );
    Ok(found)
}
