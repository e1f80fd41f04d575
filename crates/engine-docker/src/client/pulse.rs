//! Whether the daemon answers at all, while something is under way that takes as long as it takes.

use std::time::Duration;

use sandbox::Result;
use tokio::time::Instant;

use super::{Daemon, Failure, PATIENCE};

/// Between two questions. What takes no longer than this costs none.
const PAUSE: Duration = Duration::from_secs(3);

impl Daemon {
    /// What is waited for, for as long as the daemon answers beside it. One that is slow is not given up; one that says nothing
    /// any more is, whatever the work consists of, with the same error as for a question of its own.
    pub(crate) async fn unless_hanging<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let answers = || async {
            match self.ask(self.docker.ping()).await {
                Ok(_) => true,
                // A refusal is an answer.
                Err(failure) => failure.status().is_some(),
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            () = silence(PAUSE, PATIENCE, answers) => Err(self.told("answer", Failure::Slow)),
        }
    }
}

/// Ends when there was no answer for so long.
async fn silence<A: Future<Output = bool>>(pause: Duration, longest: Duration, answers: impl Fn() -> A) {
    let mut heard = Instant::now();
    loop {
        tokio::time::sleep(pause).await;
        match tokio::time::timeout_at(heard + longest, answers()).await {
            Ok(true) => heard = Instant::now(),
            Ok(false) if heard.elapsed() < longest => {}
            Ok(false) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const MOMENT: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn who_answers_is_waited_for_and_who_falls_silent_is_not() {
        let asked = AtomicU32::new(0);
        let started = Instant::now();
        let heard = std::sync::Mutex::new(started);
        let answers = || async {
            match asked.fetch_add(1, Ordering::Relaxed) {
                // Slow as it is, it takes longer for all of them than it may take for one.
                0..4 => tokio::time::sleep(LONGEST / 3).await,
                _ => pending().await,
            }
            *heard.lock().unwrap() = Instant::now();
            true
        };
        tokio::time::timeout(20 * LONGEST, silence(MOMENT, LONGEST, answers)).await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 5);
        assert!(heard.lock().unwrap().elapsed() >= LONGEST && started.elapsed() > 2 * LONGEST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_connection_is_no_answer() {
        let asked = AtomicU32::new(0);
        let refused = || async {
            asked.fetch_add(1, Ordering::Relaxed);
            false
        };
        let longest = 20 * MOMENT;
        tokio::time::timeout(LONGEST, silence(MOMENT, longest, refused)).await.unwrap();
        assert!(asked.load(Ordering::Relaxed) > 0);
    }
}
