//! What the world tells this process while it waits for something.

use std::future::Future;

use sandbox::{Error, Result, Signal};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// A closed list: everything that can reach us by signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Ctrl-C, `kill`, or a terminal that went away.
    End(Signal),
    Resized,
}

#[derive(Debug)]
pub struct Signals {
    interrupt: Stream,
    terminate: Stream,
    hang_up: Stream,
    resized: Stream,
}

impl Signals {
    /// From here on these signals no longer end the process by themselves.
    pub fn listen() -> Result<Self> {
        let listen =
            |kind| signal(kind).map_err(|cause| Error::internal("signals cannot be received").with_cause(cause));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
            resized: listen(SignalKind::window_change())?,
        })
    }

    pub async fn next(&mut self) -> Heard {
        tokio::select! {
            _ = self.interrupt.recv() => Heard::End(Signal::Interrupt),
            _ = self.terminate.recv() => Heard::End(Signal::Terminate),
            _ = self.hang_up.recv() => Heard::End(Signal::HangUp),
            _ = self.resized.recv() => Heard::Resized,
        }
    }

    /// `work`, unless a signal to end comes first; then `work` is dropped.
    pub async fn unless_ended<T>(&mut self, work: impl Future<Output = T>) -> std::result::Result<T, Signal> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                heard = self.next() => match heard {
                    Heard::End(signal) => return Err(signal),
                    Heard::Resized => {}
                },
            }
        }
    }
}
