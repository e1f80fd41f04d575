//! The output of a job: kept once, read by any number of followers.
//!
//! Followers read from what is kept for everybody, so that one who is slow or never reads costs no memory and holds up
//! nobody: it skips, and is told how much.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::watch;

use super::journal::{Entry, Journal, Journals};
use crate::error::Result;
use crate::job::{JobChunk, JobOutput, JobStatus, JobStream};
use crate::output::{CappedOutput, OutputCaps};

/// A follower who comes late gets what was kept in pieces of this size.
const CHUNK: usize = 64 * 1024;

pub(super) struct Streams {
    kept: watch::Sender<KeptStreams>,
    journal: Mutex<Journaled>,
}

/// What of it is on disk too.
#[derive(Debug)]
enum Journaled {
    NotYet,
    Here(Box<Journal>),
    /// It was removed, or the job has ended without one.
    No,
}

#[derive(Debug)]
struct KeptStreams {
    output: JobOutput,
    open: bool,
}

impl Streams {
    pub fn new(caps: OutputCaps) -> Self {
        let output = JobOutput { stdout: CappedOutput::with_lines(caps), stderr: CappedOutput::with_lines(caps) };
        Self { kept: watch::Sender::new(KeptStreams { output, open: true }), journal: Mutex::new(Journaled::NotYet) }
    }

    pub fn restored(output: JobOutput, journal: Journal) -> Self {
        let kept = watch::Sender::new(KeptStreams { output, open: true });
        Self { kept, journal: Mutex::new(Journaled::Here(Box::new(journal))) }
    }

    fn journal(&self) -> MutexGuard<'_, Journaled> {
        // A panic under the lock is a fault of one call; what is on disk is changed in single steps and stays whole.
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the output is on disk before anybody sees it; what there was so far, too. Not for a job that has ended.
    pub fn outlive(&self, journals: &Journals, entry: impl FnOnce() -> Entry) -> Result<()> {
        let mut journal = self.journal();
        if matches!(*journal, Journaled::NotYet) {
            *journal = Journaled::Here(Box::new(journals.begin(entry(), &self.snapshot())?));
        }
        Ok(())
    }

    /// Write down how the job ended.
    pub fn conclude(&self, status: &JobStatus) -> Result<()> {
        let mut journal = self.journal();
        match &mut *journal {
            Journaled::Here(here) => return here.conclude(SystemTime::now(), status.clone()),
            Journaled::NotYet => *journal = Journaled::No,
            Journaled::No => {}
        }
        Ok(())
    }

    pub fn is_on_disk(&self) -> bool {
        matches!(*self.journal(), Journaled::Here(_))
    }

    /// The job is to be known to nobody any more.
    pub fn forget(&self) {
        if let Journaled::Here(journal) = std::mem::replace(&mut *self.journal(), Journaled::No) {
            journal.remove();
        }
    }

    pub fn push(&self, stream: JobStream, bytes: &[u8]) {
        // Until it is in both places: whoever asks for it to outlive us now must not miss it.
        let mut journal = self.journal();
        if let Journaled::Here(here) = &mut *journal
            && let Err(error) = here.push(stream, bytes)
        {
            // The run must not stop for it. What is there is true up to here.
            tracing::warn!(?error, "the output of a job is not kept on disk any more");
        }
        self.kept.send_modify(|kept| match stream {
            JobStream::Stdout => kept.output.stdout.push(bytes),
            JobStream::Stderr => kept.output.stderr.push(bytes),
        });
    }

    /// There will be no more.
    pub fn close(&self) {
        self.kept.send_modify(|kept| {
            kept.output.stdout.shrink();
            kept.output.stderr.shrink();
            kept.open = false;
        });
    }

    pub fn caps(&self) -> OutputCaps {
        self.kept.borrow().output.stdout.caps()
    }

    pub fn snapshot(&self) -> JobOutput {
        self.kept.borrow().output.clone()
    }

    pub fn kept_bytes(&self) -> usize {
        let kept = self.kept.borrow();
        kept.output.stdout.kept() + kept.output.stderr.kept()
    }

