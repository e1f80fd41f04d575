//! `/api/`: what the dashboard shows and does, as JSON and as streams of events.
//!
//! A thin layer over the service: who asks is known before, and every handle is looked up as its owner's. Knows nothing of
//! MCP.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use axum::Router;
use axum::routing::{delete, get, post};
use sandbox::{Error, ErrorKind, Result, SandboxId, SandboxInfo, SandboxService};
use tokio_util::sync::CancellationToken;
use tools::{Call, Catalog, ImageSource, Policy, ProfileName, Silent};

use self::session::SignIn;
use self::terminals::Terminals;
use self::usage::Usages;
use crate::audit::{CallOutcome, CalledTool, Deed, Recorder};
use crate::auth::Principal;
use crate::auth::scope::Scope;
use crate::http::body::Bodies;
use crate::http::places::{self, Places};

pub mod session;

mod answers;
mod audit;
mod live;
mod playground;
mod request;
mod runs;
mod sandboxes;
mod shapes;
mod stream;
mod terminals;
mod usage;

/// Answers that go on, of all callers and of one.
const STREAMS: Places = Places { most: 256, most_of_one: 24 };

/// What is behind the routes. Copies mean the same.
#[derive(Clone)]
pub struct Desk {
    shared: Arc<Shared>,
}

struct Shared {
    parts: RwLock<Arc<Parts>>,
    streams: places::Table,
    terminals: Terminals,
    usages: Usages,
}

/// What a desk is made of.
pub struct Parts {
    pub service: SandboxService,
    pub policy: Arc<Policy>,
    pub images: Option<Arc<dyn ImageSource>>,
    pub offered: Offered,
    pub recorder: Recorder,
    /// Where the audit trail is, if one is kept.
    pub trail: Option<PathBuf>,
    pub sign_in: SignIn,
    /// The older server that is spoken for, when it is one alone.
    pub profile: Option<ProfileName>,
    pub bodies: Bodies,
}

/// What the operator lets callers do here: no more than the tools do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    pub run: bool,
    pub create: bool,
    pub stop: bool,
    pub stop_runs: bool,
    pub terminals: bool,
    pub read_files: bool,
    pub write_files: bool,
    pub delete_files: bool,
}

impl Offered {
    /// What there is a tool for. `None`: an older server's tools were chosen among, which says nothing of ours. Where one is spoken
    /// for alone, files have no addresses but its own.
    pub fn by(catalog: Option<&Catalog>, profile: Option<ProfileName>) -> Self {
        let has = |tool: &str| catalog.is_some_and(|catalog| catalog.find(tool).is_some());
        let has_files = profile.is_none() && has("read_file") && has("list_files");
        Self {
            run: has("run_code"),
            create: has("create_sandbox"),
            stop: has("stop_sandbox"),
            stop_runs: has("stop_job"),
            terminals: has("run_command"),
            read_files: has_files,
            write_files: has_files && has("write_file"),
            delete_files: has_files && has("delete_file"),
        }
    }
}

/// The routes; whoever asks must be known before they are reached.
pub fn routes(desk: Desk) -> Router {
    Router::new()
        .route(session::PATH, get(session::show))
        .route("/api/live", get(live::follow))
        .route("/api/languages", get(playground::languages))
        .route("/api/run", post(playground::run))
        .route("/api/sandboxes", get(sandboxes::list).post(sandboxes::create))
        .route("/api/sandboxes/{id}", get(sandboxes::show).delete(sandboxes::stop))
        .route("/api/sandboxes/{id}/runs", get(runs::list_of))
        .route("/api/sandboxes/{id}/usage", get(usage::show))
        .route("/api/sandboxes/{id}/terminals", post(terminals::open))
        .route("/api/terminals/{id}/input", post(terminals::input))
        .route("/api/terminals/{id}/size", post(terminals::resize))
        .route("/api/runs", get(runs::list))
        .route("/api/runs/{id}", get(runs::show).merge(delete(runs::stop)))
        .route("/api/runs/{id}/stream", get(runs::follow))
        .route("/api/runs/{id}/artifact", get(runs::artifact))
        .route("/api/audit", get(audit::page))
        .with_state(desk)
}

impl Desk {
    pub fn new(parts: Parts) -> Self {
        let parts = RwLock::new(Arc::new(parts));
        let (streams, terminals, usages) = (places::Table::new(STREAMS), Terminals::default(), Usages::default());
        Self { shared: Arc::new(Shared { parts, streams, terminals, usages }) }
    }

    /// From the next request on. What goes on goes on as it began.
    pub fn replace(&self, parts: Parts) {
        *self.shared.parts.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(parts);
    }

    fn parts(&self) -> Arc<Parts> {
        self.shared.parts.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn service(&self) -> SandboxService {
        self.parts().service.clone()
    }

    /// As a tool is called, by somebody who stays on the line.
    fn call(&self, principal: &Principal) -> Call {
        let parts = self.parts();
        let Parts { service, policy, images, .. } = &*parts;
        Call {
            service: service.clone(),
            owner: principal.owner.clone(),
            policy: policy.clone(),
            host_files: None,
            images: images.clone(),
            exporter: None,
            links: None,
            previews: None,
            progress: Arc::new(Silent),
            cancelled: CancellationToken::new(),
        }
    }

    /// Their own, by id or name. Whoever answers for the whole server finds everybody's, by id.
    async fn sandbox(&self, principal: &Principal, id: &str) -> Result<SandboxInfo> {
        let own = self.service().find(&principal.owner, id).await;
        match own {
            Err(error) if error.kind() == ErrorKind::NotFound && principal.scopes.allow(Scope::Admin) => {
                let all = self.service().list_all().await?;
                all.into_iter().find(|sandbox| sandbox.id.as_str() == id).ok_or(error)
            }
            own => own,
        }
    }

    /// One line of the audit trail for something that changes something.
    fn record(
        &self,
        principal: &Principal,
        tool: &'static str,
        sandbox: Option<SandboxId>,
        started: Instant,
        outcome: CallOutcome,
    ) {
        let (owner, tool) = (principal.owner.clone(), CalledTool::Known(tool));
        self.parts().recorder.record(Deed::Called { owner, tool, sandbox, outcome, took: started.elapsed() });
    }
}

/// The operator has left this out.
fn not_offered() -> Error {
    Error::denied("this server does not offer this")
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Desk")
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("offered", &self.offered).finish_non_exhaustive()
    }
}
