//! What the tests need of the machine: programs, and an ordinary user for the runs without privilege.
//!
//! Installs what it may and never fails; what stays missing is said aloud, and the stage that needs it is skipped.

use std::fs;
use std::process::{Command, Stdio};

use crate::process::{is_installed, is_root};

/// Program, Debian package, what is lost without it.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("cc", "gcc libc6-dev", "the escape probe cannot be compiled"),
    ("newuidmap", "uidmap", "sandboxes of ordinary users get a single user id"),
    ("useradd", "passwd", "no ordinary user can be made for the runs without privilege"),
    ("python3", "python3-minimal", "behaviour that needs an interpreter is skipped"),
    ("bwrap", "bubblewrap", "speed is not compared with bubblewrap"),
];

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
    let missing: Vec<_> = PROGRAMS.iter().filter(|(program, _, _)| !is_installed(program)).collect();
    if missing.is_empty() {
        return;
    }
    if is_root() && is_installed("apt-get") {
        let packages = missing.iter().flat_map(|(_, packages, _)| packages.split(' '));
        let quiet = |command: &mut Command| {
            command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).stdout(Stdio::null()).status()
        };
        let _ = quiet(Command::new("apt-get").args(["update", "-qq"]));
        let _ = quiet(Command::new("apt-get").args(["install", "-y", "-qq", "--no-install-recommends"]).args(packages));
    }
    for (program, packages, loss) in missing {
        if !is_installed(program) {
            println!("MISSING: {program} (package {packages}): {loss}");
        }
    }
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
