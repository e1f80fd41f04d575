//! Connections from outside to what programs listen on: each counts as use, and there are only so many.

use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::core::Core;
use super::hold::Hold;
use super::registry::Use;
use crate::error::{Error, Result};
use crate::id::{Owner, SandboxId};
use crate::port::{GuestPort, GuestStream};

/// Each takes descriptors of ours, and a place in the queue of a server that may be slow.
pub(super) const MOST_OF_SANDBOX: usize = 128;
pub(super) const MOST_OF_OWNER: usize = 256;

/// How many connections there are, by whose they are.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    of_sandboxes: HashMap<SandboxId, usize>,
    of_owners: HashMap<Owner, usize>,
}

impl Tally {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        *counts.of_sandboxes.entry(id.clone()).or_default() += 1;
        *counts.of_owners.entry(owner.clone()).or_default() += 1;
        Ok(())
    }

    fn give_back(&self, owner: &Owner, id: &SandboxId) {
        let mut counts = self.counts();
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
            Ok(stream) => Ok(GuestStream::new(HeldStream { stream, _hold: hold, _place: place })),
            Err(error) => Err(hold.explain(error).await),
        }
    }
}

/// Dropped in this order: the connection is gone before its place is somebody else's.
struct HeldStream {
    stream: GuestStream,
    _hold: Hold,
    _place: Place,
}

impl AsyncRead for HeldStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for HeldStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
