//! One running command as the service hands it out: its streams, and power over it.

use std::fmt;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::{mpsc, watch};
use tracing::field::Empty;
use tracing::{Span, info_span};

use super::history::{DeedKey, Line, now_ns};
use super::hold::Hold;
use crate::SPANS;
use crate::engine::{Process, ProcessControl};
use crate::error::{Error, Result};
use crate::event::EventKind;
use crate::exec::{ExecOutcome, ExecRequest, OnDisconnect, Signal, TerminalSize};
use crate::id::SandboxId;
use crate::output::{CappedOutput, OutputCaps};

/// How long output is read after the command has ended: what it wrote is in the pipe by then, and a daemon that it left
/// behind may hold that pipe open for ever.
const AFTER_END: Duration = Duration::from_millis(500);

/// A running command. Its sandbox does not become idle before it ends.
///
/// Has no `Drop` of its own, so that its parts can be moved to where they are needed.
pub struct Execution {
    /// As [`Process::stdin`]; also `None` for a command that has already ended.
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    pub control: ExecutionControl,
}

/// Power over one running command. When the last copy is dropped before the end, the request's `on_disconnect` applies.
#[derive(Clone)]
pub struct ExecutionControl {
    command: Option<Arc<dyn ProcessControl>>,
    ends: watch::Receiver<Option<End>>,
    /// Closed with the last copy, which is how the supervisor learns that nobody is left.
    _alive: mpsc::Sender<()>,
}

type End = Result<ExecOutcome, Arc<Error>>;

/// The end of a command and what was kept of its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    pub outcome: ExecOutcome,
    pub stdout: CappedOutput,
    pub stderr: CappedOutput,
}

impl ExecutionControl {
    /// Send a signal to the command's process group. Success when the command has already ended.
    pub async fn signal(&self, signal: Signal) -> Result<()> {
        match &self.command {
            Some(command) if self.ends.borrow().is_none() => command.signal(signal).await,
            Some(_) | None => Ok(()),
        }
    }

    /// Success when the command has already ended.
    pub async fn resize(&self, size: TerminalSize) -> Result<()> {
        match &self.command {
            Some(command) if self.ends.borrow().is_none() => command.resize(size).await,
            Some(_) | None => Ok(()),
        }
    }

    /// Kill the command and everything that it started; `wait` then answers `Cancelled`.
    pub async fn cancel(&self) -> Result<()> {
        match &self.command {
            Some(command) if self.ends.borrow().is_none() => command.kill().await,
            Some(_) | None => Ok(()),
        }
    }

    /// The end alone, without keeping the command alive by waiting for it.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ends = self.ends.clone();
        async move {
            let _ = ends.wait_for(Option::is_some).await;
        }
    }

    /// How the command ended. May be called more than once, and dropped.
    pub async fn wait(&self) -> Result<ExecOutcome> {
        let mut ends = self.ends.clone();
        let end = ends.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        match end {
            Some(Ok(outcome)) => Ok(outcome),
            Some(Err(error)) => Err(error.without_cause()),
            None => Err(Error::internal("the command's end was not seen")),
        }
    }
}

impl Execution {
    pub async fn signal(&self, signal: Signal) -> Result<()> {
        self.control.signal(signal).await
    }

    pub async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.control.resize(size).await
    }

    pub async fn cancel(&self) -> Result<()> {
        self.control.cancel().await
    }

    pub async fn wait(&self) -> Result<ExecOutcome> {
        self.control.wait().await
    }

    /// Read both streams, within `caps` each, until the command has ended. Closes stdin unless it was taken before.
    pub async fn capture(self, caps: OutputCaps) -> Result<Captured> {
        let (mut stdout, mut stderr) = (CappedOutput::new(caps), CappedOutput::new(caps));
        let outcome = self.read(|bytes| stdout.push(bytes), |bytes| stderr.push(bytes)).await?;
        Ok(Captured { outcome, stdout, stderr })
    }

    /// Hand on both streams until the command has ended. Closes stdin unless it was taken before.
    pub(super) async fn read(self, on_stdout: impl FnMut(&[u8]), on_stderr: impl FnMut(&[u8])) -> Result<ExecOutcome> {
        let Self { stdin, stdout, stderr, control } = self;
        drop(stdin);
        let mut reading = pin!(async { tokio::join!(drain(stdout, on_stdout), drain(stderr, on_stderr)) });
        tokio::select! {
            _ = &mut reading => control.wait().await,
            outcome = control.wait() => {
                let _ = tokio::time::timeout(AFTER_END, reading).await;
                outcome
            }
        }
    }

    /// Watch over a command that the engine has started.
    pub(super) fn supervise(hold: Hold, request: &ExecRequest, process: Process, deed: Option<DeedKey>) -> Self {
        let program = request.argv()[0].clone();
        hold.core.emit(&hold.owner, &hold.id, EventKind::ExecStarted { program: program.clone() });
        let id = hold.id.clone();
        let command: Arc<dyn ProcessControl> = Arc::from(process.control);
        let (end, ends) = watch::channel(None);
        let (alive, nobody) = mpsc::channel(1);
        let (open, streams) = mpsc::channel(1);
        let stdout = Counted::new(process.stdout, open.clone());
        let stderr = Counted::new(process.stderr, open);
        let supervisor = Supervisor {
            hold,
            program,
            deed,
            span: span(&request.argv()[0], &id),
            command: Arc::clone(&command),
            on_disconnect: request.on_disconnect,
            end,
            nobody,
            streams,
            bytes: [Arc::clone(&stdout.bytes), Arc::clone(&stderr.bytes)],
        };
        tokio::spawn(supervisor.run());
        Self {
            stdin: process.stdin,
            stdout: Box::new(stdout),
            stderr: Box::new(stderr),
            control: ExecutionControl { command: Some(command), ends, _alive: alive },
        }
    }

    /// A command that has already ended, for example a build that failed before there was a program.
    pub(super) fn ended(captured: &Captured) -> Self {
        let stream = |output: &CappedOutput| {
            let bytes = if output.is_truncated() { output.to_text().into_bytes() } else { output.bytes() };
            Box::new(io::Cursor::new(bytes))
        };
        Self {
            stdin: None,
            stdout: stream(&captured.stdout),
            stderr: stream(&captured.stderr),
            control: ExecutionControl {
                command: None,
                ends: watch::channel(Some(Ok(captured.outcome.clone()))).1,
                _alive: mpsc::channel(1).0,
            },
        }
    }
}

