//! How often something may be tried.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So many in a window of time, for each of whatever is counted.
#[derive(Debug)]
pub struct Throttle {
    window: Duration,
    most: u32,
    counts: Mutex<HashMap<String, (Instant, u32)>>,
}

/// Beyond these all are forgotten.
const MOST_COUNTED: usize = 4096;

impl Throttle {
    pub fn new(most: u32, window: Duration) -> Self {
        Self { window, most, counts: Mutex::default() }
    }

    /// Counts one more; nothing when there have been too many already. Whoever looks first and counts later lets all of those through
    /// who come in between.
    pub fn take(&self, what: &str, now: Instant) -> Option<Counted> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MOST_COUNTED && !counts.contains_key(what) {
            counts.retain(|_, (since, _)| now.duration_since(*since) < self.window);
            if counts.len() >= MOST_COUNTED {
                counts.clear();
            }
        }
        let (since, count) = counts.entry(what.to_owned()).or_insert((now, 0));
        if now.duration_since(*since) >= self.window {
            (*since, *count) = (now, 0);
        }
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Counted { since: *since })
    }

    /// It was none of those that are bounded after all. What was counted in a window that is over is forgotten with it.
    pub fn give_back(&self, what: &str, counted: Counted) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, count)) = counts.get_mut(what)
            && *since == counted.since
        {
            *count = count.saturating_sub(1);
        }
    }
}

/// The window in which something was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    since: Instant,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_for_itself_and_forgotten_in_the_end() {
        let throttle = Throttle::new(2, Duration::from_secs(60));
        let now = Instant::now();
        assert!(throttle.take("a", now).is_some());
        let second = throttle.take("a", now).unwrap();
        assert!(throttle.take("a", now).is_none() && throttle.take("b", now).is_some());
        throttle.give_back("a", second);
        assert!(throttle.take("a", now).is_some() && throttle.take("a", now).is_none());
        let later = now + Duration::from_secs(60);
        assert!(throttle.take("a", later).is_some());
        throttle.give_back("a", second);
        assert!(throttle.take("a", later).is_some());
        assert!(throttle.take("a", later).is_none(), "what was given back belonged to a window that is over");
        for number in 0..2 * MOST_COUNTED {
            throttle.take(&number.to_string(), now);
        }
        assert!(throttle.counts.lock().unwrap().len() <= MOST_COUNTED);
    }
}
