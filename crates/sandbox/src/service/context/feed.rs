//! What comes out of a driver: read all the time, so that nothing that a run left behind is held up, and given to the run
//! that goes on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::Notify;

use crate::context::marks::{Ended, Mark, Piece, Scanner};
use crate::job::JobStream;
use crate::output::{CappedOutput, OutputCaps};

/// Takes the output of a run.
pub(in crate::service) type Sink = Box<dyn FnMut(JobStream, &[u8]) + Send>;

/// What is kept, of each stream, of what programs print that a run left behind: the next run shows it.
const BETWEEN: OutputCaps = OutputCaps { head: 0, tail: 16 * 1024 };
/// Places that are remembered; drivers have fewer results.
const MOST_PLACES: usize = 64;

pub(super) struct Feed {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    stdout: Half,
    stderr: Half,
    run: Option<Run>,
}

struct Half {
    scanner: Scanner,
    between: CappedOutput,
}

struct Run {
    sink: Sink,
    seen: Seen,
}

/// What a run has said so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// How much of stdout came before the result of each number.
    pub places: Vec<(u32, u64)>,
    pub ended: Option<Ended>,
    pub stderr_done: bool,
    pub broken: bool,
}

impl Seen {
    pub fn is_complete(&self) -> bool {
        self.broken || (self.ended.is_some() && self.stderr_done)
    }

    fn count(&mut self, stream: JobStream, bytes: usize) {
        match stream {
            JobStream::Stdout => self.stdout_bytes += bytes as u64,
            JobStream::Stderr => self.stderr_bytes += bytes as u64,
        }
    }

    fn note(&mut self, stream: JobStream, mark: Mark) {
        match (stream, mark) {
            (JobStream::Stdout, Mark::Item(number)) if self.places.len() < MOST_PLACES => {
                self.places.push((number, self.stdout_bytes));
            }
            (JobStream::Stdout, Mark::Ended(ended)) => self.ended = Some(ended),
            (JobStream::Stderr, Mark::Done) => self.stderr_done = true,
            (JobStream::Stdout, Mark::Item(_) | Mark::Done) | (JobStream::Stderr, Mark::Item(_) | Mark::Ended(_)) => {
                self.broken = true;
            }
        }
    }

    fn is_over(&self, stream: JobStream) -> bool {
        match stream {
            JobStream::Stdout => self.ended.is_some(),
            JobStream::Stderr => self.stderr_done,
        }
    }
}

impl Feed {
    pub fn new() -> Arc<Self> {
        let half = || Half { scanner: Scanner::default(), between: CappedOutput::new(BETWEEN) };
        let state = State { stdout: half(), stderr: half(), run: None };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on what comes is of this run. What came since the last one is shown first.
    pub fn begin(&self, token: &str, mut sink: Sink) {
        let mut state = self.lock();
        let mut seen = Seen::default();
        let State { stdout, stderr, run } = &mut *state;
        for (stream, half) in [(JobStream::Stdout, stdout), (JobStream::Stderr, stderr)] {
            let before = std::mem::replace(&mut half.between, CappedOutput::new(BETWEEN));
            if before.total() > 0 {
                let text = if before.is_truncated() { before.to_text().into_bytes() } else { before.bytes() };
                seen.count(stream, text.len());
                sink(stream, &text);
            }
            half.scanner.begin(token);
        }
        *run = Some(Run { sink, seen });
    }

    /// Returns when the driver has said that the run is over, on both streams, or has said nonsense.
    pub async fn finished(&self) {
        loop {
            let changed = self.changed.notified();
            if self.lock().run.as_ref().is_none_or(|run| run.seen.is_complete()) {
                return;
            }
            changed.await;
        }
    }

    /// So far.
    pub fn seen(&self) -> Seen {
        self.lock().run.as_ref().map(|run| run.seen.clone()).unwrap_or_default()
    }

    /// The run is over, however that came.
    pub fn end(&self) -> Seen {
        let mut state = self.lock();
        let State { stdout, stderr, run } = &mut *state;
        let Some(Run { mut sink, mut seen }) = run.take() else { return Seen::default() };
        for (stream, half) in [(JobStream::Stdout, stdout), (JobStream::Stderr, stderr)] {
            let held = half.scanner.end();
            if !held.is_empty() {
                seen.count(stream, held.len());
                sink(stream, &held);
            }
        }
        seen
    }

    fn push(&self, stream: JobStream, bytes: &[u8]) {
        let mut state = self.lock();
        let State { stdout, stderr, run } = &mut *state;
        let Half { scanner, between } = match stream {
            JobStream::Stdout => stdout,
            JobStream::Stderr => stderr,
        };
        scanner.push(bytes, |piece| match (run.as_mut(), piece) {
            (Some(run), Piece::Output(bytes)) if !run.seen.is_over(stream) => {
                run.seen.count(stream, bytes.len());
                (run.sink)(stream, bytes);
            }
            (_, Piece::Output(bytes)) => between.push(bytes),
            (Some(run), Piece::Mark(mark)) => run.seen.note(stream, mark),
            (Some(run), Piece::Broken) => run.seen.broken = true,
            (None, Piece::Mark(_) | Piece::Broken) => {}
        });
        drop(state);
        self.changed.notify_one();
    }

    pub async fn read(self: Arc<Self>, stream: JobStream, mut from: Box<dyn AsyncRead + Send + Unpin>) {
        let mut buffer = vec![0; 32 * 1024];
        // An error is an end too: that of the interpreter says what happened.
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            self.push(stream, &buffer[..count]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(feed: &Feed, token: &str) -> Arc<Mutex<Vec<u8>>> {
        let shown = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&shown);
        feed.begin(token, Box::new(move |_, bytes| sink.lock().unwrap().extend_from_slice(bytes)));
        shown
    }

    #[tokio::test]
    async fn a_run_has_what_is_its_own_and_what_was_left_behind_before() {
        let feed = Feed::new();
        feed.push(JobStream::Stdout, b"left behind\n");
        let shown = run(&feed, "t1");
        feed.push(JobStream::Stdout, b"one\x1et1 item 1\ntwo\x1et1 done 0 1 2\nthree");
        feed.push(JobStream::Stderr, b"four\x1et1 done\n");
        feed.finished().await;
        let seen = feed.end();
        assert_eq!(*shown.lock().unwrap(), b"left behind\nonetwofour");
        assert_eq!((seen.places, seen.stdout_bytes, seen.broken), (vec![(1, 15)], 18, false));
        let shown = run(&feed, "t2");
        assert_eq!(*shown.lock().unwrap(), b"three");
    }

    #[tokio::test]
    async fn what_prints_between_two_runs_costs_little() {
        let feed = Feed::new();
        for _ in 0..1000 {
            feed.push(JobStream::Stdout, &[b'x'; 4096]);
        }
        let shown = run(&feed, "t");
        let shown = shown.lock().unwrap();
        assert!(shown.len() < 20_000 && !shown.is_empty(), "{}", shown.len());
    }

    #[tokio::test]
    async fn a_driver_that_talks_nonsense_is_found_out() {
        for (stream, text) in [
            (JobStream::Stdout, "\u{1e}t nonsense\n"),
            (JobStream::Stdout, "\u{1e}t done\n"),
            (JobStream::Stderr, "\u{1e}t done 0 0 0\n"),
        ] {
            let feed = Feed::new();
            let _shown = run(&feed, "t");
            feed.push(stream, text.as_bytes());
            feed.finished().await;
            assert!(feed.end().broken, "{text:?}");
        }
    }
}
