//! The end of a sandbox whose time is over by the clock: only if nobody uses it and nothing runs in it.

use std::sync::Arc;
use std::time::Duration;

use super::core::Core;
use super::hold::Hold;
use super::ledger::{Reading, RecordState};
use super::registry::Use;
use crate::error::{Error, Result};
use crate::event::StopReason;
use crate::id::{Owner, SandboxId};
use crate::spec::Persistence;

/// How long an engine may take to say what runs. One that hangs must not keep a sandbox alive.
const PATIENCE: Duration = Duration::from_secs(10);

impl Core {
    /// End a sandbox if its time is over, or start its idle time anew if it is in use.
    pub(super) async fn expire(self: &Arc<Self>, id: &SandboxId) {
        let looked = match self.registry.persistence(id) {
            Some(Persistence::Ephemeral) => self.expire_ephemeral(id).await,
            Some(Persistence::Persistent) => self.expire_persistent(id).await,
            None => Ok(()),
        };
        if let Err(error) = looked {
            tracing::warn!(%id, ?error, "an expired sandbox could not be looked at");
        }
    }

    /// What is due by the clock alone may be in use, so that a list without this look would show an end in the past.
    pub(super) async fn expire_overdue(self: &Arc<Self>, owner: &Owner) {
        for id in self.registry.overdue(owner, self.clock.now()) {
            self.expire(&id).await;
        }
    }

    async fn expire_ephemeral(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        let is_idle = self.registry.still_due(id, self.clock.now()) == Some(StopReason::Idle);
        if is_idle && self.something_runs(id).await {
            return self.keep(id).await;
        }
        match self.registry.begin_expiry(id, self.clock.now()) {
            Some(reason) => self.destroy(id, reason).await,
            None => Ok(()),
        }
    }

    /// Other processes may have used or renewed it.
    async fn expire_persistent(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        let Some(lock) = self.ledger.try_lock(id)? else { return Ok(()) };
        let Some(name) = self.record_name(id) else { return Ok(()) };
        let record = match self.ledger.read(&name)? {
            Reading::Record(record) => record,
            Reading::Later => return Ok(()),
            Reading::Nothing => {
                self.ledger.remove(&name, lock).await?;
                self.lose(id);
                return Ok(());
            }
        };
        let lease = self.ledger.lease(id);
        self.registry.touch(id, record.expiry(&self.clock, lease.last_used()));
        let Some(reason) = self.registry.still_due(id, self.clock.now()) else { return Ok(()) };
        // Asked before the lease is taken: who wants to use a busy one meanwhile must not hear that it is being stopped.
        let may_stay = reason == StopReason::Idle && record.state == RecordState::Live;
        if may_stay && (self.rests(id).await? || self.something_runs(id).await) {
            drop(lock);
            return self.keep(id).await;
        }
        if self.registry.still_due(id, self.clock.now()).is_none() {
            return Ok(());
        }
        // Held until the record is gone: whoever wants to use it meanwhile is told that it is being stopped.
        let alone = lease.hold_alone()?;
        let now = self.clock.now();
        let last_used = if alone.is_none() && may_stay { Some(now) } else { lease.last_used() };
        self.registry.touch(id, record.expiry(&self.clock, last_used));
        if let Some(reason) = self.registry.begin_expiry(id, now) {
            self.destroy_locked(id, reason, Some(lock)).await?;
        }
        drop(alone);
        Ok(())
    }

    /// One that rests has no idle time. An engine that cannot tell cannot end it either, and may be about to have it rest:
    /// then it is looked at again later.
    async fn rests(&self, id: &SandboxId) -> Result<bool> {
        let silent = |_| Error::unavailable("the engine does not say what it has");
        let listed = tokio::time::timeout(PATIENCE, self.engine.list()).await.map_err(silent)??;
        let rest = listed.into_iter().find(|sandbox| sandbox.id == *id).and_then(|sandbox| sandbox.rest);
        self.registry.set_rest(id, rest);
        Ok(rest.is_some())
    }

    /// A command that its caller left to itself, or a program that a command left behind.
    ///
    /// An engine that cannot tell says no: otherwise a sandbox that answers nothing would live for ever. What has ended
    /// was a use until then, although nobody was there to write that down.
    ///
    /// Contexts in which nothing was run for the whole idle time are no reason to live on, and end here.
    async fn something_runs(&self, id: &SandboxId) -> bool {
        let had_contexts = self.contexts.end_idle(id).await;
        let asked = async {
            let usage = self.engine.usage(id).await?;
            let runs = match usage.processes {
                Some(processes) => processes > 0,
                None => self.engine.logs(id).await?.iter().any(|log| log.status.is_none()),
            };
            Ok((runs, usage.quiet))
        };
        let answered: Option<Result<_>> = tokio::time::timeout(PATIENCE, asked).await.ok();
        let Some(Ok((runs, quiet))) = answered else { return false };
        // They have only just ended, and were no use.
        if let Some(quiet) = quiet.filter(|_| !had_contexts) {
            self.registry.used(id, self.clock.now().before(quiet));
        }
        runs
    }

    /// To run something is to use the sandbox: here, for other processes, and for the engine's own clock.
    async fn keep(self: &Arc<Self>, id: &SandboxId) -> Result<()> {
        let Some(owner) = self.registry.owner(id) else { return Ok(()) };
        Hold::take(self, &owner, id, Use::Call)?.keep_alive(Duration::ZERO).await
    }
}
