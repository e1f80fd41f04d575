//! Running commands: the server's side of one exec.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sandbox::{
    Environment, Error, ErrorKind, ExecOutcome, ExecRequest, ExecStatus, ExecUsage, GuestPath, NetworkActivity,
    OnDisconnect, OutputTarget, Process, ProcessControl, Result, Signal, TerminalSize,
};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::Mutex;

use crate::channel::Channel;
use crate::connection::Connection;
use crate::execs::{message, not_started, status_of, usage_of};
use crate::frame::{Part, Task};
use crate::lane::LaneReader;
use crate::messages::{EndCause, ExecEnd, FromExec, ToExec, Work};
use crate::mux::Handles;

/// Starting takes a millisecond, and many times that in a full machine or on a slow kernel. While the sandbox says that it is
/// there, only a start that hangs in the kernel takes this long; silence ends the connection before.
const START_PATIENCE: Duration = Duration::from_secs(300);

/// A sandbox that was told to end has ended by then.
const END_PATIENCE: Duration = Duration::from_secs(10);

pub async fn start(connection: &Connection, request: &ExecRequest) -> Result<Process> {
    if request.account.is_some() {
        return Err(Error::unsupported("only a sandbox that builds runs commands as somebody else"));
    }
    let workspace = GuestPath::workspace();
    let directory = request.work_directory.as_ref().unwrap_or(&workspace);
    let task = Task::Work(Work::Exec(message(request, Environment::default(), directory)));
    let Handles { channel, input, output, errors } = connection.begin(task, Part::default()).await?;
    let started = tokio::time::timeout(START_PATIENCE, channel.receive());
    match connection.unless_silent(started).await? {
        Ok(Ok(Some(FromExec::Started))) => {}
        Ok(Ok(Some(FromExec::NotStarted { stage, errno }))) => {
            return Err(not_started(stage, errno, directory, request));
        }
        Ok(Ok(Some(FromExec::Ended(_) | FromExec::Leaving(_)))) => {
            return Err(Error::internal("the command ended before it started"));
        }
        // Whoever saw to it is gone before it could say so, killed by a command of the same user: whoever waits is told. Where
        // the whole connection is gone, nobody can be.
        Ok(Ok(None) | Err(_)) => connection.lost().map_or(Ok(()), Err)?,
        Err(_) => return Err(Error::new(ErrorKind::TimedOut, "the sandbox did not start the command in time")),
    }
    let control = Control {
        connection: connection.clone(),
        channel,
        has_terminal: request.terminal.is_some(),
        on_disconnect: request.on_disconnect,
        started: Instant::now(),
        outcome: Mutex::new(None),
    };
    Ok(Process {
        stdin: (request.output != OutputTarget::Log).then(|| Box::new(input) as _),
        stdout: Box::new(Heard(output)),
        stderr: Box::new(Heard(errors)),
        control: Box::new(control),
    })
}

/// Output of a command. That it was cut off is told by how the command ended.
struct Heard(LaneReader);

impl AsyncRead for Heard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_read(context, buffer) {
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => Poll::Ready(Ok(())),
            polled => polled,
        }
    }
}

struct Control {
    connection: Connection,
    channel: Channel,
    has_terminal: bool,
    on_disconnect: OnDisconnect,
    started: Instant,
    outcome: Mutex<Option<ExecOutcome>>,
}

impl Control {
    /// A command that has ended takes no messages, and needs none.
    async fn tell(&self, message: &ToExec) -> Result<()> {
        match self.connection.unless_silent(self.channel.send(message)).await? {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(Error::internal("the command cannot be reached").with_cause(error)),
        }
    }

    async fn conclude(&self, end: ExecEnd) -> ExecOutcome {
        if end.cause != EndCause::Itself && !end.tree_empty {
            // What cannot be ended one by one ends with its sandbox.
            tracing::warn!("processes of a killed command would not end; ending the sandbox");
            let _ = self.connection.set_deadline(Some(Duration::ZERO)).await;
            let _ = tokio::time::timeout(END_PATIENCE, self.connection.closed()).await;
        }
        let status = match status_of(end.status, end.cause) {
            ExecStatus::Exited(1..) | ExecStatus::Signalled(_) if end.memory_ran_out => ExecStatus::OutOfMemory,
            status => status,
        };
        ExecOutcome { status, usage: usage_of(&end), network: NetworkActivity::default() }
    }
}

#[async_trait]
impl ProcessControl for Control {
    async fn signal(&self, signal: Signal) -> Result<()> {
        self.tell(&ToExec::Signal(signal.number())).await
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        if !self.has_terminal {
            return Err(Error::wrong_state("the command has no terminal"));
        }
        self.channel.resize(size.rows, size.columns);
        Ok(())
    }

    async fn kill(&self) -> Result<()> {
        self.tell(&ToExec::Kill).await
    }

    async fn wait(&self) -> Result<ExecOutcome> {
        let mut outcome = self.outcome.lock().await;
        if let Some(outcome) = &*outcome {
            return Ok(outcome.clone());
        }
        let end = match self.channel.receive::<FromExec>().await {
            Ok(Some(FromExec::Ended(end) | FromExec::Leaving(end))) => self.conclude(end).await,
            Ok(Some(FromExec::Started | FromExec::NotStarted { .. }) | None) | Err(_) => {
                // One that goes on without us has no end that we could tell.
                if let Some(lost) = self.connection.lost().filter(|error| error.kind() == ErrorKind::Unavailable)
                    && self.on_disconnect == OnDisconnect::Continue
                {
                    return Err(lost);
                }
                ExecOutcome {
                    status: ExecStatus::Killed,
                    usage: ExecUsage { wall: self.started.elapsed(), ..ExecUsage::default() },
                    network: NetworkActivity::default(),
                }
            }
        };
        *outcome = Some(end.clone());
        Ok(end)
    }
}
