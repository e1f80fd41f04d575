//! `/api/run` and `/api/languages`: code of a person instead of a model.

use std::time::Instant;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};
use tools::direct;

use super::answers::{Answered, need, ok, with};
use super::{Desk, not_offered, request, shapes};
use crate::audit::CallOutcome;
use crate::auth::Principal;
use crate::auth::scope::Scope;

/// Those that code can be in here, with what the programs say of themselves.
pub async fn languages(State(desk): State<Desk>, Extension(principal): Extension<Principal>) -> Answered {
    need(&principal, Scope::Read)?;
    let languages = desk.service().languages(&principal.owner, &desk.parts().policy.image).await?;
    let there = languages.iter().filter(|language| language.version.is_some());
    let told: Vec<_> = there
        .map(|language| json!({ "name": language.name, "title": language.title, "version": language.version }))
        .collect();
    ok(&json!({ "languages": told }))
}

/// With the arguments of the tool `run_code`. The answer comes at once; `/api/runs/{id}/stream` has the output.
pub async fn run(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
    body: Body,
) -> Answered {
    need(&principal, Scope::Run)?;
    if !desk.parts().offered.run {
        return Err(not_offered().into());
    }
    let arguments: Map<String, Value> = request::object(&desk.parts().bodies, &headers, body).await?;
    let started = Instant::now();
    let job = direct::start_code(&desk.call(&principal), arguments).await;
    let (sandbox, outcome) = match &job {
        Ok(job) => (Some(job.sandbox().clone()), CallOutcome::Begun),
        Err(_) => (None, CallOutcome::Failed),
    };
    desk.record(&principal, direct::RUN_CODE, sandbox, started, outcome);
    with(StatusCode::ACCEPTED, &shapes::run(&job?))
}
