//! The table that a test program prints: one row per check, one sum.

use std::process::ExitCode;
use std::time::Duration;

/// What a check came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Fail,
    /// Could not run here. Never counted as passed.
    Skip,
    /// Held, but was not seen to fail without its wall: it proves nothing, and counts as failed.
    Void,
}

impl Verdict {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Skip => "skip",
            Self::Void => "void",
        }
    }
}

#[derive(Clone, Debug)]
struct Row {
    check: String,
    verdict: Verdict,
    detail: String,
}

/// Rows are printed as they come, because a check that hangs must be known by name.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
}

impl Table {
    pub fn titled(title: &str) -> Self {
        println!("{title}");
        println!("check | result | detail");
        Self::default()
    }

    pub fn add(&mut self, check: &str, verdict: Verdict, detail: &str, took: Duration) {
        let detail = detail.replace('\n', "; ");
        println!("{check} | {} | {detail} ({} ms)", verdict.as_str(), took.as_millis());
        self.rows.push(Row { check: check.to_owned(), verdict, detail });
    }

    fn count(&self, verdict: &Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == *verdict).count()
    }

    /// Prints what went wrong once more, then the sum.
    pub fn finish(self) -> ExitCode {
        for row in &self.rows {
            if !matches!(row.verdict, Verdict::Pass) {
                println!("{}: {}: {}", row.verdict.as_str().to_uppercase(), row.check, row.detail);
            }
        }
        let [passed, failed, skipped, void] =
            [Verdict::Pass, Verdict::Fail, Verdict::Skip, Verdict::Void].map(|verdict| self.count(&verdict));
        println!("sum: {passed} passed, {failed} failed, {skipped} skipped, {void} void");
        if failed + void == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
