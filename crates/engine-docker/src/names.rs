//! Names that this process has asked the daemon to give, and still needs.
//!
//! A daemon that hangs does what it was asked for when nobody waits any more. So what has a name of ours is not in use for that
//! reason alone: it is, while its name is held here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Copies are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(Arc<Mutex<BTreeMap<String, usize>>>);

/// Somebody needs what has this name, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    names: Names,
    name: String,
}

impl Names {
    /// To be called before the daemon is asked for it.
    pub(crate) fn hold(&self, name: &str) -> Held {
        *self.lock().entry(name.to_owned()).or_default() += 1;
        Held { names: self.clone(), name: name.to_owned() }
    }

    /// To be asked after something of this name was seen: whoever made it may have let go of it in between, and then it is
    /// not any more what was seen.
    pub(crate) fn is_held(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut names = self.names.lock();
        match names.get_mut(&self.name) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(names.remove(&self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_held_until_the_last_lets_go() {
        let names = Names::default();
        let (first, second) = (names.hold("one"), names.clone().hold("one"));
        assert!(names.is_held("one") && !names.is_held("two"));
        drop(first);
        assert!(names.is_held(second.name()));
        drop(second);
        assert!(!names.is_held("one"));
    }
}
