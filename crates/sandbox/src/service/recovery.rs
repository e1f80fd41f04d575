//! Compare what is written down with what exists: adopt, finish, or forget.
//!
//! Runs at start and at every sweep, in several processes at once. Each step holds the record's lock and looks again under
//! it, because what was read before may be old news.

use std::collections::HashMap;

use super::core::Core;
use super::history::Log;
use super::ledger::{Reading, RecordLock, RecordName, RecordState};
use crate::engine::EngineSandbox;
use crate::error::Result;
use crate::id::{Owner, SandboxId};
use crate::spec::{Persistence, SandboxSpec};

impl Core {
    pub(super) async fn reconcile(&self) -> Result<()> {
        // The order matters: what was live here or on disk before the engine was asked, and that the engine then does not
        // know, is gone. The other way round a sandbox made in between would be taken for lost.
        let ephemeral = self.registry.live(Persistence::Ephemeral);
        let written = self.ledger.names()?;
        let existing: HashMap<SandboxId, EngineSandbox> =
            self.engine.list().await?.into_iter().map(|sandbox| (sandbox.id.clone(), sandbox)).collect();

        for id in ephemeral.iter().filter(|id| !existing.contains_key(id)) {
            self.lose(id);
        }
        for name in &written {
            if let Err(error) = self.reconcile_record(name, existing.contains_key(&name.id)).await {
                tracing::warn!(id = %name.id, ?error, "a record could not be brought in line with its sandbox");
            }
        }
        self.lose_ended_elsewhere();
        for sandbox in existing.values() {
            self.registry.set_rest(&sandbox.id, sandbox.rest);
            if sandbox.persistence == Persistence::Persistent && !self.ledger.has_record(&name_of(sandbox)) {
                self.adopt_unwritten(sandbox).await?;
            }
        }
        Ok(())
    }

    async fn reconcile_record(&self, name: &RecordName, exists: bool) -> Result<()> {
        let id = &name.id;
        let before = match self.ledger.read(name)? {
            Reading::Record(record) if self.is_mine(&record) => record,
            Reading::Record(_) | Reading::Nothing => return Ok(()),
            Reading::Later => {
                if !exists {
                    self.forget_record(name).await;
                }
                return Ok(());
            }
        };
        match (before.state, exists) {
            (RecordState::Live, true) => {
                self.adopt(&before);
                // One that we know already may have been used or renewed by another process.
                let expiry = before.expiry(&self.clock, self.ledger.lease(id).last_used());
                self.registry.touch(id, expiry);
                return Ok(());
            }
            (RecordState::Live, false) | (RecordState::Creating | RecordState::Stopping, _) => {}
        }
        // Without the lock, somebody who lives is at work on it.
        let Some(lock) = self.ledger.try_lock(id)? else { return Ok(()) };
        match self.ledger.read(name)? {
            Reading::Record(now) if now.state == before.state => {}
            Reading::Nothing => return self.ledger.remove(name, lock).await,
            // It went on while we looked; the next sweep sees it as it then is.
            Reading::Record(_) | Reading::Later => return Ok(()),
        }
        match before.state {
            RecordState::Live => tracing::info!(%id, "a persistent sandbox is gone and is forgotten"),
            RecordState::Creating => tracing::info!(%id, "a sandbox that nobody finished creating is cleared away"),
            RecordState::Stopping => tracing::info!(%id, "a sandbox that nobody finished stopping is cleared away"),
        }
        // Also for one that the engine does not list: it may have left pieces of a half-made one.
        self.engine.destroy(id).await?;
        self.ledger.remove(name, lock).await?;
        self.lose(id);
        Ok(())
    }

    /// By id or name, as [`Core::find`]. One whose record cannot be read is adopted first: its owner must be able to end it.
    pub(super) async fn find_or_adopt(&self, owner: &Owner, id_or_name: &str) -> Result<SandboxId> {
        let found = self.find(owner, id_or_name);
        let Ok(id) = id_or_name.parse::<SandboxId>() else { return found };
        if found.is_ok() || !self.ledger.has_quarantined(&RecordName::new(owner, &id)) {
            return found;
        }
        let listed = self.engine.list().await?;
        let is_wanted = |sandbox: &&EngineSandbox| {
            sandbox.id == id && sandbox.owner == *owner && sandbox.persistence == Persistence::Persistent
        };
        let Some(sandbox) = listed.iter().find(is_wanted) else { return found };
        // A sweep may be about to adopt it, here or elsewhere. It is not missing meanwhile.
        let lock = self.ledger.lock(&id).await?;
        self.adopt_locked(sandbox, lock).await?;
        self.find(owner, id_or_name)
    }

    /// The engine has a persistent sandbox that nobody wrote down: its record was lost or is in quarantine. Somebody who
    /// has its lock is at work on it.
    async fn adopt_unwritten(&self, sandbox: &EngineSandbox) -> Result<()> {
        match self.ledger.try_lock(&sandbox.id)? {
            Some(lock) => self.adopt_locked(sandbox, lock).await,
            None => Ok(()),
        }
    }

    async fn adopt_locked(&self, sandbox: &EngineSandbox, lock: RecordLock) -> Result<()> {
        // One that was written meanwhile is found by whoever looks again.
        if !matches!(self.ledger.read(&name_of(sandbox))?, Reading::Nothing) {
            return Ok(());
        }
        // Whoever stops it removes its record last and under the lock, so the first answer may be old.
        let exists = self.engine.list().await?.iter().any(|listed| listed.id == sandbox.id);
        if !exists {
            return self.ledger.remove(&name_of(sandbox), lock).await;
        }
        tracing::warn!(id = %sandbox.id, "a persistent sandbox without a record is adopted with a default lifetime");
        let mut spec = SandboxSpec::new(sandbox.owner.clone());
        spec.limits = self.engine.isolation(&sandbox.id).await?.limits;
        spec.name = sandbox.name.clone();
        spec.persistence = Persistence::Persistent;
        let now = self.clock.now();
        let record = self.record(&sandbox.id, spec, RecordState::Live, now);
        self.ledger.lease(&sandbox.id).make(now)?;
        if self.ledger.history(&sandbox.id).read()?.is_none() {
            self.ledger.history(&sandbox.id).make(&Log::incomplete())?;
        }
        self.ledger.write(&record, &lock).await?;
        self.adopt(&record);
        Ok(())
    }
}

fn name_of(sandbox: &EngineSandbox) -> RecordName {
    RecordName::new(&sandbox.owner, &sandbox.id)
}
