//! What the tests need of the machine: programs, and an ordinary user for the runs without privilege.
//!
//! Installs what it may and never fails; what stays missing is said aloud, and the stage that needs it is skipped.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::{is_installed, is_root};

/// Program or place, Debian package, what is lost without it.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("cc", "gcc libc6-dev", "the escape probe cannot be compiled"),
    ("rootlesskit", "rootlesskit", "a Docker daemon of an ordinary user is not tested"),
    ("newuidmap", "uidmap", "sandboxes of ordinary users get a single user id"),
    ("useradd", "passwd", "no ordinary user can be made for the runs without privilege"),
    ("python3", "python3-minimal", "behaviour that needs an interpreter is skipped"),
    ("npm", "npm", "MCP clients that run on Node are skipped"),
    ("ip", "iproute2", "no network can be made for the checks of what sandboxes reach"),
    ("curl", "curl ca-certificates", "what sandboxes do with curl is skipped"),
    ("git", "git", "what sandboxes do with Git is skipped"),
    ("docker-registry", "docker-registry", "pull and push are not tested with a real registry"),
    ("htpasswd", "apache2-utils", "a registry that wants a password is not tested"),
    ("skopeo", "skopeo", "images are not compared with what skopeo makes of them"),
    ("dockerd", "docker.io", "images are not exchanged with Docker, and builds not compared with its own"),
    ("podman", "podman", "nothing is tested on Podman"),
    ("runc", "runc", "nothing is tested on Podman, whose usual runtime wants control groups of one version"),
    ("runsc", "runsc", "Docker is not tested with gVisor's runtime"),
    ("mmdebstrap", "mmdebstrap", "no Debian can be made to exchange images of"),
    ("bwrap", "bubblewrap", "speed is not compared with bubblewrap"),
    ("chromium", "chromium", "what a person does in a browser is not tested"),
    (MATPLOTLIB, "python3-matplotlib", "what users of older servers draw with it is skipped"),
];

/// No program, but a library for the machine's own Python.
const MATPLOTLIB: &str = "/usr/lib/python3/dist-packages/matplotlib";

fn is_there(program: &str) -> bool {
    if program.starts_with('/') { Path::new(program).exists() } else { is_installed(program) }
}

/// An ordinary user, made for these tests and kept for the next run.
#[derive(Clone, Debug)]
pub struct TestUser {
    pub name: &'static str,
    pub uid: u32,
    pub gid: u32,
}

const USER: &str = "sandpen-test";
/// Far from the ranges that distributions hand out and from those of the engine.
const SUBORDINATE_START: u32 = 1_900_000_000;
const SUBORDINATE_COUNT: u32 = 65_536 * 64;

