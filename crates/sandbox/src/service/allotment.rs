//! What an owner holds beyond the sandboxes of this process, and room for what it saves.

use super::core::Core;
use super::hold::Hold;
use super::ledger::{Record, RecordLock, Saving, SavingRoom};
use super::quota::{Elsewhere, Holdings};
use crate::error::Result;
use crate::id::Owner;
use crate::spec::ByteSize;
use crate::tree::{SavedImage, SavedName};

/// Room for a save, and whether something was to be replaced by it.
pub(super) struct SaveRoom {
    room: SavingRoom,
    bytes: u64,
    replaces: bool,
}

impl Core {
    /// Under the lock of admissions, so that nobody takes what was counted as free.
    ///
    /// Saved images are asked for only where they count: an engine may have to read its store for them.
    pub(super) async fn elsewhere(
        &self,
        owner: &Owner,
        records: &[Record],
        admission: &RecordLock,
    ) -> Result<Elsewhere> {
        let mut elsewhere = Elsewhere::default();
        for record in records {
            if !self.registry.contains(&record.id) {
                elsewhere.holdings = elsewhere.holdings.and(&Holdings::of(&record.spec));
            }
        }
        if self.quotas.of(owner).disk.is_some() {
            self.count_saved(owner, &mut elsewhere, admission).await?;
            if let Some(checkpoints) = &self.settings.powers.checkpoints {
                let bytes = checkpoints.checkpoint_bytes(owner).await?.unwrap_or(0);
                elsewhere.holdings.disk = elsewhere.holdings.disk.saturating_add(bytes);
            }
        }
        Ok(elsewhere)
    }

    /// Room for as much as the sandbox has files now. It is not taken: those who go at the same time may be over the bound
    /// together, by no more than what their sandboxes hold, and the next is refused.
    pub(super) async fn admit_checkpoint(&self, hold: &Hold) -> Result<()> {
        let (owner, id) = (&hold.owner, &hold.id);
        let Some(checkpoints) = &self.settings.powers.checkpoints else { return Ok(()) };
        if self.quotas.of(owner).disk.is_none() || checkpoints.checkpoint_bytes(owner).await?.is_none() {
            return Ok(());
        }
        let used = self.engine.usage(id).await?.disk;
        let bytes = used.unwrap_or(self.registry.spec(owner, id)?.0.limits.disk.bytes());
        let admission = self.ledger.lock_admission().await?;
        self.lose_ended_elsewhere();
        let elsewhere = self.elsewhere(owner, &self.ledger.scan(owner)?, &admission).await?;
        self.quotas.of(owner).admit_checkpoint(&self.registry.held(owner), &elsewhere, ByteSize::new(bytes))
    }

    async fn count_saved(&self, owner: &Owner, elsewhere: &mut Elsewhere, admission: &RecordLock) -> Result<()> {
        let Some(snapshots) = &self.settings.powers.snapshots else { return Ok(()) };
        // In this order: one that is done meanwhile is seen in both, not in none.
        let saving = self.ledger.saving(owner, admission)?;
        for SavedImage { name, bytes, .. } in snapshots.saved(owner).await? {
            elsewhere.saved.insert(name, bytes);
        }
        // Of all that have or will have a name, one is left in the end.
        for Saving { name, bytes } in saving {
            let whole = elsewhere.saved.entry(name).or_default();
            *whole = bytes.max(*whole);
        }
        let bytes = elsewhere.saved.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        elsewhere.holdings.disk = elsewhere.holdings.disk.saturating_add(bytes);
        Ok(())
    }

    /// Take as much room as the sandbox has files now.
    pub(super) async fn admit_save(&self, hold: &Hold, name: &SavedName) -> Result<SaveRoom> {
        let (owner, id) = (&hold.owner, &hold.id);
        let used = self.engine.usage(id).await?.disk;
        let bytes = used.unwrap_or(self.registry.spec(owner, id)?.0.limits.disk.bytes());
        let admission = self.ledger.lock_admission().await?;
        self.lose_ended_elsewhere();
        let mut elsewhere = self.elsewhere(owner, &self.ledger.scan(owner)?, &admission).await?;
        if self.quotas.of(owner).disk.is_none() {
            self.count_saved(owner, &mut elsewhere, &admission).await?;
        }
        self.quotas.of(owner).admit_save(&self.registry.held(owner), &elsewhere, name, ByteSize::new(bytes))?;
        let saving = Saving { name: name.clone(), bytes };
        let replaces = elsewhere.saved.contains_key(name);
        let room = self.ledger.take_saving_room(owner, &saving, &admission)?;
        Ok(SaveRoom { room, bytes, replaces })
    }

    /// A sandbox that wrote on while it was saved may have become too large. One that took the place of another stays all
    /// the same: nobody would want to have neither.
    pub(super) async fn check_saved(&self, owner: &Owner, saved: &SavedImage, room: SaveRoom) -> Result<()> {
        let SaveRoom { room, bytes, replaces } = room;
        let Some(snapshots) = &self.settings.powers.snapshots else { return Ok(()) };
        if self.quotas.of(owner).disk.is_none() || saved.bytes <= bytes || replaces {
            return Ok(());
        }
        let admission = self.ledger.lock_admission().await?;
        drop(room);
        let elsewhere = self.elsewhere(owner, &self.ledger.scan(owner)?, &admission).await?;
        let held = self.registry.held(owner);
        let admitted = self.quotas.of(owner).admit_save(&held, &elsewhere, &saved.name, ByteSize::new(saved.bytes));
        if admitted.is_err() {
            snapshots.forget(owner, &saved.name).await?;
        }
        admitted
    }
}
