//! A command that ended with its whole sandbox, for want of something or with its daemon. gVisor is a program of the host, and
//! what the host's kernel kills for want of memory is not the command but gVisor; only the daemon knows why. And a sandbox whose
//! files are on the daemon's disk is ended by us when they are too many.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox::{ExecOutcome, ExecStatus, Process, ProcessControl, Result, Signal, TerminalSize};
use tokio::sync::OnceCell;

use crate::client::Daemon;
use crate::isolation::Kernel;
use crate::live::Live;

/// The same command, of which it is told what ran out, or that nobody can say how it ended.
pub fn explained(process: Process, live: Arc<Live>, daemon: Daemon, kernel: Kernel) -> Process {
    let control = Explained { control: process.control, live, daemon, kernel, outcome: OnceCell::new() };
    Process { control: Box::new(control), ..process }
}

struct Explained {
    control: Box<dyn ProcessControl>,
    live: Arc<Live>,
    daemon: Daemon,
    kernel: Kernel,
    outcome: OnceCell<ExecOutcome>,
}

#[async_trait]
impl ProcessControl for Explained {
    async fn signal(&self, signal: Signal) -> Result<()> {
        self.control.signal(signal).await
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.control.resize(size).await
    }

    async fn kill(&self) -> Result<()> {
        self.control.kill().await
    }

    async fn wait(&self) -> Result<ExecOutcome> {
        let outcome = self.outcome.get_or_try_init(|| async {
            let mut outcome = self.control.wait().await?;
            if outcome.status != ExecStatus::Killed {
                return Ok(outcome);
            }
            if let Some(overflow) = self.live.overflow() {
                return Err(overflow.error(&self.live));
            }
            if self.kernel == Kernel::Gvisor && self.daemon.ran_out_of_memory(&self.live.container).await {
                outcome.status = ExecStatus::OutOfMemory;
                return Ok(outcome);
            }
            // A stream ends with its sandbox and with its daemon. Only of the first is it known how the command ended.
            if self.live.connection.is_closed() {
                self.daemon.check_same(Duration::ZERO).await?;
            }
            Ok(outcome)
        });
        outcome.await.cloned()
    }
}
