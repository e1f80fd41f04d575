//! What a console of Windows tells, and how large its window is.

use std::io;
use std::time::Duration;

use sandbox::{Signal, TerminalSize};
use tokio::signal::windows::{
    CtrlBreak, CtrlC, CtrlClose, CtrlShutdown, ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown,
};
use tokio::time::Interval;

use super::Heard;
use crate::terminal;

/// A console does not say that its window changed, so it is looked at.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Sources {
    interrupt: CtrlC,
    terminate: CtrlBreak,
    close: CtrlClose,
    shutdown: CtrlShutdown,
    look: Interval,
    size: TerminalSize,
}

impl Sources {
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: ctrl_c()?,
            terminate: ctrl_break()?,
            close: ctrl_close()?,
            shutdown: ctrl_shutdown()?,
            look: tokio::time::interval(LOOK),
            size: terminal::size(),
        })
    }

    pub async fn next(&mut self) -> Heard {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return Heard::End(Signal::Interrupt),
                _ = self.terminate.recv() => return Heard::End(Signal::Terminate),
                _ = self.shutdown.recv() => return Heard::End(Signal::Terminate),
                _ = self.close.recv() => return Heard::End(Signal::HangUp),
                _ = self.look.tick() => {
                    let size = terminal::size();
                    if size != self.size {
                        self.size = size;
                        return Heard::Resized;
                    }
                }
            }
        }
    }
}
