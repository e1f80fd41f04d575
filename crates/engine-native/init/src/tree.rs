//! Ending everything that one exec started.
//!
//! The supervisor of an exec is a subreaper: whatever loses its parent below it, by double fork or by a new session,
//! becomes its child. So the tree is what hangs below the supervisor in the process table, and it is gone when the
//! supervisor has no child left. Neither can be forged by the programs in it.
//!
//! A kernel without subreapers (gVisor) gives what loses its parent to process 1, where nobody can tell whose it was. There
//! everything counts as the exec's that process 1 was given since the exec began: rather too much than something left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::syscall;

/// Long enough for a full process table on a machine with ten times more to do than it can; the server ends the whole sandbox
/// after that, with everything in it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Of it, what stopping everything first may take.
const FREEZE_PATIENCE: Duration = Duration::from_millis(500);

/// For all of a sandbox. What waits in the kernel for longer than this does not write to its files.
const ALL_PATIENCE: Duration = Duration::from_secs(5);

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
    freeze(orphans, Instant::now() + FREEZE_PATIENCE);
    while Instant::now() < give_up {
        for process in descendants(orphans) {
            send(process.pid, Signal::KILL);
        }
        while Instant::now() < give_up {
            match syscall::reap_any() {
                Ok(Some(child)) => reaped(child),
                Ok(None) => break,
                Err(_) if orphans.0.is_none() => return true,
                // Those of process 1 are its to collect.
                Err(_) if descendants(orphans).iter().all(Process::is_gone) => return true,
                Err(_) => break,
            }
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    false
}

/// Whether this one is all that is left below this process.
pub fn is_alone(pid: i32, orphans: Orphans) -> bool {
    descendants(orphans).iter().all(|process| process.pid == pid || process.is_gone())
}

/// What a process that runs has used so far, without its children.
pub fn usage_of(pid: i32) -> syscall::Usage {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    syscall::Usage {
        cpu: syscall::process_cpu(pid).unwrap_or_default(),
        peak_memory: peak_memory(&status).unwrap_or(0),
    }
}

/// The name in the first line is the program's to choose, but not to end: line feeds in it are escaped.
fn peak_memory(status: &str) -> Option<u64> {
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().strip_suffix(" kB")?;
    Some(kibibytes.parse::<u64>().ok()? * 1024)
}

/// Have all descendants of this process do nothing until they may go on; `false` when some would not stop.
pub fn pause_descendants(orphans: Orphans) -> bool {
    freeze(orphans, Instant::now() + FREEZE_PATIENCE)
}

pub fn resume_descendants(orphans: Orphans) {
    for process in descendants(orphans) {
        send(process.pid, Signal::CONT);
    }
}

/// What the descendants of this process had done by some moment. Two that are equal are proof that none of them did anything
/// in between: whoever runs has spent time, and whoever was there only meanwhile had a number.
#[derive(Debug, PartialEq, Eq)]
pub struct Doings {
    spent: BTreeMap<(i32, u64), u64>,
    last_number: i32,
}

impl Doings {
    /// `None` where it cannot be told.
    pub fn of_descendants(orphans: Orphans) -> Option<Self> {
        let last_number = last_number(&std::fs::read("/proc/loadavg").ok()?)?;
        let spent = descendants(orphans).into_iter().map(|process| ((process.pid, process.started), process.spent));
        Some(Self { spent: spent.collect(), last_number })
    }
}

/// The number that the newest process of this namespace was given.
fn last_number(loads: &[u8]) -> Option<i32> {
    number(loads.trim_ascii_end().rsplit(|&byte| byte == b' ').next()?)
}

/// Kill every process of the sandbox but this one, which is process 1: those that somebody started from outside, too.
pub fn kill_all_others() {
    let give_up = Instant::now() + ALL_PATIENCE;
    let own = rustix::process::getpid().as_raw_nonzero().get();
    if own != 1 {
        // Everybody would be more than a sandbox.
        return;
    }
    while Instant::now() < give_up {
        // In one step, so that none can make another meanwhile.
        syscall::kill_everybody_else();
        while Instant::now() < give_up && matches!(syscall::reap_any(), Ok(Some(_))) {}
        if processes().iter().all(|process| process.pid == own || process.is_gone()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Stop everything; before anything is killed, too. What is stopped cannot fork, and while nothing has died yet, a program that
/// forks as fast as it can is held by the process limit, so each round leaves fewer that run.
///
/// What waits in the kernel stops when it comes back from there, and need not be waited for: who made a child by `vfork`
/// comes back only when that child, which we have stopped, has become another program.
fn freeze(orphans: Orphans, give_up: Instant) -> bool {
    let mut told = BTreeSet::new();
    while Instant::now() < give_up {
        let mut running = 0;
        for process in descendants(orphans) {
            let is_new = told.insert(process.pid);
            match process.state {
                b'T' => continue,
                // Threads may be left of it, and its state does not tell that they have stopped.
                b'Z' | b'X' => {
                    send(process.pid, Signal::STOP);
                    continue;
                }
                b'D' if !is_new => continue,
                _ => {}
            }
            send(process.pid, Signal::STOP);
            running += 1;
        }
        if running == 0 {
            return true;
        }
    }
    false
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
    session: i32,
    /// In ticks since the machine started.
    started: u64,
    /// Time on processors, with that of the children it has collected, in ticks.
    spent: u64,
}

impl Process {
    /// One whose first thread has ended looks dead while others go on.
    fn is_gone(&self) -> bool {
        let threads = || std::fs::read_dir(format!("/proc/{}/task", self.pid)).map_or(0, Iterator::count);
        matches!(self.state, b'Z' | b'X') && threads() <= 1
    }
}

fn descendants(orphans: Orphans) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    // Helpers are in the session of process 1, and nobody else can come into it: commands begin in one of their own.
    // It is 0 where that session began outside of our namespace, which the call of that name cannot say in rustix.
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let ours = process(own).map_or(0, |process| process.session);
    let is_orphan = |process: &Process| {
        orphans.0.is_some_and(|since| process.parent == 1 && process.started >= since && process.session != ours)
    };
    let (adopted, mut others) = processes().into_iter().partition::<Vec<_>, _>(is_orphan);
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

/// The name in the second field is the program's to choose, so the fields are counted from its last closing bracket.
fn parse_stat(pid: i32, stat: &[u8]) -> Option<Process> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = stat[end + 1..].split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    let parent = number(fields.next()?)?;
    let session = fields.nth(1).and_then(number).unwrap_or(0);
    let mut fields = fields.skip(7);
    let spent = fields.by_ref().take(4).filter_map(number::<u64>).sum();
    let started = fields.nth(4).and_then(number).unwrap_or(0);
    Some(Process { pid, parent, state, session, started, spent })
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_does_not_move_the_fields() {
        let stat = b"7 (a) S 1 (b) R 42 8 9 0 -1 4194304 0 0 0 0 1 20 300 4000 20 0 1 0 777 0";
        let process = parse_stat(7, stat).unwrap();
        assert_eq!((process.pid, process.parent, process.state), (7, 42, b'R'));
        assert_eq!((process.session, process.spent, process.started), (9, 4321, 777));
        let own = super::process(std::process::id() as i32).unwrap();
        assert!(own.started > 0, "the moment of its start is found");
        assert!(parse_stat(7, b"").is_none());
        assert!(parse_stat(7, b"7 (a)").is_none());
    }

    #[test]
    fn what_one_that_runs_has_used_is_told() {
        assert_eq!(peak_memory("Name:\tVmHWM: 9 kB\\nVmHWM: 9 kB\nVmHWM:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(peak_memory("Name:\tkthread\n"), None);
        let own = usage_of(std::process::id() as i32);
        assert!(own.peak_memory > 100_000 && own.cpu > Duration::ZERO, "{own:?}");
    }

    #[test]
    fn who_was_there_only_meanwhile_is_noticed() {
        let doings = || Doings::of_descendants(Orphans(None)).expect("a process table");
        let before = doings();
        assert!(before.last_number > 0);
        std::process::Command::new("true").status().unwrap();
        assert_ne!(before.last_number, doings().last_number, "nothing of it is left but its number");
        assert_eq!(last_number(b"0.20 0.18 0.12 1/80 11206\n"), Some(11206));
        assert_eq!(last_number(b""), None);
    }

    #[test]
    fn one_that_lost_its_first_thread_is_not_gone() {
        // The second thread sleeps in the kernel and needs nothing of the interpreter any more.
        let code = "import ctypes, platform, threading, time\n\
                    libc = ctypes.CDLL(None)\n\
                    threading.Thread(target=libc.sleep, args=(1000,)).start()\n\
                    time.sleep(0.1)\n\
                    libc.syscall(93 if platform.machine() == 'aarch64' else 60, 0)";
        let mut child = std::process::Command::new("python3").args(["-c", code]).spawn().expect("python3");
        let pid = child.id() as i32;
        let give_up = Instant::now() + Duration::from_secs(30);
        let looks_dead = || super::process(pid).is_some_and(|process| process.state == b'Z');
        while !looks_dead() {
            assert!(Instant::now() < give_up, "its first thread does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!super::process(pid).unwrap().is_gone(), "another thread goes on");
        child.kill().unwrap();
        while !super::process(pid).unwrap().is_gone() {
            assert!(Instant::now() < give_up, "it was killed");
            std::thread::sleep(Duration::from_millis(10));
        }
        child.wait().unwrap();
    }
}
