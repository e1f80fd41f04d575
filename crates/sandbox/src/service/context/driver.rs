//! A driver that runs: one exec that stays, and one run in it after the other.

use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::feed::{Feed, Seen, Sink};
use crate::context::ContextEnd;
use crate::engine::{Process, ProcessControl};
use crate::error::Result;
use crate::exec::{ExecOutcome, ExecStatus, ExecUsage, Signal};
use crate::id::SandboxId;
use crate::job::JobStream;
use crate::network::NetworkActivity;
use crate::path::GuestPath;

/// How long a run may take to stop that was interrupted. A job that is asked to stop is given up after five seconds.
const GRACE: Duration = Duration::from_secs(2);
/// How long a kill may take to show.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long output is read after the end: a program that was left behind may hold the stream open for ever.
const AFTER_END: Duration = Duration::from_millis(500);

pub(super) struct Driver {
    pub life: Arc<Life>,
    /// The program of the interpreter.
    pub program: String,
    /// Below it each run has a directory for its results.
    pub base: GuestPath,
    stdin: Box<dyn AsyncWrite + Send + Unpin>,
    feed: Arc<Feed>,
    readers: JoinSet<()>,
}

/// Whether an interpreter lives, and the power to end it. The last copy ends it too.
pub(super) struct Life {
    control: Arc<dyn ProcessControl>,
    ends: watch::Receiver<Option<ExecOutcome>>,
    /// Why it was ended, when we did.
    reason: OnceLock<ContextEnd>,
    branched: Arc<AtomicBool>,
    _alive: mpsc::Sender<()>,
}

/// What was branched off is below the same exec and has a life of its own: then the interpreter and its group alone are ended.
async fn kill(control: &dyn ProcessControl, branched: &AtomicBool) -> Result<()> {
    if branched.load(Ordering::Acquire) { control.signal(Signal::Kill).await } else { control.kill().await }
}

impl Life {
    /// Kill the interpreter and everything that it started, and wait until that shows.
    pub async fn end(&self, reason: ContextEnd) {
        if self.ends.borrow().is_some() {
            return;
        }
        let _ = self.reason.set(reason);
        let killing = async {
            if let Err(error) = kill(&*self.control, &self.branched).await {
                tracing::warn!(?error, "the interpreter of a context was not killed");
            }
            self.ended().await;
        };
        let _ = timeout(PATIENCE, killing).await;
    }

    pub async fn ended(&self) {
        let _ = self.ends.clone().wait_for(Option::is_some).await;
    }

    /// From now on its end is not that of everything that came of it.
    pub fn has_branches(&self) {
        self.branched.store(true, Ordering::Release);
    }

    /// Its end is that of everything again: nothing that was branched off is to stay.
    pub fn takes_branches_along(&self) {
        self.branched.store(false, Ordering::Release);
    }

    /// `None` while it lives.
    pub fn end_reason(&self) -> Option<ContextEnd> {
        if let Some(reason) = self.reason.get() {
            return Some(*reason);
        }
        self.outcome().map(|outcome| ContextEnd::Ended(outcome.status))
    }

    fn outcome(&self) -> Option<ExecOutcome> {
        self.ends.borrow().clone()
    }
}

/// A run that is over.
pub(super) struct Turned {
    pub outcome: ExecOutcome,
    pub seen: Seen,
}

/// Why a run is to stop.
#[derive(Clone, Copy)]
enum Wish {
    TimedOut,
    Cancelled,
}

impl Wish {
    fn status(self) -> ExecStatus {
        match self {
            Self::TimedOut => ExecStatus::TimedOut,
            Self::Cancelled => ExecStatus::Cancelled,
        }
    }
}

impl Driver {
    pub fn new(process: Process, program: String, base: GuestPath) -> Option<Self> {
        let Process { stdin, stdout, stderr, control } = process;
        let stdin = stdin?;
        let control: Arc<dyn ProcessControl> = Arc::from(control);
        let (end, ends) = watch::channel(None);
        let (alive, nobody) = mpsc::channel(1);
        let branched = Arc::new(AtomicBool::new(false));
        tokio::spawn(supervise(Arc::clone(&control), Arc::clone(&branched), end, nobody));
        let feed = Feed::new();
        let mut readers = JoinSet::new();
        readers.spawn(Arc::clone(&feed).read(JobStream::Stdout, stdout));
        readers.spawn(Arc::clone(&feed).read(JobStream::Stderr, stderr));
        let life = Arc::new(Life { control, ends, reason: OnceLock::new(), branched, _alive: alive });
        Some(Self { life, program, base, stdin, feed, readers })
    }

