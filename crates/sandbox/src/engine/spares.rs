//! Sandboxes made ahead of demand: built, empty, nobody's yet, and used once.
//!
//! An engine says by its kind `K` what tells two of them apart, and by `S` what one is. It makes them itself, in the
//! background; this is the memory of what is there and of who is making more.
//!
//! # Whose the last one is
//!
//! Whoever asks for sandboxes all the time would have every spare, and whoever asks now and then would wait for one to be made beside
//! all of those. So the last one of a kind is for those who have asked no more often than others lately. An owner who is alone has
//! them all.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::id::Owner;

/// Kinds that are kept at once; the one that was asked for longest ago goes first.
const MOST_KINDS: usize = 4;
/// The same for those that are heavy.
const MOST_HEAVY_KINDS: usize = 2;
/// Who asked lately is remembered for so many times.
const REMEMBERED: usize = 256;

/// What tells two spares apart.
pub trait Kind: Clone + PartialEq {
    /// Whether one takes much memory while it waits.
    fn is_heavy(&self) -> bool {
        false
    }
}

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
    askers: Mutex<Askers>,
}

/// Who asked lately.
#[derive(Debug, Default)]
struct Askers {
    last: VecDeque<Owner>,
    times: BTreeMap<Owner, usize>,
}

impl Askers {
    /// One who asks. Whether it has asked more often than the others did on the whole.
    fn add(&mut self, owner: &Owner) -> bool {
        if self.last.len() == REMEMBERED
            && let Some(oldest) = self.last.pop_front()
            && let Some(times) = self.times.get_mut(&oldest)
        {
            *times -= 1;
            if *times == 0 {
                self.times.remove(&oldest);
            }
        }
        self.last.push_back(owner.clone());
        let times = self.times.entry(owner.clone()).or_default();
        *times += 1;
        // One more than its share is chance.
        let times = *times - 1;
        times * self.times.len() > self.last.len()
    }
}

