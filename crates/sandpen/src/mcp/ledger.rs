//! Requests that are being worked on: whose answer belongs to which identifier, and to which batch.
//!
//! Inside, every request has a number that was never used before. So a client may use an identifier again right after it
//! gave a request up, and a late answer to the first cannot be taken for one to the second.

use std::collections::HashMap;

use rmcp::model::{ErrorCode, ErrorData, ProgressToken, RequestId};
use tokio::sync::watch;

/// Far more than any client needs, and a bound all the same.
const MOST_OPEN: usize = 4096;

#[derive(Debug)]
pub struct Ledger {
    last_number: i64,
    open: HashMap<i64, Entry>,
    numbers: HashMap<RequestId, i64>,
    /// Those who want to be told of progress, and how many requests each token stands for.
    watchers: HashMap<ProgressToken, usize>,
    batches: HashMap<i64, Batch>,
    /// Requests that will end by themselves.
    busy: watch::Sender<usize>,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub id: RequestId,
    batch: Option<i64>,
    kind: Kind,
    watcher: Option<ProgressToken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Call,
    /// Goes on until the client or the server ends it.
    Subscription,
}

#[derive(Debug)]
struct Batch {
    missing: usize,
    answers: Vec<Vec<u8>>,
}

impl Ledger {
    /// With a place to look how many requests are being worked on.
    pub fn new() -> (Self, watch::Receiver<usize>) {
        let (busy, watched) = watch::channel(0);
        let ledger = Self {
            last_number: 0,
            open: HashMap::new(),
            numbers: HashMap::new(),
            watchers: HashMap::new(),
            batches: HashMap::new(),
            busy,
        };
        (ledger, watched)
    }

    /// The number that stands for the request from now on.
    pub fn open(
        &mut self,
        id: &RequestId,
        kind: Kind,
        watcher: Option<ProgressToken>,
        batch: Option<i64>,
    ) -> Result<RequestId, ErrorData> {
        if self.open.len() >= MOST_OPEN {
            return Err(ErrorData::new(ErrorCode(-32000), "too many requests at once; wait for answers", None));
        }
        if self.numbers.contains_key(id) {
            return Err(ErrorData::invalid_request("a request with this id is still being worked on", None));
        }
        let number = self.next_number();
        if let Some(watcher) = &watcher {
            *self.watchers.entry(watcher.clone()).or_default() += 1;
        }
        self.open.insert(number, Entry { id: id.clone(), batch, kind, watcher });
        self.numbers.insert(id.clone(), number);
        self.count(kind, 1);
        Ok(RequestId::Number(number))
    }

    /// Where the answer to a request goes; nowhere if it was given up.
    pub fn close(&mut self, number: &RequestId) -> Option<Entry> {
        let RequestId::Number(number) = number else { return None };
        let entry = self.open.remove(number)?;
        self.numbers.remove(&entry.id);
        self.count(entry.kind, -1);
        if let Some(watcher) = &entry.watcher
            && let Some(requests) = self.watchers.get_mut(watcher)
        {
            *requests -= 1;
            if *requests == 0 {
                self.watchers.remove(watcher);
            }
        }
        Some(entry)
    }

    /// Whether a request that this token stands for is still being worked on.
    pub fn is_watched(&self, watcher: &ProgressToken) -> bool {
        self.watchers.contains_key(watcher)
    }

    pub fn number(&self, id: &RequestId) -> Option<RequestId> {
        self.numbers.get(id).copied().map(RequestId::Number)
    }

    /// The client's identifier of a request that is open.
    pub fn id(&self, number: &RequestId) -> Option<&RequestId> {
        match number {
            RequestId::Number(number) => self.open.get(number).map(|entry| &entry.id),
            RequestId::String(_) => None,
        }
    }

    /// A batch of so many messages that will be answered, or not. Each of them is settled once.
    pub fn begin_batch(&mut self, messages: usize) -> Option<i64> {
        let number = self.next_number();
        let batch = Batch { missing: messages, answers: Vec::new() };
        // One that nothing is said to must not be remembered: nothing would end it.
        (messages > 0).then(|| self.batches.insert(number, batch)).map(|_| number)
    }

    /// What can be sent now that this answer is there, or now that there will be none.
    pub fn settle(&mut self, batch: Option<i64>, answer: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let Some(number) = batch else { return answer };
        let batch = self.batches.get_mut(&number)?;
        batch.answers.extend(answer);
        batch.missing = batch.missing.saturating_sub(1);
        if batch.missing > 0 {
            return None;
        }
        let answers = self.batches.remove(&number)?.answers;
        (!answers.is_empty()).then(|| [b"[".as_slice(), &answers.join(&b','), b"]"].concat())
    }

    fn next_number(&mut self) -> i64 {
        self.last_number += 1;
        self.last_number
    }

    fn count(&self, kind: Kind, change: isize) {
        match kind {
            Kind::Call => self.busy.send_modify(|busy| *busy = busy.saturating_add_signed(change)),
            Kind::Subscription => {}
        }
    }
}

impl Entry {
    pub fn batch(&self) -> Option<i64> {
        self.batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> RequestId {
        RequestId::String(text.into())
    }

    #[test]
    fn an_identifier_is_free_again_when_its_request_is_over() {
        let (mut ledger, busy) = Ledger::new();
        let first = ledger.open(&id("a"), Kind::Call, None, None).unwrap();
        assert_eq!(ledger.open(&id("a"), Kind::Call, None, None).unwrap_err().code.0, -32600);
        assert_eq!(*busy.borrow(), 1);
        assert_eq!(ledger.close(&first).unwrap().id, id("a"));
        assert!(ledger.close(&first).is_none(), "a second answer has nowhere to go");
        let second = ledger.open(&id("a"), Kind::Call, None, None).unwrap();
        assert_ne!(first, second);
        ledger.close(&second);
        assert_eq!(*busy.borrow(), 0);
    }

    #[test]
    fn a_text_and_a_number_are_different_identifiers() {
        let (mut ledger, _busy) = Ledger::new();
        assert!(ledger.open(&id("1"), Kind::Call, None, None).is_ok());
        assert!(ledger.open(&RequestId::Number(1), Kind::Call, None, None).is_ok());
    }

    #[test]
    fn a_batch_is_answered_once_and_whole() {
        let (mut ledger, _busy) = Ledger::new();
        let batch = ledger.begin_batch(3);
        assert_eq!(ledger.settle(batch, Some(b"1".to_vec())), None);
        assert_eq!(ledger.settle(batch, None), None);
        assert_eq!(ledger.settle(batch, Some(b"2".to_vec())), Some(b"[1,2]".to_vec()));
        let silent = ledger.begin_batch(1);
        assert_eq!(ledger.settle(silent, None), None);
        ledger.begin_batch(0);
        assert!(ledger.batches.is_empty(), "a batch is remembered that is over");
    }

    #[test]
    fn nobody_is_told_of_progress_when_the_last_request_is_over() {
        let (mut ledger, _busy) = Ledger::new();
        let token = ProgressToken(id("token"));
        let first = ledger.open(&id("a"), Kind::Call, Some(token.clone()), None).unwrap();
        let second = ledger.open(&id("b"), Kind::Call, Some(token.clone()), None).unwrap();
        ledger.close(&first);
        assert!(ledger.is_watched(&token));
        ledger.close(&second);
        assert!(!ledger.is_watched(&token));
    }

    #[test]
    fn a_subscription_keeps_nobody_waiting() {
        let (mut ledger, busy) = Ledger::new();
        ledger.open(&id("listen"), Kind::Subscription, None, None).unwrap();
        assert_eq!(*busy.borrow(), 0);
    }
}
