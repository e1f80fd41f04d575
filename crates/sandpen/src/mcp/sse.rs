//! HTTP+SSE, the transport of 2024-11-05: a stream on which a client listens, and an address to which it posts.
//!
//! A session is its stream. When that ends, for whatever reason, nobody can be answered any longer, and what the session
//! was doing is ended with it.

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream::{self, StreamExt};
use http::StatusCode;
use rmcp::ServerHandler;
use rmcp::model::{
    ClientJsonRpcMessage, JsonRpcMessage, ProtocolVersion, RequestId, ServerJsonRpcMessage, ServerResult,
};
use rmcp::service::serve_server_with_ct;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard, PollSender};

use super::batch::{self, Item};
use super::events;
use super::http::{is_json, tag};
use super::refusal::{self, refusal};
use crate::http::body::Bodies;
use crate::http::drain::{Drain, Going};

/// Each holds a connection, of which there are not many more.
const MOST: usize = 256;

/// For a client to begin.
const FIRST_WORD: Duration = Duration::from_secs(60);

/// Without a word from the client after that, and with nothing going on.
const IDLE: Duration = Duration::from_secs(24 * 60 * 60);

/// Messages on their way, in each direction.
const QUEUE: usize = 64;

/// For a place among them.
const PATIENCE: Duration = Duration::from_secs(5);

/// The routes, with a handler for each session.
pub fn routes<H: ServerHandler + Clone>(
    handler: impl Fn() -> H + Send + Sync + 'static,
    bodies: Bodies,
    drain: &Drain,
) -> Router {
    let table = Table { handler: Arc::new(handler), bodies, drain: drain.clone(), sessions: Arc::default() };
    Router::new().route("/sse", get(listen::<H>)).route("/sse/message", post(accept::<H>)).with_state(table)
}

#[derive(Clone)]
struct Table<H> {
    handler: Arc<dyn Fn() -> H + Send + Sync>,
    bodies: Bodies,
    drain: Drain,
    sessions: Sessions,
}

type Sessions = Arc<Mutex<HashMap<String, Session>>>;

#[derive(Clone)]
struct Session {
    inbox: mpsc::Sender<ClientJsonRpcMessage>,
    /// Weak, because the stream ends when the session's own is gone.
    outbox: mpsc::WeakSender<ServerJsonRpcMessage>,
    talk: Arc<Mutex<Talk>>,
}

/// What is known of a conversation from what passes by.
#[derive(Debug)]
struct Talk {
    version: Option<ProtocolVersion>,
    /// What the end of the server waits for.
    unanswered: HashMap<RequestId, Going>,
    heard: Instant,
    begun: bool,
}

async fn listen<H: ServerHandler + Clone>(State(table): State<Table<H>>) -> Response {
    let Ok(id) = random_id() else { return refusal::internal() };
    let (inbox, incoming) = mpsc::channel(QUEUE);
    let (outbox, outgoing) = mpsc::channel(QUEUE);
    let talk = Talk { version: None, unanswered: HashMap::new(), heard: Instant::now(), begun: false };
    let talk = Arc::new(Mutex::new(talk));
    {
        let mut sessions = lock(&table.sessions);
        if sessions.len() >= MOST {
            return refusal::too_many_sessions();
        }
        sessions.insert(id.clone(), Session { inbox, outbox: outbox.downgrade(), talk: talk.clone() });
    }
    let endpoint = Event::default().event("endpoint").data(format!("/sse/message?sessionId={id}"));
    let ended = CancellationToken::new();
    tokio::spawn(serve((table.handler)(), incoming, outbox, talk.clone(), ended.clone()));
    let leaving = Leaving { sessions: table.sessions, id, _ended: ended.drop_guard() };
    let messages = ReceiverStream::new(outgoing).filter_map(move |message| {
        let _held = &leaving;
        lock(&talk).answered(&message);
        ready(events::message(&message))
    });
    events::response(stream::iter([endpoint]).chain(messages), table.drain.over().clone())
}

/// The end of the stream, and with it of the session and of what it was doing.
struct Leaving {
    sessions: Sessions,
    id: String,
    _ended: DropGuard,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        lock(&self.sessions).remove(&self.id);
    }
}

