//! What came of the connections of one sandbox: counts, refusals, and an event for each.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use sandbox::{Denial, EventBus, EventKind, Host, NetworkActivity, NetworkUsage, Owner, Refusal, SandboxId};

/// Refusals that one result lists. A model reads them, and a port scan must not fill its window.
const MOST_LISTED: usize = 64;

/// Refusals that are told at once as events, and how many more each second. They cost a sandbox nothing, and a flood of
/// them would push the events of others out of the bus; the count is kept whatever is told.
const MOST_TOLD: f64 = 512.0;
const TOLD_PER_SECOND: f64 = 64.0;

/// Runs whose refusals are remembered.
const MOST_EPOCHS: usize = 256;

#[derive(Debug)]
pub(crate) struct Activity {
    owner: Owner,
    id: SandboxId,
    events: EventBus,
    connections: AtomicU64,
    refused: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    refusals: Mutex<Refusals>,
}

/// A moment in the life of a door.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    epoch: u64,
    usage: NetworkUsage,
}

impl Activity {
    pub fn new(owner: Owner, id: SandboxId, events: EventBus) -> Self {
        Self {
            owner,
            id,
            events,
            connections: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            refusals: Mutex::default(),
        }
    }

    pub fn refuse(&self, host: &Host, port: Option<u16>, denial: Denial) {
        let told = {
            // Counted under the lock of the list, because what is left out is the difference between the two.
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            self.refused.fetch_add(1, Ordering::Relaxed);
            refusals.add(host, port, denial);
            refusals.may_be_told(Instant::now())
        };
        tracing::debug!(id = %self.id, %host, port, denial = denial.as_str(), "a connection is refused");
        if told {
            self.emit(EventKind::ConnectionRefused { host: host.clone(), port, denial });
        }
    }

    pub fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub fn moved(&self, direction: Direction, bytes: u64) {
        match direction {
            Direction::In => self.bytes_in.fetch_add(bytes, Ordering::Relaxed),
            Direction::Out => self.bytes_out.fetch_add(bytes, Ordering::Relaxed),
        };
    }

    pub fn emit(&self, kind: EventKind) {
        self.events.emit(&self.owner, &self.id, kind);
    }

    pub fn usage(&self) -> NetworkUsage {
        NetworkUsage {
            connections: self.connections.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
        }
    }

    pub fn mark(&self) -> Mark {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.epoch += 1;
        Mark { epoch: refusals.epoch, usage: self.usage() }
    }

    pub fn since(&self, mark: Mark) -> NetworkActivity {
        let refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.usage();
        let usage = NetworkUsage {
            connections: now.connections - mark.usage.connections,
            refused: now.refused - mark.usage.refused,
            bytes_in: now.bytes_in - mark.usage.bytes_in,
            bytes_out: now.bytes_out - mark.usage.bytes_out,
        };
        let refused = refusals.from(mark.epoch);
        let listed: u64 = refused.iter().map(|refusal| refusal.count).sum();
        NetworkActivity { usage, refused, refused_left_out: usage.refused.saturating_sub(listed) }
    }
}

/// As the sandbox sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    In,
    Out,
}

/// Each mark begins an epoch, and counts are kept by epoch, so that a run's own refusals can be told from those before it
/// without keeping every one.
#[derive(Debug, Default)]
struct Refusals {
    epoch: u64,
    epochs: VecDeque<(u64, Vec<Refusal>)>,
    /// How many may be told now, as of then.
    tellable: Option<(f64, Instant)>,
}

impl Refusals {
    fn may_be_told(&mut self, now: Instant) -> bool {
        let (level, then) = self.tellable.unwrap_or((MOST_TOLD, now));
        let regained = now.saturating_duration_since(then).as_secs_f64() * TOLD_PER_SECOND;
        let level = (level + regained).min(MOST_TOLD);
        let told = level >= 1.0;
        self.tellable = Some((if told { level - 1.0 } else { level }, now));
        told
    }

