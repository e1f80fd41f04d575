//! A question that many have at once: it is asked once, and all who came meanwhile get the one answer, which may be a failure.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandbox::{Error, Result};
use tokio::sync::watch;
use tokio::time::Instant;

/// For so long an answer is good for others too.
const MOMENT: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct Joint<T>(Mutex<Option<Asked<T>>>);

#[derive(Clone, Debug)]
struct Asked<T> {
    at: Instant,
    answer: watch::Receiver<Option<Result<T, Arc<Error>>>>,
}

impl<T> Default for Joint<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + Send + Sync + 'static> Joint<T> {
    /// As it is now, or was a moment ago. Who waited in vain does not wait again: a daemon that hangs would keep each of many
    /// for as long as all before it together.
    pub async fn answer<A>(&self, ask: impl Fn() -> A) -> Result<T>
    where
        A: Future<Output = Result<T>> + Send + 'static,
    {
        let came = Instant::now();
        loop {
            let Asked { at, mut answer } = self.asked(&ask);
            let answer = answer.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
            let answer = answer.ok_or_else(|| Error::internal("a question to the daemon ended unexpectedly"))?;
            let found = answer.map_err(|error| error.without_cause())?;
            if at + MOMENT > came {
                return Ok(found);
            }
        }
    }

    fn asked<A>(&self, ask: impl Fn() -> A) -> Asked<T>
    where
        A: Future<Output = Result<T>> + Send + 'static,
    {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(asked) = last.as_ref().filter(|asked| asked.is_good()) {
            return asked.clone();
        }
        let (sender, answer) = watch::channel(None);
        let asking = ask();
        // On its own, because whoever was the first may be the first to leave.
        tokio::spawn(async move {
            let answer = asking.await.inspect_err(|error| tracing::debug!(?error, "a question had no answer"));
            sender.send_replace(Some(answer.map_err(Arc::new)));
        });
        last.insert(Asked { at: Instant::now(), answer }).clone()
    }
}

impl<T> Asked<T> {
    fn is_good(&self) -> bool {
        match &*self.answer.borrow() {
            Some(Ok(_)) => self.at.elapsed() < MOMENT,
            Some(Err(_)) => false,
            None => self.answer.has_changed().is_ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_who_wait_get_the_failure_that_they_waited_for() {
        let (joint, asked, end) = (Joint::<()>::default(), AtomicUsize::new(0), Arc::new(Semaphore::new(0)));
        let ask = || {
            asked.fetch_add(1, Ordering::Relaxed);
            let end = end.clone();
            async move {
                let Ok(permit) = end.acquire().await else { return Ok(()) };
                permit.forget();
                Err(Error::unavailable("nobody answers"))
            }
        };
        let given_up = tokio::time::timeout(Duration::from_millis(50), joint.answer(ask)).await;
        assert!(given_up.is_err(), "the first has left");
        let ended = async {
            // The others have begun to wait, because they are before this one.
            end.add_permits(1);
        };
        let (one, two, ()) = tokio::join!(joint.answer(ask), joint.answer(ask), ended);
        for answer in [one, two] {
            assert_eq!(answer.unwrap_err().message(), "nobody answers");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        end.add_permits(1);
        assert!(joint.answer(ask).await.is_err());
        assert_eq!(asked.load(Ordering::Relaxed), 2, "who comes later asks again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_no_older_than_who_asks() {
        let (joint, asked, end) = (Joint::default(), AtomicUsize::new(0), Arc::new(Semaphore::new(0)));
        let ask = || {
            let (number, end) = (asked.fetch_add(1, Ordering::Relaxed), end.clone());
            async move {
                let _ended = end.acquire().await;
                Ok(number)
            }
        };
        let later = async {
            tokio::time::sleep(2 * MOMENT).await;
            let ended = async { end.add_permits(1) };
            tokio::join!(joint.answer(ask), ended).0
        };
        let (one, two) = tokio::join!(joint.answer(ask), later);
        assert_eq!((one.unwrap(), two.unwrap()), (0, 1));
    }
}
