//! One stream of bytes to the bridge of a sandbox.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sandbox::{Error, ErrorKind, ExecLog, ExecRequest, Files, Process, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};

use crate::execs::{Logs, no_more_processes};
use crate::files::AgentFiles;
use crate::frame::{self, BEAT, Begin, Decoder, Frame, Greeting, HELLO_BYTES, Kind, Lane, MAX_DATA, Part, Task};
use crate::messages::{FromInit, ToInit, Work};
use crate::mux::{Handles, Mux, TooLarge};
use crate::process;

/// A daemon under load starts a bridge within seconds.
const HELLO_PATIENCE: Duration = Duration::from_secs(30);

/// After a stream has broken for writing, for how long what comes is still read.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A handle to one sandbox. Its stream closes when the last handle is dropped, and with it all that came from it.
#[derive(Clone, Debug)]
pub struct Connection {
    mux: Arc<Mux>,
    presence: watch::Sender<Presence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Open,
    /// The stream has ended; the sandbox may live on.
    Lost,
    /// Whoever knows has said that the sandbox is no more.
    Gone,
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
    /// Wait until the sandbox takes work. To be called on a runtime, which then carries the connection.
    pub async fn open(
        mut reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Self> {
        let mut hello = [0; HELLO_BYTES];
        match tokio::time::timeout(HELLO_PATIENCE, reader.read_exact(&mut hello)).await {
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
        let Handles { channel, .. } = self.begin(Task::Work(Work::Logs), Part::default())?;
        let mut logs = Logs::default();
        loop {
            match channel.receive().await {
                Ok(Some(piece)) => {
                    if let Some(logs) = logs.add(piece)? {
                        return Ok(logs);
                    }
                }
                Ok(None) | Err(_) => return Err(self.lost().unwrap_or_else(no_more_processes)),
            }
        }
    }

    pub fn files(&self) -> Box<dyn Files> {
        Box::new(AgentFiles::new(self.clone()))
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
            | FromInit::Caught => Err(another_question()),
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
            | FromInit::Caught => Err(another_question()),
        }
    }

    /// Have it take no more work. `None` when something runs that does not end by itself at once.
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
            | FromInit::Caught => Err(another_question()),
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
            | FromInit::Caught => Err(another_question()),
        }
    }

    /// Wait for the end of the stream, and hear what every operation answers since.
    pub async fn closed(&self) -> Error {
        // The sender is ours, so it is there.
        let _ = self.presence.subscribe().wait_for(|presence| *presence != Presence::Open).await;
        self.lost().unwrap_or_else(another_question)
    }

    pub fn is_closed(&self) -> bool {
        *self.presence.borrow() != Presence::Open
    }

    /// Whoever knows that the sandbox is no more says it here: operations then answer `NotFound`.
    pub fn sandbox_is_gone(&self) {
        self.presence.send_replace(Presence::Gone);
        self.mux.cut();
    }

    pub(crate) fn begin(&self, task: Task, part: Part) -> Result<Handles> {
        match self.mux.begin(&Begin { task, part }) {
            Ok(Some(handles)) => Ok(handles),
            Ok(None) => Err(self.lost().unwrap_or_else(connection_lost)),
            Err(TooLarge) => Err(Error::limit_exceeded("the arguments and environment are too large")),
        }
    }

    /// Why there are no answers; `None` while there is a connection.
    pub(crate) fn lost(&self) -> Option<Error> {
        match *self.presence.borrow() {
            Presence::Open => None,
            Presence::Lost => Some(connection_lost()),
            Presence::Gone => Some(
                Error::not_found("the sandbox is gone")
                    .with_hint("it may have been stopped or have expired; create another"),
            ),
        }
    }

    async fn ask(&self, question: &ToInit) -> Result<FromInit> {
        let lost = || self.lost().unwrap_or_else(connection_lost);
        let answer = self.mux.ask(question).map_err(|TooLarge| another_question())?.ok_or_else(lost)?;
        answer.await.map_err(|_| lost())
    }
}

