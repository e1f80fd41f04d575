//! The end of a sandbox, as cheaply as the daemon can have it.

use std::time::Duration;

use sandbox::{Persistence, Result};

use crate::engine::Shared;
use crate::live::Live;

/// In which process 1 sees its stream close and ends, and the daemon clears up after it.
const BY_ITSELF: Duration = Duration::from_secs(5);

impl Shared {
    /// Returns when the daemon says that the container is gone. An ephemeral one ends with its stream; to have it killed, the
    /// daemon would start its runtime once more.
    pub(crate) async fn end_live(&self, live: &Live) -> Result<()> {
        match live.description.persistence {
            Persistence::Ephemeral => {
                live.connection.sandbox_is_gone();
                let removed = tokio::time::timeout(BY_ITSELF, self.daemon.removed(&live.container)).await;
                if matches!(removed, Ok(Ok(()))) {
                    return Ok(());
                }
            }
            Persistence::Persistent => {}
        }
        self.remove_whole(&live.container, &live.description).await?;
        live.connection.sandbox_is_gone();
        Ok(())
    }
}
