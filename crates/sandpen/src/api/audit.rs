//! `/api/audit`: the newest lines of the audit trail, for whoever answers for the whole server.

use axum::Extension;
use axum::extract::{Query, State};
use sandbox::Error;
use serde::Deserialize;
use serde_json::json;

use super::Desk;
use super::answers::{Answered, need, ok};
use crate::audit::recent::{self, Page};
use crate::auth::Principal;
use crate::auth::scope::Scope;

/// Lines of one answer.
const MOST: usize = 200;

#[derive(Debug, Deserialize)]
pub struct Which {
    /// Where the lines of an earlier answer begin.
    before: Option<u64>,
}

pub async fn page(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    Query(Which { before }): Query<Which>,
) -> Answered {
    need(&principal, Scope::Admin)?;
    let trail = desk.parts().trail.clone().ok_or_else(|| {
        Error::not_found("this server keeps no audit trail").with_hint("start it with --audit-log FILE")
    })?;
    let read = tokio::task::spawn_blocking(move || recent::page(&trail, before, MOST)).await;
    let Page { lines, older, is_unbroken } =
        read.map_err(|cause| Error::internal("the audit trail was not read").with_cause(cause))??;
    ok(&json!({ "lines": lines, "older": older, "unbroken": is_unbroken }))
}
