//! Pulls that several wait for: one for each image, as long as anybody does, and a few images at once.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use sandbox::{Error, Result};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::{self, Receiver, Sender};

use crate::pull::PullProgress;

/// Words that somebody who listens slowly may miss. The daemon repeats how far it is many times a second.
const MOST_UNHEARD: usize = 256;

/// Driven by whoever waits, so it goes on when one of them leaves, and is dropped with the last.
type Ending = Shared<BoxFuture<'static, Result<(), Arc<Error>>>>;

/// By all who want some together.
const AT_ONCE: usize = 4;

/// After this a pull is given up, however much it says.
const LONGEST: Duration = Duration::from_secs(30 * 60);

pub struct Pulls {
    under_way: Mutex<HashMap<String, UnderWay>>,
    at_once: Arc<Semaphore>,
    longest: Duration,
}

struct UnderWay {
    ending: WeakShared<BoxFuture<'static, Result<(), Arc<Error>>>>,
    said: Sender<PullProgress>,
}

impl Default for Pulls {
    fn default() -> Self {
        Self { under_way: Mutex::default(), at_once: Arc::new(Semaphore::new(AT_ONCE)), longest: LONGEST }
    }
}

impl Pulls {
    /// Wait for the pull of this name, which is begun if there is none. Dropping this gives up for this caller alone.
    pub async fn join(
        &self,
        name: &str,
        begin: impl FnOnce(Sender<PullProgress>) -> BoxFuture<'static, Result<()>>,
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<()> {
        let (mut ending, mut said) = self.enter(name, begin);
        let ended = loop {
            tokio::select! {
                biased;
                Some(word) = next(&mut said) => progress(word),
                ended = &mut ending => break ended,
            }
        };
        while let Some(Some(word)) = next(&mut said).now_or_never() {
            progress(word);
        }
        // The last to leave has the error as it is.
        ended.map_err(|error| Arc::try_unwrap(error).unwrap_or_else(|shared| shared.without_cause()))
    }

    fn enter(
        &self,
        name: &str,
        begin: impl FnOnce(Sender<PullProgress>) -> BoxFuture<'static, Result<()>>,
    ) -> (Ending, Receiver<PullProgress>) {
        let mut pulls = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        pulls.retain(|_, pull| pull.ending.upgrade().is_some());
        if let Some(pull) = pulls.get(name)
            && let Some(ending) = pull.ending.upgrade()
        {
            return (ending, pull.said.subscribe());
        }
        let (said, heard) = broadcast::channel(MOST_UNHEARD);
        let ending = self.bounded(begin(said.clone())).map(|ended| ended.map_err(Arc::new)).boxed().shared();
        if let Some(weak) = ending.downgrade() {
            pulls.insert(name.to_owned(), UnderWay { ending: weak, said });
        }
        (ending, heard)
    }

    /// The same when there is room for it, and not for ever.
    fn bounded(&self, pull: BoxFuture<'static, Result<()>>) -> impl Future<Output = Result<()>> + use<> {
        let (at_once, longest) = (self.at_once.clone(), self.longest);
        async move {
            // Nobody closes it.
            let _room = at_once.acquire().await;
            tokio::time::timeout(longest, pull).await.unwrap_or_else(|_| {
                Err(Error::unavailable(format!("the image has not come within {} minutes", longest.as_secs() / 60))
                    .with_hint("fetch it with the daemon's own client, which says more"))
            })
        }
    }
}

impl fmt::Debug for Pulls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulls").finish_non_exhaustive()
    }
}

