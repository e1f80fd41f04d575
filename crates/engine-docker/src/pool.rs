//! Containers made ahead of demand: running, empty, nobody's yet, and used once, so that a run pays neither for their making
//! nor for their start.
//!
//! Behind the same walls as any other, because they are made by the same translation. What may differ between two callers is
//! not in it: owner, id, environment and lifetime belong to the server's side. Whatever is in it is the key. A spare is
//! ephemeral, so it ends with us however we end.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandbox::{GuestPath, Limits, Persistence, SandboxSpec};

use crate::image::Facts;
use crate::live::Live;

/// Kinds that are kept at once; the one that was asked for longest ago goes first.
const MOST_KINDS: usize = 4;

/// All that tells two containers apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    image: Facts,
    limits: Limits,
    work_directory: Option<GuestPath>,
}

impl Kind {
    /// `None` for a sandbox that cannot be somebody else's spare: its name is its host name, a persistent one says in its
    /// labels whose it is, and one from a saved image begins with files.
    pub fn of(spec: &SandboxSpec, image: &Facts) -> Option<Self> {
        let plain = spec.persistence == Persistence::Ephemeral && spec.name.is_none() && image.trees.is_empty();
        plain.then(|| Self { image: image.clone(), limits: spec.limits, work_directory: spec.work_directory.clone() })
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
            if !live.connection.is_closed() {
                return Some(live);
            }
        }
        None
    }

    /// Whether the caller should make more of a kind; it then calls `put` until that says enough. Kinds that had to make
    /// room come back, to be ended.
    pub fn wants(&self, kind: &Kind) -> (bool, Vec<Live>) {
        if self.size == 0 {
            return (false, Vec::new());
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
        let oldest = if shelves.len() > MOST_KINDS { shelves.pop_front() } else { None };
        (wanted, oldest.map(|shelf| shelf.ready).unwrap_or_default())
    }

    /// Keep one that was made; `Ok(true)` when another is wanted, and back when none is wanted any more.
    pub fn put(&self, kind: &Kind, live: Live) -> Result<bool, Box<Live>> {
        let mut shelves = self.shelves();
        let Some(shelf) = shelves.iter_mut().find(|shelf| shelf.kind == *kind) else { return Err(Box::new(live)) };
        shelf.ready.push(live);
        shelf.filling = shelf.ready.len() < self.size;
        Ok(shelf.filling)
    }

    /// No more can be made for now.
    pub fn give_up(&self, kind: &Kind) {
        if let Some(shelf) = self.shelves().iter_mut().find(|shelf| shelf.kind == *kind) {
            shelf.filling = false;
        }
    }
}
