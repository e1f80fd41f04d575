//! Commands and code that are run to their end, which is all that older servers know of runs.

use sandbox::service::Job;
use sandbox::{Artifact, ExecStatus, JobRequest, JobResult, JobStatus, OutputCaps, Result, Shown};

use crate::call::Call;
use crate::catalog::run;
use crate::content::Content;
use crate::displays::{self, Printed};
use crate::results;

/// A run that has ended.
pub struct Ended {
    pub status: ExecStatus,
    /// As much as is kept of it, with a line where something was left out.
    pub stdout: String,
    pub stderr: String,
    result: JobResult,
    job: Job,
}

/// Older servers kept all output, or about this much of each stream.
pub const KEPT: OutputCaps = OutputCaps { head: 512 * 1024, tail: 512 * 1024 };

/// Runs it, for as long as its own time limit lets it. A caller that goes away takes the run along.
pub async fn run(call: &Call, request: JobRequest) -> Result<Ended> {
    let request = JobRequest { kept: Some(KEPT), ..request };
    let job = run::to_the_end(call, request).await?;
    let result = match job.status() {
        JobStatus::Ended(result) => result,
        // Nobody waits that long.
        JobStatus::Running | JobStatus::Interrupted => job.wait().await?,
        JobStatus::Failed(failure) => return Err(failure.to_error()),
    };
    let output = job.output();
    let (stdout, stderr) = (output.stdout.to_text(), output.stderr.to_text());
    Ok(Ended { status: result.outcome.status, stdout, stderr, result, job })
}

/// As a shell would tell it.
pub fn exit_code(status: ExecStatus) -> i32 {
    match status {
        ExecStatus::Exited(code) => code,
        ExecStatus::Signalled(signal) => 128 + signal,
        ExecStatus::TimedOut => 124,
        ExecStatus::OutOfMemory | ExecStatus::Killed | ExecStatus::Cancelled => 137,
    }
}

impl Ended {
    pub fn exit_code(&self) -> i32 {
        exit_code(self.status)
    }

    pub fn succeeded(&self) -> bool {
        self.status == ExecStatus::Exited(0)
    }

    /// What it printed, with tables and texts that it displayed where they came.
    pub async fn told(&self, call: &Call) -> String {
        let output = self.job.output().stdout;
        let bytes = output.bytes();
        let printed = Printed { whole: (!output.is_truncated()).then_some(&bytes), shown: &self.stdout };
        let texts = self.result.results.displays.iter().filter(|display| !matches!(display.shown, Shown::File(_)));
        let (_, _, text) = displays::in_order(call, &self.job, printed, &texts.cloned().collect::<Vec<_>>()).await;
        text
    }

    /// Pictures that it displayed, then those among the files that it made.
    pub async fn images(&self, call: &Call) -> Vec<Content> {
        let mut pictures: Vec<Artifact> = Vec::new();
        let displayed = self.result.results.displays.iter().filter_map(|display| match &display.shown {
            Shown::File(file) => Some(file),
            Shown::Text(_) | Shown::Markdown(_) => None,
        });
        for file in displayed.chain(&self.result.artifacts) {
            if pictures.iter().all(|picture| picture.path != file.path) {
                pictures.push(file.clone());
            }
        }
        results::images(call, &self.job, &pictures).await
    }
}