async fn serve<H: ServerHandler>(
    handler: H,
    incoming: mpsc::Receiver<ClientJsonRpcMessage>,
    outbox: mpsc::Sender<ServerJsonRpcMessage>,
    talk: Arc<Mutex<Talk>>,
    ended: CancellationToken,
) {
    // The library gives up when the first message is a notification, which says nothing yet.
    let incoming =
        ReceiverStream::new(incoming).skip_while(|message| ready(!matches!(message, JsonRpcMessage::Request(_))));
    let transport = (PollSender::new(outbox), incoming);
    let serving = async {
        match serve_server_with_ct(handler, transport, ended.clone()).await {
            Ok(running) => {
                let _ = running.waiting().await;
            }
            Err(error) => tracing::debug!(%error, "a client did not begin as it must"),
        }
    };
    tokio::select! {
        () = serving => {}
        () = unused(&talk) => ended.cancel(),
    }
}

/// Until nothing was heard for too long.
async fn unused(talk: &Mutex<Talk>) {
    loop {
        let (deadline, busy) = {
            let talk = lock(talk);
            (talk.heard + if talk.begun { IDLE } else { FIRST_WORD }, !talk.unanswered.is_empty())
        };
        let now = Instant::now();
        if deadline <= now && !busy {
            return;
        }
        sleep_until(deadline.max(now + FIRST_WORD)).await;
    }
}

#[derive(Debug, Deserialize)]
struct Address {
    #[serde(rename = "sessionId", alias = "session_id")]
    session_id: String,
}

async fn accept<H: ServerHandler + Clone>(
    State(table): State<Table<H>>,
    address: Result<Query<Address>, QueryRejection>,
    request: Request,
) -> Response {
    if !is_json(request.headers()) {
        return refusal::wrong_content_type();
    }
    let Ok(Query(Address { session_id })) = address else {
        return refusal::invalid_request("the address lacks its sessionId; use the one that the stream begins with");
    };
    let Some(session) = lock(&table.sessions).get(&session_id).cloned() else {
        return refusal::no_session();
    };
    let (parts, body) = request.into_parts();
    let body = match table.bodies.read(body).await {
        Ok(body) => body,
        Err(unread) => return refusal::unread(unread),
    };
    let items = if batch::looks_like_batch(&body.bytes) {
        if lock(&session.talk).version != Some(ProtocolVersion::V_2025_03_26) {
            return refusal::invalid_request("this session's revision of the protocol has no batches");
        }
        match batch::split(&body.bytes) {
            Ok(items) => items,
            Err(no) => return refusal(StatusCode::BAD_REQUEST, None, no.code(), no.message()),
        }
    } else {
        match serde_json::from_slice(&body.bytes) {
            Ok(message) => vec![Item::Message(Box::new(message))],
            Err(_) => return refusal::unreadable(&body.bytes),
        }
    };
    for item in items {
        let delivered = match item {
            Item::Message(mut message) => {
                tag(&mut message, &parts);
                session.deliver(*message, &table.drain).await
            }
            Item::Refused(answer) => session.answer(*answer).await,
        };
        if let Err(response) = delivered {
            return response;
        }
    }
    StatusCode::ACCEPTED.into_response()
}

impl Session {
    async fn deliver(&self, message: ClientJsonRpcMessage, drain: &Drain) -> Result<(), Response> {
        lock(&self.talk).said(&message, drain);
        self.inbox.send_timeout(message, PATIENCE).await.map_err(|error| match error {
            mpsc::error::SendTimeoutError::Closed(_) => refusal::no_session(),
            mpsc::error::SendTimeoutError::Timeout(_) => refusal::busy(),
        })
    }

    async fn answer(&self, answer: ServerJsonRpcMessage) -> Result<(), Response> {
        let outbox = self.outbox.upgrade().ok_or_else(refusal::no_session)?;
        outbox.send_timeout(answer, PATIENCE).await.map_err(|_| refusal::busy())
    }
}

impl Talk {
    fn said(&mut self, message: &ClientJsonRpcMessage, drain: &Drain) {
        self.heard = Instant::now();
        self.begun = true;
        if let JsonRpcMessage::Request(request) = message {
            self.unanswered.insert(request.id.clone(), drain.going());
        }
    }

    fn answered(&mut self, message: &ServerJsonRpcMessage) {
        match message {
            JsonRpcMessage::Response(response) => {
                if let ServerResult::InitializeResult(result) = &response.result {
                    self.version = Some(result.protocol_version.clone());
                }
                self.unanswered.remove(&response.id);
            }
            JsonRpcMessage::Error(error) => {
                if let Some(id) = &error.id {
                    self.unanswered.remove(id);
                }
            }
            JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => {}
        }
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
