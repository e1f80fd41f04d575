//! Ending a sandbox: kill, verify, remove, then forget. A task of its own does it, whoever waits.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::core::Core;
use super::ledger::{Reading, RecordLock, RecordState};
use super::lifecycle::State;
use super::registry::StopTicket;
use crate::error::{Error, Result};
use crate::event::{EventKind, StopReason};
use crate::id::{Owner, SandboxId};
use crate::spec::Persistence;

/// How long one caller waits for the stop of another.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long somebody who wants a sandbox waits for the room of one that is on its way out.
const ROOM_PATIENCE: Duration = Duration::from_secs(5);

/// A sandbox whose end has begun.
pub(super) struct Leaving {
    states: watch::Receiver<State>,
}

impl Leaving {
    async fn is_gone_within(&self, patience: Duration) -> bool {
        let mut states = self.states.clone();
        let gone = states.wait_for(|state| *state == State::Gone);
        matches!(tokio::time::timeout(patience, gone).await, Ok(Ok(_)))
    }

    /// Returns when nothing of it is left.
    pub async fn gone(&self) -> Result<()> {
        let is_gone = self.is_gone_within(PATIENCE).await;
        is_gone.then_some(()).ok_or_else(|| Error::unavailable("the sandbox is still being stopped"))
    }
}

impl Core {
    /// Returns when nothing of it is left.
    pub(super) async fn end(self: &Arc<Self>, id: &SandboxId, reason: StopReason) -> Result<()> {
        match self.registry.begin_stop(id, reason)? {
            StopTicket::Yours => {
                let (core, id) = (Arc::clone(self), id.clone());
                let work = tokio::spawn(async move { core.destroy(&id, reason).await });
                work.await.unwrap_or_else(|cause| {
                    Err(Error::internal("stopping the sandbox ended without an answer").with_cause(cause))
                })
            }
            StopTicket::Theirs(states) => Leaving { states }.gone().await,
        }
    }

    /// Begin the end of a sandbox that is nobody's from here on. It is tried again until it is gone, and a shutdown waits for it. `None`
    /// when there is nothing to begin.
    pub(super) fn begin_end(self: &Arc<Self>, id: &SandboxId, reason: StopReason) -> Option<Leaving> {
        let states = self.registry.states(id)?;
        if let Ok(StopTicket::Yours) = self.registry.begin_stop(id, reason) {
            let (core, id) = (Arc::clone(self), id.clone());
            self.runtime.spawn(async move { core.destroy(&id, reason).await });
        }
        Some(Leaving { states })
    }

    /// Wait until a sandbox is gone that ends because its run is over, if this owner has one: it is nobody's, and the room that it
    /// takes is about to be free. `false` when there is none, or it takes its time.
    pub(super) async fn makes_room(&self, owner: &Owner) -> bool {
        let Some(states) = self.registry.leaving(owner) else { return false };
        Leaving { states }.is_gone_within(ROOM_PATIENCE).await
    }

    /// For whoever holds the stop ticket.
    pub(super) async fn destroy(&self, id: &SandboxId, reason: StopReason) -> Result<()> {
        let lock = match self.registry.persistence(id) {
            Some(Persistence::Ephemeral) | None => None,
            Some(Persistence::Persistent) => match self.ledger.lock(id).await {
                Ok(lock) => Some(lock),
                Err(error) => return self.destroyed(id, reason, Err(error)),
            },
        };
        self.destroy_locked(id, reason, lock).await
    }

    pub(super) async fn destroy_locked(
        &self,
        id: &SandboxId,
        reason: StopReason,
        lock: Option<RecordLock>,
    ) -> Result<()> {
        // Whoever holds the ticket ends one that is known here.
        let locked = lock.zip(self.record_name(id));
        if let Some((lock, name)) = &locked
            && let Ok(Reading::Record(mut record)) = self.ledger.read(name)
        {
            record.state = RecordState::Stopping;
            // A full disk must not keep a sandbox alive; recovery then finds a live record without a sandbox.
            if let Err(error) = self.ledger.write(&record, lock).await {
                tracing::warn!(%id, ?error, "the intent to stop was not written down");
            }
        }
        let ended = self.engine.destroy(id).await;
        if ended.is_ok()
            && let Some((lock, name)) = locked
            && let Err(error) = self.ledger.remove(&name, lock).await
        {
            tracing::warn!(%id, ?error, "the record of a stopped sandbox stays until the next sweep");
        }
        self.destroyed(id, reason, ended)
    }

    fn destroyed(&self, id: &SandboxId, reason: StopReason, ended: Result<()>) -> Result<()> {
        let owner = self.registry.owner(id);
        match &ended {
            Ok(()) => {
                self.registry.destroyed(id);
                self.contexts.forget(id);
                self.displayed.forget(id);
                if let Some(owner) = owner {
                    self.emit(&owner, id, EventKind::Stopped { reason });
                }
            }
            Err(error) => {
                tracing::warn!(%id, ?error, "the sandbox could not be stopped; it will be tried again");
                self.registry.not_destroyed(id, self.clock.now());
                if let Some(owner) = owner {
                    self.emit(&owner, id, EventKind::StopFailed { reason, kind: error.kind() });
                }
                self.poke.notify_one();
            }
        }
        ended
    }
}
