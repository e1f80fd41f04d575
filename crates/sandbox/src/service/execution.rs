//! One running command as the service hands it out: its streams, and power over it.

use std::fmt;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::error::{Error, Result};
use crate::exec::{ExecOutcome, Signal, TerminalSize};
use crate::output::{CappedOutput, OutputCaps};

/// A running command. Its sandbox does not become idle before it ends.
///
/// Has no `Drop` of its own, so that its parts can be moved to where they are needed.
pub struct Execution {
    /// `None` with a terminal. Dropping it closes the command's stdin.
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    pub control: ExecutionControl,
}

/// Power over one running command. When the last copy is dropped before the end, the request's `on_disconnect` applies.
#[derive(Clone)]
pub struct ExecutionControl {}

/// The end of a command and what was kept of its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    pub outcome: ExecOutcome,
    pub stdout: CappedOutput,
    pub stderr: CappedOutput,
}

impl ExecutionControl {
    /// Send a signal to the command's process group. Success when the command has already ended.
    pub async fn signal(&self, _signal: Signal) -> Result<()> {
        Err(Error::unsupported("not built yet"))
    }

    pub async fn resize(&self, _size: TerminalSize) -> Result<()> {
        Err(Error::unsupported("not built yet"))
    }

    /// Kill the command and everything that it started; `wait` then answers `Cancelled`.
    pub async fn cancel(&self) -> Result<()> {
        Err(Error::unsupported("not built yet"))
    }

    /// How the command ended. May be called more than once, and dropped.
    pub async fn wait(&self) -> Result<ExecOutcome> {
        Err(Error::unsupported("not built yet"))
    }
}

impl Execution {
    pub async fn signal(&self, signal: Signal) -> Result<()> {
        self.control.signal(signal).await
    }

    pub async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.control.resize(size).await
    }

    pub async fn cancel(&self) -> Result<()> {
        self.control.cancel().await
    }

    pub async fn wait(&self) -> Result<ExecOutcome> {
        self.control.wait().await
    }

    /// Read both streams to their end, within `caps` each, and wait. Closes stdin unless it was taken before.
    pub async fn capture(self, _caps: OutputCaps) -> Result<Captured> {
        Err(Error::unsupported("not built yet"))
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution").finish_non_exhaustive()
    }
}

impl fmt::Debug for ExecutionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutionControl").finish_non_exhaustive()
    }
}
