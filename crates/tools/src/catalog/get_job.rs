//! `get_job`: what a run in the background has done so far.

use std::time::Duration;

use sandbox::service::Job;
use sandbox::{Error, Result};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::call::Call;
use crate::results::{self, RunObject};
use crate::select::Toolset;
use crate::tool::{Answer, Definition, Hints, Tool};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The job's id, as run_code or run_command gave it.
    job_id: String,
    /// Seconds to wait for its end before answering. Default 0.
    #[schemars(range(min = 0))]
    wait_s: Option<f64>,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "get_job",
        title: "Look at a job",
        description: "Get the state and the output so far of a run in the background; with wait_s, wait for its end. \
                      Results are kept for ten minutes after it."
            .to_owned(),
        toolset: Toolset::Jobs,
        hints: Hints { read_only: true, destructive: false, idempotent: true, open_world: false },
    };
    Tool::new(definition, get)
}

async fn get(call: Call, arguments: Arguments) -> Result<Answer<RunObject>> {
    let job = find(&call, &arguments.job_id)?;
    let wait = call.policy.wait(Some(arguments.wait_s.unwrap_or(0.0)))?;
    if wait > Duration::ZERO {
        tokio::select! {
            // How it ended is told below; that it could not be served, too.
            _ = job.wait() => {}
            () = tokio::time::sleep(wait) => {}
            () = call.cancelled.cancelled() => return Err(Error::unavailable("the request was cancelled")),
        }
    }
    results::answer(&call, &job).await
}

pub fn find(call: &Call, id: &str) -> Result<Job> {
    let unknown = || {
        Error::not_found("there is no job of yours with this id: it ended more than ten minutes ago, or never was")
            .with_hint("start a run with background set, and use the job_id that it returns")
    };
    call.service.job(&call.owner, &id.parse().map_err(|_| unknown())?).map_err(|_| unknown())
}
