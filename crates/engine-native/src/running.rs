//! Programs of a sandbox, as its own processes know them: for whoever has to wait for them or end them.

use std::fs;
use std::os::fd::BorrowedFd;

use crate::launcher::pid_of;

/// More are not told; whoever ends these sees the next.
const MOST: usize = 5;

/// Of one command line.
const LONGEST: usize = 60;

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
        // One that has ended and was not waited for has none.
        if !words.is_empty() && words != ours {
            found.extend(number_inside(pid).map(|number| Program { number, words: shown(&words) }));
        }
    }
    found.sort_by_key(|program| program.number);
    found.truncate(MOST);
    found
}

fn command_line(pid: i32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()
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
    fn a_process_has_the_number_of_its_own_namespace() {
        assert_eq!(innermost("Name:\tx\nNSpid:\t4711\t7\nNSsid:\t1\n"), Some(7));
        assert_eq!(innermost("Name:\tx\n"), None);
    }
}
