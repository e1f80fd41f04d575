//! Signals, on systems of the Unix kind.

use std::io;

use sandbox::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use super::Heard;

#[derive(Debug)]
pub struct Sources {
    interrupt: Stream,
    terminate: Stream,
    hang_up: Stream,
    resized: Stream,
}

impl Sources {
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            resized: signal(SignalKind::window_change())?,
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
}
