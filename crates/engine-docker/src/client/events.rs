//! What the daemon remembers of a container that may be gone.

use std::collections::HashMap;
use std::time::Duration;

use bollard::query_parameters::EventsOptionsBuilder;
use futures_util::StreamExt;

use super::Daemon;
use crate::Flavour;

/// What it remembers comes at once, and what just happened soon after.
const PATIENCE: Duration = Duration::from_secs(3);

impl Daemon {
    /// Whether the kernel of the daemon's host killed something of a container, since its last start, because memory was used up.
    pub(crate) async fn ran_out_of_memory(&self, container: &str) -> bool {
        match self.flavour {
            Flavour::Docker => {}
            // It has no such event.
            Flavour::Podman => return false,
        }
        let events = vec!["start", "oom", "destroy"];
        let filters = HashMap::from([("type", vec!["container"]), ("container", vec![container]), ("event", events)]);
        // From the beginning, because its clock need not be ours.
        let options = EventsOptionsBuilder::default().since("1").filters(&filters).build();
        let mut events = Box::pin(self.docker.events(Some(options)));
        let mut ran_out = false;
        while let Ok(Some(Ok(event))) = tokio::time::timeout(PATIENCE, events.next()).await {
            match event.action.as_deref() {
                Some("start") => ran_out = false,
                Some("oom") => ran_out = true,
                Some(_) | None => break,
            }
        }
        ran_out
    }
}
