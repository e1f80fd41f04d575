//! The one background task: ends what is due, moves the engine's deadlines, tries again what failed, forgets old jobs, compares with the
//! engine.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::clock::Moment;
use super::core::Core;
use crate::error::Result;
use crate::id::SandboxId;

/// Ends with the last handle of the service.
pub(super) async fn run(core: Weak<Core>, mut sweep_at: Moment) {
    loop {
        let (sleep, poke) = {
            let Some(core) = core.upgrade() else { return };
            let now = core.clock.now();
            if sweep_at <= now {
                sweep_at = now.after(core.settings.sweep_every);
                let core = Arc::clone(&core);
                tokio::spawn(async move {
                    if let Err(error) = core.reconcile().await.and_then(|()| core.adopt_jobs()) {
                        tracing::warn!(?error, "what exists could not be compared with what is remembered");
                    }
                });
            }
            let next = core.reap(now).map_or(sweep_at, |next| next.min(sweep_at));
            // Moments are whole milliseconds; waking a little late is right, a little early is a busy loop.
            let wake = core.clock.instant(next) + Duration::from_millis(1);
            core.wakes_at.store(next.0, Ordering::Release);
            (tokio::time::sleep_until(wake), Arc::clone(&core.poke))
        };
        tokio::select! {
            () = sleep => {}
            () = poke.notified() => {}
        }
    }
}

impl Core {
    fn reap(self: &Arc<Self>, now: Moment) -> Option<Moment> {
        let due = self.registry.due(now);
        for (id, reason) in due.expired {
            let core = Arc::clone(self);
            tokio::spawn(async move { core.destroy(&id, reason).await });
        }
        for id in due.maybe_expired {
            let core = Arc::clone(self);
            tokio::spawn(async move { core.expire(&id).await });
        }
        for id in due.deadlines {
            let core = Arc::clone(self);
            tokio::spawn(async move {
                if let Err(error) = core.push_deadline(&id).await {
                    tracing::warn!(%id, ?error, "the engine's deadline was not moved");
                }
            });
        }
        let forget = [self.jobs.expire(now), self.kept.expire(now)];
        due.next.into_iter().chain(forget.into_iter().flatten()).min()
    }

    /// Tell the engine until when to keep a sandbox, by what is known at the moment of telling.
    ///
    /// One at a time per sandbox: of two that raced, the one with older knowledge could otherwise come last.
    pub(super) async fn push_deadline(&self, id: &SandboxId) -> Result<()> {
        let Some(turn) = self.registry.deadline_turn(id) else { return Ok(()) };
        let _turn = turn.lock().await;
        let now = self.clock.now();
        let Some(deadline) = self.registry.wanted_deadline(id, now) else { return Ok(()) };
        match self.engine.set_deadline(id, Some(deadline.since(now))).await {
            Ok(()) => {
                self.registry.engine_deadline_set(id, deadline);
                Ok(())
            }
            Err(error) => Err(self.explain(id, error).await),
        }
    }
}
