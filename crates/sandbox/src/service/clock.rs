//! Time as the service counts it: milliseconds of the host's monotonic clock, where it has one that processes share.
//!
//! All processes of one boot share that clock, so a moment that one of them writes down means the same to the next; a wall
//! clock can be set back, and would then keep sandboxes alive or end them early. It stands still while the host sleeps,
//! which is what one wants of an idle time on a laptop.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

#[cfg_attr(target_os = "linux", path = "clock/boot.rs")]
#[cfg_attr(not(target_os = "linux"), path = "clock/wall.rs")]
mod source;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(pub u64);

impl Moment {
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Reads through tokio's clock, so that tests which stop that clock stop this one too.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    origin: Instant,
    at_origin: Moment,
    boot: String,
}

impl Clock {
    pub fn start() -> Self {
        Self { origin: Instant::now(), at_origin: Moment(source::millis()), boot: source::boot() }
    }

    pub fn now(&self) -> Moment {
        self.at_origin.after(self.origin.elapsed())
    }

    pub fn instant(&self, moment: Moment) -> Instant {
        self.origin + moment.since(self.at_origin)
    }

    pub fn wall(&self, moment: Moment) -> Option<SystemTime> {
        let now = self.now();
        let wall = SystemTime::now();
        if moment >= now { wall.checked_add(moment.since(now)) } else { wall.checked_sub(now.since(moment)) }
    }

    /// Names the boot that moments belong to; empty where the system does not say.
    pub fn boot(&self) -> &str {
        &self.boot
    }
}
