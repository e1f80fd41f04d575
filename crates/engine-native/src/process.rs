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

use crate::ahead;
use crate::channel::{Channel, Stream};
use crate::live::{Live, not_found};
use crate::role;
use crate::silence::Silence;
use crate::terminal::Lifeline;
use crate::wire::{EndCause, Exec, ExecEnd, FromExec, ToExec, ToInit, Work};

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
    if let Some(process) = ahead::go(&live, request).await? {
        return Ok(process);
    }
    let exec = message(request, live.description.environment.clone(), live.work_directory(request));
    let watch = Watch::begin(&live);
    begin(&live, request, exec).await?.watched(live, watch)
}

/// Have process 1 start a command.
pub async fn begin(live: &Live, request: &ExecRequest, exec: Exec) -> Result<Begun> {
    let (channel, theirs) = Channel::pair().map_err(no_streams)?;
    let pipes = match (request.terminal, request.output) {
        (None, OutputTarget::Streams | OutputTarget::Joined) => Some(Pipes::new().map_err(no_streams)?),
        (Some(_), OutputTarget::Streams | OutputTarget::Joined) | (_, OutputTarget::Log) => None,
    };
    let lifeline = request.terminal.map(|_| Lifeline::new()).transpose().map_err(no_streams)?;
    let (lifeline, held) = lifeline.unzip();
    let given: Vec<_> = [theirs.as_fd()]
        .into_iter()
        .chain(pipes.iter().flat_map(|pipes| pipes.theirs.iter().map(AsFd::as_fd)))
        .chain(held.iter().map(AsFd::as_fd))
        .collect();
    let message = ToInit::Work(Work::Exec(exec));
    live.channel.send(&message, &given).await.map_err(|cause| not_found(live.id()).with_cause(cause))?;
    drop((theirs, held));
    match (in_time(live, hear_start(live, &channel, request)).await??, pipes.map(|pipes| pipes.ours)) {
        (None, None) if request.output != OutputTarget::Log => Err(Error::internal("the sandbox gave no terminal")),
        (Some(_), _) if lifeline.is_none() => Err(Error::internal("there is a terminal that nobody asked for")),
        (terminal, pipes) => Ok(Begun { channel, pipes, terminal: terminal.zip(lifeline) }),
    }
}

fn no_streams(cause: io::Error) -> Error {
    Error::internal("the command's streams could not be made").with_cause(cause)
}

/// A command that runs, as process 1 gave it to us.
#[derive(Debug)]
pub struct Begun {
    pub channel: Channel,
    /// stdin, stdout, stderr. None of them for one whose output is kept inside, and for one with a terminal.
    pipes: Option<[Stream; 3]>,
    terminal: Option<(OwnedFd, Lifeline)>,
}

impl Begun {
    /// Hand it out.
    pub fn watched(self, live: Arc<Live>, watch: Watch) -> Result<Process> {
        let Self { channel, pipes, terminal } = self;
        let nothing = || Box::new(tokio::io::empty());
        let (controller, lifeline) = terminal.unzip();
        let silence = Arc::new(Silence::default());
        let (stdin, stdout, stderr): (Option<Stream>, Output, Output) = match (pipes, &controller, lifeline) {
            (Some([stdin, stdout, stderr]), _, _) => {
                (Some(stdin), Box::new(silence.bound(stdout)), Box::new(silence.bound(stderr)))
            }
            (None, Some(controller), Some(lifeline)) => {
                let again = || controller.try_clone().and_then(Stream::new).map_err(no_streams);
                (Some(again()?), Box::new(lifeline.bound(again()?)), nothing())
            }
            (None, _, _) => (None, nothing(), nothing()),
        };
        let control = Box::new(Control::new(live, channel, controller, watch, silence));
        Ok(Process { stdin: stdin.map(|stdin| Box::new(stdin) as _), stdout, stderr, control })
    }
}

type Output = Box<dyn AsyncRead + Send + Unpin>;

/// How things stood when a command got to run.
#[derive(Debug)]
pub struct Watch {
    kills_before: Option<u64>,
    /// In the life of the sandbox's way out.
    mark: Option<Mark>,
    started: Instant,
}

impl Watch {
    pub fn begin(live: &Live) -> Self {
        let (mark, kills_before) = (live.door.get().map(Door::mark), live.meter.out_of_memory_kills());
        Self { kills_before, mark, started: Instant::now() }
    }
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
pub async fn in_time<T>(live: &Live, starting: impl Future<Output = T>) -> Result<T> {
    match tokio::time::timeout(START_PATIENCE, starting).await {
        Ok(heard) => Ok(heard),
        Err(_) => {
            tracing::warn!(sandbox = %live.id(), "a command was not started in time; ending the sandbox");
            live.kill();
            Err(Error::new(ErrorKind::TimedOut, "the sandbox did not start the command in time and was stopped"))
        }
    }
}

/// That a command has started, with the terminal's controlling side when it has one.
async fn hear_start(live: &Live, channel: &Channel, request: &ExecRequest) -> Result<Option<OwnedFd>> {
    match channel.receive::<FromExec>().await {
        Ok(Some((FromExec::Started, descriptors))) => Ok(descriptors.into_iter().next()),
        Ok(Some((FromExec::NotStarted { stage, errno }, _))) => {
            Err(not_started(stage, errno, live.work_directory(request), request))
        }
        Ok(Some((FromExec::Ended(_) | FromExec::Leaving(_), _))) => {
            Err(Error::internal("the command ended before it started"))
        }
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
    watch: Watch,
    silence: Arc<Silence>,
    outcome: Mutex<Option<ExecOutcome>>,
}

impl Control {
    fn new(live: Arc<Live>, channel: Channel, terminal: Option<OwnedFd>, watch: Watch, silence: Arc<Silence>) -> Self {
        Self { live, channel, terminal, watch, silence, outcome: Mutex::new(None) }
    }

    fn network(&self) -> NetworkActivity {
        self.live.door.get().zip(self.watch.mark).map_or_else(NetworkActivity::default, |(door, mark)| door.since(mark))
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
        kills(self.live.meter.out_of_memory_kills()) > kills(self.watch.kills_before)
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
            Ok(Some((FromExec::Leaving(end), _))) => {
                self.silence.begin();
                self.conclude(end).await
            }
            Ok(Some((FromExec::Started | FromExec::NotStarted { .. }, _))) | Ok(None) | Err(_) => {
                let status = if self.memory_ran_out() { ExecStatus::OutOfMemory } else { ExecStatus::Killed };
                ExecOutcome {
                    status,
                    usage: ExecUsage { wall: self.watch.started.elapsed(), ..ExecUsage::default() },
                    network: self.network(),
                }
            }
        };
        *outcome = Some(end.clone());
        Ok(end)
    }
}
