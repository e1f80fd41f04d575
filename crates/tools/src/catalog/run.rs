//! What all runs have in common: start a job, wait for it, and be done with it when the caller is.

use std::time::Duration;

use sandbox::service::Job;
use sandbox::{Error, JobPlace, JobRequest, Network, Result, SandboxInfo};
use tokio::time::Instant;

use super::target;
use crate::call::Call;
use crate::catalog::news::News;
use crate::image;
use crate::network::NetworkArgument;
use crate::policy::{Asked, Policy};
use crate::results::{self, RunObject};
use crate::tool::{Answer, Tool};
use crate::words;

/// A client that gives up by its own clock cancels its call, and then sends it again with the same key: until then its run
/// goes on.
const RETRY: Duration = Duration::from_secs(15);

/// Every run has a time limit of its own.
const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);

/// How a call wants to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// At once, with a job.
    Background,
    /// When the run ends; with a job when that takes longer.
    AtMost(Duration),
}

impl Waiting {
    pub fn new(call: &Call, background: bool, wait_s: Option<f64>) -> Result<Self> {
        if background { Ok(Self::Background) } else { call.policy.wait(wait_s).map(Self::AtMost) }
    }
}

/// A run in the background is meant to be long, and can be stopped.
pub fn timeout(call: &Call, background: bool, timeout_s: Option<f64>) -> Result<Duration> {
    match timeout_s {
        None if background => Ok(call.policy.longest_timeout),
        timeout_s => call.policy.timeout(timeout_s),
    }
}

/// The sandbox that is named, or a fresh one that ends with the run.
pub async fn place(call: &Call, sandbox_id: Option<&str>, asked: Asked<'_>) -> Result<JobPlace> {
    if let Some(id) = sandbox_id {
        let sandbox = target::sandbox(call, id).await?;
        // Somebody else may have made it, by the command line or through another server, with more than may be had here.
        call.policy.ceiling.network.admit(sandbox.network.clone())?;
        if let Some(asked) = asked.network.map(NetworkArgument::parse).transpose()?
            && asked != sandbox.network
        {
            return Err(other_network(&sandbox, &asked));
        }
        if let Some(image) = asked.image
            && image != sandbox.image.shown()
        {
            return Err(other_image(&sandbox));
        }
        return Ok(JobPlace::Existing(sandbox.id));
    }
    fresh(call, asked, None).await
}

/// A fresh sandbox that ends with the run; code in a language may have an image of its own.
pub async fn fresh(call: &Call, asked: Asked<'_>, language: Option<&str>) -> Result<JobPlace> {
    let mut spec = call.policy.spec(&call.owner, asked)?;
    if let (Some(language), None) = (language, asked.image) {
        spec.image = call.service.image_for(language, spec.image).await?;
    }
    image::provide(call, &spec.image).await?;
    Ok(JobPlace::Fresh(Box::new(spec)))
}

fn other_network(sandbox: &SandboxInfo, asked: &Network) -> Error {
    let has = &sandbox.network;
    Error::invalid_input(format!("a sandbox keeps the network that it was made with, and this one has {has}"))
        .with_hint(format!("leave network out, or call create_sandbox with network \"{asked}\" and run there"))
}

fn other_image(sandbox: &SandboxInfo) -> Error {
    let has = sandbox.image.shown();
    Error::invalid_input(format!("a sandbox keeps the image that it was made from, and this one has {has}"))
        .with_hint("leave image out, or call create_sandbox with that image and run there")
}

/// What every run can be given, with what that is here.
pub fn refine(tool: &mut Tool, policy: &Policy) {
    tool.refine("image", "description", format!("{} Leave it out with sandbox_id.", image::argument(policy)));
    let network = format!(
        "{} Leave it out with sandbox_id: a sandbox keeps the network that it was created with.",
        words::argument(policy)
    );
    tool.refine("network", "description", network);
    let (timeout, longest) = (policy.timeout.as_secs_f64(), policy.longest_timeout.as_secs());
    let killed = format!("Seconds until the run is killed. Default {timeout}, and {longest} in the background.");
    tool.refine("timeout_s", "description", killed);
    tool.refine("timeout_s", "maximum", longest);
    let wait = policy.wait.as_secs();
    tool.refine(
        "wait_s",
        "description",
        format!("Seconds to wait before a run that goes on is answered with a job_id. Default {wait}."),
    );
}

/// Run it to its end, for callers who know of no jobs.
pub async fn to_the_end(call: &Call, request: JobRequest) -> Result<Job> {
    let job = call.service.start_job(&call.owner, request)?;
    wait_for(call, &job, FOREVER, Duration::ZERO).await?;
    Ok(job)
}

pub async fn run(call: Call, request: JobRequest, waiting: Waiting) -> Result<Answer<RunObject>> {
    let grace = if request.key.is_some() { RETRY } else { Duration::ZERO };
    let job = call.service.start_job(&call.owner, request)?;
    match waiting {
        Waiting::Background => job.promise(),
        Waiting::AtMost(wait) => wait_for(&call, &job, wait, grace).await?,
    }
    results::answer(&call, &job).await
}

/// Until the job ends or `wait` is over, telling what it prints meanwhile. A caller that goes away takes the job along.
async fn wait_for(call: &Call, job: &Job, wait: Duration, grace: Duration) -> Result<()> {
    let attendance = job.attend(grace);
    let deadline = Instant::now() + wait;
    let mut news = News::of(call, job);
    loop {
        tokio::select! {
            biased;
            () = call.cancelled.cancelled() => {
                return Err(Error::unavailable("the request was cancelled"));
            }
            ended = job.wait() => {
                attendance.leave();
                return ended.map(drop);
            }
            () = news.told() => {}
            () = tokio::time::sleep_until(deadline) => {
                attendance.leave();
                return Ok(());
            }
        }
    }
}
