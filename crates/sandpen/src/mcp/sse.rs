//! HTTP+SSE, the transport of 2024-11-05: a stream on which a client listens, and an address to which it posts.
//!
//! A session is its stream. When that ends, for whatever reason, nobody can be answered any longer, and what the session
//! was doing is ended with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use futures_util::stream::{self, StreamExt};
use http::StatusCode;
use http::request::Parts;
use rmcp::ServerHandler;
use rmcp::model::GetExtensions;
use rmcp::service::serve_directly_with_ct;
use sandbox::Owner;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, Line};
use super::events;
use super::http::is_json;
use super::outbox::{Outlet, outbox};
use super::refusal;
use super::rights::Rights;
use super::wire::{self, Incoming, Message};
use crate::auth::{Principal, insufficient_scope};
use crate::http::body::Bodies;
use crate::http::drain::Drain;
use crate::http::places::{self, Place, Places, Share};

/// Each holds a connection, of which there are not many more.
const MOST: usize = 256;

/// For a client to begin.
const FIRST_WORD: Duration = Duration::from_secs(60);

/// Without a word from the client after that: more than the longest run.
const IDLE: Duration = Duration::from_secs(24 * 60 * 60);

/// Messages on their way to the session. Few, because each may be large.
const QUEUE: usize = 8;

/// For a place among them.
const PATIENCE: Duration = Duration::from_secs(5);

/// For calls to notice that they were given up.
const CLEAN_UP: Duration = Duration::from_secs(2);

/// Where clients are told to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inbox {
    /// What all routes stand below.
    pub base: &'static str,
    pub path: &'static str,
}

impl Inbox {
    pub fn below(base: &'static str) -> Self {
        Self { base, path: "/sse/message" }
    }
}

/// The routes of a server; `handler` makes one for each session.
pub fn routes<F, H>(inbox: Inbox, handler: F, rights: Rights, bodies: Bodies, share: Share, drain: &Drain) -> Router
where
    F: Fn() -> H + Clone + Send + Sync + 'static,
    H: ServerHandler,
{
    let places = places::Table::new(Places::shared(MOST, share));
    let table = Table { inbox, handler, rights, bodies, places, drain: drain.clone(), sessions: Arc::default() };
    Router::new().route("/sse", get(listen::<F, H>)).route(inbox.path, post(accept::<F>)).with_state(table)
}

#[derive(Clone)]
struct Table<F> {
    inbox: Inbox,
    handler: F,
    rights: Rights,
    bodies: Bodies,
    places: places::Table,
    drain: Drain,
    sessions: Sessions,
}

type Sessions = Arc<Mutex<HashMap<String, Session>>>;

#[derive(Clone)]
struct Session {
    /// Who began it. Nobody else learns that it is there.
    owner: Owner,
    inbox: mpsc::Sender<Incoming>,
    /// When the client last said something, if it ever did.
    heard: watch::Sender<Option<Instant>>,
}

async fn listen<F, H>(State(table): State<Table<F>>, Extension(principal): Extension<Principal>) -> Response
where
    F: Fn() -> H,
    H: ServerHandler,
{
    let Ok(id) = random_id() else { return refusal::internal() };
    let place = match table.places.take(&principal.owner) {
        Ok(place) => place,
        Err(no_place) => return refusal::no_place(no_place),
    };
    let (inbox, incoming) = mpsc::channel(QUEUE);
    let (heard, last_heard) = watch::channel(None);
    lock(&table.sessions).insert(id.clone(), Session { owner: principal.owner, inbox, heard });
    let Inbox { base, path } = table.inbox;
    let endpoint = Event::default().event("endpoint").data(format!("{base}{path}?sessionId={id}"));
    let (outbox, outlet) = outbox();
    let (connection, line) = Connection::new(incoming, outbox);
    let ended = CancellationToken::new();
    let running = serve_directly_with_ct((table.handler)(), connection, None, ended.clone());
    let (drain, over) = (table.drain.clone(), ended.clone());
    tokio::spawn(async move {
        until_end(&line, last_heard, &drain).await;
        over.cancel();
        let _ = timeout(CLEAN_UP, running.waiting()).await;
    });
    let leaving = Leaving { sessions: table.sessions, id, _place: place };
    let messages = stream::unfold((outlet, leaving), next).take_until(ended.cancelled_owned());
    events::response(stream::iter([endpoint]).chain(messages), table.drain.over().clone())
}

