//! Files of the host, seen from inside: by path, by descriptor, by mount.

use std::os::unix::fs::{MetadataExt, symlink};

use async_trait::async_trait;
use sandbox::{Layer, Owner, SandboxSpec};
use sandpen_tests::check::{About, Check, Control, Finding};
use sandpen_tests::lab::{Lab, Sandbox, is_on_daemon, probe_bytes, root_tree};
use sandpen_tests::processes::Process;
use sandpen_tests::{Result, is_root, mounts};

use crate::canary::{Canaries, CanaryDirectory};

pub const CHECKS: &[&dyn Check] =
    &[&SeesHostFiles, &SeesLayer, &InheritsDescriptors, &WritesSystem, &WritesOwnSettings, &HostileRoot, &Propagates];

/// Looks for files of the host from every place that a process can start from.
struct SeesHostFiles;

#[async_trait]
impl Check for SeesHostFiles {
    fn about(&self) -> About {
        About {
            id: "FS-01",
            tries: "climbs 64 parents, walks magic links and every mount, opens by handle, looking for planted files",
            stopped_by: "pivoted root; seccomp for handles",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::PivotedRoot]), Control::Without(&[Layer::Seccomp])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let canaries = Canaries::plant(lab.state_dir())?;
        let sandbox = lab.sandbox().await?;
        let mut arguments = vec!["canary"];
        arguments.extend(canaries.paths.iter().map(String::as_str));
        let ran = sandbox.probe(&arguments).await?.complete()?;
        sandbox.end().await?;
        let mut breaches: Vec<String> = ran.findings.all("seen").map(|seen| format!("saw {seen}")).collect();
        if ran.stdout.contains(&canaries.secret) && breaches.is_empty() {
            breaches.push("the secret of a canary came out".to_owned());
        }
        let host = std::fs::metadata("/")?;
        if ran.findings.get("root") == Some(&format!("{}:{}", host.dev(), host.ino())) {
            breaches.push("its root is the host's".to_owned());
        }
        for call in ["open_by_handle_at", "name_to_handle_at"] {
            if ran.findings.get(call) != Some("EPERM") {
                breaches.push(format!("{call} answers {:?}", ran.findings.get(call)));
            }
        }
        Ok(Finding::from_breaches(&breaches, format!("{} canaries, none seen", canaries.paths.len())))
    }
}

/// Looks for the writable layer as it is below its mounts, where it could go around the overlay and around what is closed to
/// it; also while somebody outside reads it.
struct SeesLayer;

impl SeesLayer {
    /// Mounts that show more of the layer than the directories that are meant to be seen.
    fn shown(process: &Process) -> Vec<String> {
        let is_too_much = |mount: &&mounts::Mount| {
            mount.root == "/upper" || mount.kind == "tmpfs" && mount.root == "/" && mount.point != "/dev"
        };
        mounts::of(&process.pid.to_string()).iter().filter(is_too_much).map(ToString::to_string).collect()
    }

    async fn look(lab: &Lab, sandbox: &Sandbox) -> Result<Vec<String>> {
        sandbox.write("/workspace/marker", b"marked", 0o644).await?;
        let held = sandbox.hold(0, 0).await?;
        let mut breaches = Self::shown(&held.process);
        held.release().await?;
        let watching = sandbox.start(&["watch", "500"]).await?;
        let snapshots = lab.snapshots.as_ref().ok_or("nothing can be saved here")?;
        for _ in 0..5 {
            snapshots.save(&sandbox.id, &"escape".parse()?).await?;
        }
        let watched = watching.finish().await?.complete()?.findings;
        breaches.extend(watched.all("caught").map(|caught| format!("caught {caught}")));
        snapshots.forget(&Owner::local(), &"escape".parse()?).await?;
        let ran = sandbox.probe(&["canary", "/upper/workspace/marker"]).await?.complete()?;
        breaches.extend(ran.findings.all("seen").map(|seen| format!("saw {seen}")));
        Ok(breaches)
    }
}

