//! Jobs that a process has left which is gone: found again at the start, at every sweep, and when one is asked for.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use tokio::sync::watch;

use super::attend::Attendants;
use super::journal::{Entry, Left};
use super::stream::Streams;
use super::{Job, Shared};
use crate::error::Result;
use crate::id::{JobId, Owner};
use crate::job::JobStatus;
use crate::service::core::Core;

impl Core {
    /// One of this process, or of one that is gone.
    pub(in crate::service) fn find_job(&self, owner: &Owner, id: &JobId) -> Result<Job> {
        let known = self.jobs.find(owner, id);
        if known.is_ok() {
            return known;
        }
        let left = self.journals.left_of(owner, id)?;
        left.and_then(|left| self.adopt_job(left)).map_or(known, Ok)
    }

    pub(in crate::service) fn adopt_jobs(&self) -> Result<()> {
        for left in self.journals.left()? {
            self.adopt_job(left);
        }
        Ok(())
    }

    /// `None` for one of another engine, and for one that ended too long ago.
    fn adopt_job(&self, Left { mut journal, entry, output }: Left) -> Option<Job> {
        if entry.engine != self.engine_of_records() {
            return None;
        }
        let now = SystemTime::now();
        let (ended_at, status) = match entry.end.clone() {
            Some(end) => end,
            None => {
                tracing::info!(job = %entry.id, sandbox = %entry.sandbox, "a job went with the process that ran it");
                if let Err(error) = journal.conclude(now, JobStatus::Interrupted) {
                    tracing::warn!(job = %entry.id, ?error, "that a job was interrupted is not written down");
                }
                (now, JobStatus::Interrupted)
            }
        };
        let age = now.duration_since(ended_at).unwrap_or_default();
        if age > entry.kept_for {
            journal.remove();
            return None;
        }
        let Entry { id, owner, sandbox, engine: _, network, started_at, title, caps: _, kept_for, end: _ } = entry;
        let shared = Arc::new(Shared {
            id,
            owner,
            sandbox,
            fresh: false,
            network,
            started_at,
            title,
            streams: Arc::new(Streams::restored(output, journal)),
            status: watch::Sender::new(status),
            stop: watch::Sender::new(false),
            attendants: Attendants::default(),
            kept_for,
            unproven: AtomicBool::new(false),
            leaving: OnceLock::new(),
            outliving: None,
        });
        shared.streams.close();
        self.jobs.add_ended(&shared, self.clock.now().before(age), &self.settings.jobs);
        self.wake_by(self.clock.now().after(kept_for.saturating_sub(age)));
        Some(Job { shared })
    }
}