async fn drain(mut stream: Box<dyn AsyncRead + Send + Unpin>, mut take: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 32 * 1024];
    // An error is an end too: the command's own end says what happened.
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        take(&buffer[..count]);
    }
}

/// The task that sees a command to its end, whoever goes away.
struct Supervisor {
    hold: Hold,
    program: String,
    deed: Option<DeedKey>,
    span: Span,
    command: Arc<dyn ProcessControl>,
    on_disconnect: OnDisconnect,
    end: watch::Sender<Option<End>>,
    nobody: mpsc::Receiver<()>,
    streams: mpsc::Receiver<()>,
    bytes: [Arc<AtomicU64>; 2],
}

impl Supervisor {
    async fn run(mut self) {
        let ended = tokio::select! {
            ended = self.command.wait() => ended,
            _ = self.nobody.recv() => {
                match self.on_disconnect {
                    OnDisconnect::Kill => {
                        if let Err(error) = self.command.kill().await {
                            tracing::warn!(id = %self.hold.id, ?error, "a command that nobody waits for was not killed");
                        }
                    }
                    OnDisconnect::Continue => {}
                }
                self.command.wait().await
            }
        };
        let (core, owner, id) = (Arc::clone(&self.hold.core), self.hold.owner.clone(), self.hold.id.clone());
        if let (Some(key), Ok(outcome)) = (self.deed, &ended) {
            core.remember(&id, Line::Ended { key, ended_ns: now_ns(), status: outcome.status });
        }
        match &ended {
            Ok(outcome) => self.span.record("sandpen.run.status", outcome.status.as_str()),
            Err(error) => self.span.record("otel.error", error.kind().as_str()),
        };
        drop((self.hold, self.span));
        let outcome = ended.as_ref().ok().cloned();
        self.end.send_replace(Some(ended.map_err(Arc::new)));
        if let Some(outcome) = outcome {
            // The counts are whole once the streams are read, or given up.
            let _ = tokio::time::timeout(AFTER_END, self.streams.recv()).await;
            let [stdout_bytes, stderr_bytes] = self.bytes.map(|bytes| bytes.load(Ordering::Relaxed));
            core.emit(&owner, &id, EventKind::ExecEnded { program: self.program, outcome, stdout_bytes, stderr_bytes });
        }
    }
}

fn span(program: &str, id: &SandboxId) -> Span {
    let program: String = program.chars().take(SHOWN_CHARACTERS).collect();
    info_span!(
        target: SPANS,
        "exec",
        "sandpen.sandbox.id" = id.as_str(),
        "process.executable.name" = program,
        "sandpen.run.status" = Empty,
        "otel.error" = Empty,
    )
}

/// Of the name of a program, in a span.
const SHOWN_CHARACTERS: usize = 256;

/// Counts what is read, and says when there is no more to count.
struct Counted {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    bytes: Arc<AtomicU64>,
    open: Option<mpsc::Sender<()>>,
}

impl Counted {
    fn new(stream: Box<dyn AsyncRead + Send + Unpin>, open: mpsc::Sender<()>) -> Self {
        Self { stream, bytes: Arc::default(), open: Some(open) }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(result) = &polled {
            let count = buffer.filled().len() - before;
            self.bytes.fetch_add(count as u64, Ordering::Relaxed);
            if result.is_err() || (count == 0 && buffer.remaining() > 0) {
                self.open = None;
            }
        }
        polled
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution").finish_non_exhaustive()
    }
}

impl fmt::Debug for ExecutionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutionControl").field("end", &*self.ends.borrow()).finish_non_exhaustive()
    }
}
