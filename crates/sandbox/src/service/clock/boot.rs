//! The clock of Linux, which all processes of one boot share.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds since the boot, without the time that the host slept.
pub fn millis() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Names the boot that moments belong to.
pub fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
