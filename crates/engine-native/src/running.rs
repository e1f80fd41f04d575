//! Programs of a sandbox, as its own processes know them: for whoever has to wait for them or end them.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::BorrowedFd;

use crate::launcher::pid_of;

/// More are not told; whoever ends these sees the next.
const MOST: usize = 5;

/// Of one command line.
const LONGEST: usize = 60;

/// Of one command line that is looked at.
const READ: u64 = 4096;

/// How deep in the tree of processes a program is looked for.
const DEEPEST: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// As the sandbox numbers it.
    pub number: u32,
    pub words: String,
}

/// What runs below a process 1 and is not ours. Who looks like ours hides from its own owner alone.
pub fn programs(process: BorrowedFd<'_>) -> Vec<Program> {
    let Ok(first) = pid_of(process) else { return Vec::new() };
    let ours = command_line(first);
    let mut waiting = vec![first];
    let mut found = Vec::new();
    while let Some(pid) = waiting.pop() {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            waiting.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
        let words = command_line(pid);
        // One that has ended and was not waited for has none. Numbers are given again: what was read is told only when whoever
        // has this number now is one of the sandbox's.
        if !words.is_empty() && words != ours && is_below(pid, first) && pid_of(process).is_ok() {
            found.extend(number_inside(pid).map(|number| Program { number, words: shown(&words) }));
        }
    }
    found.sort_by_key(|program| program.number);
    found.truncate(MOST);
    found
}

fn command_line(pid: i32) -> Vec<u8> {
    let mut words = Vec::new();
    let read = File::open(format!("/proc/{pid}/cmdline")).and_then(|file| file.take(READ).read_to_end(&mut words));
    if read.is_err() {
        words.clear();
    }
    words
}

fn is_below(pid: i32, first: i32) -> bool {
    let parents = std::iter::successors(Some(pid), |pid| parent(*pid));
    parents.take(DEEPEST).any(|pid| pid == first)
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

fn number_inside(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    innermost(&status)
}

fn innermost(status: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().next_back()?.parse().ok()
}

/// One line, whatever a program calls itself.
fn shown(words: &[u8]) -> String {
    let text = String::from_utf8_lossy(words.strip_suffix(b"\0").unwrap_or(words)).replace('\0', " ");
    let plain = |character: char| if character.is_control() { '?' } else { character };
    let short: String = text.chars().take(LONGEST).map(plain).collect();
    if text.chars().count() > LONGEST { format!("{short}…") } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_on_one_line() {
        assert_eq!(shown(b"sleep\x00100\0"), "sleep 100");
        assert_eq!(shown(b"a\nb\x1b[2J\0"), "a?b?[2J");
        assert_eq!(shown(&[b'x'; 100]), format!("{}…", "x".repeat(LONGEST)));
    }

    #[test]
    fn a_process_is_below_those_that_started_it_alone() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let below = i32::try_from(child.id()).unwrap();
        assert!(is_below(below, own) && is_below(below, below));
        assert!(!is_below(own, below));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_below(below, own), "one that is gone");
    }

    #[test]
    fn a_process_has_the_number_of_its_own_namespace() {
        assert_eq!(innermost("Name:\tx\nNSpid:\t4711\t7\nNSsid:\t1\n"), Some(7));
        assert_eq!(innermost("Name:\tx\n"), None);
    }
}
