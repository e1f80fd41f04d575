//! One client on one stream of messages, as the library wants to see it.
//!
//! It answers by itself what is not a request that the handler could answer: broken messages, batches where there are
//! none, requests before the first hello. Nothing that a client sends ends it.

use std::collections::VecDeque;
use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rmcp::RoleServer;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorCode, ErrorData, GetMeta, JsonRpcError,
    JsonRpcMessage, JsonRpcResponse, ProtocolVersion, RequestId, ServerJsonRpcMessage, ServerNotification,
    ServerResult, SubscriptionsListenResult,
};
use rmcp::transport::Transport;
use tokio::sync::{mpsc, watch};

use super::adapter;
use super::ledger::{Kind, Ledger};
use super::outbox::{Outbox, ReaderGone};
use super::wire::{self, Incoming, Message};

/// The library's side.
#[derive(Debug)]
pub struct Connection {
    incoming: mpsc::Receiver<Incoming>,
    ready: VecDeque<ClientJsonRpcMessage>,
    ledger: Ledger,
    outbox: Outbox,
    /// Nothing else is read before its answer is on its way, because that decides how the rest is understood.
    hello: Option<RequestId>,
    /// What was agreed upon by a hello; `None` for clients that say it with each request.
    agreed: Option<ProtocolVersion>,
    closing: Arc<AtomicBool>,
    ended: watch::Sender<bool>,
}

/// The side of whoever decides how long this goes on.
#[derive(Clone, Debug)]
pub struct Line {
    busy: watch::Receiver<usize>,
    ended: watch::Receiver<bool>,
    closing: Arc<AtomicBool>,
    outbox: Outbox,
}

impl Connection {
    pub fn new(incoming: mpsc::Receiver<Incoming>, outbox: Outbox) -> (Self, Line) {
        let (ledger, busy) = Ledger::new();
        let (ended, ended_watch) = watch::channel(false);
        let closing = Arc::new(AtomicBool::new(false));
        let line = Line { busy, ended: ended_watch, closing: closing.clone(), outbox: outbox.clone() };
        let connection =
            Self { incoming, ready: VecDeque::new(), ledger, outbox, hello: None, agreed: None, closing, ended };
        (connection, line)
    }