    pub fn follow(&self) -> JobFollower {
        JobFollower { kept: self.kept.subscribe(), stdout_at: 0, stderr_at: 0, next: JobStream::Stdout }
    }
}

/// Reads a job's output as it comes.
///
/// The order within each stream is the program's; between the two it is that of reading, which is close to it while the
/// follower keeps up.
#[derive(Debug)]
pub struct JobFollower {
    kept: watch::Receiver<KeptStreams>,
    stdout_at: u64,
    stderr_at: u64,
    /// Looked at first, so that a flood on one stream does not hide the other.
    next: JobStream,
}

impl JobFollower {
    /// The next piece, or `None` when there will be no more. May be given up and called again: nothing is lost.
    pub async fn next(&mut self) -> Option<JobChunk> {
        let mut is_last_look = false;
        loop {
            if let Some(chunk) = self.waiting() {
                return Some(chunk);
            }
            if is_last_look || !self.kept.borrow().open {
                return self.waiting();
            }
            // A job that is forgotten can still be read to its end.
            is_last_look = self.kept.changed().await.is_err();
        }
    }

    fn waiting(&mut self) -> Option<JobChunk> {
        let other = match self.next {
            JobStream::Stdout => JobStream::Stderr,
            JobStream::Stderr => JobStream::Stdout,
        };
        let kept = self.kept.borrow_and_update();
        for (stream, then) in [(self.next, other), (other, self.next)] {
            let (output, at) = match stream {
                JobStream::Stdout => (&kept.output.stdout, &mut self.stdout_at),
                JobStream::Stderr => (&kept.output.stderr, &mut self.stderr_at),
            };
            let (skipped, bytes) = output.part(*at, CHUNK);
            if skipped > 0 || !bytes.is_empty() {
                *at += skipped + bytes.len() as u64;
                self.next = then;
                return Some(JobChunk { stream, bytes, skipped });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPS: OutputCaps = OutputCaps { head: 10, tail: 10 };

    fn chunk(stream: JobStream, bytes: &[u8], skipped: u64) -> Option<JobChunk> {
        Some(JobChunk { stream, bytes: bytes.to_vec(), skipped })
    }

    #[tokio::test]
    async fn a_follower_gets_what_was_kept_and_then_what_comes() {
        let streams = Streams::new(CAPS);
        streams.push(JobStream::Stdout, b"first");
        let mut follower = streams.follow();
        assert_eq!(follower.next().await, chunk(JobStream::Stdout, b"first", 0));
        let coming = tokio::spawn(async move { (follower.next().await, follower) });
        tokio::task::yield_now().await;
        streams.push(JobStream::Stderr, b"second");
        let (second, mut follower) = coming.await.unwrap();
        assert_eq!(second, chunk(JobStream::Stderr, b"second", 0));
        streams.push(JobStream::Stdout, b"third");
        streams.close();
        assert_eq!(follower.next().await, chunk(JobStream::Stdout, b"third", 0));
        assert_eq!(follower.next().await, None);
        assert_eq!(follower.next().await, None);
    }

    #[tokio::test]
    async fn a_slow_follower_skips_and_is_told() {
        let streams = Streams::new(CAPS);
        let mut follower = streams.follow();
        streams.push(JobStream::Stdout, b"0123456789abc");
        assert_eq!(follower.next().await, chunk(JobStream::Stdout, b"0123456789", 0));
        streams.push(JobStream::Stdout, &[b'x'; 1000]);
        streams.push(JobStream::Stderr, b"e");
        assert_eq!(follower.next().await, chunk(JobStream::Stderr, b"e", 0), "it is not hidden by the flood");
        assert_eq!(follower.next().await, chunk(JobStream::Stdout, &[b'x'; 10], 993));
    }

    #[tokio::test]
    async fn a_forgotten_job_can_be_read_to_its_end() {
        let streams = Streams::new(CAPS);
        let mut follower = streams.follow();
        streams.push(JobStream::Stdout, b"a");
        drop(streams);
        assert_eq!(follower.next().await, chunk(JobStream::Stdout, b"a", 0));
        assert_eq!(follower.next().await, None);
    }
}