#[async_trait]
impl Check for SeesLayer {
    fn about(&self) -> About {
        About {
            id: "FS-01-layer",
            tries: "looks for the raw writable layer in the mount table, from every mount, at its own and at process 1's descriptors, and at helpers that save it",
            stopped_by: "a mount that is in no tree; descriptors; landlock; helpers outside of the pid namespace",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::Descriptors, Layer::Landlock])]
    }

    fn embedded_only(&self) -> Option<&'static str> {
        Some("the writable places of a container are mounts of their own, with no layer below them")
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let breaches = Self::look(lab, &sandbox).await?;
        sandbox.end().await?;
        Ok(Finding::from_breaches(&breaches, "nowhere to be seen, saved five times"))
    }
}

/// Looks at its own descriptors, in the first command of a sandbox and in a later one.
struct InheritsDescriptors;

#[async_trait]
impl Check for InheritsDescriptors {
    fn about(&self) -> About {
        About {
            id: "FS-02",
            tries: "lists the descriptors that a command starts with (CVE-2024-21626)",
            stopped_by: "descriptors",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::Descriptors])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let mut breaches = Vec::new();
        for round in ["first", "second"] {
            let ran = sandbox.probe(&["descriptors"]).await?.complete()?;
            for (number, what) in &ran.findings.0 {
                let expected = ["0", "1", "2"].contains(&number.as_str());
                if !expected || what.starts_with("directory") {
                    breaches.push(format!("{round} command has {number}: {what}"));
                }
            }
        }
        let held = sandbox.hold(1, 0).await?;
        for process in held.marked.iter().filter(|process| process.shows_descriptors()) {
            let seen: Vec<u32> = process.descriptors().into_keys().collect();
            if seen != [0, 1, 2] {
                breaches.push(format!("from the host, {} has {seen:?}", process.pid));
            }
        }
        held.release().await?;
        sandbox.end().await?;
        Ok(Finding::from_breaches(&breaches, "0, 1 and 2 only"))
    }
}

/// Opens system files for writing, without writing.
struct WritesSystem;

const SYSTEM: &[&str] = &[
    "/",
    "/bin",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/etc",
    "/etc/passwd",
    "/etc/ld.so.cache",
    "/lib",
    "/sbin",
    "/boot",
    "/opt",
    "/var",
    "/run",
    "/srv",
    "/mnt",
    "/sys",
    "/sys/fs/cgroup",
    "/proc",
    "/dev",
    "/proc/sysrq-trigger",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/drop_caches",
    "/proc/1/oom_score_adj",
    "/sys/kernel/uevent_helper",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/fs/cgroup/memory/tasks",
    "/dev/mem",
    "/dev/kmsg",
];

#[async_trait]
impl Check for WritesSystem {
    fn about(&self) -> About {
        About {
            id: "FS-04",
            tries: "opens system directories, kernel settings and control files for writing",
            stopped_by: "masked paths, read-only mounts",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::MaskedPaths])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let arguments: Vec<&str> = ["writable"].iter().chain(SYSTEM).copied().collect();
        let ran = sandbox.probe(&arguments).await?.complete()?;
        // Process 1 keeps the output of detached commands there, closed to everybody else.
        let logs = if is_on_daemon() { "/run/log" } else { "/run" };
        let kept = sandbox.probe(&["kernel-files", logs]).await?.complete()?;
        let held = sandbox.hold(0, 0).await?;
        let table = mounts::of(&held.process.pid.to_string());
        held.release().await?;
        sandbox.end().await?;
        let mut breaches: Vec<String> =
            ["opened", "made"].iter().flat_map(|item| ran.findings.all(item)).map(str::to_owned).collect();
        // Without walls there is no process 1 of ours either.
        let closed: &[&str] = if lab.without.is_empty() { &["EACCES"] } else { &["EACCES", "ENOENT"] };
        if !kept.findings.get(logs).is_some_and(|answer| closed.contains(&answer)) {
            breaches.push(format!("{logs} is open to the sandbox's user: {:?}", kept.findings.get(logs)));
        }
        let mut writable_places = vec!["/tmp", "/home/sandbox", "/workspace", "/dev/shm", "/dev/pts", "/run"];
        if is_on_daemon() {
            // Root's alone, as the probe has seen; queues are bounded by their namespace.
            writable_places.extend(["/dev", "/dev/mqueue", "/sys/fs/cgroup"]);
        }
        for mount in &table {
            // Single devices, among them the null device that hides a file.
            let device = mount.kind == "devtmpfs" && mount.root != "/" || mount.root == "/null";
            if !mount.has("ro") && !writable_places.contains(&mount.point.as_str()) && !device && mount.point != "/proc"
            {
                breaches.push(format!("writable mount {mount}"));
            }
        }
        if !table.iter().any(|mount| mount.point == "/proc/sys" && mount.has("ro")) {
            breaches.push("/proc/sys is not mounted read-only".to_owned());
        }
        Ok(Finding::from_breaches(&breaches, format!("{} places and all kernel settings refused", SYSTEM.len())))
    }
}