/// Install what is missing, as far as this process may.
pub fn programs() {
    let missing: Vec<_> = PROGRAMS.iter().filter(|(program, _, _)| !is_there(program)).collect();
    if missing.is_empty() {
        return;
    }
    if is_root() && is_installed("apt-get") {
        apt_get(&["update", "-qq"], &[]);
        let install = |packages: &[&str]| apt_get(&["install", "-y", "-qq", "--no-install-recommends"], packages);
        let wanted = |(_, packages, _): &&(_, &'static str, _)| packages.split(' ').collect::<Vec<_>>();
        if !install(&missing.iter().flat_map(wanted).collect::<Vec<_>>()) {
            // One that this release does not have is no reason to do without the others.
            for packages in missing.iter().map(wanted) {
                install(&packages);
            }
        }
    }
    for (program, packages, loss) in missing {
        if !is_there(program) {
            println!("MISSING: {program} (package {packages}): {loss}");
        }
    }
}

/// Whether all of it was done.
fn apt_get(what: &[&str], packages: &[&str]) -> bool {
    let mut command = Command::new("apt-get");
    command.args(what).args(packages).env("DEBIAN_FRONTEND", "noninteractive");
    command.stdin(Stdio::null()).stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The ordinary user, or why there is none.
pub fn test_user() -> Result<TestUser, String> {
    if !is_root() {
        return Err("this run is already one without privilege".to_owned());
    }
    if find_user().is_none() {
        let made = Command::new("useradd")
            .args(["--create-home", "--user-group", "--shell", "/bin/sh", USER])
            .stdin(Stdio::null())
            .output();
        match made {
            Ok(output) if output.status.success() => {}
            Ok(output) => return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => return Err(format!("useradd does not start: {error}")),
        }
    }
    for file in ["/etc/subuid", "/etc/subgid"] {
        add_range(file)?;
    }
    find_user().ok_or_else(|| format!("useradd made no user {USER}"))
}

fn find_user() -> Option<TestUser> {
    let table = fs::read_to_string("/etc/passwd").ok()?;
    let line = table.lines().find(|line| line.split(':').next() == Some(USER))?;
    let mut fields = line.split(':').skip(2);
    Some(TestUser { name: USER, uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
}

/// `useradd` gives 65,536 subordinate ids; tests hold many sandboxes at once and each takes a range of its own.
fn add_range(file: &str) -> Result<(), String> {
    let line = format!("{USER}:{SUBORDINATE_START}:{SUBORDINATE_COUNT}");
    let old = fs::read_to_string(file).unwrap_or_default();
    if old.lines().any(|present| present == line) {
        return Ok(());
    }
    let kept: String =
        old.lines().filter(|present| present.split(':').next() != Some(USER)).map(|line| format!("{line}\n")).collect();
    fs::write(file, format!("{kept}{line}\n")).map_err(|error| format!("{file} cannot be written: {error}"))
}

/// Control groups that were handed to the ordinary user, as a login manager would do it. Removed when dropped.
pub struct Delegated {
    pub directories: Vec<PathBuf>,
}

impl Delegated {
    /// Empty when the host has no control groups that can be handed on; limits are then missing there.
    pub fn to(user: &TestUser) -> Self {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut delegated = Self { directories: Vec::new() };
        for hierarchy in table.lines().filter_map(hierarchy_with_limits) {
            let directory = hierarchy.join(format!("sandpen-xtask-{}", std::process::id()));
            // Version 2 hands controllers down by this file, version 1 does not have it.
            let _ = fs::write(hierarchy.join("cgroup.subtree_control"), "+memory +cpu +pids");
            if fs::create_dir_all(&directory).is_err() {
                continue;
            }
            let files = ["", "tasks", "cgroup.procs", "cgroup.subtree_control"];
            for file in files.iter().map(|name| directory.join(name)).filter(|file| file.exists()) {
                let _ = chown(file, Some(user.uid), Some(user.gid));
            }
            delegated.directories.push(directory);
        }
        delegated
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for directory in &self.directories {
            remove_groups(directory);
        }
    }
}

/// Groups can only be removed from the leaves up, and their files not at all.
fn remove_groups(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path());
        }
    }
    let _ = fs::remove_dir(directory);
}

/// The mount point of a hierarchy that limits memory, processes or processor time.
fn hierarchy_with_limits(line: &str) -> Option<PathBuf> {
    let (left, right) = line.split_once(" - ")?;
    let point = PathBuf::from(left.split(' ').nth(4)?);
    let mut fields = right.split(' ');
    let kind = fields.next()?;
    let has_limits = match kind {
        "cgroup" => fields.nth(1)?.split(',').any(|name| ["memory", "cpu", "pids"].contains(&name)),
        "cgroup2" => {
            let offered = fs::read_to_string(point.join("cgroup.controllers")).unwrap_or_default();
            offered.split_whitespace().any(|name| ["memory", "cpu", "pids"].contains(&name))
        }
        _ => false,
    };
    has_limits.then_some(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_without_limits_are_left_alone() {
        let line = |controllers: &str| format!("36 35 0:31 / /sys/fs/cgroup/x rw - cgroup cgroup rw,{controllers}");
        assert_eq!(hierarchy_with_limits(&line("memory")), Some(PathBuf::from("/sys/fs/cgroup/x")));
        assert_eq!(hierarchy_with_limits(&line("cpu,cpuacct")), Some(PathBuf::from("/sys/fs/cgroup/x")));
        assert_eq!(hierarchy_with_limits(&line("freezer")), None);
        assert_eq!(hierarchy_with_limits("36 35 0:31 / /tmp rw - tmpfs none rw"), None);
    }
}
