//! What sandboxes used lately: looked at by the server itself, so that a chart begins before whoever reads it came.
//!
//! From the first look of a dashboard on, for as long as somebody comes back within a day. To look means to ask process 1 of each
//! sandbox, and its daemon where it has one: a server that only programs talk to is spared that.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::Extension;
use axum::extract::{Path, State};
use futures_util::{StreamExt, stream};
use sandbox::{SandboxId, SandboxInfo};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior};

use super::answers::{Answered, need, ok};
use super::sandboxes::{AT_ONCE, MOST_LOOKED_AT, usage};
use super::{Desk, Shared, shapes};
use crate::auth::Principal;
use crate::auth::scope::Scope;

const EVERY: Duration = Duration::from_secs(5);
/// Half an hour of each.
const KEPT: usize = 360;
/// How long after the last look of anybody.
const INTEREST: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    at_ms: u64,
    /// Since the sandbox was made.
    cpu_ms: Option<u64>,
    memory_bytes: Option<u64>,
}

#[derive(Debug, Default)]
pub struct Usages {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    samples: HashMap<SandboxId, VecDeque<Sample>>,
    looked_at: Option<Instant>,
    is_followed: bool,
}

impl Usages {
    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic under the lock is a fault of one call; the table is changed in single steps and stays whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody looks. Whether nobody followed what sandboxes use so far, and the caller must.
    fn look(&self, now: Instant) -> bool {
        let mut table = self.table();
        table.looked_at = Some(now);
        !std::mem::replace(&mut table.is_followed, true)
    }

    /// Whether to go on. When not, nothing is kept.
    fn is_wanted(&self, now: Instant) -> bool {
        let mut table = self.table();
        let is_wanted = table.looked_at.is_some_and(|looked_at| now.duration_since(looked_at) < INTEREST);
        if !is_wanted {
            *table = Table::default();
        }
        is_wanted
    }

    /// Those that are not among them have ended.
    fn add(&self, round: Vec<(SandboxId, Sample)>) {
        let mut table = self.table();
        let mut before = std::mem::take(&mut table.samples);
        for (id, sample) in round {
            let mut samples = before.remove(&id).unwrap_or_default();
            if samples.len() == KEPT {
                samples.pop_front();
            }
            samples.push_back(sample);
            table.samples.insert(id, samples);
        }
    }

    fn of(&self, id: &SandboxId) -> Vec<Sample> {
        self.table().samples.get(id).into_iter().flatten().copied().collect()
    }
}

impl Desk {
    /// Somebody has a dashboard open.
    pub(super) fn take_interest(&self) {
        if self.shared.usages.look(Instant::now()) {
            tokio::spawn(follow(Arc::downgrade(&self.shared)));
        }
    }
}

/// The task holds the desk weakly: it must not keep a server alive.
async fn follow(shared: Weak<Shared>) {
    let mut turns = tokio::time::interval(EVERY);
    // A machine that is too busy for one look must not do two at once afterwards.
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        if !shared.usages.is_wanted(Instant::now()) {
            return;
        }
        let desk = Desk { shared };
        let sandboxes = desk.service().known();
        let looks = sandboxes.into_iter().take(MOST_LOOKED_AT).map(|sandbox| look(desk.clone(), sandbox));
        let round = stream::iter(looks).buffer_unordered(AT_ONCE).collect().await;
        desk.shared.usages.add(round);
    }
}

/// One that is just being made, or rests, has nothing to say: its chart has a gap.
async fn look(desk: Desk, sandbox: SandboxInfo) -> (SandboxId, Sample) {
    let usage = usage(&desk, &sandbox).await;
    let (cpu, memory_bytes) = usage.map_or((None, None), |usage| (usage.cpu, usage.memory));
    let sample = Sample { at_ms: shapes::now_ms(), cpu_ms: cpu.map(shapes::milliseconds), memory_bytes };
    (sandbox.id, sample)
}

pub async fn show(
    State(desk): State<Desk>,
    Extension(principal): Extension<Principal>,
    Path(id): Path<String>,
) -> Answered {
    need(&principal, Scope::Read)?;
    let sandbox = desk.sandbox(&principal, &id).await?;
    desk.take_interest();
    ok(&json!({ "every_ms": shapes::milliseconds(EVERY), "samples": desk.shared.usages.of(&sandbox.id) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ms: u64) -> Sample {
        Sample { at_ms, cpu_ms: Some(at_ms), memory_bytes: None }
    }

    #[test]
    fn what_is_kept_is_bounded_and_ends_with_its_sandbox() {
        let usages = Usages::default();
        let [one, other] = [(); 2].map(|()| SandboxId::random().unwrap());
        for at in 0..KEPT as u64 + 5 {
            usages.add(vec![(one.clone(), sample(at)), (other.clone(), sample(at))]);
        }
        let kept = usages.of(&one);
        assert_eq!((kept.len(), kept[0], kept[KEPT - 1]), (KEPT, sample(5), sample(KEPT as u64 + 4)));
        usages.add(vec![(other.clone(), sample(9))]);
        assert!(usages.of(&one).is_empty() && usages.of(&other).len() == KEPT);
    }

    #[test]
    fn one_follows_as_long_as_somebody_looks() {
        let (usages, now) = (Usages::default(), Instant::now());
        assert!(!usages.is_wanted(now), "nobody has looked");
        assert!(usages.look(now) && !usages.look(now), "the first one starts it");
        usages.add(vec![(SandboxId::random().unwrap(), sample(1))]);
        assert!(usages.is_wanted(now + INTEREST / 2));
        assert!(!usages.is_wanted(now + INTEREST) && usages.table().samples.is_empty(), "they lost interest");
        assert!(usages.look(now + INTEREST), "and whoever comes back starts it again");
    }
}
