//! The page with all numbers, for those who may see what is about all owners.

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use axum::routing::get;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use sandbox::{Census, SandboxService};

use super::family::gauge;
use super::{Metrics, process};
use crate::auth::scope::Scope;
use crate::auth::{Insufficient, Principal, insufficient_scope};

/// To be put behind whatever finds out who asks; whom that lets in without a name sees it too.
pub fn routes(metrics: Metrics, service: SandboxService) -> Router {
    Router::new().route("/metrics", get(show)).with_state(Page { metrics, service })
}

#[derive(Clone)]
struct Page {
    metrics: Metrics,
    service: SandboxService,
}

async fn show(State(page): State<Page>, principal: Option<Extension<Principal>>) -> Response {
    if principal.is_some_and(|Extension(principal)| !principal.scopes.allow(Scope::Admin)) {
        return insufficient_scope(Insufficient(Scope::Admin));
    }
    let mut response = Response::new(Body::from(page.text()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Page {
    fn text(&self) -> String {
        let numbers = &self.metrics.0;
        let mut page = String::new();
        let version = env!("CARGO_PKG_VERSION");
        gauge(&mut page, "sandpen_build_info", "Which version this is.", &[("version", version)], 1.0);
        numbers.requests.write(&mut page);
        numbers.request_seconds.write(&mut page);
        numbers.turned_away.write(&mut page);
        numbers.calls.write(&mut page);
        numbers.call_seconds.write(&mut page);
        let Census { sandboxes, execs, creates, waiting } = self.service.census();
        let engine = [("engine", self.service.capabilities().name)];
        let of_engine = |page: &mut String, name, help, count: usize| gauge(page, name, help, &engine, count as f64);
        of_engine(&mut page, "sandpen_sandboxes", "Sandboxes that are there.", sandboxes);
        of_engine(&mut page, "sandpen_runs_now", "Programs that run now.", execs);
        of_engine(&mut page, "sandpen_creates_now", "Sandboxes that are being made.", creates);
        of_engine(&mut page, "sandpen_create_queue_length", "Sandboxes that wait to be made.", waiting);
        numbers.creates.write(&mut page);
        numbers.create_seconds.write(&mut page);
        numbers.ends.write(&mut page);
        numbers.runs.write(&mut page);
        numbers.run_seconds.write(&mut page);
        numbers.egress_decisions.write(&mut page);
        numbers.egress_bytes.write(&mut page);
        numbers.audit_lost.write(&mut page);
        numbers.events_missed.write(&mut page);
        process::write(&mut page);
        page
    }
}
