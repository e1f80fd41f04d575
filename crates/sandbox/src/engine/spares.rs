//! Sandboxes made ahead of demand: built, empty, nobody's yet, and used once.
//!
//! An engine says by its kind `K` what tells two of them apart, and by `S` what one is. It makes them itself, in the
//! background; this is the memory of what is there and of who is making more.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Kinds that are kept at once; the one that was asked for longest ago goes first.
const MOST_KINDS: usize = 4;

#[derive(Debug)]
struct Shelf<K, S> {
    kind: K,
    ready: Vec<S>,
    /// Somebody is making more.
    filling: bool,
}

/// The spares of an engine. With a size of 0 it holds nothing and asks for nothing.
#[derive(Debug)]
pub struct Spares<K, S> {
    size: usize,
    /// The kind asked for last is at the back. `None` once nothing is kept any more.
    shelves: Mutex<Option<VecDeque<Shelf<K, S>>>>,
}

impl<K: Clone + PartialEq, S> Spares<K, S> {
    /// At most `size` of each kind.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Self { size, shelves: Mutex::new(Some(VecDeque::new())) }
    }

    fn shelves(&self) -> MutexGuard<'_, Option<VecDeque<Shelf<K, S>>>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is ready. One that has died while it waited is passed over.
    pub fn take(&self, kind: &K, has_ended: impl Fn(&S) -> bool) -> Option<S> {
        let mut shelves = self.shelves();
        let shelf = shelves.iter_mut().flatten().find(|shelf| shelf.kind == *kind)?;
        while let Some(spare) = shelf.ready.pop() {
            if !has_ended(&spare) {
                return Some(spare);
            }
        }
        None
    }

    /// Whether the caller should make more of a kind; it then calls `put` until that says enough. Those that had to make
    /// room come back, to be ended.
    pub fn wants(&self, kind: &K) -> (bool, Vec<S>) {
        if self.size == 0 {
            return (false, Vec::new());
        }
        let mut shelves = self.shelves();
        let Some(shelves) = &mut *shelves else { return (false, Vec::new()) };
        let known = shelves.iter().position(|shelf| shelf.kind == *kind);
        let mut shelf = known.and_then(|index| shelves.remove(index)).unwrap_or_else(|| Shelf {
            kind: kind.clone(),
            ready: Vec::new(),
            filling: false,
        });
        let wanted = !shelf.filling && shelf.ready.len() < self.size;
        shelf.filling |= wanted;
        shelves.push_back(shelf);
        let oldest = if shelves.len() > MOST_KINDS { shelves.pop_front() } else { None };
        (wanted, oldest.map(|shelf| shelf.ready).unwrap_or_default())
    }

    /// Keep one that was made; `Ok(true)` when another is wanted, and back when none is wanted any more.
    pub fn put(&self, kind: &K, spare: S) -> Result<bool, S> {
        let mut shelves = self.shelves();
        let Some(shelf) = shelves.iter_mut().flatten().find(|shelf| shelf.kind == *kind) else { return Err(spare) };
        shelf.ready.push(spare);
        shelf.filling = shelf.ready.len() < self.size;
        Ok(shelf.filling)
    }

    /// No more can be made for now.
    pub fn give_up(&self, kind: &K) {
        if let Some(shelf) = self.shelves().iter_mut().flatten().find(|shelf| shelf.kind == *kind) {
            shelf.filling = false;
        }
    }

    /// Keep none any more, not even those that are being made now. All that are ready come back, to be ended.
    pub fn close(&self) -> Vec<S> {
        self.shelves().take().into_iter().flatten().flat_map(|shelf| shelf.ready).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVES: fn(&u32) -> bool = |_| false;

    #[test]
    fn one_maker_at_a_time_fills_a_shelf() {
        let spares = Spares::new(2);
        assert_eq!(spares.wants(&'a'), (true, vec![]));
        assert_eq!(spares.wants(&'a'), (false, vec![]), "somebody is at it");
        assert_eq!(spares.put(&'a', 1), Ok(true));
        assert_eq!(spares.put(&'a', 2), Ok(false));
        assert_eq!(spares.wants(&'a'), (false, vec![]), "the shelf is full");
        assert_eq!(spares.take(&'a', LIVES), Some(2));
        assert_eq!(spares.wants(&'a'), (true, vec![]));
        spares.give_up(&'a');
        assert_eq!(spares.wants(&'a'), (true, vec![]), "whoever gave up lets another try");
    }

    #[test]
    fn what_has_ended_is_passed_over() {
        let spares = Spares::new(3);
        spares.wants(&'a');
        for spare in 1..=3 {
            spares.put(&'a', spare).unwrap();
        }
        assert_eq!(spares.take(&'a', |spare| *spare > 1), Some(1));
        assert_eq!(spares.take(&'a', LIVES), None);
        assert_eq!(spares.take(&'b', LIVES), None);
    }

    #[test]
    fn the_kind_asked_for_longest_ago_makes_room() {
        let spares = Spares::new(1);
        for kind in 'a'..='d' {
            spares.wants(&kind);
            assert_eq!(spares.put(&kind, u32::from(kind)), Ok(false));
        }
        spares.wants(&'a');
        assert_eq!(spares.wants(&'e'), (true, vec![u32::from('b')]));
        assert_eq!(spares.put(&'b', 7), Err(7), "nobody keeps it any more");
        assert_eq!(spares.take(&'a', LIVES), Some(u32::from('a')));
    }

    #[test]
    fn once_closed_it_keeps_and_wants_nothing() {
        let spares = Spares::new(2);
        spares.wants(&'a');
        assert_eq!(spares.put(&'a', 1), Ok(true));
        assert_eq!(spares.close(), [1]);
        assert_eq!(spares.put(&'a', 2), Err(2), "one that was being made meanwhile");
        assert_eq!(spares.wants(&'a'), (false, vec![]));
        assert_eq!(spares.take(&'a', LIVES), None);
        assert_eq!(spares.close(), [0; 0]);
    }

    #[test]
    fn without_a_size_nothing_is_wanted() {
        let spares = Spares::new(0);
        assert_eq!(spares.wants(&'a'), (false, vec![]));
        assert_eq!(spares.put(&'a', 1), Err(1));
    }
}
