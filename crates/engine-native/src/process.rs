//! Running commands: the server's side of one exec.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::execs::{Logs, message, no_more_processes, not_started, status_of, usage_of};
use async_trait::async_trait;
use egress::{Door, Mark};
use rustix::pipe::PipeFlags;
use rustix::termios::Winsize;
use sandbox::{
    Error, ErrorKind, ExecLog, ExecOutcome, ExecRequest, ExecStatus, ExecUsage, NetworkActivity, OutputTarget, Process,
    ProcessControl, Result, Role, Signal, TerminalSize,
};
use tokio::io::AsyncRead;
use tokio::sync::Mutex;

use crate::channel::{Channel, Stream};
use crate::live::{Live, not_found};
use crate::role;
use crate::terminal::Lifeline;
use crate::wire::{EndCause, ExecEnd, FromExec, ToExec, ToInit, Work};

/// Starting takes a millisecond; a machine under the heaviest load has started it by then.
const START_PATIENCE: Duration = Duration::from_secs(30);

pub async fn start(live: Arc<Live>, request: &ExecRequest) -> Result<Process> {
    if let Some(account) = request.account {
        let ids = live.description.root.as_ref().and_then(|root| root.image_ids);
        role::check_account(live.description.role, account, ids)?;
    }
    if live.description.role == Role::Builder && request.output == OutputTarget::Log {
        return Err(Error::unsupported("a sandbox that builds keeps no logs: its whole tree is the build's"));
    }
    let internal = |cause: io::Error| Error::internal("the command's streams could not be made").with_cause(cause);
    let (channel, theirs) = Channel::pair().map_err(internal)?;
    let streams = match (request.terminal, request.output) {
        (None, OutputTarget::Streams | OutputTarget::Joined) => Some(Pipes::new().map_err(internal)?),
        (Some(_), OutputTarget::Streams | OutputTarget::Joined) | (_, OutputTarget::Log) => None,
    };
    let lifeline = request.terminal.map(|_| Lifeline::new()).transpose().map_err(internal)?;
    let (lifeline, held) = lifeline.unzip();
    let given: Vec<_> = [theirs.as_fd()]
        .into_iter()
        .chain(streams.iter().flat_map(|pipes| pipes.theirs.iter().map(AsFd::as_fd)))
        .chain(held.iter().map(AsFd::as_fd))
        .collect();
    let message = message(request, live.description.environment.clone(), live.work_directory(request));
    let message = ToInit::Work(Work::Exec(message));
    let mark = live.door.get().map(Door::mark);
    let kills_before = live.meter.out_of_memory_kills();
    live.channel.send(&message, &given).await.map_err(|cause| not_found(live.id()).with_cause(cause))?;
    drop((theirs, held));

    let mut terminal = None;
    let (stdin, stdout, stderr): (Stream, Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncRead + Send + Unpin>) =
        match (start_in_time(&live, &channel, request).await?, streams) {
            (None, Some(pipes)) => {
                let [stdin, stdout, stderr] = pipes.ours;
                (stdin, Box::new(stdout), Box::new(stderr))
            }
            (Some(controller), _) => {
                let lifeline = lifeline.ok_or_else(|| Error::internal("there is a terminal that nobody asked for"))?;
                let again = || controller.try_clone().map_err(internal);
                let (input, output) =
                    (Stream::new(again()?).map_err(internal)?, Stream::new(again()?).map_err(internal)?);
                terminal = Some(controller);
                (input, Box::new(lifeline.bound(output)), Box::new(tokio::io::empty()))
            }
            (None, None) if request.output == OutputTarget::Log => {
                let control = Control::new(live, channel, None, kills_before, mark);
                let nothing = || Box::new(tokio::io::empty());
                return Ok(Process { stdin: None, stdout: nothing(), stderr: nothing(), control: Box::new(control) });
            }
            (None, None) => return Err(Error::internal("the sandbox gave no terminal")),
        };
    let control = Control::new(live, channel, terminal, kills_before, mark);
    Ok(Process { stdin: Some(Box::new(stdin)), stdout, stderr, control: Box::new(control) })
}

struct Pipes {
    /// stdin, stdout, stderr.
    ours: [Stream; 3],
    theirs: [OwnedFd; 3],
}

impl Pipes {
    fn new() -> io::Result<Self> {
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let (stdin_end, stdin) = pipe()?;
        let (stdout, stdout_end) = pipe()?;
        let (stderr, stderr_end) = pipe()?;
        Ok(Self {
            ours: [Stream::new(stdin)?, Stream::new(stdout)?, Stream::new(stderr)?],
            theirs: [stdin_end, stdout_end, stderr_end],
        })
    }
}

/// A program in the sandbox may stop or starve whatever is being started beside it. That must not hold up the server.
async fn start_in_time(live: &Live, channel: &Channel, request: &ExecRequest) -> Result<Option<OwnedFd>> {
    match tokio::time::timeout(START_PATIENCE, hear_start(live, channel, request)).await {
        Ok(heard) => heard,
        Err(_) => {
            tracing::warn!(sandbox = %live.id(), "a command was not started in time; ending the sandbox");
            live.kill();
            Err(Error::new(ErrorKind::TimedOut, "the sandbox did not start the command in time and was stopped"))
        }
    }
}