    fn take(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::One(message) => self.take_one(message, None),
            Incoming::Many(messages) if self.agreed == Some(ProtocolVersion::V_2025_03_26) => {
                let answered = |message: &&Message| matches!(message, Message::Request { .. } | Message::Broken { .. });
                let batch = self.ledger.begin_batch(messages.iter().filter(answered).count());
                for message in messages {
                    self.take_one(message, batch);
                }
            }
            Incoming::Many(_) => {
                let problem = "batches are only part of protocol version 2025-03-26";
                self.answer(None, wire::error_text(None, &ErrorData::invalid_request(problem, None)));
            }
        }
    }

    fn take_one(&mut self, message: Message, batch: Option<i64>) {
        match message {
            Message::Broken { id, error } => self.answer(batch, wire::error_text(id.as_ref(), &error)),
            Message::Ignored => tracing::debug!("a message that needs no answer was let go"),
            Message::Notification(notification) => self.take_notification(*notification),
            Message::Request { id, request } => {
                let watcher = request.get_meta().get_progress_token();
                let opened = self.admit(&request, batch).and_then(|kind| self.ledger.open(&id, kind, watcher, batch));
                match opened {
                    Ok(number) => {
                        if is_hello(&request) {
                            self.hello = Some(number.clone());
                        }
                        self.ready.push_back(ClientJsonRpcMessage::request(*request, number));
                    }
                    Err(error) => self.answer(batch, wire::error_text(Some(&id), &error)),
                }
            }
        }
    }

    fn admit(&self, request: &ClientRequest, batch: Option<i64>) -> Result<Kind, ErrorData> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(ErrorData::new(ErrorCode(-32000), "the server is shutting down", None));
        }
        if is_hello(request) && batch.is_some() {
            return Err(ErrorData::invalid_request("initialize cannot be part of a batch", None));
        }
        let stands_alone = request.get_meta().protocol_version().is_some();
        match request {
            ClientRequest::SubscriptionsListenRequest(_) if stands_alone => Ok(Kind::Subscription),
            ClientRequest::PingRequest(_) | ClientRequest::DiscoverRequest(_) => Ok(Kind::Call),
            request if stands_alone || is_hello(request) || self.agreed.is_some() => Ok(Kind::Call),
            _ => Err(ErrorData::invalid_params(
                "begin with initialize, or say in _meta which protocol version and client capabilities you have",
                None,
            )),
        }
    }

    fn take_notification(&mut self, mut notification: ClientNotification) {
        if let ClientNotification::CancelledNotification(cancelled) = &mut notification {
            let number = cancelled.params.request_id.as_ref().and_then(|id| self.ledger.number(id));
            let Some(number) = number else { return };
            let entry = self.ledger.close(&number);
            cancelled.params.request_id = Some(number);
            if let Some(joined) = entry.and_then(|entry| self.ledger.settle(entry.batch(), None)) {
                self.outbox.put(joined);
            }
        }
        self.ready.push_back(ClientJsonRpcMessage::notification(notification));
    }

    fn answer(&mut self, batch: Option<i64>, text: Vec<u8>) {
        if let Some(text) = self.ledger.settle(batch, Some(text)) {
            self.outbox.put(text);
        }
    }

    fn put(&mut self, message: ServerJsonRpcMessage) {
        match message {
            JsonRpcMessage::Response(JsonRpcResponse { result, id: number, .. }) => self.put_result(&number, result),
            JsonRpcMessage::Error(JsonRpcError { error, id: Some(number), .. }) => {
                self.greeted(&number, None);
                if let Some(entry) = self.ledger.close(&number) {
                    self.answer(entry.batch(), wire::error_text(Some(&entry.id), &error));
                }
            }
            JsonRpcMessage::Notification(notification) => self.put_notification(notification.notification),
            JsonRpcMessage::Error(JsonRpcError { id: None, .. }) | JsonRpcMessage::Request(_) => {
                tracing::warn!("a message that this server never sends was let go");
            }
        }
    }

    fn put_result(&mut self, number: &RequestId, mut result: ServerResult) {
        let agreed = match &result {
            ServerResult::InitializeResult(hello) => Some(hello.protocol_version.clone()),
            _ => None,
        };
        self.greeted(number, agreed);
        let Some(entry) = self.ledger.close(number) else { return };
        if let ServerResult::SubscriptionsListenResult(listened) = &mut result {
            *listened = SubscriptionsListenResult::complete(entry.id.clone());
            listened.meta.set_server_info(adapter::implementation());
        }
        let text = match serde_json::to_vec(&ServerJsonRpcMessage::response(result, entry.id.clone())) {
            Ok(text) => text,
            Err(error) => {
                tracing::error!(%error, "a result cannot be written down");
                let told = ErrorData::internal_error("the result could not be written down", None);
                wire::error_text(Some(&entry.id), &told)
            }
        };
        self.answer(entry.batch(), text);
    }

    fn put_notification(&mut self, mut notification: ServerNotification) {
        // A request that is over, or was given up while this was on its way, is not spoken of any more.
        if let ServerNotification::ProgressNotification(told) = &notification
            && !self.ledger.is_watched(&told.params.progress_token)
        {
            return;
        }
        if let Some(number) = notification.get_meta().subscription_id() {
            // One that comes after the end of its subscription has nobody to go to.
            let Some(id) = self.ledger.id(&number).cloned() else { return };
            notification.get_meta_mut().set_subscription_id(id);
        }
        match serde_json::to_vec(&ServerJsonRpcMessage::notification(notification)) {
            Ok(text) => self.outbox.put(text),
            Err(error) => tracing::error!(%error, "a notification cannot be written down"),
        }
    }

    fn greeted(&mut self, number: &RequestId, agreed: Option<ProtocolVersion>) {
        if self.hello.as_ref() == Some(number) {
            self.hello = None;
            self.agreed = agreed.or(self.agreed.take());
        }
    }
}

impl Transport<RoleServer> for Connection {
    type Error = ReaderGone;

    /// In order of the calls: the message is in its place before this returns. What is waited for is room.
    fn send(&mut self, message: ServerJsonRpcMessage) -> impl Future<Output = Result<(), ReaderGone>> + Send + 'static {
        self.put(message);
        let outbox = self.outbox.clone();
        async move { outbox.room().await }
    }

    /// Never ends by itself: the library would wait for handlers that nobody waits for. Whoever holds the `Line` ends it.
    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Some(message);
            }
            if self.hello.is_some() {
                pending::<()>().await;
            }
            let received = match self.outbox.room().await {
                Ok(()) => self.incoming.recv().await,
                Err(ReaderGone) => None,
            };
            match received {
                Some(incoming) => self.take(incoming),
                None => {
                    self.ended.send_replace(true);
                    pending::<()>().await;
                }
            }
        }
    }

    async fn close(&mut self) -> Result<(), ReaderGone> {
        Ok(())
    }
}

impl Line {
    /// Until the client has said its last, or reads no answers any more.
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        tokio::select! {
            _ = ended.wait_for(|ended| *ended) => {}
            () = self.outbox.reader_gone() => {}
        }
    }

    /// Until answers wait that the client does not read.
    pub async fn stuck(&self) {
        self.outbox.stuck().await;
    }

    /// Until no request is being worked on.
    pub async fn idle(&self) {
        let _ = self.busy.clone().wait_for(|busy| *busy == 0).await;
    }

    /// Until a request is being worked on.
    pub async fn busy(&self) {
        if self.busy.clone().wait_for(|busy| *busy > 0).await.is_err() {
            pending::<()>().await;
        }
    }

    /// From now on new requests are refused. What is being worked on goes on, and can be given up.
    pub fn refuse_requests(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Until everything that was said is written.
    pub async fn flushed(&self) {
        let _ = self.outbox.empty().await;
    }
}

/// Also one with parameters that make no sense: it is for the handler to say so.
fn is_hello(request: &ClientRequest) -> bool {
    request.method() == "initialize"
}
