//! How much is too much, for whoever reads what others made.

use serde::{Deserialize, Serialize};

/// How much one archive may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Of all files together, once unpacked.
    pub bytes: u64,
    pub entries: u64,
    /// How many bytes one compressed byte may stand for.
    pub ratio: u64,
    /// Of one whole path.
    pub path_bytes: usize,
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 16 << 30, entries: 500_000, ratio: 200, path_bytes: 4095, depth: 128 }
    }
}
