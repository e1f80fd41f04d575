//! Callers that wait for a job, and take it along when they go.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use super::{Job, Shared};

/// How many wait for a job, and how many ever did.
#[derive(Debug, Default)]
pub(super) struct Attendants(Mutex<Counts>);

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    now: usize,
    ever: u64,
    /// Somebody has been told that it goes on.
    promised: bool,
}

impl Attendants {
    fn change(&self, change: impl FnOnce(&mut Counts)) -> Counts {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut counts);
        *counts
    }
}

/// Somebody who waits for a job. Dropped, it takes the job along, unless others wait for it too.
#[derive(Debug)]
pub struct Attendance {
    job: Job,
    grace: Duration,
    stays: bool,
}

impl Job {
    /// From now on it goes on without anybody who waits for it: its id was given away.
    pub fn promise(&self) {
        self.shared.attendants.change(|counts| counts.promised = true);
        self.shared.outlive();
    }

    /// Wait for the job as one of those for whom it runs.
    ///
    /// When the last of them goes without having left on purpose, the job is stopped, after `grace`: a caller that asks
    /// again in that time, with the key of the job, finds it running.
    pub fn attend(&self, grace: Duration) -> Attendance {
        self.shared.attendants.change(|counts| {
            counts.now += 1;
            counts.ever += 1;
        });
        Attendance { job: self.clone(), grace, stays: false }
    }
}

impl Attendance {
    /// Go, and let the job go on, whoever else goes without having left.
    pub fn leave(mut self) {
        self.job.promise();
        self.stays = true;
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.job.shared);
        let left = shared.attendants.change(|counts| counts.now -= 1);
        if self.stays || left.promised || left.now > 0 || !shared.is_running() {
            return;
        }
        match Handle::try_current() {
            Ok(runtime) if !self.grace.is_zero() => {
                runtime.spawn(stop_later(shared, left.ever, self.grace));
            }
            Ok(_) | Err(_) => shared.ask_to_stop(),
        }
    }
}

async fn stop_later(shared: Arc<Shared>, ever: u64, grace: Duration) {
    tokio::select! {
        _ = shared.ended() => {}
        () = tokio::time::sleep(grace) => {
            let counts = shared.attendants.change(|_| {});
            if counts.ever == ever && !counts.promised {
                shared.ask_to_stop();
            }
        }
    }
}
