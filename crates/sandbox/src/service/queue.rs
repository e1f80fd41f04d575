//! Who makes a sandbox now, who waits, and who is told to come back. Pure: a queue as plain data.
//!
//! # The rule
//!
//! Slots and places to wait are shared out alike: **an owner may take one more only while it has fewer than are free.**
//! So one owner gets half of them, a second one half of the rest, and there is something left for whoever comes next
//! without anybody having to say how many owners there will be. A running create cannot be taken back, so a slot for
//! somebody else has to be free before that somebody is there: what it costs is that an owner who is alone makes only half
//! as many at once as there are slots.
//!
//! Of those who wait, the owner with the fewest slots is next, and among equals the one whose last turn is longest ago;
//! within an owner it is first come, first served. An owner's turn is over when it gets a slot and when it gives one back,
//! or else a lone slot would go to its last holder again while a newcomer waits.
//!
//! # What follows
//!
//! - While one owner asks for as much as it likes, a create of another starts at once, or with a single slot when the
//!   running create ends. If creates take equally long, that is at most twice the time of an idle service.
//! - With several such owners, one who holds no slot waits for at most one create of each who was there before it.
//! - Nobody starves: an owner that is passed over holds a slot; when it has given back all of them, it is not passed over.
//! - With at least two places, one owner cannot fill the queue for another.
//!
//! The times hold for slots, not for the machine below them: creates that run at once share its cores. With two slots per
//! core one owner keeps each core busy with one create, and that of another has to share a core with that one only.

use std::collections::{HashMap, VecDeque};

use crate::id::Owner;

/// Names one who waits, in a whole life of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// `W` is how one who waits is told.
#[derive(Debug)]
pub(super) struct Queue<W> {
    free_slots: usize,
    free_places: usize,
    /// Of owners that hold a slot or wait; others are forgotten.
    shares: HashMap<Owner, Share<W>>,
    /// Owners that wait, the one whose last turn is longest ago first.
    turns: VecDeque<Owner>,
    next_ticket: u64,
}

#[derive(Debug)]
struct Share<W> {
    slots: usize,
    waiting: VecDeque<(Ticket, W)>,
}

impl<W> Default for Share<W> {
    fn default() -> Self {
        Self { slots: 0, waiting: VecDeque::new() }
    }
}

impl<W> Queue<W> {
    pub fn new(slots: usize, places: usize) -> Self {
        Self { free_slots: slots, free_places: places, shares: HashMap::new(), turns: VecDeque::new(), next_ticket: 0 }
    }

    /// Take a slot without waiting. Whether there was one for this owner.
    ///
    /// Passes nobody: those of the same owner who wait do so because there is none for it.
    pub fn take(&mut self, owner: &Owner) -> bool {
        let held = self.shares.get(owner).map_or(0, |share| share.slots);
        if held >= self.free_slots {
            return false;
        }
        self.free_slots -= 1;
        self.shares.entry(owner.clone()).or_default().slots += 1;
        true
    }

    /// Take a place behind the others of this owner. `None` if there is no place for it.
    pub fn wait(&mut self, owner: &Owner, waiter: W) -> Option<Ticket> {
        let waiting = self.shares.get(owner).map_or(0, |share| share.waiting.len());
        if waiting >= self.free_places {
            return None;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.free_places -= 1;
        self.shares.entry(owner.clone()).or_default().waiting.push_back((ticket, waiter));
        if waiting == 0 {
            self.turns.push_back(owner.clone());
        }
        Some(ticket)
    }

    /// Give a place back. Nothing happens if its turn has come already.
    pub fn leave(&mut self, owner: &Owner, ticket: Ticket) {
        let Some(share) = self.shares.get_mut(owner) else { return };
        let Some(position) = share.waiting.iter().position(|(waiting, _)| *waiting == ticket) else { return };
        share.waiting.remove(position);
        self.free_places += 1;
        self.forget_empty(owner);
    }

    /// Give a slot back. Who has it now, if somebody waits who may.
    ///
    /// One at most: nobody could take a slot before, and now there is one more.
    pub fn release(&mut self, owner: &Owner) -> Option<(Owner, W)> {
        if let Some(share) = self.shares.get_mut(owner).filter(|share| share.slots > 0) {
            share.slots -= 1;
            self.free_slots += 1;
        }
        self.end_turn(owner);

        let slots = |owner: &&Owner| self.shares.get(*owner).map_or(0, |share| share.slots);
        let next = self.turns.iter().min_by_key(slots).filter(|owner| slots(owner) < self.free_slots)?.clone();
        let share = self.shares.get_mut(&next)?;
        let (_, waiter) = share.waiting.pop_front()?;
        share.slots += 1;
        self.free_places += 1;
        self.free_slots -= 1;
        self.end_turn(&next);
        Some((next, waiter))
    }

    /// Slots that are taken, and those who wait.
    pub fn count(&self) -> (usize, usize) {
        self.shares
            .values()
            .fold((0, 0), |(slots, waiting), share| (slots + share.slots, waiting + share.waiting.len()))
    }

    fn end_turn(&mut self, owner: &Owner) {
        if let Some(position) = self.turns.iter().position(|waiting| waiting == owner) {
            self.turns.remove(position);
            self.turns.push_back(owner.clone());
        }
        self.forget_empty(owner);
    }

    /// Owners come and go; a server must not remember each that it ever saw.
    fn forget_empty(&mut self, owner: &Owner) {
        let Some(share) = self.shares.get(owner).filter(|share| share.waiting.is_empty()) else { return };
        if share.slots == 0 {
            self.shares.remove(owner);
        }
        self.turns.retain(|waiting| waiting != owner);
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
