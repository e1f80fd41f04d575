//! A sandbox in use: as long as a hold exists, the sandbox is not idle, here and in every other process.

use std::sync::Arc;
use std::time::Duration;

use super::core::Core;
use super::expiry::Expiry;
use super::ledger::{LeaseHold, RecordName};
use super::lifecycle::Refusal;
use super::registry::Use;
use crate::error::{Error, Result};
use crate::id::{Owner, SandboxId};
use crate::spec::Persistence;

pub(super) struct Hold {
    pub core: Arc<Core>,
    pub owner: Owner,
    pub id: SandboxId,
    is_exec: bool,
    expiry: Expiry,
    lease: Option<LeaseHold>,
}

impl Hold {
    pub fn take(core: &Arc<Core>, owner: &Owner, id: &SandboxId, purpose: Use<'_>) -> Result<Self> {
        let found = core.locate(owner, id)?;
        let lease = match found.persistence {
            Persistence::Ephemeral => None,
            Persistence::Persistent => match core.ledger.lease(id).hold()? {
                Some(lease) => Some(lease),
                None => {
                    core.lose(id);
                    return Err(Refusal::Gone.into());
                }
            },
        };
        let now = core.clock.now();
        let expiry = core.registry.begin_use(owner, id, purpose, now)?;
        let is_exec = matches!(purpose, Use::Exec(..));
        let hold = Self { core: Arc::clone(core), owner: owner.clone(), id: id.clone(), is_exec, expiry, lease };
        if let Some(lease) = &hold.lease {
            lease.touch(now)?;
        }
        Ok(hold)
    }

    /// See to it that the engine keeps a persistent sandbox for `ahead` and its idle time after that.
    ///
    /// Ephemeral ones are the reaper's, off the path of calls: they need a live process anyway.
    pub async fn keep_alive(&self, ahead: Duration) -> Result<()> {
        let Some(lease) = &self.lease else { return Ok(()) };
        let core = &self.core;
        if self.expiry.is_covered(lease.engine_deadline(), core.clock.now(), ahead) {
            return Ok(());
        }
        let lock = core.ledger.lock(&self.id).await?;
        let now = core.clock.now();
        if !lease.is_linked() {
            // Somebody ended it while we waited, and our lock is on a file that we have just made.
            let _ = core.ledger.remove(&RecordName::new(&self.owner, &self.id), lock).await;
            core.lose(&self.id);
            return Err(Refusal::Gone.into());
        }
        // Another process may have moved it further meanwhile; moving it back would end what that process runs.
        if self.expiry.is_covered(lease.engine_deadline(), now, ahead) {
            return Ok(());
        }
        let deadline = self.expiry.engine_deadline(now, ahead);
        match core.engine.set_deadline(&self.id, Some(deadline.since(now))).await {
            Ok(()) => lease.set_engine_deadline(deadline),
            Err(error) => {
                drop(lock);
                Err(self.explain(error).await)
            }
        }
    }

    /// Live by another expiry from now on; the caller has told the registry.
    pub fn set_expiry(&mut self, expiry: Expiry) {
        self.expiry = expiry;
    }

    pub async fn explain(&self, error: Error) -> Error {
        self.core.explain(&self.id, error).await
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let now = self.core.clock.now();
        if let Some(lease) = &self.lease
            && let Err(error) = lease.touch(now)
        {
            tracing::warn!(id = %self.id, ?error, "the time of the last use was not written down");
        }
        self.core.registry.end_use(&self.owner, &self.id, self.is_exec, now);
        // A use may have held off an end that is due now.
        self.core.wake_by(now.after(self.expiry.lifetime.idle));
    }
}
