//! Ending everything that one exec started.
//!
//! The supervisor of an exec is a subreaper: whatever loses its parent below it, by double fork or by a new session,
//! becomes its child. So the tree is what hangs below the supervisor in the process table, and it is gone when the
//! supervisor has no child left. Neither can be forged by the programs in it.
//!
//! A kernel without subreapers (gVisor) gives what loses its parent to process 1, where nobody can tell whose it was. There
//! everything counts as the exec's that process 1 was given since the exec began: rather too much than something left.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::syscall;

/// Long enough for a full process table on a busy machine; the server ends the whole sandbox after that.
const PATIENCE: Duration = Duration::from_millis(1000);

/// Whether orphans become children of a supervisor.
static IS_SUBREAPER: OnceLock<bool> = OnceLock::new();

/// Have whatever loses its parent below this process become its child, where the kernel can.
pub fn adopt() -> rustix::io::Result<()> {
    let is_subreaper = match rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        Ok(()) => true,
        Err(rustix::io::Errno::INVAL) => false,
        Err(error) => return Err(error),
    };
    IS_SUBREAPER.get_or_init(|| is_subreaper);
    Ok(())
}

/// From when on orphans of process 1 count as those of a command; `None` where they do not have to.
#[derive(Clone, Copy, Debug)]
pub struct Orphans(Option<u64>);

impl Orphans {
    /// To be asked when the command has started and was not collected yet.
    pub fn of(command: i32) -> Self {
        match IS_SUBREAPER.get() {
            Some(true) | None => Self(None),
            Some(false) => Self(Some(process(command).map_or(0, |process| process.started))),
        }
    }
}

/// Kill all descendants of this process; `true` when none is left.
pub fn kill_descendants(orphans: Orphans, mut reaped: impl FnMut(syscall::Reaped)) -> bool {
    let give_up = Instant::now() + PATIENCE;
    // Killing works without it too, but for what forks as fast as it can.
    freeze(orphans, Instant::now() + PATIENCE / 2);
    while Instant::now() < give_up {
        for process in descendants(orphans) {
            send(process.pid, Signal::KILL);
        }
        loop {
            match syscall::reap_any() {
                Ok(Some(child)) => reaped(child),
                Ok(None) => break,
                Err(_) if orphans.0.is_none() => return true,
                // Those of process 1 are its to collect.
                Err(_) if descendants(orphans).iter().all(|process| process.state == b'Z') => return true,
                Err(_) => break,
            }
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    false
}

/// Stop everything before killing anything. What is stopped cannot fork, and while nothing has died yet, a program that
/// forks as fast as it can is held by the process limit, so each round leaves fewer that run.
///
/// What waits in the kernel stops when it comes back from there, and need not be waited for: who made a child by `vfork`
/// comes back only when that child, which we have stopped, has become another program.
fn freeze(orphans: Orphans, give_up: Instant) {
    let mut told = BTreeSet::new();
    while Instant::now() < give_up {
        let mut running = 0;
        for process in descendants(orphans) {
            let is_new = told.insert(process.pid);
            match process.state {
                b'T' | b'Z' | b'X' => continue,
                b'D' if !is_new => continue,
                _ => {}
            }
            send(process.pid, Signal::STOP);
            running += 1;
        }
        if running == 0 {
            return;
        }
    }
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may have ended meanwhile.
        let _ = rustix::process::kill_process(pid, signal);
    }
}

struct Process {
    pid: i32,
    parent: i32,
    state: u8,
    /// In ticks since the machine started.
    started: u64,
}

fn descendants(orphans: Orphans) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let is_orphan = |process: &Process| {
        orphans.0.is_some_and(|since| process.parent == 1 && process.started >= since && !is_helper(process.pid))
    };
    let (adopted, mut others) = processes().into_iter().partition::<Vec<_>, _>(is_orphan);
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let mut parents: Vec<i32> = adopted.iter().map(|process| process.pid).chain([own]).collect();
    found.extend(adopted);
    while !parents.is_empty() {
        let (children, rest) = others.into_iter().partition::<Vec<_>, _>(|process| parents.contains(&process.parent));
        parents = children.iter().map(|process| process.pid).collect();
        found.extend(children);
        others = rest;
    }
    found
}

fn processes() -> Vec<Process> {
    let Ok(directory) = std::fs::read_dir("/proc") else { return Vec::new() };
    directory.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter_map(process).collect()
}

fn process(pid: i32) -> Option<Process> {
    parse_stat(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Helpers of process 1 were forked from it and have its arguments.
fn is_helper(pid: i32) -> bool {
    let arguments = |process: &str| std::fs::read(format!("/proc/{process}/cmdline")).ok();
    arguments(&pid.to_string()).is_some_and(|of| !of.is_empty() && Some(of) == arguments("self"))
}

/// The name in the second field is the program's to choose, so the fields are counted from its last closing bracket.
fn parse_stat(pid: i32, stat: &[u8]) -> Option<Process> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = stat[end + 1..].split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    let parent = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let started = fields.nth(17).and_then(|field| std::str::from_utf8(field).ok()?.parse().ok()).unwrap_or(0);
    Some(Process { pid, parent, state, started })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_does_not_move_the_fields() {
        let process = parse_stat(7, b"7 (a) S 1 (b) R 42 7 7 0").unwrap();
        assert_eq!((process.pid, process.parent, process.state), (7, 42, b'R'));
        let own = super::process(std::process::id() as i32).unwrap();
        assert!(own.started > 0, "the moment of its start is found");
        assert!(parse_stat(7, b"").is_none());
        assert!(parse_stat(7, b"7 (a)").is_none());
    }
}
