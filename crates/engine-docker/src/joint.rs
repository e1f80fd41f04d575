//! A question that many have at once: all who come while it is asked wait for it, and then ask it once more together, so that
//! no answer is older than who gets it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox::{Error, Result};
use tokio::sync::watch;

#[derive(Debug)]
pub struct Joint<T>(Mutex<Option<Asked<T>>>);

#[derive(Clone, Debug)]
struct Asked<T> {
    /// How often it was asked, with this. No clock would tell two apart that are asked at once.
    number: u64,
    answer: watch::Receiver<Option<Result<T, Arc<Error>>>>,
}

impl<T> Default for Joint<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + Send + Sync + 'static> Joint<T> {
    /// As it is now. Who waited in vain does not wait again: a daemon that hangs would keep each of many for as long as all
    /// before it together.
    pub async fn answer<A>(&self, ask: impl Fn() -> A) -> Result<T>
    where
        A: Future<Output = Result<T>> + Send + 'static,
    {
        let before = self.last().as_ref().map_or(0, |asked| asked.number);
        loop {
            let Asked { number, mut answer } = self.asked(before, &ask);
            let answer = answer.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
            let answer = answer.ok_or_else(|| Error::internal("a question to the daemon ended unexpectedly"))?;
            let found = answer.map_err(|error| error.without_cause())?;
            if number > before {
                return Ok(found);
            }
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<Asked<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is under way, one that was asked after those before, or a new one.
    fn asked<A>(&self, before: u64, ask: impl Fn() -> A) -> Asked<T>
    where
        A: Future<Output = Result<T>> + Send + 'static,
    {
        let mut last = self.last();
        if let Some(asked) = last.as_ref().filter(|asked| asked.number > before || asked.is_under_way()) {
            return asked.clone();
        }
        let number = last.as_ref().map_or(0, |asked| asked.number) + 1;
        let (sender, answer) = watch::channel(None);
        let asking = ask();
        // On its own, because whoever was the first may be the first to leave.
        tokio::spawn(async move {
            let answer = asking.await.inspect_err(|error| tracing::debug!(?error, "a question had no answer"));
            sender.send_replace(Some(answer.map_err(Arc::new)));
        });
        last.insert(Asked { number, answer }).clone()
    }
}

impl<T> Asked<T> {
    fn is_under_way(&self) -> bool {
        self.answer.borrow().is_none() && self.answer.has_changed().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures_util::future::join_all;
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

    #[tokio::test]
    async fn an_answer_is_no_older_than_who_gets_it() {
        let (joint, asked, end) = (Joint::default(), AtomicUsize::new(0), Arc::new(Semaphore::new(0)));
        let ask = || {
            let (number, end) = (asked.fetch_add(1, Ordering::Relaxed), end.clone());
            async move {
                let _ended = end.acquire().await;
                Ok(number)
            }
        };
        let others = join_all((0..5).map(|_| joint.answer(ask)));
        // All have begun to wait by then, because they are before this one.
        let ended = async { end.add_permits(1) };
        let (one, others, ()) = tokio::join!(joint.answer(ask), others, ended);
        assert_eq!(one.unwrap(), 0);
        let others: Vec<usize> = others.into_iter().map(Result::unwrap).collect();
        assert_eq!(others, [1; 5], "those who came while it was asked share the next one");
        assert_eq!(joint.answer(ask).await.unwrap(), 2, "an answer that is there already is too old, however new");
    }
}
