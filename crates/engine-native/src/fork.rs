//! Sandboxes from sandboxes, with all files and none of them copied.
//!
//! The writable layer of the source is frozen, and both go on over it: the source by a restart, the new one as a sandbox of
//! its own, which sees the frozen layers through mounts that give them owners of its own ids. Neither can write to them.

use std::sync::Arc;

use sandbox::{Error, Layer, Result, SandboxId, SandboxSpec};

use crate::base::Base;
use crate::checkpoint::{Alone, to_its_end};
use crate::create::Legacy;
use crate::engine::Shared;
use crate::history::inheritance;
use crate::ids::Pool;
use crate::layout::Prepared;
use crate::live::Live;
use crate::plan::Heir;
use crate::restart::freeze;

impl Shared {
    pub(crate) async fn fork(self: &Arc<Self>, id: &SandboxId, new: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        self.check_new(new, spec)?;
        let (shared, id, new, spec) = (self.clone(), id.clone(), new.clone(), spec.clone());
        to_its_end(async move {
            let shared_files = shared.can_share() && shared.fork_sharing(&id, &new, &spec).await?;
            match shared_files {
                true => Ok(()),
                false => shared.fork_copying(&id, &new, &spec).await,
            }
        })
        .await
    }

    /// Giving files of one range of ids to another is for root, and for ranges that are as large.
    fn can_share(&self) -> bool {
        let apart = |layer| self.walls().is_ok_and(|walls| walls.contains(&layer));
        self.host.root && self.host.pool == Some(Pool::System) && apart(Layer::UserNamespace) && apart(Layer::UidRange)
    }

    /// `false` when the files cannot be shared now: something runs in the source, or it has as many layers as it may.
    async fn fork_sharing(&self, id: &SandboxId, new: &SandboxId, spec: &SandboxSpec) -> Result<bool> {
        let Alone { live, .. } = &self.alone(id).await?;
        let Some(frozen) = freeze(live).await? else { return Ok(false) };
        let history = live.history();
        // Where nothing was made since the last time, what lies below is all there is.
        if frozen.untouched && !history.layers.is_empty() {
            self.make_fork(live, new, spec).await?;
            return Ok(true);
        }
        let after = history.clone().with_layer(frozen.held);
        if after.check(&live.description.limits, Heir::Successor).is_err() {
            return Ok(false);
        }
        after.check(&spec.limits, Heir::Fork)?;
        let successor = self.restart(frozen, inheritance(Heir::Successor, live, true), after).await?;
        self.make_fork(&successor, new, spec).await?;
        Ok(true)
    }

    /// On the frozen layers of the source.
    async fn make_fork(&self, source: &Live, new: &SandboxId, spec: &SandboxSpec) -> Result<()> {
        let history = source.history();
        history.check(&spec.limits, Heir::Fork)?;
        let layout = source.description.root.clone().ok_or_else(|| Error::internal("there is no root to share"))?;
        // Process 1 of the source holds its image, and hands that on.
        let base = source.description.base.clone().unwrap_or(Base::Tree);
        let root = Prepared { layout, holds: Vec::new(), base };
        let pass = self.pass(new, spec, &root.layout)?;
        let inheritance = inheritance(Heir::Fork, source, false);
        let legacy = Legacy { from: source, inheritance, history: history.of_fork() };
        let made = self.make(new, spec, &root, pass.as_ref(), Some(&legacy)).await?;
        self.keep(Arc::new(made));
        Ok(())
    }

    async fn fork_copying(self: &Arc<Self>, _id: &SandboxId, _new: &SandboxId, _spec: &SandboxSpec) -> Result<()> {
        Err(Error::unsupported("a sandbox in which a command runs cannot be branched yet"))
    }
}
