//! Waiting for a slot: the queue with its lock, and futures that give back what they hold when they are dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::queue::{Queue, Ticket};
use crate::error::{Error, Result};
use crate::id::Owner;

/// Copies mean the same slots.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    queue: Arc<Mutex<Queue<oneshot::Sender<Slot>>>>,
}

/// The right to make a sandbox, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Slots,
    owner: Owner,
}

impl Slots {
    pub fn new(slots: usize, places: usize) -> Self {
        Self { queue: Arc::new(Mutex::new(Queue::new(slots.max(1), places))) }
    }

    /// When no place is left, a quick refusal is worth more than a place far back.
    pub async fn slot(&self, owner: &Owner) -> Result<Slot> {
        let (granted, _place) = {
            let mut queue = self.lock();
            if queue.take(owner) {
                return Ok(self.grant(owner));
            }
            let (waiter, granted) = oneshot::channel();
            // How many others wait is not for this owner to know.
            let ticket = queue.wait(owner, waiter).ok_or_else(|| {
                Error::limit_exceeded("the service is busy: no more sandboxes may wait to be created")
                    .with_hint("try again in a few seconds, or ask for fewer at once")
            })?;
            (granted, Place { slots: self, owner, ticket })
        };
        granted.await.map_err(|_| Error::internal("waiting for a slot ended without an answer"))
    }

    /// Those that are taken, and those who wait for one.
    pub fn count(&self) -> (usize, usize) {
        self.lock().count()
    }

    fn grant(&self, owner: &Owner) -> Slot {
        Slot { slots: self.clone(), owner: owner.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue<oneshot::Sender<Slot>>> {
        // A panic under the lock is a fault of one call; to refuse all others from then on would be a worse one.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let next = self.slots.lock().release(&self.owner);
        // Without the lock: when the next one has just gone away, its slot comes back to us here and is dropped in turn.
        if let Some((owner, waiter)) = next {
            let _ = waiter.send(self.slots.grant(&owner));
        }
    }
}

/// A place in the queue, left when the caller goes away. A slot that was granted meanwhile is in the channel, and is
/// dropped with it.
struct Place<'a> {
    slots: &'a Slots,
    owner: &'a Owner,
    ticket: Ticket,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.slots.lock().leave(self.owner, self.ticket);
    }
}
