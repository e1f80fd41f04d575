//! How often an owner may do something: a bucket of leaves for each, which fills by itself. Pure: who asks says what time it is.
//!
//! Of a bucket one moment is remembered, that at which it will be full again. One that is full need not be remembered at all,
//! so owners that have been quiet for a minute cost nothing.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use crate::id::Owner;

/// As many at once after a quiet minute, and as many in each minute from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerMinute(pub NonZeroU32);

impl PerMinute {
    const WINDOW: Duration = Duration::from_secs(60);

    /// In which one leave comes back.
    fn interval(self) -> Duration {
        Self::WINDOW / self.0.get()
    }
}

/// Come back after this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSoon(pub Duration);

impl TooSoon {
    /// Whole ones, after which there is a leave for sure.
    pub fn seconds(self) -> u64 {
        self.0.as_secs() + u64::from(self.0.subsec_nanos() > 0)
    }
}

#[derive(Debug, Default)]
pub struct Paces {
    full_at: HashMap<Owner, Instant>,
}

/// Beyond these, the owner whose bucket is the fullest is forgotten, which gives it a little more than its due.
const MOST_OWNERS: usize = 4096;

impl Paces {
    /// Take one leave.
    pub fn take(&mut self, owner: &Owner, rate: PerMinute, now: Instant) -> Result<(), TooSoon> {
        let full_at = self.full_at.get(owner).map_or(now, |full_at| now.max(*full_at));
        let next = full_at + rate.interval();
        let missing = next - now;
        if missing > PerMinute::WINDOW {
            return Err(TooSoon(missing - PerMinute::WINDOW));
        }
        if self.full_at.len() >= MOST_OWNERS && !self.full_at.contains_key(owner) {
            self.make_room(now);
        }
        self.full_at.insert(owner.clone(), next);
        Ok(())
    }

    fn make_room(&mut self, now: Instant) {
        self.full_at.retain(|_, full_at| *full_at > now);
        if self.full_at.len() >= MOST_OWNERS
            && let Some(fullest) =
                self.full_at.iter().min_by_key(|(_, full_at)| **full_at).map(|(owner, _)| owner.clone())
        {
            self.full_at.remove(&fullest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(count: u32) -> PerMinute {
        PerMinute(NonZeroU32::new(count).unwrap())
    }

    #[test]
    fn a_minutes_worth_is_taken_at_once_and_comes_back_one_by_one() {
        let mut paces = Paces::default();
        let (alice, bob): (Owner, Owner) = ("alice".parse().unwrap(), "bob".parse().unwrap());
        let start = Instant::now();
        assert!((0..60).all(|_| paces.take(&alice, rate(60), start).is_ok()));
        assert_eq!(paces.take(&alice, rate(60), start), Err(TooSoon(Duration::from_secs(1))));
        assert_eq!(paces.take(&bob, rate(60), start), Ok(()), "everybody has a bucket");
        let later = start + Duration::from_millis(999);
        assert_eq!(paces.take(&alice, rate(60), later).unwrap_err().seconds(), 1);
        let later = start + Duration::from_secs(1);
        assert_eq!(paces.take(&alice, rate(60), later), Ok(()));
        assert!(paces.take(&alice, rate(60), later).is_err());
        let quiet = start + Duration::from_secs(600);
        assert_eq!((0..1000).filter(|_| paces.take(&alice, rate(60), quiet).is_ok()).count(), 60);
    }

    #[test]
    fn over_any_time_no_more_are_given_than_the_rate_says() {
        let mut paces = Paces::default();
        let alice: Owner = "alice".parse().unwrap();
        let start = Instant::now();
        let given = |paces: &mut Paces, seconds: u64| {
            (0..seconds * 20)
                .filter(|at| paces.take(&alice, rate(7), start + Duration::from_millis(at * 50)).is_ok())
                .count()
        };
        assert_eq!(given(&mut paces, 600), 7 + 69, "those at once, and ten minutes of seven but for the last moment");
    }

    #[test]
    fn owners_that_are_quiet_are_forgotten_and_memory_is_bounded() {
        let mut paces = Paces::default();
        let start = Instant::now();
        for number in 0..2 * MOST_OWNERS {
            let owner: Owner = format!("owner-{number}").parse().unwrap();
            paces.take(&owner, rate(1), start).unwrap();
            assert!(paces.full_at.len() <= MOST_OWNERS);
        }
        let later = start + Duration::from_secs(61);
        paces.take(&"one-more".parse().unwrap(), rate(1), later).unwrap();
        assert_eq!(paces.full_at.len(), 1);
    }
}
