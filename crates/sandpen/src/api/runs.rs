//! `/api/runs`: what was run, its output as it comes, and the files that it made.

use std::time::Instant;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use sandbox::{ByteRange, Error, Job, JobChunk, JobFollower, JobStatus, JobStream, Result};
use serde::Deserialize;
use serde_json::json;

use super::answers::{Answered, need, ok};
use super::stream::{Told, response};
use super::{Desk, not_offered, shapes};
use crate::audit::CallOutcome;
use crate::auth::Principal;
use crate::auth::scope::Scope;
use crate::http::drain::Drain;
use crate::http::places::Place;

/// The newest first: those that go on, and those that ended a while ago at most.
pub fn of(desk: &Desk, principal: &Principal) -> Vec<Job> {
    let mut jobs = desk.service().jobs(&principal.owner);
    jobs.reverse();
    jobs
}

pub async fn list(State(desk): State<Desk>, Extension(principal): Extension<Principal>) -> Answered {
    need(&principal, Scope::Read)?;
    let runs: Vec<_> = of(&desk, &principal).iter().map(shapes::run).collect();
    ok(&json!({ "runs": runs }))
}

/// Those in one sandbox, which may have ended with its run. Of somebody else's nothing is told, whoever asks.
pub async fn list_of(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    Path(id): Path<String>,
) -> Answered {
    need(&principal, Scope::Read)?;
    let jobs = of(&desk, &principal);
    let runs: Vec<_> = jobs.iter().filter(|job| job.sandbox().as_str() == id).map(shapes::run).collect();
    if runs.is_empty() {
        desk.service().find(&principal.owner, &id).await?;
    }
    ok(&json!({ "runs": runs }))
}

pub async fn show(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    Path(id): Path<String>,
) -> Answered {
    need(&principal, Scope::Read)?;
    ok(&shapes::run(&find(&desk, &principal, &id)?))
}

/// Answers when everything that it started has ended.
pub async fn stop(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    Path(id): Path<String>,
) -> Answered {
    need(&principal, Scope::Run)?;
    if !desk.parts().offered.stop_runs {
        return Err(not_offered().into());
    }
    let job = find(&desk, &principal, &id)?;
    let started = Instant::now();
    let stopped = job.stop().await;
    let outcome = if stopped.is_ok() { CallOutcome::Done } else { CallOutcome::Failed };
    desk.record(&principal, "stop_job", Some(job.sandbox().clone()), started, outcome);
    stopped?;
    ok(&shapes::run(&job))
}

/// The output from its first byte, as far as it is kept, then as it comes, and in the end how it ended.
pub async fn follow(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    Extension(drain): Extension<Drain>,
    Path(id): Path<String>,
) -> Answered {
    need(&principal, Scope::Read)?;
    let job = find(&desk, &principal, &id)?;
    let place = desk.shared.streams.take(&principal.owner)?;
    let following = Following { follower: Some(job.follow()), job, _place: place };
    let events = stream::unfold(Some(following), async |following| following?.next().await);
    Ok(response(Box::pin(events), async move { drain.over().cancelled().await }))
}

struct Following {
    job: Job,
    /// None once all output was told.
    follower: Option<JobFollower>,
    _place: Place,
}

impl Following {
    async fn next(mut self) -> Option<(Told, Option<Self>)> {
        if let Some(follower) = &mut self.follower
            && let Some(chunk) = follower.next().await
        {
            return Some((piece(&chunk), Some(self)));
        }
        // How it failed is in its status.
        let _ = self.job.wait().await;
        Some((("ended", json!(shapes::run(&self.job))), None))
    }
}

fn piece(JobChunk { stream, bytes, skipped }: &JobChunk) -> Told {
    let stream = match stream {
        JobStream::Stdout => "stdout",
        JobStream::Stderr => "stderr",
    };
    // It may end in the middle of a character, and need not be text.
    ("output", json!({ "stream": stream, "base64": STANDARD.encode(bytes), "skipped": skipped }))
}

#[derive(Debug, Deserialize)]
pub struct Which {
    path: String,
}

/// A file that the run made or changed, for a page to make a picture of or to keep.
///
/// It is the work of code that nobody trusts. So it is said to be nothing but what it begins like, and a browser that opens it
/// by its address runs nothing.
pub async fn artifact(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    Path(id): Path<String>,
    Query(Which { path }): Query<Which>,
) -> Answered {
    need(&principal, Scope::Read)?;
    let job = find(&desk, &principal, &id)?;
    let JobStatus::Ended(result) = job.status() else { return Err(no_artifact().into()) };
    let artifact = result.artifacts.into_iter().find(|artifact| artifact.path.to_string_lossy() == path);
    let artifact = artifact.ok_or_else(no_artifact)?;
    let whole = ByteRange::default();
    let (stat, bytes) = desk.service().read_artifact(&principal.owner, job.sandbox(), &artifact.path, whole).await?;
    if stat.bytes > bytes.len() as u64 {
        return Err(Error::limit_exceeded("the file is too large to be shown here").into());
    }
    let kind = tools::mime::image(artifact.path.file_name().unwrap_or_default(), &bytes);
    let mut response = Response::new(Body::from(bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind.unwrap_or("application/octet-stream")));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn no_artifact() -> Error {
    Error::not_found("the run has made no such file")
}

/// What is no id names no job either.
fn find(desk: &Desk, principal: &Principal, id: &str) -> Result<Job> {
    let parsed = id.parse().map_err(|_| Error::not_found("there is no such job").with_hint(FORGOTTEN))?;
    desk.service().job(&principal.owner, &parsed)
}

/// As the service says it.
const FORGOTTEN: &str = "an ended job is kept for a while only";
