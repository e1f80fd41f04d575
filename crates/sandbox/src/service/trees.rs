//! Saving, branching and taking back whole trees, with the powers that the engine has.
//!
//! Work that has begun is finished also when its caller goes away: a tree is taken whole or not at all, and a sandbox that
//! is being put back must not stay half way.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::SandboxInfo;
use super::core::Core;
use super::create::Origin;
use super::history::Line;
use super::hold::Hold;
use super::registry::Use;
use crate::error::{Error, Result};
use crate::event::{EventKind, TreeWork};
use crate::id::{Owner, SandboxId, SandboxName};
use crate::spec::{Lifetime, Persistence};
use crate::tree::{Changes, Checkpoint, Checkpoints, SavedImage, SavedName, Snapshots};

/// For how long the engine is told to keep a persistent sandbox whose tree is worked on, beyond its idle time.
const LONGEST: Duration = Duration::from_secs(10 * 60);

/// How a branch differs from what it is a branch of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForkRequest {
    pub name: Option<SandboxName>,
    pub persistence: Persistence,
    /// That of the other one when not given.
    pub lifetime: Option<Lifetime>,
}

impl Core {
    pub(super) async fn save(self: &Arc<Self>, owner: &Owner, id: &SandboxId, name: &SavedName) -> Result<SavedImage> {
        let hold = Hold::take(self, owner, id, Use::Call)?;
        let (snapshots, name) = (self.snapshots()?, name.clone());
        self.to_the_end(hold, TreeWork::Save, async move |hold| {
            let started = Instant::now();
            let core = &hold.core;
            let room = core.admit_save(&hold, &name).await?;
            let saved = snapshots.save(&hold.id, &name).await?;
            core.suitable.forget_saved(&hold.owner, &name);
            core.languages.forget_saved(&hold.owner, &name);
            core.check_saved(&hold.owner, &saved, room).await?;
            let (bytes, took) = (saved.bytes, started.elapsed());
            hold.core.emit(&hold.owner, &hold.id, EventKind::Saved { name, bytes, took });
            Ok(saved)
        })
        .await
    }

    pub(super) async fn forget(self: &Arc<Self>, owner: &Owner, name: &SavedName) -> Result<bool> {
        let snapshots = self.snapshots()?;
        let (core, owner, name) = (Arc::clone(self), owner.clone(), name.clone());
        let work = self.runtime.spawn(async move {
            let forgotten = snapshots.forget(&owner, &name).await;
            core.suitable.forget_saved(&owner, &name);
            core.languages.forget_saved(&owner, &name);
            let events = &core.settings.events;
            match &forgotten {
                Ok(true) => events.emit_of(&owner, EventKind::Forgotten { name }),
                Ok(false) => {}
                Err(error) => {
                    events.emit_of(&owner, EventKind::TreeFailed { work: TreeWork::Forget, kind: error.kind() });
                }
            }
            forgotten
        });
        work.await.unwrap_or_else(|cause| Err(no_answer(cause)))
    }

    pub(super) async fn fork(
        self: &Arc<Self>,
        owner: &Owner,
        id: &SandboxId,
        request: ForkRequest,
    ) -> Result<SandboxInfo> {
        let hold = Hold::take(self, owner, id, Use::Call)?;
        let snapshots = self.snapshots()?;
        hold.keep_alive(LONGEST).await?;
        let (mut spec, lifetime) = self.registry.spec(owner, id)?;
        if !spec.role.is_guest() {
            return Err(Error::unsupported("a sandbox that builds an image cannot be branched"));
        }
        // They were opened for one purpose of ours, which the branch does not have.
        spec.private_hosts.clear();
        spec.name = request.name;
        spec.persistence = request.persistence;
        spec.lifetime = request.lifetime.unwrap_or(lifetime);
        self.create(spec, Origin::Fork { snapshots, source: hold }).await
    }

    pub(super) async fn checkpoint(self: &Arc<Self>, owner: &Owner, id: &SandboxId) -> Result<Checkpoint> {
        let hold = Hold::take(self, owner, id, Use::Call)?;
        let checkpoints = self.checkpoints()?;
        self.refuse_with_contexts(id, "a sandbox's files cannot be remembered")?;
        self.to_the_end(hold, TreeWork::Checkpoint, async move |hold| {
            let started = Instant::now();
            hold.core.admit_checkpoint(&hold).await?;
            let checkpoint = checkpoints.checkpoint(&hold.id).await?;
            hold.core.remember(&hold.id, Line::Checkpointed(checkpoint));
            let took = started.elapsed();
            hold.core.emit(&hold.owner, &hold.id, EventKind::Checkpointed { checkpoint, took });
            Ok(checkpoint)
        })
        .await
    }

    pub(super) async fn changes(
        self: &Arc<Self>,
        owner: &Owner,
        id: &SandboxId,
        since: Option<Checkpoint>,
        most: usize,
    ) -> Result<Changes> {
        let hold = Hold::take(self, owner, id, Use::Call)?;
        let checkpoints = self.checkpoints()?;
        hold.keep_alive(Duration::ZERO).await?;
        match checkpoints.changes(id, since, most).await {
            Ok(changes) => Ok(changes),
            Err(error) => Err(hold.explain(error).await),
        }
    }

    pub(super) async fn restore(self: &Arc<Self>, owner: &Owner, id: &SandboxId, to: Checkpoint) -> Result<()> {
        let hold = Hold::take(self, owner, id, Use::Call)?;
        let checkpoints = self.checkpoints()?;
        self.refuse_with_contexts(id, "a sandbox's files cannot be put back")?;
        self.to_the_end(hold, TreeWork::Restore, async move |hold| {
            let started = Instant::now();
            checkpoints.restore(&hold.id, to).await?;
            hold.core.remember(&hold.id, Line::Restored(to));
            let took = started.elapsed();
            hold.core.emit(&hold.owner, &hold.id, EventKind::Restored { checkpoint: to, took });
            Ok(())
        })
        .await
    }

    /// In a task of its own, with the sandbox held until the end.
    async fn to_the_end<T: Send + 'static, F>(
        &self,
        hold: Hold,
        work: TreeWork,
        task: impl FnOnce(Arc<Hold>) -> F + Send + 'static,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let hold = Arc::new(hold);
        let task = self.runtime.spawn(async move {
            hold.keep_alive(LONGEST).await?;
            match task(Arc::clone(&hold)).await {
                Ok(done) => Ok(done),
                Err(error) => {
                    hold.core.emit(&hold.owner, &hold.id, EventKind::TreeFailed { work, kind: error.kind() });
                    Err(hold.explain(error).await)
                }
            }
        });
        task.await.unwrap_or_else(|cause| Err(no_answer(cause)))
    }

    pub(super) fn snapshots(&self) -> Result<Arc<dyn Snapshots>> {
        self.settings.powers.snapshots.clone().ok_or_else(|| self.lacking("save or branch a sandbox"))
    }

    fn checkpoints(&self) -> Result<Arc<dyn Checkpoints>> {
        self.settings.powers.checkpoints.clone().ok_or_else(|| self.lacking("go back to earlier files of a sandbox"))
    }

    fn lacking(&self, what: &str) -> Error {
        Error::unsupported(format!("the {} engine cannot {what}", self.capabilities.name))
            .with_hint("copy the files that you need out of the sandbox, or use the native engine on Linux")
    }
}

fn no_answer(cause: tokio::task::JoinError) -> Error {
    Error::internal("work on a sandbox's files ended without an answer").with_cause(cause)
}