/// `None` when nobody will say anything more.
async fn next(said: &mut Receiver<PullProgress>) -> Option<PullProgress> {
    loop {
        match said.recv().await {
            Ok(word) => return Some(word),
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use sandbox::ErrorKind;
    use tokio::sync::Notify;
    use tokio::task::JoinHandle;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(50);

    /// An image that comes when it is let through.
    #[derive(Clone, Debug, Default)]
    struct Slow {
        begun: Arc<AtomicUsize>,
        dropped: Arc<AtomicUsize>,
        lets_through: Arc<Notify>,
    }

    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Slow {
        fn begin(&self, said: Sender<PullProgress>, ends: fn() -> Result<()>) -> BoxFuture<'static, Result<()>> {
            self.begun.fetch_add(1, Ordering::SeqCst);
            let (counted, lets_through) = (Counted(self.dropped.clone()), self.lets_through.clone());
            async move {
                let _counted = counted;
                lets_through.notified().await;
                let _ = said.send(PullProgress { status: "Downloading".to_owned(), layer: None, bytes: None });
                ends()
            }
            .boxed()
        }

        /// Somebody who waits, and in the end knows how often something was said.
        fn waits(&self, pulls: &Arc<Pulls>, ends: fn() -> Result<()>) -> JoinHandle<(Result<()>, usize)> {
            let (slow, pulls) = (self.clone(), pulls.clone());
            tokio::spawn(async move {
                let heard = AtomicUsize::new(0);
                let hear = |_| _ = heard.fetch_add(1, Ordering::SeqCst);
                let ended = pulls.join("image", |said| slow.begin(said, ends), &hear).await;
                (ended, heard.into_inner())
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pull_goes_on_for_those_who_stay() {
        let (slow, pulls) = (Slow::default(), Arc::new(Pulls::default()));
        let first = slow.waits(&pulls, || Ok(()));
        tokio::time::sleep(MOMENT).await;
        let others = [slow.waits(&pulls, || Ok(())), slow.waits(&pulls, || Ok(()))];
        tokio::time::sleep(MOMENT).await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert_eq!(slow.dropped.load(Ordering::SeqCst), 0, "somebody waits");
        slow.lets_through.notify_one();
        for other in others {
            let (ended, heard) = other.await.unwrap();
            assert!(ended.is_ok());
            assert_eq!(heard, 1);
        }
        assert_eq!(slow.begun.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pull_ends_with_the_last_who_waits() {
        let (slow, pulls) = (Slow::default(), Arc::new(Pulls::default()));
        let waiting = [slow.waits(&pulls, || Ok(())), slow.waits(&pulls, || Ok(()))];
        tokio::time::sleep(MOMENT).await;
        for (left, one) in waiting.into_iter().enumerate() {
            assert_eq!(slow.dropped.load(Ordering::SeqCst), 0, "{left} have left");
            one.abort();
            assert!(one.await.unwrap_err().is_cancelled());
        }
        assert_eq!((slow.begun.load(Ordering::SeqCst), slow.dropped.load(Ordering::SeqCst)), (1, 1));
        let next = slow.waits(&pulls, || Ok(()));
        slow.lets_through.notify_one();
        assert!(next.await.unwrap().0.is_ok());
        assert_eq!(slow.begun.load(Ordering::SeqCst), 2, "what was given up is begun anew");
    }

    #[tokio::test(start_paused = true)]
    async fn all_hear_why_it_does_not_come() {
        let (slow, pulls) = (Slow::default(), Arc::new(Pulls::default()));
        let fails = || Err(Error::not_found("no such image").with_hint("look").with_cause("manifest unknown"));
        let waiting = [slow.waits(&pulls, fails), slow.waits(&pulls, fails)];
        tokio::time::sleep(MOMENT).await;
        slow.lets_through.notify_one();
        let mut causes = 0;
        for one in waiting {
            let error = one.await.unwrap().0.unwrap_err();
            assert_eq!((error.kind(), error.hint()), (ErrorKind::NotFound, Some("look")));
            causes += usize::from(error.cause().is_some());
        }
        assert_eq!(causes, 1, "one of them is to be logged with it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_are_fetched_at_once_and_none_for_ever() {
        let slow = Slow::default();
        let pulls = Pulls { longest: MOMENT, ..Pulls::default() };
        let under_way = Arc::new(AtomicUsize::new(0));
        let waiting = (0..AT_ONCE + 2).map(|number| {
            let begin = |said| {
                let (under_way, waits) = (under_way.clone(), slow.begin(said, || Ok(())));
                async move {
                    under_way.fetch_add(1, Ordering::SeqCst);
                    waits.await
                }
                .boxed()
            };
            let pulls = &pulls;
            async move { pulls.join(&format!("image {number}"), begin, &|_| {}).await }
        });
        let mut ending = Box::pin(join_all(waiting));
        assert!((&mut ending).now_or_never().is_none());
        assert_eq!(under_way.load(Ordering::SeqCst), AT_ONCE);
        for ended in ending.await {
            assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert_eq!(under_way.load(Ordering::SeqCst), AT_ONCE + 2);
    }
}
