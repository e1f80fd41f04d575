//! Bodies that are changed while they pass.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::replace::{Patterns, Replacer};
use super::response::{Masks, mask_headers};
use crate::inspect::Body;

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// What happens to the headers that may come after a body.
#[derive(Clone, Debug)]
pub(super) enum Trailers {
    Dropped,
    Masked(Masks),
}

/// A body in which texts are replaced. Ends with a fault whenever the inner one does, so that no rest is told.
pub(super) struct Replaced {
    inner: Body,
    replacer: Replacer,
    trailers: Trailers,
    state: State,
    /// Told the number of each text that was put in, once.
    tell: Box<dyn FnMut(usize) + Send>,
    told: BTreeSet<usize>,
}

enum State {
    Flowing,
    /// The data is over; these may follow.
    Trailing(Option<HeaderMap>),
}

impl Replaced {
    pub fn new(inner: Body, patterns: Arc<Patterns>, trailers: Trailers, tell: Box<dyn FnMut(usize) + Send>) -> Self {
        let replacer = Replacer::new(patterns);
        Self { inner, replacer, trailers, state: State::Flowing, tell, told: BTreeSet::new() }
    }

    fn tell_what_is_new(&mut self) {
        for number in self.replacer.replaced() {
            if self.told.insert(number) {
                (self.tell)(number);
            }
        }
    }
}

impl HttpBody for Replaced {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        loop {
            if let State::Trailing(trailers) = &mut self.state {
                return Poll::Ready(trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
            }
            let frame = match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Err(fault)) => return Poll::Ready(Some(Err(fault))),
                Some(Ok(frame)) => Some(frame),
                None => None,
            };
            let mut out = Vec::new();
            match frame.map(Frame::into_data) {
                Some(Ok(data)) => self.replacer.push(&data, &mut out),
                Some(Err(frame)) => {
                    self.replacer.finish(&mut out);
                    let trailers = match (&self.trailers, frame.into_trailers()) {
                        (Trailers::Masked(masks), Ok(mut trailers)) => {
                            mask_headers(&mut trailers, masks);
                            Some(trailers)
                        }
                        (Trailers::Masked(_) | Trailers::Dropped, _) => None,
                    };
                    self.state = State::Trailing(trailers);
                }
                None => {
                    self.replacer.finish(&mut out);
                    self.state = State::Trailing(None);
                }
            }
            self.tell_what_is_new();
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(out.into()))));
            }
        }
    }
}

/// A body that keeps something alive for as long as it flows.
pub(super) struct Keeping<K> {
    inner: Body,
    _kept: K,
}

impl<K> Keeping<K> {
    pub fn new(inner: Body, kept: K) -> Self {
        Self { inner, _kept: kept }
    }
}

impl<K: Unpin> HttpBody for Keeping<K> {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
