//! Whether it is still the daemon that answered first. Another one in its place knows nothing of what the first has, and that
//! must not be taken for an end of it. The same one may have been set up anew while it was away.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbox::{Error, Result};
use tokio::time::Instant;

use super::{Daemon, facts, identity, podman_host};

/// When the daemon last said who it is. `None` since it did not answer.
#[derive(Clone, Debug)]
pub(super) struct Heard(Arc<Mutex<Option<Instant>>>);

impl Heard {
    pub(super) fn now() -> Self {
        Self(Arc::new(Mutex::new(Some(Instant::now()))))
    }

    /// Who comes after a silence may be somebody else.
    pub(super) fn doubt(&self) {
        *self.lock() = None;
    }

    fn is_within(&self, time: Duration) -> bool {
        self.lock().is_some_and(|heard| heard.elapsed() < time)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Daemon {
    /// Ask the daemon who it is, unless it said so within this time and has answered ever since.
    pub(crate) async fn check_same(&self, within: Duration) -> Result<()> {
        if self.heard.is_within(within) {
            return Ok(());
        }
        let asked = Instant::now();
        let host = podman_host::ask(self.flavour, &self.endpoint);
        let (info, host) = tokio::join!(self.ask(self.docker.info()), host);
        let info = info.map_err(|failure| self.told("say who it is", failure))?;
        if identity::identity(&self.endpoint, &info) != self.identity {
            let message = format!("another {} daemon answers now than when this process began", self.flavour.title());
            return Err(Error::unavailable(message).with_hint("bring the first one back, or start again"));
        }
        let facts = facts(self.flavour, self.endpoint.to_string(), &info, host.as_ref());
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(facts);
        *self.heard.lock() = Some(asked);
        Ok(())
    }
}
