//! Running commands: the server's side of one exec.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use egress::{Door, Mark};
use rustix::pipe::PipeFlags;
use rustix::termios::Winsize;
use sandbox::{
    Environment, Error, ErrorKind, ExecLog, ExecOutcome, ExecRequest, ExecStatus, ExecUsage, NetworkActivity,
    OnDisconnect, OutputTarget, Process, ProcessControl, Result, Role, Signal, TerminalSize,
};
use tokio::io::AsyncRead;
use tokio::sync::Mutex;

use crate::channel::{Channel, Stream};
use crate::files;
use crate::live::{Live, not_found};
use crate::role;
use crate::wire::{EndCause, Exec, ExecEnd, ExecStage, FromExec, FromLog, Terminal, ToExec, ToInit, Work};

/// Bounds on what process 1, which is not trusted, may send as logs; it keeps less.
const MOST_LOGS: usize = 64;
const MOST_LOG_BYTES: usize = 2 << 20;

/// Starting takes a millisecond; a machine under the heaviest load has started it by then.
const START_PATIENCE: Duration = Duration::from_secs(30);

pub async fn start(live: Arc<Live>, request: &ExecRequest) -> Result<Process> {
    if let Some(account) = request.account {
        role::check_account(live.description.role, account)?;
    }
    if live.description.role == Role::Builder && request.output == OutputTarget::Log {
        return Err(Error::unsupported("a sandbox that builds keeps no logs: its whole tree is the build's"));
    }
    let internal = |cause: io::Error| Error::internal("the command's streams could not be made").with_cause(cause);
    let (channel, theirs) = Channel::pair().map_err(internal)?;
    let streams = match (request.terminal, request.output) {
        (None, OutputTarget::Streams) => Some(Pipes::new().map_err(internal)?),
        (Some(_), OutputTarget::Streams) | (_, OutputTarget::Log) => None,
    };
    let given: Vec<_> = [theirs.as_fd()]
        .into_iter()
        .chain(streams.iter().flat_map(|pipes| pipes.theirs.iter().map(AsFd::as_fd)))
        .collect();
    let message = ToInit::Work(Work::Exec(message(&live, request)));
    let mark = live.door.get().map(Door::mark);
    let kills_before = live.meter.out_of_memory_kills();
    live.channel.send(&message, &given).await.map_err(|cause| not_found(live.id()).with_cause(cause))?;
    drop(theirs);

    let mut terminal = None;
    let (stdin, stdout, stderr): (Stream, Stream, Box<dyn AsyncRead + Send + Unpin>) =
        match (start_in_time(&live, &channel, request).await?, streams) {
            (None, Some(pipes)) => {
                let [stdin, stdout, stderr] = pipes.ours;
                (stdin, stdout, Box::new(stderr))
            }
            (Some(controller), _) => {
                let again = || controller.try_clone().map_err(internal);
                let (input, output) =
                    (Stream::new(again()?).map_err(internal)?, Stream::new(again()?).map_err(internal)?);
                terminal = Some(controller);
                (input, output, Box::new(tokio::io::empty()))
            }
            (None, None) if request.output == OutputTarget::Log => {
                let control = Control::new(live, channel, None, kills_before, mark);
                let nothing = || Box::new(tokio::io::empty());
                return Ok(Process { stdin: None, stdout: nothing(), stderr: nothing(), control: Box::new(control) });
            }
            (None, None) => return Err(Error::internal("the sandbox gave no terminal")),
        };
    let control = Control::new(live, channel, terminal, kills_before, mark);
    Ok(Process { stdin: Some(Box::new(stdin)), stdout: Box::new(stdout), stderr, control: Box::new(control) })
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

fn message(live: &Live, request: &ExecRequest) -> Exec {
    let mut environment = live.description.environment.clone().overlaid_by(&request.environment);
    if request.terminal.is_some() && environment.get("TERM").is_none() {
        let mut term = Environment::default();
        // A constant of ours, which the check cannot refuse.
        let _ = term.insert("TERM", "xterm-256color");
        environment = environment.overlaid_by(&term);
    }
    let directory = request.work_directory.as_ref().unwrap_or(&live.description.work_directory);
    Exec {
        argv: request.argv().to_vec(),
        environment: environment.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        work_directory: directory.as_bytes().to_vec(),
        terminal: request.terminal.map(|size| Terminal { rows: size.rows, columns: size.columns }),
        timeout_milliseconds: u64::try_from(request.timeout.as_millis()).unwrap_or(u64::MAX / 2).min(u64::MAX / 2),
        detached: request.on_disconnect == OnDisconnect::Continue,
        logged: request.output == OutputTarget::Log,
        account: request.account.map(|account| (account.user, account.group)),
        script: request.script.as_ref().map(|script| (script.path().as_bytes().to_vec(), script.contents().to_vec())),
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
        Ok(Some((FromExec::NotStarted { stage, errno }, _))) => Err(not_started(stage, errno, live, request)),
        Ok(Some((FromExec::Ended(_), _))) => Err(Error::internal("the command ended before it started")),
        Ok(None) | Err(_) if live.has_ended() => Err(not_found(live.id())),
        // Process 1 had no room for another child.
        Ok(None) | Err(_) => Err(no_more_processes()),
    }
}

fn no_more_processes() -> Error {
    Error::limit_exceeded("the sandbox has as many processes as it may have")
        .with_hint("wait for some to end, stop them, or create a sandbox with a higher process limit")
}

fn not_started(stage: ExecStage, errno: i32, live: &Live, request: &ExecRequest) -> Error {
    let cause = io::Error::from_raw_os_error(errno);
    let program = &request.argv()[0];
    let directory = request.work_directory.as_ref().unwrap_or(&live.description.work_directory);
    let error = match (stage, errno) {
        (_, libc::EAGAIN) => no_more_processes(),
        (ExecStage::WorkDirectory, libc::ENOENT | libc::ENOTDIR) => {
            Error::not_found(format!("there is no directory {directory} in the sandbox"))
        }
        (ExecStage::WorkDirectory, _) => Error::new(ErrorKind::Denied, format!("the directory {directory} is closed")),
        (ExecStage::Script, errno) => match &request.script {
            Some(script) => files::system_failure(errno, script.path()),
            None => Error::internal("there was no script to write"),
        },
        (ExecStage::Program, libc::ENOENT) => {
            Error::not_found(format!("there is no program {program:?} in the sandbox"))
        }
        (ExecStage::Program, libc::EACCES) => {
            Error::invalid_input(format!("{program:?} is not executable")).with_hint("give it the executable bit")
        }
        (ExecStage::Program, libc::ENOEXEC) => Error::invalid_input(format!("{program:?} is not a program"))
            .with_hint("a script needs a first line such as #!/bin/sh"),
        (ExecStage::Log, libc::ENOSPC) => Error::limit_exceeded("the sandbox's disk is full"),
        (ExecStage::Program, libc::E2BIG) => Error::limit_exceeded("the arguments and environment are too large"),
        (ExecStage::Program, libc::ENOMEM) => Error::limit_exceeded("there is not enough memory to start the program"),
        (ExecStage::Program, _) => Error::invalid_input(format!("{program:?} cannot be executed: {cause}")),
        (ExecStage::Log | ExecStage::Terminal | ExecStage::Fork | ExecStage::Identity, _) => {
            Error::internal("the command could not be started")
        }
    };
    error.with_cause(cause)
}

fn status_of(status: i32, cause: EndCause) -> ExecStatus {
    let signal = status & 0x7f;
    match cause {
        EndCause::Deadline => ExecStatus::TimedOut,
        EndCause::Asked => ExecStatus::Cancelled,
        EndCause::Itself if signal == 0 => ExecStatus::Exited((status >> 8) & 0xff),
        EndCause::Itself => ExecStatus::Signalled(signal),
    }
}

/// What detached commands of a sandbox wrote.
pub async fn logs(live: &Live) -> Result<Vec<ExecLog>> {
    let gone = |cause: io::Error| not_found(live.id()).with_cause(cause);
    let (channel, theirs) = Channel::pair().map_err(gone)?;
    live.channel.send(&ToInit::Work(Work::Logs), &[theirs.as_fd()]).await.map_err(gone)?;
    drop(theirs);
    let mut logs: Vec<ExecLog> = Vec::new();
    loop {
        match channel.receive::<FromLog>().await.map_err(gone)? {
            Some((FromLog::Entry(entry), _)) if logs.len() < MOST_LOGS => logs.push(ExecLog {
                command: entry.argv,
                started: SystemTime::UNIX_EPOCH + Duration::from_millis(entry.started_milliseconds),
                status: entry.end.map(|end| status_of(end.status, end.cause)),
                output: Vec::new(),
                dropped: entry.total,
            }),
            Some((FromLog::Output(bytes), _)) => {
                if let Some(log) = logs.last_mut().filter(|log| log.output.len() + bytes.len() <= MOST_LOG_BYTES) {
                    log.dropped = log.dropped.saturating_sub(bytes.len() as u64);
                    log.output.extend(bytes);
                }
            }
            Some((FromLog::Done, _)) => return Ok(logs),
            Some((FromLog::Entry(_), _)) | None => return Err(no_more_processes()),
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
        let usage = ExecUsage {
            wall: Duration::from_micros(end.wall_microseconds),
            cpu: Duration::from_micros(end.cpu_microseconds),
            peak_memory: end.peak_memory,
        };
        ExecOutcome { status, usage, network: self.network() }
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
