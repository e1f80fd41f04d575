//! Commands of the fake: tasks instead of processes, pipes in memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::watch;
use tokio::time::Instant;

use super::program::{self, Context};
use super::sandbox::FakeSandbox;
use crate::engine::{Process, ProcessControl};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::{
    ExecLog, ExecOutcome, ExecRequest, ExecStatus, ExecUsage, OnDisconnect, OutputTarget, Signal, TerminalSize,
};
use crate::spec::Role;

/// As much as a pipe of Linux holds.
pub(super) const PIPE_BYTES: usize = 64 * 1024;

pub(super) fn start(sandbox: Arc<FakeSandbox>, request: &ExecRequest) -> Result<Process> {
    if request.terminal.is_some() {
        return Err(Error::unsupported("the fake engine has no terminals"));
    }
    let limit = u64::from(sandbox.spec.limits.processes);
    if sandbox.processes.load(Ordering::Relaxed) >= limit {
        return Err(Error::new(
            ErrorKind::LimitExceeded,
            format!("{limit} processes are running, which is all it may have"),
        ));
    }
    let user = match (request.account, sandbox.spec.role) {
        (None, _) => sandbox.user(),
        (Some(account), Role::Builder) => account.user,
        (Some(_), Role::Guest | Role::ImageUser(_)) => {
            return Err(Error::invalid_input("only builds may say who runs a command"));
        }
    };
    let work_directory = request.work_directory.clone().unwrap_or_else(|| sandbox.made.work_directory.clone());
    let (stdin, stdin_inside) = tokio::io::duplex(PIPE_BYTES);
    let (stdout, stdout_inside) = tokio::io::duplex(PIPE_BYTES);
    let (stderr, stderr_inside) = tokio::io::duplex(PIPE_BYTES);
    let context = Context::new(
        Arc::clone(&sandbox),
        user,
        request.argv(),
        &request.environment,
        work_directory,
        [stdin_inside, stdout_inside, stderr_inside],
    )?;
    let context = if request.output == OutputTarget::Joined { context.joined() } else { context };

    let (end, mut ends) = watch::channel(None::<ExecStatus>);
    let (outcome, outcomes) = watch::channel(None::<ExecOutcome>);
    let mut gone = sandbox.gone.subscribe();
    let started = Instant::now();
    let tried_before = sandbox.tried.lock().unwrap().count();
    let timeout = request.timeout;
    sandbox.processes.fetch_add(1, Ordering::Relaxed);
    tokio::spawn(async move {
        let status = tokio::select! {
            biased;
            _ = gone.wait_for(|gone| *gone) => ExecStatus::Killed,
            // Without a sender left, the command was started with `Continue` and nobody is there to end it.
            Ok(ended) = ends.wait_for(Option::is_some) => ended.unwrap_or(ExecStatus::Cancelled),
            () = tokio::time::sleep(timeout) => ExecStatus::TimedOut,
            code = program::run(context) => ExecStatus::Exited(code),
        };
        *sandbox.last_ended.lock().unwrap() = Some(Instant::now());
        sandbox.processes.fetch_sub(1, Ordering::Relaxed);
        let usage = ExecUsage { wall: started.elapsed(), ..ExecUsage::default() };
        let network = sandbox.tried.lock().unwrap().since(tried_before);
        outcome.send_replace(Some(ExecOutcome { status, usage, network }));
    });
    let control = FakeControl { end, outcomes, on_disconnect: request.on_disconnect };
    Ok(Process {
        stdin: Some(Box::new(stdin) as Box<dyn AsyncWrite + Send + Unpin>),
        stdout: Box::new(stdout) as Box<dyn AsyncRead + Send + Unpin>,
        stderr: Box::new(stderr),
        control: Box::new(control),
    })
}

/// A command whose output is kept with the sandbox.
pub(super) fn start_logged(sandbox: Arc<FakeSandbox>, request: &ExecRequest) -> Result<Process> {
    let Process { stdin, mut stdout, mut stderr, control } = start(Arc::clone(&sandbox), request)?;
    drop(stdin);
    let control = Arc::new(control);
    let kept = Arc::clone(&control);
    let log = ExecLog {
        command: request.argv().to_vec(),
        started: SystemTime::now(),
        status: None,
        output: Vec::new(),
        dropped: 0,
    };
    let index = {
        let mut logs = sandbox.logs.lock().unwrap();
        logs.push(log);
        logs.len() - 1
    };
    tokio::spawn(async move {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let _ = tokio::join!(stdout.read_to_end(&mut output), stderr.read_to_end(&mut errors));
        let outcome = kept.wait().await;
        let log = &mut sandbox.logs.lock().unwrap()[index];
        log.output.extend(output.into_iter().chain(errors));
        log.status = outcome.ok().map(|outcome| outcome.status);
    });
    let nothing = || Box::new(tokio::io::empty());
    Ok(Process { stdin: None, stdout: nothing(), stderr: nothing(), control: Box::new(SharedControl(control)) })
}

/// The caller's part of a command that its log holds too.
struct SharedControl(Arc<Box<dyn ProcessControl>>);

#[async_trait]
impl ProcessControl for SharedControl {
    async fn signal(&self, signal: Signal) -> Result<()> {
        self.0.signal(signal).await
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.0.resize(size).await
    }

    async fn kill(&self) -> Result<()> {
        self.0.kill().await
    }

    async fn wait(&self) -> Result<ExecOutcome> {
        self.0.wait().await
    }
}

struct FakeControl {
    end: watch::Sender<Option<ExecStatus>>,
    outcomes: watch::Receiver<Option<ExecOutcome>>,
    on_disconnect: OnDisconnect,
}

impl FakeControl {
    fn end_with(&self, status: ExecStatus) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(status);
            first
        });
    }
}

impl Drop for FakeControl {
    fn drop(&mut self) {
        match self.on_disconnect {
            OnDisconnect::Kill => self.end_with(ExecStatus::Cancelled),
            OnDisconnect::Continue => {}
        }
    }
}

#[async_trait]
impl ProcessControl for FakeControl {
    async fn signal(&self, signal: Signal) -> Result<()> {
        self.end_with(ExecStatus::Signalled(signal.number()));
        Ok(())
    }

    async fn resize(&self, _: TerminalSize) -> Result<()> {
        Err(Error::wrong_state("the command has no terminal"))
    }

    async fn kill(&self) -> Result<()> {
        self.end_with(ExecStatus::Cancelled);
        Ok(())
    }

    async fn wait(&self) -> Result<ExecOutcome> {
        let mut outcomes = self.outcomes.clone();
        let outcome = outcomes.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        outcome.ok().flatten().ok_or_else(|| Error::internal("the fake engine lost a command"))
    }
}
