//! Images that a server fetches because a call asked for one that is not here.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use images::Step;
use sandbox::ByteSize;
use tools::Progress;

mod daemon;
#[cfg(target_os = "linux")]
mod store;

pub use daemon::{DaemonPulls, Tally};
#[cfg(target_os = "linux")]
pub use store::Pulls;

/// Between two reports of the same step.
const WORTH_A_WORD: u64 = 16 << 20;

/// How far a pull is, for whoever watches the call that began it.
struct News {
    name: String,
    progress: Arc<dyn Progress>,
    total: AtomicU64,
    done: AtomicU64,
}

impl News {
    fn new(name: String, progress: &Arc<dyn Progress>) -> Self {
        let (total, done) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { name, progress: progress.clone(), total, done }
    }
}

impl images::Progress for News {
    fn step(&self, step: Step) {
        let what = match step {
            Step::Asking => "asking for",
            Step::Reading => "reading",
            Step::Downloading => "downloading",
            Step::Unpacking => "unpacking",
            Step::Uploading => "uploading",
            Step::Writing => "writing",
        };
        self.progress.report(&format!("{what} the image {}", self.name));
    }

    fn total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
        let (done, total) = (before + bytes, self.total.load(Ordering::Relaxed));
        if before / WORTH_A_WORD != done / WORTH_A_WORD && total > 0 {
            let (done, total) = (ByteSize::new(done.min(total)), ByteSize::new(total));
            self.progress.report(&format!("{done} of {total}"));
        }
    }
}

impl fmt::Debug for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("News").field("name", &self.name).finish_non_exhaustive()
    }
}
