//! Random numbers that can be had again: the seed is printed, and taken from `SANDPEN_TEST_SEED`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Xorshift: small, and the same on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Prints its seed, so that a failure can be repeated.
    pub fn announced() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64);
        let seed = crate::number_from("SANDPEN_TEST_SEED", now | 1);
        println!("seed {seed} (repeat with SANDPEN_TEST_SEED={seed})");
        Self(seed)
    }

    pub fn seeded(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound.max(1)
    }

    pub fn duration_below(&mut self, bound: Duration) -> Duration {
        Duration::from_micros(self.below(bound.as_micros() as u64))
    }
}

/// A word that stands nowhere else on this machine.
pub fn unique(prefix: &str) -> String {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    format!("{prefix}-{:016x}", u64::from_le_bytes(bytes))
}
