//! One stream of bytes to the bridge of a sandbox.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sandbox::{Error, ErrorKind, ExecLog, ExecRequest, Files, Process, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

use crate::carry::{Presence, carry, end};
use crate::execs::{Logs, no_more_processes};
use crate::files::AgentFiles;
use crate::frame::{self, Begin, Frame, Greeting, HELLO_BYTES, Kind, Lane, Part, Task};
use crate::messages::{FromInit, ToInit, Work};
use crate::mux::{Handles, Mux, TooLarge};
use crate::process;

/// A daemon under load starts a bridge within seconds. Process 1 of a new sandbox waits for half a minute and then ends, which
/// whoever asks the daemon sees.
const HELLO_PATIENCE: Duration = Duration::from_secs(60);

/// A handle to one sandbox. Its stream closes when the last handle is dropped, and with it all that came from it.
#[derive(Clone, Debug)]
pub struct Connection {
    mux: Arc<Mux>,
    presence: watch::Sender<Presence>,
}

/// Whoever sees the sandbox from outside tells here that it has ended, without holding the connection open.
#[derive(Clone, Debug)]
pub struct Watcher {
    mux: Weak<Mux>,
    presence: watch::Sender<Presence>,
}

impl Watcher {
    /// Wait for the end of the stream.
    pub async fn closed(&self) {
        // The sender is ours, so it is there.
        let _ = self.presence.subscribe().wait_for(|presence| presence.has_ended()).await;
    }

    /// Nothing more can come: it is as if the stream had ended. Daemons may hold it open all the same.
    pub fn close(&self) {
        end(&self.presence, &self.mux);
    }
}

/// What only the inside can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes in the places that can be written to.
    pub disk: u64,
    /// Processes that are ours and not the user's.
    pub helpers: u64,
    /// Since the last command and all that it left behind ended; `None` while one runs, and before the first.
    pub quiet: Option<Duration>,
}

/// A sandbox that takes no work from anybody until this is dropped.
#[derive(Debug)]
pub struct Frozen {
    connection: Connection,
    /// What the places that can be written to hold.
    pub bytes: u64,
    pub inodes: u64,
    /// Until the sandbox ends by itself.
    pub deadline: Option<Duration>,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // The only failure is a message that is too large, and this one has no contents.
        let _ = self.connection.mux.tell(&ToInit::Thaw);
    }
}

impl Connection {
    /// Show the token and wait until the sandbox takes work. To be called on a runtime, which then carries the connection.
    pub async fn open(
        mut reader: impl AsyncRead + Send + Unpin + 'static,
        mut writer: impl AsyncWrite + Send + Unpin + 'static,
        token: &str,
    ) -> Result<Self> {
        let mut hello = [0; HELLO_BYTES];
        let greeting = async {
            let mut presented = Vec::new();
            Frame::new(Kind::Present, 0, Lane::Messages, token.as_bytes()).write(&mut presented);
            // Whoever does not listen may still say why.
            let _ = writer.write_all(&presented).await;
            let _ = writer.flush().await;
            reader.read_exact(&mut hello).await
        };
        match tokio::time::timeout(HELLO_PATIENCE, greeting).await {
            Ok(Ok(_)) => {}
            Ok(Err(cause)) => return Err(Error::unavailable("the sandbox does not answer").with_cause(cause)),
            Err(_) => return Err(Error::new(ErrorKind::TimedOut, "the sandbox did not answer in time")),
        }
        match frame::greeted_by(&hello) {
            Greeting::Same => {}
            Greeting::OtherVersion => {
                return Err(Error::unsupported("another version of sandpen made this sandbox")
                    .with_hint("use it with that version, or stop it and create another"));
            }
            Greeting::Stranger => {
                return Err(Error::unavailable("something else than the sandbox answers")
                    .with_cause(String::from_utf8_lossy(&hello).into_owned()));
            }
        }
        let (mux, frames) = Mux::new();
        let presence = watch::Sender::new(Presence::Open);
        tokio::spawn(carry(Arc::downgrade(&mux), presence.clone(), reader, writer, frames));
        Ok(Self { mux, presence })
    }

    /// Start a command. It begins from an empty environment, and in `/workspace` unless the request says otherwise: what
    /// the sandbox adds to every command is to be in the request already.
    pub async fn start(&self, request: &ExecRequest) -> Result<Process> {
        process::start(self, request).await
    }

    /// What detached commands wrote, the oldest first.
    pub async fn logs(&self) -> Result<Vec<ExecLog>> {
        let told = async {
            let Handles { channel, .. } = self.begin(Task::Work(Work::Logs), Part::default()).await?;
            let mut logs = Logs::default();
            loop {
                match self.unless_silent(channel.receive()).await? {
                    Ok(Some(piece)) => {
                        if let Some(logs) = logs.add(piece)? {
                            return Ok(logs);
                        }
                    }
                    Ok(None) | Err(_) => return Err(self.lost().unwrap_or_else(no_more_processes)),
                }
            }
        };
        // Whoever has something to hide may have stopped the one who tells it.
        let late = || Error::new(ErrorKind::TimedOut, "the sandbox did not tell its logs in time");
        tokio::time::timeout(LOGS_PATIENCE, told).await.map_err(|_| late())?
    }

    pub fn files(&self) -> Box<dyn Files> {
        Box::new(AgentFiles::new(self.clone()))
    }

    /// The same with what only a sandbox of one's own is asked for.
    pub fn own_files(&self) -> AgentFiles {
        AgentFiles::new(self.clone())
    }

