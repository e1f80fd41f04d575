//! `stop_job`: the end of a run, and of everything that it started.

use sandbox::Result;
use schemars::JsonSchema;
use serde::Deserialize;

use super::get_job::find;
use crate::call::Call;
use crate::results::{self, RunObject};
use crate::select::Toolset;
use crate::tool::{Answer, Definition, Hints, Tool};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The job's id, as run_code or run_command gave it.
    job_id: String,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "stop_job",
        title: "Stop a job",
        description: "Kill a run in the background with everything that it started, and get what it has printed. Its \
                      sandbox stays, unless it was made for this run alone."
            .to_owned(),
        toolset: Toolset::Jobs,
        hints: Hints { read_only: false, destructive: true, idempotent: true, open_world: false },
    };
    Tool::new(definition, stop)
}

async fn stop(call: Call, arguments: Arguments) -> Result<Answer<RunObject>> {
    let job = find(&call, &arguments.job_id)?;
    job.stop().await?;
    results::answer(&call, &job).await
}