/// Changes a setting of its own process through a mount that lets it.
struct WritesOwnSettings;

/// What the host reads after a process has tried to ask for [`SACRIFICE`].
pub async fn own_setting(sandbox: &Sandbox) -> Result<String> {
    let held = sandbox.hold_after(&["sacrifice"], 0, 0).await?;
    let setting = held.process.text("oom_score_adj").trim().to_owned();
    held.release().await?;
    Ok(setting)
}

pub const SACRIFICE: &str = "777";

/// Files of its own process that belong to it, on the one mount outside of its directories that it may write to.
const OWN: &[&str] = &[
    "/proc/self/clear_refs",
    "/proc/self/comm",
    "/proc/self/coredump_filter",
    "/proc/self/mem",
    "/proc/self/oom_score_adj",
];

#[async_trait]
impl Check for WritesOwnSettings {
    fn about(&self) -> About {
        About {
            id: "FS-04-own",
            tries: "writes to its own process's files under /proc, where mounts and ids allow it",
            stopped_by: "landlock: nothing is written outside of the directories that are for it",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Without(&[Layer::Landlock])]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let sandbox = lab.sandbox().await?;
        let setting = own_setting(&sandbox).await?;
        let arguments: Vec<&str> = ["writable"].iter().chain(OWN).copied().collect();
        let ran = sandbox.probe(&arguments).await?.complete()?;
        sandbox.end().await?;
        let mut breaches: Vec<String> =
            ran.findings.all("opened").filter(|path| path.starts_with("/proc/self/")).map(str::to_owned).collect();
        if setting == SACRIFICE {
            breaches.push("it has changed how the kernel treats it".to_owned());
        }
        Ok(Finding::from_breaches(&breaches, format!("{} files refused, its standing is still {setting}", OWN.len())))
    }
}

/// Starts from root trees in which the places that the engine mounts on are links to a directory of the host.
struct HostileRoot;

const PLACES: &[&str] = &[
    "dev",
    "dev/null",
    "dev/pts",
    "dev/shm",
    "proc",
    "sys",
    "tmp",
    "workspace",
    "home",
    "home/sandbox",
    "etc",
    "mnt",
    "run",
];

impl HostileRoot {
    async fn try_place(lab: &Lab, place: &str, target: &str) -> Result<()> {
        let tree = root_tree(&probe_bytes()?)?;
        let path = tree.path().join(place);
        if path.is_dir() {
            std::fs::remove_dir_all(&path)?;
        }
        symlink(target, &path)?;
        let spec = SandboxSpec { image: lab.image(&tree)?, ..SandboxSpec::new(Owner::local()) };
        // Both answers are right: a refusal, and a sandbox that stays inside.
        let Ok(sandbox) = lab.bare_sandbox_of(spec).await else { return Ok(()) };
        let _ = sandbox.write("/workspace/x", b"x", 0o644).await;
        let _ = sandbox.write("/tmp/x", b"x", 0o644).await;
        let _ = sandbox.run_program("/bin/probe", &["writable", "/dev", "/tmp", "/workspace", "/etc"], "").await;
        sandbox.end().await
    }
}