    fn add(&mut self, host: &Host, port: Option<u16>, denial: Denial) {
        if self.epochs.back().is_none_or(|(epoch, _)| *epoch != self.epoch) {
            if self.epochs.len() == MOST_EPOCHS {
                self.epochs.pop_front();
            }
            self.epochs.push_back((self.epoch, Vec::new()));
        }
        if let Some((_, listed)) = self.epochs.back_mut() {
            count(listed, Refusal { host: host.clone(), port, denial, count: 1 });
        }
    }

    fn from(&self, first: u64) -> Vec<Refusal> {
        let mut listed = Vec::new();
        for refusal in self.epochs.iter().filter(|(epoch, _)| *epoch >= first).flat_map(|(_, refusals)| refusals) {
            count(&mut listed, refusal.clone());
        }
        listed
    }
}

fn count(listed: &mut Vec<Refusal>, refusal: Refusal) {
    let same =
        |other: &Refusal| other.host == refusal.host && other.port == refusal.port && other.denial == refusal.denial;
    match listed.iter().position(same) {
        Some(index) => listed[index].count += refusal.count,
        None if listed.len() < MOST_LISTED => listed.push(refusal),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity() -> Activity {
        Activity::new(Owner::local(), SandboxId::random().unwrap(), EventBus::default())
    }

    fn refuse(activity: &Activity, host: &str) {
        activity.refuse(&host.parse().unwrap(), Some(443), Denial::HostNotAllowed);
    }

    #[test]
    fn a_flood_of_refusals_is_counted_and_not_told_one_by_one() {
        let mut refusals = Refusals::default();
        let began = Instant::now();
        let told = (0..10_000).filter(|_| refusals.may_be_told(began)).count();
        assert_eq!(told, MOST_TOLD as usize);
        let later = began + std::time::Duration::from_secs(1);
        assert_eq!((0..10_000).filter(|_| refusals.may_be_told(later)).count(), TOLD_PER_SECOND as usize);
    }

    #[test]
    fn a_run_sees_its_own_refusals_only() {
        let activity = activity();
        refuse(&activity, "a.example");
        let outer = activity.mark();
        refuse(&activity, "b.example");
        let inner = activity.mark();
        refuse(&activity, "b.example");
        refuse(&activity, "a.example");

        let seen = |mark| {
            let since = activity.since(mark);
            let list = since.refused.iter().map(|refusal| format!("{} {}", refusal.host, refusal.count));
            (list.collect::<Vec<_>>(), since.usage.refused, since.refused_left_out)
        };
        assert_eq!(seen(outer), (vec!["b.example 2".to_owned(), "a.example 1".to_owned()], 3, 0));
        assert_eq!(seen(inner), (vec!["b.example 1".to_owned(), "a.example 1".to_owned()], 2, 0));
        assert_eq!(activity.since(Mark::default()).usage.refused, 4);
    }

    #[test]
    fn a_scan_is_counted_and_not_listed() {
        let activity = activity();
        let mark = activity.mark();
        for index in 0..1000 {
            refuse(&activity, &format!("host-{index}.example"));
        }
        refuse(&activity, "host-0.example");
        let since = activity.since(mark);
        assert_eq!(since.refused.len(), MOST_LISTED);
        assert_eq!(since.refused[0].count, 2);
        assert_eq!(since.refused_left_out, 1001 - MOST_LISTED as u64 - 1);
    }

    #[test]
    fn memory_of_old_runs_is_bounded_and_the_count_stays_right() {
        let activity = activity();
        let first = activity.mark();
        for _ in 0..2 * MOST_EPOCHS {
            activity.mark();
            refuse(&activity, "a.example");
        }
        let since = activity.since(first);
        assert_eq!(since.refused[0].count, MOST_EPOCHS as u64);
        assert_eq!(since.refused_left_out, MOST_EPOCHS as u64);
    }
}
