//! Moments of a sandbox's files: each is a number of frozen layers.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox::{Changes, Checkpoint, Checkpoints, Error, Persistence, Result, SandboxId};
use tokio::sync::{OwnedMutexGuard, OwnedRwLockWriteGuard};

use crate::ahead;
use crate::engine::{NativeEngine, Shared};
use crate::history::inheritance;
use crate::live::{Description, Live};
use crate::plan::{Heir, Inheritance};
use crate::record;
use crate::restart::{freeze_at_rest, not_recorded};

#[async_trait]
impl Checkpoints for NativeEngine {
    async fn checkpoint(&self, id: &SandboxId) -> Result<Checkpoint> {
        let (shared, id) = (self.shared.clone(), id.clone());
        to_its_end(async move { shared.checkpoint(&id).await }).await
    }

    async fn changes(&self, id: &SandboxId, since: Option<Checkpoint>, most: usize) -> Result<Changes> {
        let (live, _inside) = self.shared.enter(id).await?;
        self.shared.changes(&live, since, most).await
    }

    async fn restore(&self, id: &SandboxId, to: Checkpoint) -> Result<()> {
        let (shared, id) = (self.shared.clone(), id.clone());
        to_its_end(async move { shared.restore(&id, to).await }).await
    }
}

/// A sandbox that nobody else starts anything in, or ends.
pub(crate) struct Alone {
    pub live: Arc<Live>,
    _entrance: OwnedRwLockWriteGuard<()>,
    _changing: OwnedMutexGuard<()>,
}

impl Shared {
    pub(crate) async fn alone(&self, id: &SandboxId) -> Result<Alone> {
        loop {
            let live = self.live(id).await?;
            ahead::dismiss(&live).await;
            let _entrance = live.entrance.clone().write_owned().await;
            let _changing = live.changing.clone().lock_owned().await;
            // While we waited it may have been restarted or ended.
            if self.is_current(&live) {
                return Ok(Alone { live, _entrance, _changing });
            }
        }
    }

    async fn checkpoint(&self, id: &SandboxId) -> Result<Checkpoint> {
        let alone = self.alone(id).await?;
        let live = &alone.live;
        let frozen = freeze_at_rest(live).await?;
        let history = live.history();
        let is_empty = |changes: Changes| changes.entries.is_empty();
        if let Some(newest) = history.newest_here()
            && (frozen.untouched || is_empty(self.changes(live, Some(newest), 1).await?))
        {
            return Ok(newest);
        }
        if frozen.untouched && !history.layers.is_empty() {
            let (history, checkpoint) = history.with_checkpoint();
            self.write_down(live, &Description { history: history.clone(), ..live.description.clone() })?;
            live.set_history(history);
            return Ok(checkpoint);
        }
        let inheritance = inheritance(Heir::Successor, live, true);
        let (history, checkpoint) = history.with_layer(frozen.held).with_checkpoint();
        history.check(&live.description.limits, Heir::Successor)?;
        self.restart(frozen, inheritance, history).await?;
        Ok(checkpoint)
    }

    async fn restore(&self, id: &SandboxId, to: Checkpoint) -> Result<()> {
        let alone = self.alone(id).await?;
        let live = &alone.live;
        let history = live.history().back_to(to)?;
        let frozen = freeze_at_rest(live).await?;
        let all = inheritance(Heir::Successor, live, false);
        let inheritance = Inheritance { layers: history.layers.len(), ..all };
        self.restart(frozen, inheritance, history).await?;
        Ok(())
    }

    fn write_down(&self, live: &Live, description: &Description) -> Result<()> {
        match live.description.persistence {
            Persistence::Ephemeral => Ok(()),
            Persistence::Persistent => record::write(&self.places.records, description).map_err(not_recorded),
        }
    }
}

/// Work that must not be left half done, whoever goes away meanwhile.
pub(crate) async fn to_its_end<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let failed = |cause| Error::internal("the sandbox could not be changed").with_cause(cause);
    tokio::spawn(work).await.map_err(failed)?
}
