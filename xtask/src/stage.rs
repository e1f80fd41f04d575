//! One stage of the test command: run it, stream what it prints, count what it says.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::process;
use failures::Failures;

mod failures;

/// Passed, failed and skipped, over everything that ran, and what the failed ones said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
    pub failures: Vec<String>,
}

impl Tally {
    pub const PASSED: Tally = Tally { passed: 1, failed: 0, skipped: 0, failures: Vec::new() };
    pub const FAILED: Tally = Tally { passed: 0, failed: 1, skipped: 0, failures: Vec::new() };
    pub const SKIPPED: Tally = Tally { passed: 0, failed: 0, skipped: 1, failures: Vec::new() };

    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
    }

    pub fn is_empty(&self) -> bool {
        *self == Tally::default()
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// How a stage says what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// One check: its exit code.
    ExitCode,
    /// Lines of the Rust test harness, or of our own tables. A stage that prints none has tested nothing: a failure.
    ResultLines,
    /// The same for one of several programs, some of which have no tests. Whoever adds them up sees whether all had none.
    OneOfSeveral,
}

/// Run `command`, print its output as it comes, and kill it with all its children when it takes longer than `limit`.
pub fn run(command: &mut Command, counting: Counting, limit: Duration) -> Tally {
    let started = Instant::now();
    let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            println!("{} does not start: {error}", command.get_program().display());
            return Tally::FAILED;
        }
    };
    let stdout = child.stdout.take().expect("stdout is piped");
    let (sender, receiver) = mpsc::channel();
    // Not joined: a grandchild that keeps the pipe open must not hold up the verdict.
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let _ = std::io::stdout().write_all(&line);
            let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
            line.clear();
        }
    });
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if started.elapsed() > limit => {
                println!("killed after {} s", limit.as_secs());
                process::kill_tree(child.id());
                let _ = child.wait();
                break None;
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => {
                println!("its end was not seen: {error}");
                break None;
            }
        }
    };
    let (mut counted, mut unsaid) = (Tally::default(), 0);
    let mut failures = Failures::default();
    while let Ok(line) = receiver.recv_timeout(Duration::from_secs(1)) {
        failures.read(&line);
        counted.add(result_line(&line).unwrap_or_default());
        unsaid += u64::from(is_skipped(&line));
    }
    // The harness has no word for a test that finds out itself that it can do nothing here, and calls it passed.
    let unsaid = unsaid.min(counted.passed);
    (counted.passed, counted.skipped) = (counted.passed - unsaid, counted.skipped + unsaid);
    counted.failures = failures.said();
    verdict(counting, counted, status.is_some_and(|status| status.success()))
}

/// A line of a test that does nothing here. It may stand behind the name of the test that the harness has begun to print.
fn is_skipped(line: &str) -> bool {
    line.starts_with("SKIPPED: ") || line.contains(" ... SKIPPED: ")
}

fn verdict(counting: Counting, counted: Tally, succeeded: bool) -> Tally {
    match (counting, succeeded) {
        (Counting::ExitCode, true) => Tally::PASSED,
        (Counting::ExitCode, false) => Tally::FAILED,
        (Counting::ResultLines, true) if counted.is_empty() => {
            println!("this stage tested nothing");
            Tally::FAILED
        }
        // Whatever it counted, it did not end well: it crashed, was killed, or did not build.
        (Counting::ResultLines | Counting::OneOfSeveral, false) if counted.failed == 0 => {
            Tally { failed: 1, ..counted }
        }
        (Counting::ResultLines | Counting::OneOfSeveral, _) => counted,
    }
}

/// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; …` of the Rust harness and `sum: 3 passed, 0 failed, 1 skipped,
/// 0 void` of our tables. A void check has not been seen to fail, so it proves nothing and counts as failed.
fn result_line(line: &str) -> Option<Tally> {
    let counts = line.strip_prefix("test result: ").or_else(|| line.strip_prefix("sum: "))?;
    let mut tally = Tally::default();
    let words: Vec<&str> = counts.split([' ', ',', ';', '.']).filter(|word| !word.trim().is_empty()).collect();
    for pair in words.windows(2) {
        let Ok(count) = pair[0].parse::<u64>() else { continue };
        match pair[1].trim() {
            "passed" => tally.passed += count,
            "failed" | "void" => tally.failed += count,
            "ignored" | "skipped" => tally.skipped += count,
            _ => {}
        }
    }
    Some(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_result_lines_are_counted() {
        let harness =
            "test result: FAILED. 12 passed; 1 failed; 2 ignored; 0 measured; 3 filtered out; finished in 0.02s\n";
        assert_eq!(result_line(harness), Some(Tally { passed: 12, failed: 1, skipped: 2, ..Tally::default() }));
        assert_eq!(
            result_line("sum: 30 passed, 1 failed, 2 skipped, 3 void\n"),
            Some(Tally { passed: 30, failed: 4, skipped: 2, ..Tally::default() })
        );
        assert_eq!(result_line("test path::tests::x ... ok\n"), None);
    }

    #[test]
    fn a_test_that_does_nothing_here_has_not_passed() {
        let mut command = Command::new("echo");
        command.arg(
            "SKIPPED: there is no pip\ntest one ... SKIPPED: nor npm\nok\ntest two ... ok\n\
             test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s",
        );
        let tally = run(&mut command, Counting::ResultLines, Duration::from_secs(10));
        assert_eq!(tally, Tally { passed: 1, skipped: 3, ..Tally::default() });
    }

    #[test]
    fn a_stage_without_results_is_a_failure() {
        assert_eq!(verdict(Counting::ResultLines, Tally::default(), true), Tally::FAILED);
        assert_eq!(verdict(Counting::OneOfSeveral, Tally::default(), true), Tally::default());
    }

    #[test]
    fn a_stage_that_ends_badly_cannot_pass() {
        let counted = Tally { passed: 5, ..Tally::default() };
        assert_eq!(verdict(Counting::ResultLines, counted.clone(), false).failed, 1);
        assert_eq!(verdict(Counting::ResultLines, Tally { failed: 2, ..counted }, false).failed, 2);
        assert_eq!(verdict(Counting::OneOfSeveral, Tally::default(), false).failed, 1);
        assert_eq!(verdict(Counting::ExitCode, Tally::default(), false), Tally::FAILED);
    }

    #[test]
    fn a_hanging_stage_is_killed_with_its_children() {
        let started = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 30 & sleep 30; wait"]);
        assert_eq!(run(&mut command, Counting::ExitCode, Duration::from_millis(200)), Tally::FAILED);
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
