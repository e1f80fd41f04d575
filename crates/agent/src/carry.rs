//! The stream itself: frames out, frames in, and whether anybody is on the other side.

use std::io;
use std::pin::pin;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};

use crate::frame::{BEAT, Decoder, Frame, Kind, Lane, MAX_DATA, Malformed, SILENCE};
use crate::mux::{Mux, Outgoing};

/// After a stream has broken for writing, for how long what comes is still read.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A bridge that has missed two beats is not waited for: whoever asks is told within half a minute.
const UNANSWERED: Duration = Duration::from_secs(22);
const LOOK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Open,
    /// Nothing was heard for a while. That may pass.
    Silent,
    /// The stream has ended; the sandbox may live on.
    Lost,
    /// Whoever knows has said that the sandbox is no more.
    Gone,
}

impl Presence {
    pub fn has_ended(self) -> bool {
        match self {
            Self::Open | Self::Silent => false,
            Self::Lost | Self::Gone => true,
        }
    }
}

/// Both directions, until one of them ends or nobody holds the other side any more.
pub async fn carry(
    mux: Weak<Mux>,
    presence: watch::Sender<Presence>,
    reader: impl AsyncRead + Unpin,
    writer: impl AsyncWrite + Unpin,
    frames: mpsc::UnboundedReceiver<Outgoing>,
) {
    let heard = AtomicBool::new(true);
    let mut reading = pin!(read(&mux, reader, &heard, &presence));
    let mut told = presence.subscribe();
    let gone = async {
        // The sender is ours, so it is there.
        let _ = told.wait_for(|presence| *presence == Presence::Gone).await;
    };
    let ended = tokio::select! {
        () = gone => Ok(()),
        ended = &mut reading => ended,
        ended = write(writer, frames, BEAT) => {
            if ended.is_err() {
                // What it had said before it stopped to listen counts.
                let _ = tokio::time::timeout(LAST_WORDS, reading).await;
            }
            ended
        }
        ended = watch_for_silence(&heard, &presence, LOOK) => ended,
    };
    if let Err(cause) = ended {
        tracing::debug!(%cause, "the connection to a sandbox was lost");
    }
    end(&presence, &mux);
}

/// The stream has ended, or it is as if it had.
pub fn end(presence: &watch::Sender<Presence>, mux: &Weak<Mux>) {
    presence.send_if_modified(|presence| {
        let has_ended = presence.has_ended();
        if !has_ended {
            *presence = Presence::Lost;
        }
        !has_ended
    });
    if let Some(mux) = mux.upgrade() {
        mux.cut();
    }
}

async fn read(
    mux: &Weak<Mux>,
    mut reader: impl AsyncRead + Unpin,
    heard: &AtomicBool,
    presence: &watch::Sender<Presence>,
) -> io::Result<()> {
    let mut decoder = Decoder::default();
    let mut bytes = vec![0; MAX_DATA];
    loop {
        let count = reader.read(&mut bytes).await?;
        let Some(mux) = mux.upgrade().filter(|_| count > 0) else { return Ok(()) };
        heard.store(true, Ordering::Relaxed);
        see(presence, Presence::Open);
        decoder.take(&bytes[..count]);
        loop {
            let received = decoder.next_frame().and_then(|frame| match frame {
                Some(frame) => mux.receive(&frame).map(|()| true),
                None => Ok(false),
            });
            match received {
                Ok(true) => {}
                Ok(false) => break,
                Err(Malformed) => {
                    tracing::warn!("a sandbox sent what is no message; its connection is closed");
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
        }
    }
}

async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut frames: mpsc::UnboundedReceiver<Outgoing>,
    beat: Duration,
) -> io::Result<()> {
    let mut beats = tokio::time::interval_at(Instant::now() + beat, beat);
    // After a time without any, one is as good as many.
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waiting = Vec::new();
    loop {
        tokio::select! {
            count = frames.recv_many(&mut waiting, 64) => if count == 0 { break },
            _ = beats.tick() => waiting.push(Outgoing::at_once(&Frame::new(Kind::Beat, 0, Lane::Messages, &[]))),
        }
        for frame in waiting.drain(..) {
            writer.write_all(&frame.bytes).await?;
        }
        writer.flush().await?;
    }
    writer.shutdown().await
}

/// A bridge says regularly that it is there. One that does not may be held up for a while, by a daemon that hangs; after
/// longer it has ended by itself, because it did not hear us either. Counted in looks and not by a clock: while we were
/// stopped ourselves, we have missed nothing.
async fn watch_for_silence(
    heard: &AtomicBool,
    presence: &watch::Sender<Presence>,
    between_looks: Duration,
) -> io::Result<()> {
    let mut silent_for = Duration::ZERO;
    while silent_for < SILENCE {
        tokio::time::sleep(between_looks).await;
        silent_for = if heard.swap(false, Ordering::Relaxed) { Duration::ZERO } else { silent_for + LOOK };
        let seen = if silent_for >= UNANSWERED { Presence::Silent } else { Presence::Open };
        see(presence, seen);
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the sandbox is silent"))
}

/// What has ended stays so.
fn see(presence: &watch::Sender<Presence>, seen: Presence) {
    presence.send_if_modified(|presence| {
        let is_news = !presence.has_ended() && *presence != seen;
        if is_news {
            *presence = seen;
        }
        is_news
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_with_nothing_to_say_is_heard_until_it_closes() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 10);
        let (outgoing, frames) = mpsc::unbounded_channel();
        let writing = tokio::spawn(write(ours, frames, Duration::from_millis(1)));
        let mut beats = [0; 3 * crate::frame::HEADER_BYTES];
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

    #[tokio::test]
    async fn silence_is_told_and_passes_and_is_an_end_when_it_does_not() {
        let presence = watch::Sender::new(Presence::Open);
        let heard = AtomicBool::new(true);
        let mut seen = presence.subscribe();
        let (watched, ()) = tokio::join!(watch_for_silence(&heard, &presence, Duration::from_millis(2)), async {
            seen.wait_for(|presence| *presence == Presence::Silent).await.unwrap();
            heard.store(true, Ordering::Relaxed);
            seen.wait_for(|presence| *presence == Presence::Open).await.unwrap();
            seen.wait_for(|presence| *presence == Presence::Silent).await.unwrap();
        });
        assert_eq!(watched.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
