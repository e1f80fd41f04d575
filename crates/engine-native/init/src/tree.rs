//! Ending everything that one exec started.
//!
//! The supervisor of an exec is a subreaper: whatever loses its parent below it, by double fork or by a new session,
//! becomes its child. So the tree is what hangs below the supervisor in the process table, and it is gone when the
//! supervisor has no child left. Neither can be forged by the programs in it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::syscall;

/// Long enough for a full process table on a busy machine; the server ends the whole sandbox after that.
const PATIENCE: Duration = Duration::from_millis(1000);

/// Kill all descendants of this process; `true` when none is left.
pub fn kill_descendants(mut reaped: impl FnMut(syscall::Reaped)) -> bool {
    let give_up = Instant::now() + PATIENCE;
    // Killing works without it too, but for what forks as fast as it can.
    freeze(Instant::now() + PATIENCE / 2);
    while Instant::now() < give_up {
        for process in descendants() {
            send(process.pid, Signal::KILL);
        }
        loop {
            match syscall::reap_any() {
                Ok(Some(child)) => reaped(child),
                Ok(None) => break,
                Err(_) => return true,
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
fn freeze(give_up: Instant) {
    let mut told = BTreeSet::new();
    while Instant::now() < give_up {
        let mut running = 0;
        for process in descendants() {
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
}

fn descendants() -> Vec<Process> {
    let mut others = processes();
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![rustix::process::getpid().as_raw_nonzero().get()];
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
    directory
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| parse_stat(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?))
        .collect()
}

/// The name in the second field is the program's to choose, so the fields are counted from its last closing bracket.
fn parse_stat(pid: i32, stat: &[u8]) -> Option<Process> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = stat[end + 1..].split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    let parent = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    Some(Process { pid, parent, state })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_does_not_move_the_fields() {
        let process = parse_stat(7, b"7 (a) S 1 (b) R 42 7 7 0").unwrap();
        assert_eq!((process.pid, process.parent, process.state), (7, 42, b'R'));
        assert!(parse_stat(7, b"").is_none());
        assert!(parse_stat(7, b"7 (a)").is_none());
    }
}
