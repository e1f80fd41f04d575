//! A command whose connections are told with how it ended.

use std::sync::Arc;

use async_trait::async_trait;
use egress::Mark;
use sandbox::{ExecOutcome, Process, ProcessControl, Result, Signal, TerminalSize};
use tokio::sync::OnceCell;

use crate::live::Live;

/// The same command, seen from `mark` on.
pub fn observed(process: Process, live: Arc<Live>, mark: Option<Mark>) -> Process {
    let Some(mark) = mark else { return process };
    let control = Observed { control: process.control, live, mark, outcome: OnceCell::new() };
    Process { control: Box::new(control), ..process }
}

struct Observed {
    control: Box<dyn ProcessControl>,
    live: Arc<Live>,
    mark: Mark,
    outcome: OnceCell<ExecOutcome>,
}

#[async_trait]
impl ProcessControl for Observed {
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
            if let Some(outlet) = self.live.outlet.get() {
                outcome.network = outlet.door.since(self.mark);
            }
            Ok(outcome)
        });
        outcome.await.cloned()
    }
}
