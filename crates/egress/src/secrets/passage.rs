//! One connection of a sandbox to a host that has a secret: requests in, filled in; answers back, masked.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as HttpBody, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

use super::body::{Keeping, Replaced, Trailers};
use super::refusal::Refusal;
use super::request::{Filling, Target, check};
use super::response::{Follows, Masks, mask};
use super::upstream::{Line, Trouble, Upstream};
use crate::explicit;
use crate::inspect::{Body, Dial, Stream, Unreached};
use crate::record::Record;

/// How long a connection may wait for its next request.
const IDLE: Duration = Duration::from_secs(5 * 60);

/// A body up to this size is read whole, so that its length can be told to the host.
const MOST_BUFFERED: u64 = 1 << 20;

/// All bodies of one sandbox that are read whole at the same time, in KiB. Beyond that, they are sent in chunks.
const ALL_BUFFERED: usize = 32 << 10;

/// What all connections of one sandbox share.
#[derive(Debug)]
pub(super) struct Common {
    masks: Masks,
    upstream: Upstream,
    buffers: Semaphore,
}

impl Common {
    pub fn new(masks: Masks, extra_roots: Vec<CertificateDer<'static>>) -> Self {
        Self { masks, upstream: Upstream::trusting(extra_roots), buffers: Semaphore::new(ALL_BUFFERED) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    Fresh,
    Used,
}

/// One connection of the sandbox to one host.
pub(super) struct Passage {
    common: Arc<Common>,
    pub target: Target,
    filling: Arc<Filling>,
    dialer: Arc<dyn Dial>,
    pub record: Arc<Record>,
    /// Kept between requests.
    line: Mutex<Option<Line>>,
}

impl Passage {
    pub fn new(
        common: Arc<Common>,
        target: Target,
        filling: Filling,
        dialer: Arc<dyn Dial>,
        record: Arc<Record>,
    ) -> Arc<Self> {
        Arc::new(Self { common, target, filling: Arc::new(filling), dialer, record, line: Mutex::new(None) })
    }

    /// Requests from a connection of the sandbox, one after the other, to its end.
    pub async fn serve(self: Arc<Self>, stream: impl Stream + 'static) {
        let service = service_fn(move |request: Request<Incoming>| {
            let passage = Arc::clone(&self);
            async move {
                let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
                let response = match passage.pass_on(request).await {
                    Ok(response) => response,
                    Err(trouble) => passage.refuse(trouble).response(),
                };
                Ok::<_, Infallible>(response)
            }
        });
        let server = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE)
            .max_buf_size(explicit::MOST_BUFFERED)
            .serve_connection(TokioIo::new(stream), service);
        // A connection that ends in the middle has told its own client so.
        let _ = server.await;
    }

    /// One request alone.
    pub async fn exchange(&self, request: Request<Body>) -> Result<Response<Body>, Unreached> {
        let response = match self.pass_on(request).await {
            Ok(response) => response,
            Err(Trouble::Unreached(unreached)) => return Err(unreached),
            Err(trouble) => self.refuse(trouble).response(),
        };
        let driver = self.line.lock().await.take().map(Line::into_driver);
        Ok(response.map(|inner| Keeping::new(inner, driver).boxed_unsync()))
    }

    async fn pass_on(&self, request: Request<Body>) -> Result<Response<Body>, Trouble> {
        let (mut head, body) = request.into_parts();
        check(&mut head, &self.target)?;
        self.filling.admit(&head)?;
        let asked = head.method.clone();
        let mut line = self.line.lock().await;
        // No value is put into anything before the host has shown who it is.
        let (open, age) = match line.take().filter(Line::is_open) {
            Some(open) => (open, Age::Used),
            None => (self.connect().await?, Age::Fresh),
        };
        let (request, buffer) = self.fill(head, body).await?;
        let (open, response) = self.send(open, age, request).await?;
        drop(buffer);
        let (mut head, body) = response.into_parts();
        let follows = if body.is_end_stream() { Follows::Nothing } else { Follows::Body };
        let masks = &self.common.masks;
        mask(&mut head, &asked, follows, masks)?;
        // Kept for the next request, but not when this answer was refused: what is left of it would be taken for the next.
        *line = Some(open);
        let body = body.map_err(Into::into).boxed_unsync();
        let body = match follows {
            Follows::Nothing => body,
            Follows::Body => {
                let trailers = Trailers::Masked(masks.clone());
                Replaced::new(body, Arc::clone(&masks.texts), trailers, Box::new(|_| {})).boxed_unsync()
            }
        };
        Ok(Response::from_parts(head, body))
    }

    /// Put the values in. A small body is read whole; the permit says that there was room for it.
    async fn fill(&self, mut head: Parts, body: Body) -> Result<(Request<Body>, Option<SemaphorePermit<'_>>), Refusal> {
        for number in self.filling.fill(&mut head)? {
            self.record.put_in(self.filling.name(number));
        }
        let Some(patterns) = self.filling.for_body(&head.headers).filter(|_| !body.is_end_stream()) else {
            return Ok((Request::from_parts(head, body), None));
        };
        let length = body.size_hint().exact().filter(|length| *length <= MOST_BUFFERED);
        let room = length.and_then(|length| {
            let kibibytes = u32::try_from(length / 1024 + 1).unwrap_or(u32::MAX);
            self.common.buffers.try_acquire_many(kibibytes).ok()
        });
        let (filling, record) = (Arc::clone(&self.filling), Arc::clone(&self.record));
        let tell = Box::new(move |number| record.put_in(filling.name(number)));
        let mut body = Replaced::new(body, patterns, Trailers::Dropped, tell).boxed_unsync();
        head.headers.remove(header::CONTENT_LENGTH);
        head.headers.remove(header::TRAILER);
        if room.is_some() {
            let whole = body.collect().await.map_err(|_| cut_off())?.to_bytes();
            head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(whole.len()));
            body = Full::new(whole).map_err(|never| match never {}).boxed_unsync();
        }
        Ok((Request::from_parts(head, body), room))
    }

    /// A host may close a connection that waited too long. Of a request that comes back nothing was sent, so it may be sent
    /// again.
    async fn send(
        &self,
        mut open: Line,
        age: Age,
        request: Request<Body>,
    ) -> Result<(Line, Response<Incoming>), Trouble> {
        match (open.send(request).await, age) {
            (Ok(response), _) => Ok((open, response)),
            (Err(Trouble::Stale(request)), Age::Used) => {
                let mut open = self.connect().await?;
                let response = open.send(*request).await?;
                Ok((open, response))
            }
            (Err(trouble), _) => Err(trouble),
        }
    }

    async fn connect(&self) -> Result<Line, Trouble> {
        self.common.upstream.connect(&self.target, &*self.dialer).await
    }

    fn refuse(&self, trouble: Trouble) -> Refusal {
        match trouble {
            Trouble::Refused(refusal) => refusal,
            Trouble::Stale(_) => cut_off(),
            Trouble::Unreached(unreached) => {
                if let Unreached::Refused(denial) = unreached {
                    self.record.refuse(denial);
                }
                Refusal::upstream(unreached.to_string())
            }
        }
    }
}

fn cut_off() -> Refusal {
    Refusal::upstream("the connection was closed in the middle of the request")
}
