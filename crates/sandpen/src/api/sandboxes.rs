//! `/api/sandboxes`: which there are, one more, and one less.

use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, StatusCode};
use sandbox::{Result, SandboxInfo, Usage};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tools::direct;

use super::answers::{Answered, need, ok, with};
use super::shapes::{self, SandboxShape};
use super::{Desk, not_offered, request};
use crate::audit::CallOutcome;
use crate::auth::Principal;
use crate::auth::scope::Scope;

/// Sandboxes whose use is looked at for one answer; of more there is none shown.
pub const MOST_LOOKED_AT: usize = 200;
/// At the same time.
pub const AT_ONCE: usize = 8;

/// Whose sandboxes are meant.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Whose {
    /// Everybody's; for admins.
    #[serde(default)]
    pub all: bool,
}

pub async fn list(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    Query(whose): Query<Whose>,
) -> Answered {
    need(&principal, if whose.all { Scope::Admin } else { Scope::Read })?;
    ok(&json!({ "sandboxes": seen(&desk, &principal, whose).await? }))
}

/// All of them with what each uses. Looking keeps none of them alive.
pub async fn seen(desk: &Desk, principal: &Principal, whose: Whose) -> Result<Vec<SandboxShape>> {
    let sandboxes = match whose.all {
        true => desk.service().list_all().await?,
        false => desk.service().list(&principal.owner).await?,
    };
    let looks = sandboxes.into_iter().enumerate().map(async |(number, sandbox)| {
        let usage = if number < MOST_LOOKED_AT { usage(desk, &sandbox).await } else { None };
        shapes::sandbox(&sandbox, &principal.owner, usage)
    });
    Ok(stream::iter(looks).buffered(AT_ONCE).collect().await)
}

/// For how long a sandbox is waited for that does not say what it uses. All others are told at the same time.
const PATIENCE: Duration = Duration::from_secs(3);

/// One that has just ended uses nothing, and one that does not answer has no say.
pub async fn usage(desk: &Desk, sandbox: &SandboxInfo) -> Option<Usage> {
    let service = desk.service();
    tokio::time::timeout(PATIENCE, service.usage(&sandbox.owner, &sandbox.id)).await.ok()?.ok()
}

pub async fn show(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    Path(id): Path<String>,
) -> Answered {
    need(&principal, Scope::Read)?;
    let sandbox = desk.sandbox(&principal, &id).await?;
    let usage = usage(&desk, &sandbox).await;
    ok(&shapes::sandbox(&sandbox, &principal.owner, usage))
}

/// With the arguments of the tool `create_sandbox`.
pub async fn create(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
    body: Body,
) -> Answered {
    need(&principal, Scope::Run)?;
    if !desk.parts().offered.create {
        return Err(not_offered().into());
    }
    let arguments: Map<String, Value> = request::object(&desk.parts().bodies, &headers, body).await?;
    let started = Instant::now();
    let made = direct::create(&desk.call(&principal), arguments).await;
    let (id, outcome) = match &made {
        Ok(sandbox) => (Some(sandbox.id.clone()), CallOutcome::Done),
        Err(_) => (None, CallOutcome::Failed),
    };
    desk.record(&principal, direct::CREATE_SANDBOX, id, started, outcome);
    with(StatusCode::CREATED, &shapes::sandbox(&made?, &principal.owner, None))
}

/// Answers when nothing of it is left.
pub async fn stop(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    Path(id): Path<String>,
) -> Answered {
    need(&principal, Scope::Run)?;
    if !desk.parts().offered.stop {
        return Err(not_offered().into());
    }
    let sandbox = desk.sandbox(&principal, &id).await?;
    let started = Instant::now();
    let stopped = desk.service().stop(&sandbox.owner, &sandbox.id).await;
    let outcome = if stopped.is_ok() { CallOutcome::Done } else { CallOutcome::Failed };
    desk.record(&principal, "stop_sandbox", Some(sandbox.id.clone()), started, outcome);
    stopped?;
    ok(&json!({ "id": sandbox.id.as_str(), "stopped": true }))
}
