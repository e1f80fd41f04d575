//! A command that ended with its whole sandbox, where that may be for want of memory: gVisor is a program of the host, and what
//! the host's kernel kills is not the command but gVisor. Only the daemon knows why.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox::{ExecOutcome, ExecStatus, Process, ProcessControl, Result, Signal, TerminalSize};
use tokio::sync::OnceCell;

use crate::client::Daemon;
use crate::live::Live;

/// The same command, of which it is told when memory ran out.
pub fn explained(process: Process, live: Arc<Live>, daemon: Daemon) -> Process {
    let control = Explained { control: process.control, live, daemon, outcome: OnceCell::new() };
    Process { control: Box::new(control), ..process }
}

struct Explained {
    control: Box<dyn ProcessControl>,
    live: Arc<Live>,
    daemon: Daemon,
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
            if outcome.status == ExecStatus::Killed && self.daemon.ran_out_of_memory(&self.live.container).await {
                outcome.status = ExecStatus::OutOfMemory;
            }
            Ok(outcome)
        });
        outcome.await.cloned()
    }
}
