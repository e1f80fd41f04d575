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

    /// Whether there have been too many already.
    pub fn is_full(&self, what: &str, now: Instant) -> bool {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(what).is_some_and(|(since, count)| now.duration_since(*since) < self.window && *count >= self.most)
    }

    pub fn count(&self, what: &str, now: Instant) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MOST_COUNTED {
            counts.retain(|_, (since, _)| now.duration_since(*since) < self.window);
            if counts.len() >= MOST_COUNTED {
                counts.clear();
            }
        }
        let (since, count) = counts.entry(what.to_owned()).or_insert((now, 0));
        if now.duration_since(*since) >= self.window {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_for_itself_and_forgotten_in_the_end() {
        let throttle = Throttle::new(2, Duration::from_secs(60));
        let now = Instant::now();
        throttle.count("a", now);
        assert!(!throttle.is_full("a", now));
        throttle.count("a", now);
        assert!(throttle.is_full("a", now) && !throttle.is_full("b", now));
        let later = now + Duration::from_secs(60);
        assert!(!throttle.is_full("a", later));
        throttle.count("a", later);
        assert!(!throttle.is_full("a", later));
        for number in 0..2 * MOST_COUNTED {
            throttle.count(&number.to_string(), now);
        }
        assert!(throttle.counts.lock().unwrap().len() <= MOST_COUNTED);
    }
}
