//! Renewing a sandbox: in memory, on disk if it is persistent, and in the engine, before the answer.

use std::sync::Arc;
use std::time::Duration;

use super::SandboxInfo;
use super::core::Core;
use super::hold::Hold;
use super::ledger::{Reading, RecordName};
use super::lifecycle::Refusal;
use super::registry::Use;
use crate::error::Result;
use crate::event::EventKind;
use crate::id::{Owner, SandboxId};
use crate::spec::{Lifetime, Persistence};

impl Core {
    pub(super) async fn renew(
        self: &Arc<Self>,
        owner: &Owner,
        id: &SandboxId,
        lifetime: Option<Lifetime>,
    ) -> Result<SandboxInfo> {
        if let Some(lifetime) = lifetime {
            self.quotas.of(owner).admit_lifetime(lifetime, self.locate(owner, id)?.persistence)?;
        }
        let mut hold = Hold::take(self, owner, id, Use::Call)?;
        match (self.registry.persistence(id), lifetime) {
            (Some(Persistence::Persistent), Some(lifetime)) => self.renew_record(&mut hold, lifetime).await?,
            (Some(Persistence::Persistent), None) => {}
            (Some(Persistence::Ephemeral), Some(_)) => {
                self.registry.renew(owner, id, lifetime, self.clock.now())?;
                self.push_deadline(id).await?;
            }
            (Some(Persistence::Ephemeral), None) => {
                self.registry.renew(owner, id, None, self.clock.now())?;
            }
            (None, _) => return Err(Refusal::Gone.into()),
        }
        hold.keep_alive(Duration::ZERO).await?;
        self.emit(owner, id, EventKind::Renewed);
        drop(hold);
        self.registry.info(owner, id, &self.clock)
    }

    async fn renew_record(&self, hold: &mut Hold, lifetime: Lifetime) -> Result<()> {
        let lock = self.ledger.lock(&hold.id).await?;
        let name = RecordName::new(&hold.owner, &hold.id);
        let Reading::Record(mut record) = self.ledger.read(&name)? else {
            let _ = self.ledger.remove(&name, lock).await;
            self.lose(&hold.id);
            return Err(Refusal::Gone.into());
        };
        let expiry = self.registry.renew(&hold.owner, &hold.id, Some(lifetime), self.clock.now())?;
        record.spec.lifetime = lifetime;
        record.total_until = expiry.total_until;
        record.boot = self.clock.boot().to_owned();
        self.ledger.write(&record, &lock).await?;
        hold.set_expiry(expiry);
        Ok(())
    }
}
