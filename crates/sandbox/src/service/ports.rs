//! Connections from outside to what programs listen on: each counts as use, and there are only so many.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::core::Core;
use super::hold::Hold;
use super::registry::Use;
use crate::error::{Error, Result};
use crate::id::{Owner, SandboxId};
use crate::port::{GuestPort, GuestStream};
use crate::system;

/// Each takes descriptors of ours, and a place in the queue of a server that may be slow.
pub(super) const MOST_OF_SANDBOX: usize = 128;
pub(super) const MOST_OF_OWNER: usize = 256;
const MOST_OF_ALL: usize = 4096;

/// Of our descriptors, all connections together have one in so many. Whoever a connection is for mostly takes another one.
const PART: u64 = 8;

/// How many connections there are, by whose they are.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: Mutex<Counts>,
    /// Known when the first one is asked for.
    most: OnceLock<usize>,
}

#[derive(Debug, Default)]
struct Counts {
    of_all: usize,
    of_sandboxes: HashMap<SandboxId, usize>,
    of_owners: HashMap<Owner, usize>,
}

impl Tally {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn most(&self) -> usize {
        *self.most.get_or_init(|| {
            let part = usize::try_from(system::allow_descriptors() / PART).unwrap_or(usize::MAX);
            MOST_OF_ALL.min(part).max(1)
        })
    }

    fn take(&self, owner: &Owner, id: &SandboxId) -> Result<()> {
        let mut counts = self.counts();
        let too_many = |what: &str, most: usize| {
            Error::limit_exceeded(format!("{what} already has the {most} connections that it may have"))
                .with_hint("close some, or wait until they end")
        };
        if counts.of_sandboxes.get(id).is_some_and(|count| *count >= MOST_OF_SANDBOX) {
            return Err(too_many("the sandbox", MOST_OF_SANDBOX));
        }
        if counts.of_owners.get(owner).is_some_and(|count| *count >= MOST_OF_OWNER) {
            return Err(too_many("its owner", MOST_OF_OWNER));
        }
        // Others have them, so nobody is told how many there are.
        if counts.of_all >= self.most() {
            return Err(Error::unavailable("there are as many connections to sandboxes as this server can have")
                .with_hint("wait until some of them end"));
        }
        counts.of_all += 1;
        *counts.of_sandboxes.entry(id.clone()).or_default() += 1;
        *counts.of_owners.entry(owner.clone()).or_default() += 1;
        Ok(())
    }

    fn give_back(&self, owner: &Owner, id: &SandboxId) {
        let mut counts = self.counts();
        counts.of_all -= 1;
        less_one(&mut counts.of_sandboxes, id);
        less_one(&mut counts.of_owners, owner);
    }
}

fn less_one<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// A place among the connections.
struct Place {
    core: Arc<Core>,
    owner: Owner,
    id: SandboxId,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.core.tally.give_back(&self.owner, &self.id);
    }
}

impl Core {
    pub(super) async fn connect(
        self: &Arc<Self>,
        owner: &Owner,
        id: &SandboxId,
        port: GuestPort,
        longest: Duration,
    ) -> Result<GuestStream> {
        let hold = Hold::take(self, owner, id, Use::Call)?;
        let connections = self.settings.powers.connections.clone().ok_or_else(|| {
            Error::unsupported(format!("the {} engine cannot connect to ports", self.capabilities.name))
        })?;
        self.tally.take(owner, id)?;
        let place = Place { core: Arc::clone(self), owner: owner.clone(), id: id.clone() };
        hold.keep_alive(longest).await?;
        match connections.connect(id, port).await {
            Ok(stream) => Ok(stream.holding(hold).holding(place)),
            Err(error) => Err(hold.explain(error).await),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn all_owners_together_have_what_the_server_can_hold() {
        let tally = Tally { most: OnceLock::from(4), ..Tally::default() };
        let places: Vec<(Owner, SandboxId)> =
            (0..5).map(|number| (format!("owner-{number}").parse().unwrap(), SandboxId::random().unwrap())).collect();
        for (owner, id) in &places[..4] {
            tally.take(owner, id).unwrap();
        }
        let (owner, id) = &places[4];
        assert_eq!(tally.take(owner, id).unwrap_err().kind(), ErrorKind::Unavailable);
        tally.give_back(&places[0].0, &places[0].1);
        tally.take(owner, id).unwrap();
        assert!(tally.take(&places[0].0, &places[0].1).is_err());
    }
}
