//! What the failed tests of a stage said, to be said again at the end: a log is long, and its end is what people read.

/// More of one stage is in the log above.
const MOST_LINES: usize = 60;

/// Reads the lines of a stage: the part of the Rust harness between `failures:` and its result, and the rows of our tables that
/// are not `pass` or `skip`.
#[derive(Debug, Default)]
pub struct Failures {
    inside: bool,
    lines: Vec<String>,
    left_out: usize,
}

impl Failures {
    pub fn read(&mut self, line: &str) {
        let line = line.trim_end();
        match line {
            "failures:" => self.inside = true,
            _ if line.starts_with("test result:") => self.inside = false,
            "" => {}
            _ if self.inside || is_failed_row(line) => self.keep(line),
            _ => {}
        }
    }

    pub fn said(mut self) -> Vec<String> {
        if self.left_out > 0 {
            self.lines.push(format!("({} more lines above)", self.left_out));
        }
        self.lines
    }

    fn keep(&mut self, line: &str) {
        if self.lines.len() < MOST_LINES {
            self.lines.push(line.to_owned());
        } else {
            self.left_out += 1;
        }
    }
}

/// `check | fail | why`, as tests/support/table.rs prints it.
fn is_failed_row(line: &str) -> bool {
    line.split(" | ").nth(1).is_some_and(|verdict| matches!(verdict.trim(), "fail" | "void"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<String> {
        let mut failures = Failures::default();
        text.lines().for_each(|line| failures.read(line));
        failures.said()
    }

    #[test]
    fn the_harness_tells_why() {
        let text = "test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nit is 3\n\nfailures:\n    b\n\n\
                    test result: FAILED. 1 passed; 1 failed; 0 ignored\ntest c ... ok\n";
        assert_eq!(said(text), ["---- b stdout ----", "it is 3", "    b"]);
    }

    #[test]
    fn rows_of_tables_are_told_when_they_failed() {
        assert_eq!(
            said("a | pass | fine\nb | fail | not fine\nc | void | never seen to fail\nd | skip | no\n").len(),
            2
        );
    }

    #[test]
    fn a_stage_in_which_all_fails_stays_short() {
        let lines = said(&format!("failures:\n{}", "why\n".repeat(MOST_LINES + 5)));
        assert_eq!(lines.len(), MOST_LINES + 1);
        assert_eq!(lines.last().unwrap(), "(5 more lines above)");
    }
}
