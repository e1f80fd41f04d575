//! `get_job`: what a run in the background has done so far.

pub(crate) mod page;

use std::time::Duration;

use sandbox::service::Job;
use sandbox::{Error, Result};
use schemars::JsonSchema;
use serde::Deserialize;

use self::page::{Stream, Unit, Wish};
use crate::call::Call;
use crate::content::Content;
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
    /// Page through this stream, or search it. Default stdout.
    stream: Option<Stream>,
    /// The first line of the page, counted from 1; with unit bytes the first byte, counted from 0.
    #[schemars(range(min = 0))]
    offset: Option<u64>,
    /// Lines of the page, at most 2000, or bytes, at most 24576. With search the lines that are shown, at most 100.
    #[schemars(range(min = 1))]
    limit: Option<u64>,
    /// What offset and limit count. Default lines.
    unit: Option<Unit>,
    /// Show the lines with this text in them, with their numbers, from the line offset on.
    search: Option<String>,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "get_job",
        title: "Look at a job",
        description: "Get the state and the output so far of a run in the background; with wait_s, wait for its end. \
                      Of long output, get a page with offset and limit, or the lines with a text in them with \
                      search. Results are kept for ten minutes after it."
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
    let Arguments { stream, offset, limit, unit, search, .. } = arguments;
    let wish = Wish { stream, unit, offset, limit, search };
    let mut answer = results::answer(&call, &job).await?;
    if wish.is_any() {
        let (page, shown) = page::cut(&job.output(), wish)?;
        // What both streams begin and end with was seen before.
        answer.value.stdout.clear();
        answer.value.stderr.clear();
        answer.value.truncated = false;
        answer.value.page = Some(page);
        answer.value.job_id = Some(job.id().to_string());
        answer.content = vec![Content::Text(shown)];
    }
    Ok(answer)
}

pub fn find(call: &Call, id: &str) -> Result<Job> {
    let unknown = || {
        Error::not_found("there is no job of yours with this id: it ended more than ten minutes ago, or never was")
            .with_hint("start a run with background set, and use the job_id that it returns")
    };
    call.service.job(&call.owner, &id.parse().map_err(|_| unknown())?).map_err(|_| unknown())
}
