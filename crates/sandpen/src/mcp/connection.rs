//! One client on one stream of messages, as the library wants to see it.
//!
//! It answers by itself what is not a request that the handler could answer: broken messages, batches where there are
//! none, requests before the first hello. Nothing that a client sends ends it.

use std::collections::{HashSet, VecDeque};
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

/// Reads of resources that the handler works on at once. Their answers are the largest that there are, and what is being
/// worked on is not yet in the outbox, which would say that it is full.
const MOST_READS: usize = 4;

/// Requests of other kinds, which end soon and by themselves, that are worked on at once. While there are so many nothing more
/// is read: a client can ask faster than lists are made, and these are not in the outbox yet either.
const MOST_BRIEF: usize = 64;

/// The library's side.
#[derive(Debug)]
pub struct Connection {
    incoming: mpsc::Receiver<Incoming>,
    ready: VecDeque<ClientJsonRpcMessage>,
    /// Reads that wait for others to be answered.
    waiting_reads: VecDeque<(RequestId, Box<ClientRequest>)>,
    reads: HashSet<RequestId>,
    brief: HashSet<RequestId>,
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
        let connection = Self {
            incoming,
            ready: VecDeque::new(),
            waiting_reads: VecDeque::new(),
            reads: HashSet::new(),
            brief: HashSet::new(),
            ledger,
            outbox,
            hello: None,
            agreed: None,
            closing,
            ended,
        };
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
                    Ok(number) if matches!(*request, ClientRequest::ReadResourceRequest(_)) => {
                        self.waiting_reads.push_back((number, request));
                    }
                    Ok(number) => {
                        if is_hello(&request) {
                            self.hello = Some(number.clone());
                        }
                        if is_brief(&request) {
                            self.brief.insert(number.clone());
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
            self.is_over(&number);
            self.waiting_reads.retain(|(waiting, _)| *waiting != number);
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
                self.is_over(&number);
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
        self.is_over(number);
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

    fn is_over(&mut self, number: &RequestId) {
        self.reads.remove(number);
        self.brief.remove(number);
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
            let room = self.outbox.room().await;
            // This is asked again after each answer, so a read that waits is not forgotten.
            if room.is_ok()
                && self.reads.len() < MOST_READS
                && let Some((number, request)) = self.waiting_reads.pop_front()
            {
                self.reads.insert(number.clone());
                return Some(ClientJsonRpcMessage::request(*request, number));
            }
            if room.is_ok() && self.brief.len() >= MOST_BRIEF {
                pending::<()>().await;
            }
            let received = match room {
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

/// What waits for nothing but its turn.
fn is_brief(request: &ClientRequest) -> bool {
    request.method().ends_with("/list")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tokio::time::timeout;

    use super::super::outbox::outbox;
    use super::*;

    fn request(id: usize, method: &str) -> Incoming {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({ "uri": "sandpen://x", "_meta": meta });
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        wire::read(message.to_string().as_bytes())
    }

    fn read(id: usize) -> Incoming {
        request(id, "resources/read")
    }

    /// The number of the next request, if there is one to work on.
    async fn next(connection: &mut Connection) -> Option<RequestId> {
        let received = timeout(Duration::from_millis(50), connection.receive()).await.ok()?;
        match received.unwrap() {
            JsonRpcMessage::Request(request) => Some(request.id),
            other => panic!("not a request: {other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_reads_are_worked_on_at_once_and_all_in_the_end() {
        let (sender, incoming) = mpsc::channel(64);
        let (outbox, _outlet) = outbox();
        let (mut connection, _line) = Connection::new(incoming, outbox);
        for id in 0..10 {
            sender.send(read(id)).await.unwrap();
        }
        let mut open = VecDeque::new();
        let mut answered = 0;
        while answered < 10 {
            while let Some(number) = next(&mut connection).await {
                open.push_back(number);
            }
            assert_eq!(open.len(), MOST_READS.min(10 - answered));
            let error = ErrorData::internal_error("this error is part of the test", None);
            let number = open.pop_front().unwrap();
            connection.send(ServerJsonRpcMessage::error(error, Some(number))).await.unwrap();
            answered += 1;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_read_while_many_lists_are_made() {
        let (sender, incoming) = mpsc::channel(MOST_BRIEF + 1);
        let (outbox, _outlet) = outbox();
        let (mut connection, _line) = Connection::new(incoming, outbox);
        for id in 0..=MOST_BRIEF {
            sender.send(request(id, "tools/list")).await.unwrap();
        }
        let mut open = Vec::new();
        while let Some(number) = next(&mut connection).await {
            open.push(number);
        }
        assert_eq!(open.len(), MOST_BRIEF);
        let error = ErrorData::internal_error("this error is part of the test", None);
        connection.send(ServerJsonRpcMessage::error(error, open.pop())).await.unwrap();
        assert!(next(&mut connection).await.is_some());
        assert_eq!(next(&mut connection).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_is_given_up_makes_room_or_never_begins() {
        let (sender, incoming) = mpsc::channel(64);
        let (outbox, _outlet) = outbox();
        let (mut connection, _line) = Connection::new(incoming, outbox);
        for id in 0..MOST_READS + 2 {
            sender.send(read(id)).await.unwrap();
        }
        while next(&mut connection).await.is_some() {}
        let waiting: Vec<_> = connection.waiting_reads.iter().map(|(number, _)| number.clone()).collect();
        for id in [MOST_READS, 0] {
            let params = json!({ "requestId": id });
            let message = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
            connection.take(wire::read(message.to_string().as_bytes()));
        }
        connection.ready.clear();
        assert_eq!(next(&mut connection).await.as_ref(), Some(&waiting[1]));
        assert_eq!(next(&mut connection).await, None);
    }
}