#[async_trait]
impl Check for HostileRoot {
    fn about(&self) -> About {
        About {
            id: "FS-06",
            tries: "root trees whose /dev, /proc, work directory… are links to a directory of the host (CVE-2025-31133)",
            stopped_by: "mount targets opened by descriptor, without links",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let canary = CanaryDirectory::new()?;
        let before = mounts::of("self");
        let absolute = canary.path().to_string_lossy().into_owned();
        let climbing = format!("{}{absolute}", "../".repeat(32));
        for place in PLACES {
            for target in [absolute.as_str(), climbing.as_str(), "/proc/self/root"] {
                Self::try_place(lab, place, target).await.map_err(|trouble| format!("{place}: {trouble}"))?;
            }
        }
        let mut breaches = canary.changes()?;
        breaches.extend(mounts::added(&before, &mounts::of("self")).iter().map(|mount| format!("new mount {mount}")));
        Ok(Finding::from_breaches(&breaches, format!("{} hostile trees", PLACES.len() * 3)))
    }

    /// A mount target that is followed would leave such a file.
    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        let canary = CanaryDirectory::new()?;
        std::fs::write(canary.path().join("null/x"), "x")?;
        Ok(Finding::from_breaches(&canary.changes()?, "unchanged"))
    }
}

/// Compares the mount table of the host before, during and after many sandboxes.
struct Propagates;

const SANDBOXES: usize = 100;
const AT_ONCE: usize = 20;
/// A daemon takes its time for each, and its client a process.
const AT_A_DAEMON: usize = 20;

#[async_trait]
impl Check for Propagates {
    fn about(&self) -> About {
        About {
            id: "FS-07",
            tries: "100 sandboxes; mounts that show on the host, stay behind, or propagate",
            stopped_by: "mount namespace with private propagation",
        }
    }

    fn controls(&self) -> Vec<Control> {
        vec![Control::Instrument]
    }

    async fn run(&self, lab: &Lab) -> Result<Finding> {
        let before = mounts::of("self");
        let mut breaches = Vec::new();
        let count = if is_on_daemon() { AT_A_DAEMON } else { SANDBOXES };
        for _ in 0..count / AT_ONCE {
            let mut sandboxes = Vec::new();
            for _ in 0..AT_ONCE {
                sandboxes.push(lab.bare_sandbox_of(SandboxSpec::new(Owner::local())).await?);
            }
            breaches.extend(mounts::added(&before, &mounts::of("self")).iter().map(|mount| format!("during: {mount}")));
            for sandbox in sandboxes {
                sandbox.end().await?;
            }
        }
        breaches.extend(mounts::added(&before, &mounts::of("self")).iter().map(|mount| format!("after: {mount}")));
        let sandbox = lab.sandbox().await?;
        let held = sandbox.hold(0, 0).await?;
        for mount in mounts::of(&held.process.pid.to_string()) {
            if mount.propagation.iter().any(|word| word.starts_with("shared")) {
                breaches.push(format!("propagates: {mount}"));
            }
        }
        held.release().await?;
        sandbox.end().await?;
        breaches.dedup();
        Ok(Finding::from_breaches(&breaches, format!("{count} sandboxes, table of {} lines the same", before.len())))
    }

    /// A real mount on the host where that is allowed, or the line that it would add.
    async fn instrument(&self, _lab: &Lab) -> Result<Finding> {
        let before = mounts::of("self");
        let place = tempfile::tempdir()?;
        let mut after;
        if is_root() {
            let mount = std::process::Command::new("mount").args(["-t", "tmpfs", "none"]).arg(place.path()).status()?;
            after = mounts::of("self");
            std::process::Command::new("umount").arg(place.path()).status()?;
            if !mount.success() {
                return Err("no mount could be made".into());
            }
        } else {
            after = before.clone();
            after.extend(mounts::Mount::parse("1 1 0:1 / /leaked rw - tmpfs none rw"));
        }
        let breaches: Vec<String> = mounts::added(&before, &after).iter().map(ToString::to_string).collect();
        Ok(Finding::from_breaches(&breaches, "no difference"))
    }
}