    /// Run some code to its end. A run that is given up before takes the interpreter with it: who knows what it does.
    pub async fn turn(
        &mut self,
        verb: &str,
        number: u32,
        code: &[u8],
        time: Duration,
        sink: Sink,
        stopped: impl Future<Output = ()>,
    ) -> Result<Turned> {
        let token = SandboxId::random()?;
        let started = Instant::now();
        let unfinished = Unfinished(Some(Arc::clone(&self.life)));
        self.feed.begin(token.as_str(), sink);
        let mut request = format!("{verb} {token} {number} {}\n", code.len()).into_bytes();
        request.extend_from_slice(code);
        let mut wish = None;
        let mut asked = false;
        {
            let asking = async {
                // Whoever does not take it has ended, or says so by being late.
                asked = self.stdin.write_all(&request).await.is_ok() && self.stdin.flush().await.is_ok();
                pending::<()>().await;
            };
            let over = async {
                tokio::select! {
                    biased;
                    () = self.feed.finished() => {}
                    () = self.life.ended() => {}
                }
            };
            let (mut asking, mut over) = (pin!(asking), pin!(over));
            tokio::select! {
                biased;
                () = &mut over => {}
                () = stopped => wish = Some(Wish::Cancelled),
                () = tokio::time::sleep(time) => wish = Some(Wish::TimedOut),
                () = &mut asking => {}
            }
            if wish.is_some() {
                let interrupted = async {
                    let _ = self.life.control.signal(Signal::Interrupt).await;
                    over.await;
                };
                tokio::select! {
                    _ = timeout(GRACE, interrupted) => {}
                    () = asking => {}
                }
            }
        }
        let ended = self.settle(asked).await;
        let seen = self.feed.end();
        unfinished.over();
        let wall = started.elapsed();
        let outcome = match (&ended, seen.ended) {
            (None, Some(mark)) => ExecOutcome {
                status: wish.map_or(ExecStatus::Exited(mark.exit_code.into()), Wish::status),
                usage: ExecUsage {
                    wall,
                    cpu: Duration::from_millis(mark.cpu_milliseconds.into()),
                    peak_memory: u64::from(mark.peak_kibibytes) << 10,
                },
                network: NetworkActivity::default(),
            },
            (Some(outcome), _) => ExecOutcome {
                status: wish.map_or(outcome.status, Wish::status),
                usage: ExecUsage { wall, ..outcome.usage },
                network: NetworkActivity::default(),
            },
            (None, None) => ExecOutcome {
                status: wish.map_or(ExecStatus::Signalled(Signal::Kill.number()), Wish::status),
                usage: ExecUsage { wall, ..ExecUsage::default() },
                network: NetworkActivity::default(),
            },
        };
        Ok(Turned { outcome, seen })
    }

    /// See to it that the interpreter waits for the next run, or is no more. How it ended in the second case.
    async fn settle(&mut self, asked: bool) -> Option<ExecOutcome> {
        let seen = self.feed.seen();
        if self.life.outcome().is_none() {
            if seen.broken || (!asked && seen.ended.is_some()) {
                self.life.end(ContextEnd::Broken).await;
            } else if !seen.is_complete() {
                self.life.end(ContextEnd::NotInterrupted).await;
            }
        }
        let outcome = self.life.outcome();
        if outcome.is_some() {
            let reading = async { while self.readers.join_next().await.is_some() {} };
            let _ = timeout(AFTER_END, reading).await;
        }
        outcome
    }
}

/// The task that sees an interpreter to its end, whoever goes away.
async fn supervise(
    control: Arc<dyn ProcessControl>,
    branched: Arc<AtomicBool>,
    end: watch::Sender<Option<ExecOutcome>>,
    mut nobody: mpsc::Receiver<()>,
) {
    let ended = tokio::select! {
        ended = control.wait() => ended,
        _ = nobody.recv() => {
            // It may have ended with its sandbox.
            let _ = kill(&*control, &branched).await;
            control.wait().await
        }
    };
    let outcome = ended.unwrap_or_else(|error| {
        tracing::debug!(?error, "the end of an interpreter was not seen");
        let network = NetworkActivity::default();
        ExecOutcome { status: ExecStatus::Killed, usage: ExecUsage::default(), network }
    });
    end.send_replace(Some(outcome));
}

/// A run that its caller has not seen to the end.
struct Unfinished(Option<Arc<Life>>);

impl Unfinished {
    fn over(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let (Some(life), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { life.end(ContextEnd::NotInterrupted).await });
        }
    }
}
