//! Who wants to know when a resource changes: by subscription in older revisions, by listening in the newest.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
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
    by_uri: Mutex<HashMap<String, DropGuard>>,
}

impl Subscriptions {
    pub async fn add(&self, call: &Call, uri: String, peer: Peer<RoleServer>) -> Result<(), ErrorData> {
        let mut watch = resources::watch(call, &uri).await.map_err(|error| protocol_error(&error))?;
        let over = CancellationToken::new();
        let mut by_uri = self.by_uri.lock().unwrap_or_else(PoisonError::into_inner);
        if by_uri.len() >= MOST && !by_uri.contains_key(&uri) {
            let error = Error::limit_exceeded(format!("{MOST} subscriptions are the most of one session"));
            return Err(protocol_error(&error.with_hint("unsubscribe from resources that you no longer need")));
        }
        by_uri.insert(uri.clone(), over.clone().drop_guard());
        drop(by_uri);
        tokio::spawn(async move {
            let telling = async {
                while changed(&mut watch).await.is_some() {
                    let notice = ResourceUpdatedNotificationParam::new(uri.clone());
                    if peer.notify_resource_updated(notice).await.is_err() {
                        return;
                    }
                }
            };
            let _ = over.run_until_cancelled(telling).await;
        });
        Ok(())
    }

    pub fn remove(&self, uri: &str) {
        self.by_uri.lock().unwrap_or_else(PoisonError::into_inner).remove(uri);
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

/// At most one change per pace; what follows quickly is part of it.
async fn changed(watch: &mut Watch) -> Option<()> {
    let change = watch.changed().await;
    if change.is_some() {
        tokio::time::sleep(PACE).await;
    }
    change
}