impl<K: Kind, S> Spares<K, S> {
    /// At most `size` of each kind.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Self { size, shelves: Mutex::new(Some(VecDeque::new())), askers: Mutex::default() }
    }

    fn shelves(&self) -> MutexGuard<'_, Option<VecDeque<Shelf<K, S>>>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is ready. One that has died while it waited is passed over.
    pub fn take(&self, kind: &K, owner: &Owner, has_ended: impl Fn(&S) -> bool) -> Option<S> {
        self.take_one_of([kind], owner, has_ended)
    }

    /// The same for whom several kinds would do, the best first.
    pub fn take_one_of<'a>(
        &self,
        kinds: impl IntoIterator<Item = &'a K>,
        owner: &Owner,
        has_ended: impl Fn(&S) -> bool,
    ) -> Option<S>
    where
        K: 'a,
    {
        let leaves_one = self.askers.lock().unwrap_or_else(PoisonError::into_inner).add(owner);
        let mut shelves = self.shelves();
        kinds.into_iter().find_map(|kind| {
            let shelf = shelves.iter_mut().flatten().find(|shelf| shelf.kind == *kind)?;
            shelf.ready.retain(|spare| !has_ended(spare));
            if leaves_one && shelf.ready.len() <= 1 {
                return None;
            }
            // What waits longest is most likely to have come to where it waits.
            (!shelf.ready.is_empty()).then(|| shelf.ready.remove(0))
        })
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
        let heavy = shelves.iter().filter(|shelf| shelf.kind.is_heavy()).count();
        let oldest = if heavy > MOST_HEAVY_KINDS {
            shelves.iter().position(|shelf| shelf.kind.is_heavy())
        } else {
            (shelves.len() > MOST_KINDS).then_some(0)
        };
        let oldest = oldest.and_then(|index| shelves.remove(index));
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

    impl Kind for char {
        fn is_heavy(&self) -> bool {
            self.is_uppercase()
        }
    }

    const LIVES: fn(&u32) -> bool = |_| false;

    fn owner(name: &str) -> Owner {
        name.parse().unwrap()
    }

    /// By somebody who is alone.
    fn take(spares: &Spares<char, u32>, kind: char, has_ended: impl Fn(&u32) -> bool) -> Option<u32> {
        spares.take(&kind, &Owner::local(), has_ended)
    }

    #[test]
    fn the_last_one_is_not_for_whoever_asks_all_the_time() {
        let spares = Spares::new(2);
        spares.wants(&'a');
        let (greedy, modest) = (owner("greedy"), owner("modest"));
        let fill = || {
            for spare in 1..=2 {
                spares.put(&'a', spare).unwrap();
            }
        };
        for _ in 0..REMEMBERED {
            fill();
            assert_eq!(spares.take(&'a', &greedy, LIVES), Some(1), "somebody who is alone has them all");
            assert_eq!(spares.take(&'a', &greedy, LIVES), Some(2));
        }
        assert_eq!(spares.take(&'a', &modest, LIVES), None);
        fill();
        assert_eq!(spares.take(&'a', &greedy, LIVES), Some(1));
        for _ in 0..9 {
            assert_eq!(spares.take(&'a', &greedy, LIVES), None, "somebody else was here");
        }
        assert_eq!(spares.take(&'a', &modest, LIVES), Some(2));
        for _ in 0..REMEMBERED {
            spares.take(&'a', &greedy, LIVES);
        }
        fill();
        assert_eq!([(); 2].map(|()| spares.take(&'a', &greedy, LIVES)), [Some(1), Some(2)], "and is forgotten");
    }

    #[test]
    fn those_who_ask_alike_have_all_of_them() {
        let spares = Spares::new(1);
        spares.wants(&'a');
        for number in 0..2 * REMEMBERED {
            spares.put(&'a', 1).unwrap();
            let owner = owner(&format!("tenant-{}", number % 24));
            assert_eq!(spares.take(&'a', &owner, LIVES), Some(1), "{number}");
        }
    }

    #[test]
    fn one_maker_at_a_time_fills_a_shelf() {
        let spares = Spares::new(2);
        assert_eq!(spares.wants(&'a'), (true, vec![]));
        assert_eq!(spares.wants(&'a'), (false, vec![]), "somebody is at it");
        assert_eq!(spares.put(&'a', 1), Ok(true));
        assert_eq!(spares.put(&'a', 2), Ok(false));
        assert_eq!(spares.wants(&'a'), (false, vec![]), "the shelf is full");
        assert_eq!(take(&spares, 'a', LIVES), Some(1));
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
        assert_eq!(take(&spares, 'a', |spare| *spare > 1), Some(1));
        assert_eq!(take(&spares, 'a', LIVES), None);
        assert_eq!(take(&spares, 'b', LIVES), None);
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
        assert_eq!(take(&spares, 'a', LIVES), Some(u32::from('a')));
    }

    #[test]
    fn few_kinds_are_heavy() {
        let spares = Spares::new(1);
        for kind in ['A', 'b', 'C'] {
            spares.wants(&kind);
            assert_eq!(spares.put(&kind, u32::from(kind)), Ok(false));
        }
        assert_eq!(spares.wants(&'D'), (true, vec![u32::from('A')]), "the oldest that is heavy goes");
        assert_eq!(take(&spares, 'b', LIVES), Some(u32::from('b')));
        assert_eq!(take(&spares, 'C', LIVES), Some(u32::from('C')));
    }

    #[test]
    fn once_closed_it_keeps_and_wants_nothing() {
        let spares = Spares::new(2);
        spares.wants(&'a');
        assert_eq!(spares.put(&'a', 1), Ok(true));
        assert_eq!(spares.close(), [1]);
        assert_eq!(spares.put(&'a', 2), Err(2), "one that was being made meanwhile");
        assert_eq!(spares.wants(&'a'), (false, vec![]));
        assert_eq!(take(&spares, 'a', LIVES), None);
        assert_eq!(spares.close(), [0; 0]);
    }

    #[test]
    fn without_a_size_nothing_is_wanted() {
        let spares = Spares::new(0);
        assert_eq!(spares.wants(&'a'), (false, vec![]));
        assert_eq!(spares.put(&'a', 1), Err(1));
    }
}
