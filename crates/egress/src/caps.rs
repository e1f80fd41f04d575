//! Bounds on traffic: connections, bytes and bytes per second, of one sandbox and of all sandboxes of its owner.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandbox::Denial;

use crate::grant::Allowance;

/// How much of a second's bytes may be moved at once after a pause.
const BURST: Duration = Duration::from_millis(250);

/// A slow rate must not turn every packet into a crumb.
const LEAST_BURST: f64 = 16.0 * 1024.0;

/// One bound, shared by all that it holds for.
#[derive(Debug)]
pub(crate) struct Cap {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    allowance: Allowance,
    open: usize,
    moved: u64,
    /// Bytes that may be moved now without being faster than the rate.
    level: f64,
    filled: Instant,
}

/// Whether bytes may be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// So many, at least one. They count as moved until they are given back.
    Now(usize),
    Later(Duration),
    Never,
}

impl Cap {
    pub fn new(allowance: Allowance) -> Arc<Self> {
        let level = allowance.rate.map_or(0.0, burst);
        let state = State { allowance, open: 0, moved: 0, level, filled: Instant::now() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// From now on. What was moved counts, and connections beyond the new number stay until they end.
    pub fn set(&self, allowance: Allowance) {
        self.lock().allowance = allowance;
    }

    fn enter(self: &Arc<Self>) -> Result<Place, Denial> {
        let mut state = self.lock();
        if state.allowance.bytes.is_some_and(|bytes| state.moved >= bytes) {
            return Err(Denial::BytesUsedUp);
        }
        if state.open >= state.allowance.connections {
            return Err(Denial::TooManyConnections);
        }
        state.open += 1;
        Ok(Place(Arc::clone(self)))
    }

    fn ask(&self, wanted: usize, now: Instant) -> Leave {
        let mut state = self.lock();
        let Allowance { connections: _, bytes, rate } = state.allowance;
        let mut leave = wanted;
        if let Some(bytes) = bytes {
            let left = bytes.saturating_sub(state.moved);
            if left == 0 {
                return Leave::Never;
            }
            leave = leave.min(usize::try_from(left).unwrap_or(usize::MAX));
        }
        if let Some(rate) = rate {
            let rate = rate.max(1);
            let passed = now.saturating_duration_since(state.filled).as_secs_f64();
            state.level = (state.level + passed * rate as f64).min(burst(rate));
            state.filled = now;
            // Waking up for a few bytes costs more than it moves.
            let worthwhile = (leave as f64).min(LEAST_BURST / 4.0);
            if state.level < worthwhile {
                let wait = (worthwhile - state.level) / rate as f64;
                return Leave::Later(Duration::from_secs_f64(wait.min(60.0)).max(Duration::from_millis(1)));
            }
            leave = leave.min(state.level as usize);
            state.level -= leave as f64;
        }
        state.moved += leave as u64;
        Leave::Now(leave)
    }

    fn give_back(&self, unused: usize) {
        if unused == 0 {
            return;
        }
        let mut state = self.lock();
        state.moved = state.moved.saturating_sub(unused as u64);
        if state.allowance.rate.is_some() {
            state.level += unused as f64;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn burst(rate: u64) -> f64 {
    (rate as f64 * BURST.as_secs_f64()).max(LEAST_BURST)
}

/// A connection that counts as open until this is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Cap>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.lock().open -= 1;
    }
}

/// What bounds one sandbox: its own allowance and its owner's.
#[derive(Clone, Debug)]
pub(crate) struct Caps {
    pub of_sandbox: Arc<Cap>,
    pub of_owner: Arc<Cap>,
}

impl Caps {
    pub fn enter(&self) -> Result<[Place; 2], Denial> {
        Ok([self.of_sandbox.enter()?, self.of_owner.enter()?])
    }

    pub fn ask(&self, wanted: usize) -> Leave {
        let now = Instant::now();
        let first = match self.of_sandbox.ask(wanted, now) {
            Leave::Now(bytes) => bytes,
            leave @ (Leave::Later(_) | Leave::Never) => return leave,
        };
        let second = self.of_owner.ask(first, now);
        match second {
            Leave::Now(bytes) => self.of_sandbox.give_back(first - bytes),
            Leave::Later(_) | Leave::Never => self.of_sandbox.give_back(first),
        }
        second
    }

    pub fn give_back(&self, unused: usize) {
        self.of_sandbox.give_back(unused);
        self.of_owner.give_back(unused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cap(connections: usize, bytes: Option<u64>, rate: Option<u64>) -> Arc<Cap> {
        Cap::new(Allowance { connections, bytes, rate })
    }

    #[test]
    fn places_are_given_back() {
        let caps = Caps { of_sandbox: cap(2, None, None), of_owner: cap(3, None, None) };
        let held = [caps.enter().unwrap(), caps.enter().unwrap()];
        assert_eq!(caps.enter().unwrap_err(), Denial::TooManyConnections);
        // A refusal by one of the two leaves no place taken in the other.
        let other = Caps { of_sandbox: cap(9, None, None), of_owner: Arc::clone(&caps.of_owner) };
        let third = other.enter().unwrap();
        assert_eq!(other.enter().unwrap_err(), Denial::TooManyConnections);
        drop((held, third));
        assert_eq!((caps.of_sandbox.lock().open, caps.of_owner.lock().open, other.of_sandbox.lock().open), (0, 0, 0));
    }

    #[test]
    fn bytes_end_with_the_smaller_allowance() {
        let caps = Caps { of_sandbox: cap(9, Some(100), None), of_owner: cap(9, Some(60), None) };
        assert_eq!(caps.ask(40), Leave::Now(40));
        caps.give_back(10);
        assert_eq!(caps.ask(100), Leave::Now(30));
        assert_eq!(caps.ask(1), Leave::Never);
        assert_eq!(caps.of_sandbox.lock().moved, 60);
        assert_eq!(caps.enter().unwrap_err(), Denial::BytesUsedUp);
    }

    #[test]
    fn a_bound_that_is_set_later_counts_what_was_moved_before() {
        let caps = Caps { of_sandbox: cap(9, None, None), of_owner: cap(9, None, None) };
        assert_eq!(caps.ask(40), Leave::Now(40));
        caps.of_owner.set(Allowance { connections: 9, bytes: Some(50), rate: None });
        assert_eq!(caps.ask(40), Leave::Now(10));
        assert_eq!(caps.ask(1), Leave::Never);
        caps.of_owner.set(Allowance { connections: 9, bytes: None, rate: None });
        assert_eq!(caps.ask(40), Leave::Now(40));
    }

    #[test]
    fn a_rate_is_kept_over_time() {
        let rate = 1_000_000;
        let cap = cap(9, None, Some(rate));
        let began = Instant::now();
        let (mut now, mut moved) = (began, 0);
        while now < began + Duration::from_secs(10) {
            match cap.ask(64 * 1024, now) {
                Leave::Now(bytes) => moved += bytes as u64,
                Leave::Later(wait) => now += wait,
                Leave::Never => panic!("there is no bound on bytes"),
            }
        }
        assert!((10 * rate..11 * rate).contains(&moved), "{moved} bytes in ten seconds");
    }

    #[test]
    fn the_slowest_rate_still_moves() {
        let cap = cap(9, None, Some(0));
        assert_eq!(cap.ask(10, Instant::now()), Leave::Now(10));
    }
}