/// A hundred years: what process 1 can add to its clock.
const FOR_EVER: u64 = 100 * 365 * 24 * 3600 * 1000;

fn connection_lost() -> Error {
    Error::unavailable("the connection to the sandbox was lost").with_hint("try again")
}

fn another_question() -> Error {
    Error::internal("the sandbox gave an answer to another question")
}

/// Both directions, until one of them ends or nobody holds the other side any more.
async fn carry(
    mux: Weak<Mux>,
    presence: watch::Sender<Presence>,
    reader: impl AsyncRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    frames: mpsc::UnboundedReceiver<Vec<u8>>,
) {
    let mut reading = pin!(read(&mux, reader));
    let ended = tokio::select! {
        ended = &mut reading => ended,
        ended = write(writer, frames, BEAT) => {
            if ended.is_err() {
                // What it had said before it stopped to listen counts.
                let _ = tokio::time::timeout(LAST_WORDS, reading).await;
            }
            ended
        }
    };
    if let Err(cause) = ended {
        tracing::debug!(%cause, "the connection to a sandbox was lost");
    }
    presence.send_if_modified(|presence| {
        let was_open = *presence == Presence::Open;
        if was_open {
            *presence = Presence::Lost;
        }
        was_open
    });
    if let Some(mux) = mux.upgrade() {
        mux.cut();
    }
}

async fn read(mux: &Weak<Mux>, mut reader: impl AsyncRead + Unpin) -> std::io::Result<()> {
    let mut decoder = Decoder::default();
    let mut bytes = vec![0; MAX_DATA];
    loop {
        let count = reader.read(&mut bytes).await?;
        let Some(mux) = mux.upgrade().filter(|_| count > 0) else { return Ok(()) };
        decoder.take(&bytes[..count]);
        loop {
            let received = decoder.next_frame().and_then(|frame| match frame {
                Some(frame) => mux.receive(&frame).map(|()| true),
                None => Ok(false),
            });
            match received {
                Ok(true) => {}
                Ok(false) => break,
                Err(frame::Malformed) => {
                    tracing::warn!("a sandbox sent what is no message; its connection is closed");
                    return Err(std::io::ErrorKind::InvalidData.into());
                }
            }
        }
    }
}

async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut frames: mpsc::UnboundedReceiver<Vec<u8>>,
    beat: Duration,
) -> std::io::Result<()> {
    let mut beats = tokio::time::interval_at(Instant::now() + beat, beat);
    // After a time without any, one is as good as many.
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waiting = Vec::new();
    loop {
        tokio::select! {
            count = frames.recv_many(&mut waiting, 64) => if count == 0 { break },
            _ = beats.tick() => {
                let mut bytes = Vec::new();
                Frame::new(Kind::Beat, 0, Lane::Messages, &[]).write(&mut bytes);
                waiting.push(bytes);
            }
        }
        for frame in waiting.drain(..) {
            writer.write_all(&frame).await?;
        }
        writer.flush().await?;
    }
    writer.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_with_nothing_to_say_is_heard_until_it_closes() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 10);
        let (outgoing, frames) = mpsc::unbounded_channel();
        let writing = tokio::spawn(write(ours, frames, Duration::from_millis(1)));
        let mut beats = [0; 3 * frame::HEADER_BYTES];
        theirs.read_exact(&mut beats).await.unwrap();
        let mut decoder = Decoder::default();
        decoder.take(&beats);
        for _ in 0..3 {
            assert_eq!(decoder.next_frame(), Ok(Some(Frame::new(Kind::Beat, 0, Lane::Messages, &[]))));
        }
        drop(outgoing);
        let rest = tokio::time::timeout(Duration::from_secs(10), theirs.read_to_end(&mut Vec::new())).await;
        assert!(rest.is_ok(), "the stream stays open");
        writing.await.unwrap().unwrap();
    }
}
