//! The wall clock, for systems that do not name their boots: what one process writes down means the same to the next,
//! also after a boot. Whoever sets it back lets sandboxes live longer.

use std::time::{SystemTime, UNIX_EPOCH};

pub fn millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// One for all of them, because this clock goes on.
pub fn boot() -> String {
    "wall".to_owned()
}
