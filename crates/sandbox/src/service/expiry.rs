//! When a sandbox ends by itself, and what its engine must be told so that it also ends without us. Pure.

use std::time::Duration;

use super::clock::Moment;
use crate::event::StopReason;
use crate::spec::Lifetime;

/// What the clock of one sandbox knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expiry {
    pub lifetime: Lifetime,
    pub last_used: Moment,
    pub total_until: Option<Moment>,
}

impl Expiry {
    pub fn new(lifetime: Lifetime, now: Moment) -> Self {
        Self { lifetime, last_used: now, total_until: lifetime.total.map(|total| now.after(total)) }
    }

    /// When and why it ends if nothing changes. `busy` holds off the idle time, never the total one.
    pub fn due(&self, busy: bool) -> Option<(Moment, StopReason)> {
        let idle = (!busy).then(|| (self.last_used.after(self.lifetime.idle), StopReason::Idle));
        let total = self.total_until.map(|until| (until, StopReason::Total));
        idle.into_iter().chain(total).min_by_key(|(moment, _)| *moment)
    }

    /// The clock may run backwards between two processes by the length of a call; a use never shortens a life.
    pub fn touch(&mut self, now: Moment) {
        self.last_used = self.last_used.max(now);
    }

    pub fn renew(&mut self, lifetime: Option<Lifetime>, now: Moment) {
        if let Some(lifetime) = lifetime {
            *self = Self::new(lifetime, now);
        }
        self.touch(now);
    }

    /// What the engine's own deadline should be so that nothing until `now + ahead` needs another call.
    ///
    /// Later than what we know by a slack: the engine's deadline is for a server that died or hangs, and must not win
    /// against a server that is merely slow.
    pub fn engine_deadline(&self, now: Moment, ahead: Duration) -> Moment {
        let until = now.after(ahead).after(self.lifetime.idle);
        self.total_until.map_or(until, |total| until.min(total)).after(self.slack())
    }

    /// The latest moment at which an engine deadline must be moved for the sandbox to outlive a use at that moment.
    /// `None` when it already covers the total time.
    pub fn renew_engine_at(&self, deadline: Moment) -> Option<Moment> {
        if self.total_until.is_some_and(|total| deadline >= total.after(self.slack())) {
            return None;
        }
        Some(deadline.before(self.lifetime.idle).before(self.slack() / 2))
    }

    /// Whether an engine deadline covers a use from `now` until `now + ahead` and the idle time after it.
    pub fn is_covered(&self, deadline: Option<Moment>, now: Moment, ahead: Duration) -> bool {
        let needed = now.after(ahead).after(self.lifetime.idle);
        let needed = self.total_until.map_or(needed, |total| needed.min(total));
        deadline.is_some_and(|deadline| deadline >= needed.after(self.slack() / 2))
    }

    fn slack(&self) -> Duration {
        (self.lifetime.idle / 2).clamp(Duration::from_secs(4), Duration::from_secs(300))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment(1_000_000);

    fn expiry(idle: u64, total: Option<u64>) -> Expiry {
        Expiry::new(Lifetime { idle: Duration::from_secs(idle), total: total.map(Duration::from_secs) }, NOW)
    }

    #[test]
    fn the_earlier_end_wins_and_work_holds_off_only_the_idle_one() {
        assert_eq!(expiry(10, None).due(false), Some((Moment(1_010_000), StopReason::Idle)));
        assert_eq!(expiry(10, None).due(true), None);
        assert_eq!(expiry(10, Some(5)).due(false), Some((Moment(1_005_000), StopReason::Total)));
        assert_eq!(expiry(10, Some(50)).due(true), Some((Moment(1_050_000), StopReason::Total)));
        assert_eq!(expiry(u64::MAX / 1000, None).due(false).map(|(_, reason)| reason), Some(StopReason::Idle));
    }

    #[test]
    fn a_use_never_shortens_a_life() {
        let mut expiry = expiry(10, None);
        expiry.touch(Moment(5));
        assert_eq!(expiry.last_used, NOW);
    }

    #[test]
    fn a_renewal_counts_the_total_time_from_now() {
        let mut expiry = expiry(10, Some(20));
        expiry.renew(None, Moment(1_001_000));
        assert_eq!(expiry.total_until, Some(Moment(1_020_000)));
        expiry.renew(Some(Lifetime { idle: Duration::from_secs(1), total: None }), Moment(1_002_000));
        assert_eq!(expiry.due(false), Some((Moment(1_003_000), StopReason::Idle)));
    }

    #[test]
    fn the_engine_always_outlasts_what_we_know() {
        for idle in [0, 1, 10, 600, 86_400] {
            let expiry = expiry(idle, None);
            let deadline = expiry.engine_deadline(NOW, Duration::ZERO);
            let renewal = expiry.renew_engine_at(deadline).unwrap();
            assert!(renewal > NOW, "idle {idle}: moved at once again");
            assert!(deadline > renewal.after(expiry.lifetime.idle), "idle {idle}: a use at the renewal is not covered");
            assert!(expiry.is_covered(Some(deadline), NOW, Duration::ZERO));
        }
    }

    #[test]
    fn a_deadline_that_covers_the_total_time_is_never_moved() {
        let expiry = expiry(10, Some(20));
        let deadline = expiry.engine_deadline(NOW.after(Duration::from_secs(15)), Duration::ZERO);
        assert_eq!(expiry.renew_engine_at(deadline), None);
        assert!(expiry.is_covered(Some(deadline), NOW, Duration::from_secs(10_000)));
    }
}
