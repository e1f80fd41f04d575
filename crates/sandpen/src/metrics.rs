//! What a server counts, for whoever watches over it: the text that Prometheus reads.
//!
//! A label is one of few words that we know. Owners, handles, hosts and whatever else a client chooses are none: they would
//! tell of people, and there is no end of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::{Method, StatusCode};
use sandbox::{Event, EventBus, EventKind};
use tokio::sync::broadcast::error::RecvError;

use self::family::{Counters, Durations};
pub use self::page::routes;
use crate::audit::Deed;

mod family;
mod page;
mod process;

/// Copies mean the same numbers.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Numbers>);

#[derive(Debug)]
struct Numbers {
    requests: Counters<3>,
    request_seconds: Durations<1>,
    turned_away: Counters<1>,
    calls: Counters<2>,
    call_seconds: Durations<1>,
    creates: Counters<1>,
    create_seconds: Durations<0>,
    ends: Counters<1>,
    runs: Counters<1>,
    run_seconds: Durations<0>,
    egress_decisions: Counters<1>,
    egress_bytes: Counters<1>,
    audit_lost: Counters<0>,
    events_missed: Counters<0>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self(Arc::new(Numbers {
            requests: Counters::new(
                "sandpen_http_requests_total",
                "Requests that were answered, or begun to be.",
                ["route", "method", "status"],
            ),
            request_seconds: Durations::new(
                "sandpen_http_request_duration_seconds",
                "Time to the head of the answer; a stream may go on after it.",
                ["route"],
            ),
            turned_away: Counters::new(
                "sandpen_http_turned_away_total",
                "Requests of callers who were not let in.",
                ["why"],
            ),
            calls: Counters::new("sandpen_tool_calls_total", "Calls of tools.", ["tool", "outcome"]),
            call_seconds: Durations::new("sandpen_tool_call_duration_seconds", "Time of a call of a tool.", ["tool"]),
            creates: Counters::new("sandpen_creates_total", "Sandboxes that were asked for.", ["outcome"]),
            create_seconds: Durations::new(
                "sandpen_create_duration_seconds",
                "Time to make a sandbox, without waiting for a turn.",
                [],
            ),
            ends: Counters::new("sandpen_sandbox_ends_total", "Sandboxes that have ended.", ["reason"]),
            runs: Counters::new("sandpen_runs_total", "Programs that were started, by how they ended.", ["status"]),
            run_seconds: Durations::new("sandpen_run_duration_seconds", "Time of a program.", []),
            egress_decisions: Counters::new(
                "sandpen_egress_decisions_total",
                "Connections out of sandboxes: allowed ones that have ended, and refused ones by the rule.",
                ["decision"],
            ),
            egress_bytes: Counters::new(
                "sandpen_egress_bytes_total",
                "Bytes of connections that have ended, as their sandboxes see them.",
                ["direction"],
            ),
            audit_lost: Counters::new("sandpen_audit_lines_lost_total", "Lines that are in no audit trail.", []),
            events_missed: Counters::new(
                "sandpen_metrics_events_missed_total",
                "Events that came too fast to be counted here.",
                [],
            ),
        }))
    }
}

impl Metrics {
    /// Something that a caller did.
    pub fn saw(&self, deed: &Deed) {
        match deed {
            Deed::Called { tool, outcome, took, .. } => {
                let tool = tool.known();
                self.0.calls.add([tool, outcome.as_str()], 1);
                self.0.call_seconds.add([tool], *took);
            }
            // They are counted as requests, each with its status.
            Deed::Files { .. } | Deed::Granted { .. } => {}
            Deed::TurnedAway { why, .. } => self.0.turned_away.add([why], 1),
        }
    }

    pub fn lost_lines(&self, count: u64) {
        self.0.audit_lost.add([], count);
    }

    /// Count what is told, for as long as the service lives.
    pub fn listen(&self, events: &EventBus) {
        let (metrics, mut events) = (self.clone(), events.subscribe());
        tokio::spawn(async move {
            loop {
                match events.recv().await {
                    Ok(event) => metrics.count(&event),
                    Err(RecvError::Lagged(count)) => metrics.0.events_missed.add([], count),
                    Err(RecvError::Closed) => return,
                }
            }
        });
    }

    fn count(&self, event: &Event) {
        let numbers = &self.0;
        match &event.kind {
            EventKind::Created { took, .. } => {
                numbers.creates.add(["created"], 1);
                numbers.create_seconds.add([], *took);
            }
            EventKind::CreateRefused { .. } => numbers.creates.add(["refused"], 1),
            EventKind::CreateFailed { .. } => numbers.creates.add(["failed"], 1),
            EventKind::ExecEnded { outcome, .. } => {
                numbers.runs.add([outcome.status.as_str()], 1);
                numbers.run_seconds.add([], outcome.usage.wall);
            }
            EventKind::ExecRefused { .. } => numbers.runs.add(["refused"], 1),
            EventKind::Connected { bytes_in, bytes_out, .. } => {
                numbers.egress_decisions.add(["allowed"], 1);
                numbers.egress_bytes.add(["in"], *bytes_in);
                numbers.egress_bytes.add(["out"], *bytes_out);
            }
            EventKind::ConnectionRefused { denial, .. } => numbers.egress_decisions.add([denial.as_str()], 1),
            EventKind::Stopped { reason } => numbers.ends.add([reason.as_str()], 1),
            EventKind::Adopted
            | EventKind::ExecStarted { .. }
            | EventKind::FileRead { .. }
            | EventKind::FileWritten { .. }
            | EventKind::FileRemoved { .. }
            | EventKind::FileRenamed { .. }
            | EventKind::Renewed
            | EventKind::Saved { .. }
            | EventKind::Forgotten { .. }
            | EventKind::Forked { .. }
            | EventKind::Checkpointed { .. }
            | EventKind::Restored { .. }
            | EventKind::TreeFailed { .. }
            | EventKind::StopFailed { .. } => {}
        }
    }

    fn answered(&self, route: &str, method: &'static str, status: StatusCode, took: Duration) {
        self.0.requests.add([route, method, status.as_str()], 1);
        self.0.request_seconds.add([route], took);
    }
}

/// Around all routes.
pub fn counted(routes: Router, metrics: Metrics) -> Router {
    routes.layer(middleware::from_fn_with_state(metrics, count))
}

async fn count(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    // As it is written in our code, so there are as many as we have.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = word(request.method());
    let response = next.run(request).await;
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    metrics.answered(route, method, response.status(), started.elapsed());
    response
}

/// A client may call its method whatever it likes.
fn word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