    pub async fn measure(&self) -> Result<Measured> {
        match self.ask(&ToInit::Measure).await? {
            FromInit::Measured { disk, helpers, quiet_milliseconds } => {
                Ok(Measured { disk, helpers, quiet: quiet_milliseconds.map(Duration::from_millis) })
            }
            FromInit::Ready
            | FromInit::DeadlineSet
            | FromInit::Frozen { .. }
            | FromInit::Busy
            | FromInit::Staying
            | FromInit::Network(_) => Err(another_question()),
        }
    }

    /// Move the moment at which the sandbox ends by itself. `None` means no such moment.
    pub async fn set_deadline(&self, from_now: Option<Duration>) -> Result<()> {
        let milliseconds = from_now.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX).min(FOR_EVER));
        match self.ask(&ToInit::SetDeadline { milliseconds }).await? {
            FromInit::DeadlineSet => Ok(()),
            FromInit::Ready
            | FromInit::Measured { .. }
            | FromInit::Frozen { .. }
            | FromInit::Busy
            | FromInit::Staying
            | FromInit::Network(_) => Err(another_question()),
        }
    }

    /// Have it take no more work but for files from here. `None` when something runs that does not end by itself at once.
    pub async fn freeze(&self) -> Result<Option<Frozen>> {
        match self.ask(&ToInit::Freeze).await? {
            FromInit::Frozen { bytes, inodes, untouched: _, deadline_milliseconds } => Ok(Some(Frozen {
                connection: self.clone(),
                bytes,
                inodes,
                deadline: deadline_milliseconds.map(Duration::from_millis),
            })),
            FromInit::Busy => Ok(None),
            FromInit::Ready
            | FromInit::DeadlineSet
            | FromInit::Measured { .. }
            | FromInit::Staying
            | FromInit::Network(_) => Err(another_question()),
        }
    }

    /// Have a sandbox that would end with this connection outlive it.
    pub async fn stay(&self) -> Result<()> {
        match self.ask(&ToInit::Stay).await? {
            FromInit::Staying => Ok(()),
            FromInit::Ready
            | FromInit::DeadlineSet
            | FromInit::Measured { .. }
            | FromInit::Frozen { .. }
            | FromInit::Busy
            | FromInit::Network(_) => Err(another_question()),
        }
    }

    /// Wait for the end of the stream, and hear what every operation answers since.
    pub async fn closed(&self) -> Error {
        self.watcher().closed().await;
        self.lost().unwrap_or_else(another_question)
    }

    pub fn watcher(&self) -> Watcher {
        Watcher { mux: Arc::downgrade(&self.mux), presence: self.presence.clone() }
    }

    pub fn is_closed(&self) -> bool {
        self.presence.borrow().has_ended()
    }

    /// Whoever knows that the sandbox is no more, or has it end with this connection, says it here: operations then answer
    /// `NotFound`, and the stream is closed.
    pub fn sandbox_is_gone(&self) {
        self.presence.send_replace(Presence::Gone);
        self.mux.cut();
    }

    /// Waits while the sandbox takes nothing more.
    pub(crate) async fn begin(&self, task: Task, part: Part) -> Result<Handles> {
        let begin = Begin { task, part };
        match self.unless_silent(self.mux.begin(&begin)).await? {
            Ok(Some(handles)) => Ok(handles),
            Ok(None) => Err(self.lost().unwrap_or_else(connection_lost)),
            Err(TooLarge) => Err(Error::limit_exceeded("the arguments and environment are too large")),
        }
    }

    /// Why there are no answers; `None` while there is a connection.
    pub(crate) fn lost(&self) -> Option<Error> {
        match *self.presence.borrow() {
            Presence::Open | Presence::Silent => None,
            Presence::Lost => Some(connection_lost()),
            Presence::Gone => Some(
                Error::not_found("the sandbox is gone")
                    .with_hint("it may have been stopped or have expired; create another"),
            ),
        }
    }

    pub(crate) async fn ask(&self, question: &ToInit) -> Result<FromInit> {
        let lost = || self.lost().unwrap_or_else(connection_lost);
        let asked = async {
            let answer = self.mux.ask(question).await.map_err(|TooLarge| another_question())?.ok_or_else(lost)?;
            answer.await.map_err(|_| lost())
        };
        self.unless_silent(asked).await?
    }

    /// What is waited for, unless the sandbox is silent for so long that waiting is not worth it. What goes on in it is not
    /// ended by that: it may be heard of again.
    pub(crate) async fn unless_silent<T>(&self, waiting: impl Future<Output = T>) -> Result<T> {
        let mut presence = self.presence.subscribe();
        let silence = async {
            loop {
                // The sender is ours, so it is there.
                let _ = presence.wait_for(|presence| *presence == Presence::Silent).await;
                let heard = presence.wait_for(|presence| *presence != Presence::Silent);
                if tokio::time::timeout(SECOND_CHANCE, heard).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            answer = waiting => Ok(answer),
            () = silence => Err(silent()),
        }
    }
}

/// They are a few mebibytes, over any line.
const LOGS_PATIENCE: Duration = Duration::from_secs(120);

/// A question may be the first thing that a sandbox hears after its daemon hung, and the answer the first that is heard of it.
const SECOND_CHANCE: Duration = Duration::from_secs(3);

/// A hundred years: what process 1 can add to its clock.
const FOR_EVER: u64 = 100 * 365 * 24 * 3600 * 1000;

fn connection_lost() -> Error {
    Error::unavailable("the connection to the sandbox was lost").with_hint("try again")
}

fn silent() -> Error {
    Error::unavailable("the sandbox does not answer").with_hint("try again; the daemon's log may say more")
}

pub(crate) fn another_question() -> Error {
    Error::internal("the sandbox gave an answer to another question")
}
