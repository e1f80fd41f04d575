//! Who wants to know when a resource changes: by subscription in older revisions, by listening in the newest.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ErrorData, ResourceUpdatedNotificationParam};
use rmcp::service::{Peer, SubscriptionContext};
use sandbox::Error;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use tools::Call;
use tools::resources::{self, Watch};

use super::errors::protocol_error;

/// Between two notices of the same resource: a program that prints would cause thousands.
const PACE: Duration = Duration::from_millis(200);

/// Of one session or one listener.
const MOST: usize = 256;

/// Those of one session in the older revisions. They end with it.
#[derive(Default)]
pub struct Subscriptions {
    by_uri: Arc<Mutex<HashMap<String, DropGuard>>>,
}

impl Subscriptions {
    pub async fn add(&self, call: &Call, uri: String, peer: Peer<RoleServer>) -> Result<(), ErrorData> {
        let mut watch = resources::watch(call, &uri).await.map_err(|error| protocol_error(&error))?;
        let notice = ResourceUpdatedNotificationParam::new(uri.clone());
        self.hold(uri, async move {
            while changed(&mut watch).await.is_some() {
                if peer.notify_resource_updated(notice.clone()).await.is_err() {
                    return;
                }
            }
        })
    }

    /// Until `telling` is over, or the subscription is.
    fn hold(&self, uri: String, telling: impl Future<Output = ()> + Send + 'static) -> Result<(), ErrorData> {
        let over = CancellationToken::new();
        let mut by_uri = lock(&self.by_uri);
        if by_uri.len() >= MOST && !by_uri.contains_key(&uri) {
            let error = Error::limit_exceeded(format!("{MOST} subscriptions are the most of one session"));
            return Err(protocol_error(&error.with_hint("unsubscribe from resources that you no longer need")));
        }
        by_uri.insert(uri.clone(), over.clone().drop_guard());
        drop(by_uri);
        // Those who tell must not keep the table, whose end is theirs.
        let held = Arc::downgrade(&self.by_uri);
        tokio::spawn(async move {
            let told_all = over.run_until_cancelled(telling).await.is_some();
            if let Some(by_uri) = held.upgrade().filter(|_| told_all) {
                let mut by_uri = lock(&by_uri);
                // Otherwise the place is that of a later subscription.
                if !over.is_cancelled() {
                    by_uri.remove(&uri);
                }
            }
        });
        Ok(())
    }

    pub fn remove(&self, uri: &str) {
        lock(&self.by_uri).remove(uri);
    }
}

/// Until the client has heard enough, or the server ends.
pub async fn listen(call: &Call, listener: SubscriptionContext) {
    let mut telling = JoinSet::new();
    let uris = listener.accepted().resource_subscriptions.clone().unwrap_or_default();
    for uri in uris.into_iter().take(MOST) {
        // What cannot be watched does not change.
        let Ok(mut watch) = resources::watch(call, &uri).await else { continue };
        let sink = listener.sink().clone();
        telling.spawn(async move {
            while changed(&mut watch).await.is_some() {
                if sink.notify_resource_updated(uri.clone()).await.is_err() {
                    return;
                }
            }
        });
    }
    listener.cancelled().await;
}

fn lock(by_uri: &Mutex<HashMap<String, DropGuard>>) -> MutexGuard<'_, HashMap<String, DropGuard>> {
    by_uri.lock().unwrap_or_else(PoisonError::into_inner)
}

/// At most one change per pace; what follows quickly is part of it.
async fn changed(watch: &mut Watch) -> Option<()> {
    let change = watch.changed().await;
    if change.is_some() {
        tokio::time::sleep(PACE).await;
    }
    change
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    async fn until(subscriptions: &Subscriptions, count: usize) {
        while lock(&subscriptions.by_uri).len() != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_subscription_that_is_over_makes_room() {
        let subscriptions = Subscriptions::default();
        for number in 0..MOST {
            subscriptions.hold(number.to_string(), ready(())).unwrap();
        }
        assert!(subscriptions.hold("one more".to_owned(), ready(())).is_err());
        until(&subscriptions, 0).await;
        assert!(subscriptions.hold("one more".to_owned(), pending()).is_ok());
    }

    #[tokio::test]
    async fn the_end_of_a_session_ends_its_subscriptions() {
        let subscriptions = Subscriptions::default();
        let (held, released) = tokio::sync::oneshot::channel::<()>();
        let telling = async move {
            let _held = held;
            pending::<()>().await;
        };
        subscriptions.hold("a".to_owned(), telling).unwrap();
        drop(subscriptions);
        assert!(tokio::time::timeout(Duration::from_secs(30), released).await.unwrap().is_err());
    }
}
