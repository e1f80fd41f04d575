//! Bytes on their way in: a piece at a time, with bounds on how many and on how slowly they come.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT};
use http_body_util::BodyExt;
use sandbox::{Error, WriteFile};
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, timeout, timeout_at};

use super::failure::Failure;
use crate::http::body;

/// Between two pieces.
const PATIENCE: Duration = Duration::from_secs(30);

/// For a body of any size, before it must have brought something.
const GRACE: Duration = Duration::from_secs(300);

/// What it must bring in a second after that, on average: whoever sends a byte now and then holds a connection and a process of
/// the sandbox.
const LEAST_RATE: u64 = 16 << 10;

/// For the sandbox to take a piece, or to put a whole file in its place. Code in it can stop whoever takes them.
const STUCK: Duration = Duration::from_secs(60);

/// The body of a request, read as far as it was asked for.
#[derive(Debug)]
pub struct Intake {
    body: Body,
    largest: u64,
    received: u64,
    began: Instant,
    declared: Option<u64>,
    waits_for_word: bool,
}

impl Intake {
    pub fn new(headers: &HeaderMap, body: Body, largest: u64) -> Self {
        let declared = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let waits_for_word = headers.contains_key(EXPECT);
        Self { body, largest, received: 0, began: Instant::now(), declared, waits_for_word }
    }

    /// How long the body is, by its sender's word.
    pub fn declared(&self) -> Option<u64> {
        self.declared
    }

    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        if self.declared.is_some_and(|declared| declared > self.largest) {
            return Err(Failure::TooLarge);
        }
        loop {
            let end = self.began + allowed(self.received);
            let Ok(Ok(frame)) = timeout_at(end, timeout(PATIENCE, self.body.frame())).await else {
                return Err(Failure::TooSlow);
            };
            let Some(frame) = frame else { return Ok(None) };
            let Ok(data) = frame.map_err(|_| Failure::Broken)?.into_data() else { continue };
            self.received += data.len() as u64;
            if self.received > self.largest {
                return Err(Failure::TooLarge);
            }
            if !data.is_empty() {
                return Ok(Some(data));
            }
        }
    }

    /// All of a body that fits in memory.
    pub async fn whole(&mut self) -> Result<Vec<u8>, Failure> {
        let mut whole = Vec::new();
        while let Some(piece) = self.next().await? {
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    }

    /// After a refusal. Whoever still sends does not read the answer; whoever asked before sending is not told to begin.
    pub async fn farewell(self, failure: &Failure) {
        let is_over = matches!(failure, Failure::Broken | Failure::TooSlow);
        let has_not_begun = self.waits_for_word && self.received == 0;
        if !is_over && !has_not_begun {
            body::farewell(self.body).await;
        }
    }
}

/// How long a body may have taken that has brought so much.
fn allowed(received: u64) -> Duration {
    GRACE + Duration::from_secs(received / LEAST_RATE)
}

/// As much of a piece as the sandbox takes at once, and at least a byte. After a failure the file must not be used any more but
/// to learn why.
pub async fn put_some(file: &mut Box<dyn WriteFile>, piece: &[u8]) -> Result<usize, Stopped> {
    match timeout(STUCK, file.write(piece)).await {
        Ok(Ok(count @ 1..)) => Ok(count),
        Ok(Ok(0) | Err(_)) => Err(Stopped::Broke),
        Err(_) => Err(Stopped::Stuck),
    }
}

/// One piece into the sandbox. After a failure the file must not be used any more but to learn why.
pub async fn put(file: &mut Box<dyn WriteFile>, piece: &[u8]) -> Result<(), Stopped> {
    match timeout(STUCK, file.write_all(piece)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Stopped::Broke),
        Err(_) => Err(Stopped::Stuck),
    }
}

/// Why a piece did not get in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The file knows why.
    Broke,
    Stuck,
}

impl Stopped {
    /// What to tell of it, by the file that it happened to.
    pub async fn explain(self, file: Box<dyn WriteFile>) -> Failure {
        match self {
            Self::Stuck => stuck().into(),
            Self::Broke => match finish(file).await {
                Err(failure) => failure,
                Ok(()) => Error::internal("a file was taken that broke before").into(),
            },
        }
    }
}

/// Put a file in its place.
pub async fn finish(file: Box<dyn WriteFile>) -> Result<(), Failure> {
    match timeout(STUCK, file.commit()).await {
        Ok(done) => done.map_err(Failure::from),
        Err(_) => Err(stuck().into()),
    }
}

fn stuck() -> Error {
    Error::unavailable("the sandbox does not take what is sent to it")
}

/// All that comes, into a file that appears when it is whole. Returns how much that was.
pub async fn pour(intake: &mut Intake, mut file: Box<dyn WriteFile>) -> Result<u64, Failure> {
    while let Some(piece) = intake.next().await? {
        if let Err(stopped) = put(&mut file, &piece).await {
            return Err(stopped.explain(file).await);
        }
    }
    finish(file).await?;
    Ok(intake.received)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intake(sizes: &[usize], declared: Option<&'static str>) -> Intake {
        let pieces: Vec<_> = sizes.iter().map(|size| Ok::<_, std::io::Error>(Bytes::from(vec![b' '; *size]))).collect();
        let headers = declared.map(|length| (CONTENT_LENGTH, http::HeaderValue::from_static(length)));
        Intake::new(&headers.into_iter().collect(), Body::from_stream(tokio_stream::iter(pieces)), 10)
    }

    #[tokio::test]
    async fn a_body_of_the_largest_size_is_taken_and_one_byte_more_is_not() {
        assert_eq!(intake(&[4, 0, 6], None).whole().await.unwrap().len(), 10);
        assert!(matches!(intake(&[4, 6, 1], None).whole().await, Err(Failure::TooLarge)));
        assert!(matches!(intake(&[], Some("11")).next().await, Err(Failure::TooLarge)), "nothing needs to come");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_or_trickles_is_given_up_and_a_slow_one_is_not() {
        let every = |seconds: u64, bytes: usize, count: usize| {
            let pieces = futures_util::stream::unfold(0, move |sent| async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                (sent < count).then(|| (Ok::<_, std::io::Error>(Bytes::from(vec![b' '; bytes])), sent + 1))
            });
            Intake::new(&HeaderMap::new(), Body::from_stream(pieces), u64::MAX)
        };
        assert!(matches!(every(31, 1, 1).whole().await, Err(Failure::TooSlow)));
        assert!(matches!(every(1, 1, 400).whole().await, Err(Failure::TooSlow)));
        assert_eq!(every(1, 20 << 10, 1000).whole().await.unwrap().len(), 1000 * (20 << 10));
    }
}