/// The terminal's controlling side, when there is one.
async fn hear_start(live: &Live, channel: &Channel, request: &ExecRequest) -> Result<Option<OwnedFd>> {
    match channel.receive::<FromExec>().await {
        Ok(Some((FromExec::Started, descriptors))) => Ok(descriptors.into_iter().next()),
        Ok(Some((FromExec::NotStarted { stage, errno }, _))) => {
            Err(not_started(stage, errno, live.work_directory(request), request))
        }
        Ok(Some((FromExec::Ended(_), _))) => Err(Error::internal("the command ended before it started")),
        // No terminal can come any more.
        Ok(None) | Err(_) if request.terminal.is_some() => Err(not_found(live.id())),
        // Whoever saw to it is gone before it could say so: a command of root in a builder may have killed it, and with it the
        // whole sandbox. How it ended is told to whoever waits.
        Ok(None) | Err(_) => Ok(None),
    }
}

/// What detached commands of a sandbox wrote.
pub async fn logs(live: &Live) -> Result<Vec<ExecLog>> {
    let gone = |cause: io::Error| not_found(live.id()).with_cause(cause);
    let (channel, theirs) = Channel::pair().map_err(gone)?;
    live.channel.send(&ToInit::Work(Work::Logs), &[theirs.as_fd()]).await.map_err(gone)?;
    drop(theirs);
    let mut logs = Logs::default();
    loop {
        let Some((piece, _)) = channel.receive().await.map_err(gone)? else { return Err(no_more_processes()) };
        if let Some(logs) = logs.add(piece)? {
            return Ok(logs);
        }
    }
}

struct Control {
    live: Arc<Live>,
    channel: Channel,
    terminal: Option<OwnedFd>,
    kills_before: Option<u64>,
    /// When it started, in the life of the sandbox's way out.
    mark: Option<Mark>,
    started: Instant,
    outcome: Mutex<Option<ExecOutcome>>,
}

impl Control {
    fn new(
        live: Arc<Live>,
        channel: Channel,
        terminal: Option<OwnedFd>,
        kills_before: Option<u64>,
        mark: Option<Mark>,
    ) -> Self {
        Self { live, channel, terminal, kills_before, mark, started: Instant::now(), outcome: Mutex::new(None) }
    }

    fn network(&self) -> NetworkActivity {
        self.live.door.get().zip(self.mark).map_or_else(NetworkActivity::default, |(door, mark)| door.since(mark))
    }

    /// A command that has ended takes no messages, and needs none.
    async fn tell(&self, message: ToExec) -> Result<()> {
        match self.channel.send(&message, &[]).await {
            Ok(()) => Ok(()),
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Ok(()),
            Err(error) => Err(Error::internal("the command cannot be reached").with_cause(error)),
        }
    }

    fn memory_ran_out(&self) -> bool {
        let kills = |count: Option<u64>| count.unwrap_or(0);
        kills(self.live.meter.out_of_memory_kills()) > kills(self.kills_before)
    }

    async fn conclude(&self, end: ExecEnd) -> ExecOutcome {
        if end.cause != EndCause::Itself && !end.tree_empty {
            // What cannot be ended one by one ends with its sandbox.
            tracing::warn!(sandbox = %self.live.id(), "processes of a killed command would not end; ending the sandbox");
            self.live.kill();
            self.live.ended().await;
        }
        let status = match status_of(end.status, end.cause) {
            ExecStatus::Exited(1..) | ExecStatus::Signalled(_) if self.memory_ran_out() => ExecStatus::OutOfMemory,
            status => status,
        };
        ExecOutcome { status, usage: usage_of(&end), network: self.network() }
    }
}

#[async_trait]
impl ProcessControl for Control {
    async fn signal(&self, signal: Signal) -> Result<()> {
        self.tell(ToExec::Signal(signal.number())).await
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        let Some(terminal) = &self.terminal else {
            return Err(Error::wrong_state("the command has no terminal"));
        };
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(terminal, size)
            .map_err(|cause| Error::internal("the terminal could not be resized").with_cause(cause))
    }

    async fn kill(&self) -> Result<()> {
        self.tell(ToExec::Kill).await
    }

    async fn wait(&self) -> Result<ExecOutcome> {
        let mut outcome = self.outcome.lock().await;
        if let Some(outcome) = &*outcome {
            return Ok(outcome.clone());
        }
        let end = match self.channel.receive::<FromExec>().await {
            Ok(Some((FromExec::Ended(end), _))) => self.conclude(end).await,
            Ok(Some((FromExec::Started | FromExec::NotStarted { .. }, _))) | Ok(None) | Err(_) => {
                let status = if self.memory_ran_out() { ExecStatus::OutOfMemory } else { ExecStatus::Killed };
                ExecOutcome {
                    status,
                    usage: ExecUsage { wall: self.started.elapsed(), ..ExecUsage::default() },
                    network: self.network(),
                }
            }
        };
        *outcome = Some(end.clone());
        Ok(end)
    }
}
