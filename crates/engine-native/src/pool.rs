//! Sandboxes made ahead of demand: built, empty, nobody's yet, and used once.
//!
//! Behind the same walls as any other, because they are made by the same plan. What may differ between two callers is not
//! in the plan: owner, id, environment and lifetime belong to the server's side, and a network is given to a sandbox that
//! stands. Whatever is in it is the key.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandbox::{Limits, Persistence, Role, SandboxSpec};

use crate::base::Base;
use crate::layout::Prepared;
use crate::live::Live;
use crate::skeleton::RootLayout;

/// Kinds that are kept at once; the one that was asked for longest ago goes first.
const MOST_KINDS: usize = 4;

/// All that tells two plans apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    root: RootLayout,
    /// Two images can have the same layers and say something else of themselves.
    base: Base,
    limits: Limits,
}

impl Kind {
    /// `None` for a sandbox that cannot be somebody else's spare: its name is its host name, and a persistent one is
    /// recorded before it is made; builders are too few to be made ahead.
    pub fn of(spec: &SandboxSpec, root: &Prepared) -> Option<Self> {
        let plain = spec.persistence == Persistence::Ephemeral && spec.name.is_none() && spec.role == Role::Guest;
        plain.then(|| Self { root: root.layout.clone(), base: root.base.clone(), limits: spec.limits })
    }
}

#[derive(Debug)]
struct Shelf {
    kind: Kind,
    ready: Vec<Live>,
    /// Somebody is making more.
    filling: bool,
}

/// The pool. With a size of 0 it holds nothing and asks for nothing.
#[derive(Debug)]
pub struct Pool {
    size: usize,
    /// The kind asked for last is at the back.
    shelves: Mutex<VecDeque<Shelf>>,
}

impl Pool {
    pub fn new(size: usize) -> Self {
        Self { size, shelves: Mutex::default() }
    }

    fn shelves(&self) -> MutexGuard<'_, VecDeque<Shelf>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is ready. One that has died while it waited is passed over.
    pub fn take(&self, kind: &Kind) -> Option<Live> {
        let mut shelves = self.shelves();
        let shelf = shelves.iter_mut().find(|shelf| shelf.kind == *kind)?;
        while let Some(live) = shelf.ready.pop() {
            if !live.has_ended() {
                return Some(live);
            }
        }
        None
    }

    /// Whether the caller should make more of a kind; it then calls `put` until that says enough.
    pub fn wants(&self, kind: &Kind) -> bool {
        if self.size == 0 {
            return false;
        }
        let mut shelves = self.shelves();
        let mut shelf = match shelves.iter().position(|shelf| shelf.kind == *kind) {
            Some(index) => shelves.remove(index),
            None => None,
        }
        .unwrap_or_else(|| Shelf { kind: kind.clone(), ready: Vec::new(), filling: false });
        let wanted = !shelf.filling && shelf.ready.len() < self.size;
        shelf.filling |= wanted;
        shelves.push_back(shelf);
        if shelves.len() > MOST_KINDS {
            // Dropping them ends them.
            shelves.pop_front();
        }
        wanted
    }

    /// Keep one that was made; `true` when another is wanted.
    pub fn put(&self, kind: &Kind, live: Live) -> bool {
        let mut shelves = self.shelves();
        let Some(shelf) = shelves.iter_mut().find(|shelf| shelf.kind == *kind) else { return false };
        shelf.ready.push(live);
        shelf.filling = shelf.ready.len() < self.size;
        shelf.filling
    }

    /// No more can be made for now.
    pub fn give_up(&self, kind: &Kind) {
        if let Some(shelf) = self.shelves().iter_mut().find(|shelf| shelf.kind == *kind) {
            shelf.filling = false;
        }
    }
}
