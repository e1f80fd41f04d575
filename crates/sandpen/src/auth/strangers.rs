//! Those who are not let in, at whatever door: each is written down, and where many are wrong they are slowed down.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::Request;

use super::challenge::Unknown;
use crate::audit::{Deed, Recorder};
use crate::http::listener::Peer;

/// Copies count together, so that there is not one more try for each door.
#[derive(Clone, Debug)]
pub struct Strangers {
    recorder: Recorder,
    wrong: Arc<Mutex<WrongOnes>>,
}

impl Strangers {
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder, wrong: Arc::default() }
    }

    /// Whether too many wrong ones came from there.
    pub fn turn_away(&self, request: &Request, unknown: Unknown) -> bool {
        let source = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
        let is_wrong = !matches!(unknown, Unknown::Silent | Unknown::Unsure);
        let is_flood = is_wrong && source.is_some_and(|source| self.is_flood(source));
        tracing::warn!(?unknown, source = source.map(tracing::field::display), "a request was not let in");
        self.recorder.record(Deed::TurnedAway { source, why: unknown.as_str() });
        is_flood
    }

    fn is_flood(&self, source: IpAddr) -> bool {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).count(source, Instant::now())
    }
}

/// Wrong tokens by where they came from. Right ones are never counted, so whoever has one is not kept out by a neighbour.
#[derive(Debug, Default)]
struct WrongOnes {
    sources: HashMap<IpAddr, (Instant, u32)>,
}

impl WrongOnes {
    const WINDOW: Duration = Duration::from_secs(60);
    const MOST: u32 = 60;
    /// Beyond these all are forgotten; they had to be wrong once each to be remembered.
    const MOST_SOURCES: usize = 4096;

    /// Whether one more is too many.
    fn count(&mut self, source: IpAddr, now: Instant) -> bool {
        if self.sources.len() >= Self::MOST_SOURCES {
            self.sources.retain(|_, (since, _)| now.duration_since(*since) < Self::WINDOW);
            if self.sources.len() >= Self::MOST_SOURCES {
                self.sources.clear();
            }
        }
        let (since, count) = self.sources.entry(source).or_insert((now, 0));
        if now.duration_since(*since) >= Self::WINDOW {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count > Self::MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_wrong_ones_is_slowed_down_and_forgotten() {
        let mut wrong = WrongOnes::default();
        let (one, other) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let now = Instant::now();
        assert!((0..WrongOnes::MOST).all(|_| !wrong.count(one, now)));
        assert!(wrong.count(one, now));
        assert!(!wrong.count(other, now));
        assert!(!wrong.count(one, now + WrongOnes::WINDOW));
        for number in 0..2 * WrongOnes::MOST_SOURCES as u32 {
            wrong.count(IpAddr::from(number.to_be_bytes()), now);
        }
        assert!(wrong.sources.len() <= WrongOnes::MOST_SOURCES);
    }
}