async fn next((mut outlet, leaving): (Outlet, Leaving)) -> Option<(Event, (Outlet, Leaving))> {
    let message = outlet.next().await?;
    outlet.written(&message);
    let event = Event::default().event("message").data(String::from_utf8_lossy(&message));
    Some((event, (outlet, leaving)))
}

/// Takes the session out of the table when its stream ends.
struct Leaving {
    sessions: Sessions,
    id: String,
    _place: Place,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        lock(&self.sessions).remove(&self.id);
    }
}

async fn until_end(line: &Line, heard: watch::Receiver<Option<Instant>>, drain: &Drain) {
    let drained = async {
        drain.begun().await;
        line.refuse_requests();
        std::future::pending::<()>().await;
    };
    let waited_for = async {
        loop {
            line.busy().await;
            let _going = drain.going();
            line.idle().await;
        }
    };
    tokio::select! {
        () = line.ended() => {}
        () = unused(heard) => {}
        () = drained => {}
        () = waited_for => {}
    }
}

/// Until nothing was heard for too long.
async fn unused(heard: watch::Receiver<Option<Instant>>) {
    let opened = Instant::now();
    loop {
        let deadline = heard.borrow().map_or(opened + FIRST_WORD, |last| last + IDLE);
        if deadline <= Instant::now() {
            return;
        }
        sleep_until(deadline).await;
    }
}

#[derive(Debug, Deserialize)]
struct Address {
    #[serde(rename = "sessionId", alias = "session_id")]
    session_id: String,
}

async fn accept<F>(
    State(table): State<Table<F>>,
    Extension(principal): Extension<Principal>,
    address: Result<Query<Address>, QueryRejection>,
    request: Request,
) -> Response {
    if !is_json(request.headers()) {
        return refusal::wrong_content_type();
    }
    let Ok(Query(Address { session_id })) = address else {
        return refusal::invalid_request("the address lacks its sessionId; use the one that the stream begins with");
    };
    let session = lock(&table.sessions).get(&session_id).cloned();
    let Some(session) = session.filter(|session| session.owner == principal.owner) else {
        return refusal::no_session();
    };
    let (parts, body) = request.into_parts();
    let body = match table.bodies.read(body).await {
        Ok(body) => body,
        Err(unread) => return refusal::unread(unread),
    };
    if let Some(lacking) = table.rights.lacking(principal.scopes, &body.bytes) {
        return insufficient_scope(lacking);
    }
    let mut incoming = wire::read(&body.bytes);
    match &mut incoming {
        Incoming::One(Message::Broken { id, error }) => return refusal::bad_request(id.as_ref(), error),
        Incoming::One(message) => tag(message, &parts),
        Incoming::Many(messages) => messages.iter_mut().for_each(|message| tag(message, &parts)),
    }
    session.heard.send_replace(Some(Instant::now()));
    match session.inbox.send_timeout(incoming, PATIENCE).await {
        Ok(()) => StatusCode::ACCEPTED.into_response(),
        Err(mpsc::error::SendTimeoutError::Closed(_)) => refusal::no_session(),
        Err(mpsc::error::SendTimeoutError::Timeout(_)) => refusal::busy(),
    }
}

/// So that the handler knows who asks.
fn tag(message: &mut Message, parts: &Parts) {
    match message {
        Message::Request { request, .. } => {
            request.extensions_mut().insert(parts.clone());
        }
        Message::Notification(notification) => {
            notification.extensions_mut().insert(parts.clone());
        }
        Message::Ignored | Message::Broken { .. } => {}
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whoever knows it can speak in the session's name.
fn random_id() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
