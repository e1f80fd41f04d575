//! What the world tells this process while it waits for something.

use std::future::Future;

use sandbox::{Error, Result, Signal};

use self::sources::Sources;

#[cfg_attr(unix, path = "signals/unix.rs")]
#[cfg_attr(windows, path = "signals/windows.rs")]
mod sources;

/// A closed list: everything that can reach us by signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Ctrl-C, `kill`, or a terminal that went away.
    End(Signal),
    Resized,
}

#[derive(Debug)]
pub struct Signals {
    sources: Sources,
}

impl Signals {
    /// From here on these signals no longer end the process by themselves.
    pub fn listen() -> Result<Self> {
        let sources = Sources::listen();
        let sources = sources.map_err(|cause| Error::internal("signals cannot be received").with_cause(cause))?;
        Ok(Self { sources })
    }

    pub async fn next(&mut self) -> Heard {
        self.sources.next().await
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
