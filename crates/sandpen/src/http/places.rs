//! Room for things that last, shared by owners so that none of them takes all of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox::{Error, Owner, Result};

/// How many there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    pub most: usize,
    pub most_of_one: usize,
}

/// Which are taken. Copies mean the same.
#[derive(Clone, Debug)]
pub struct Table {
    places: Places,
    taken: Arc<Mutex<HashMap<Owner, usize>>>,
}

/// One that is taken, until this is dropped.
#[derive(Debug)]
pub struct Place {
    table: Table,
    owner: Owner,
}

impl Table {
    pub fn new(places: Places) -> Self {
        Self { places, taken: Arc::default() }
    }

    pub fn take(&self, owner: &Owner) -> Result<Place> {
        let mut taken = self.lock();
        let of_one = taken.get(owner).copied().unwrap_or_default();
        if of_one >= self.places.most_of_one {
            return Err(Error::limit_exceeded(format!("{of_one} of these are open, which is all you may have"))
                .with_hint("close one, for example another window of the dashboard"));
        }
        if taken.values().sum::<usize>() >= self.places.most {
            return Err(Error::limit_exceeded("too many of these are open on this server").with_hint("try again later"));
        }
        taken.insert(owner.clone(), of_one + 1);
        Ok(Place { table: self.clone(), owner: owner.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.table.lock();
        match taken.get_mut(&self.owner) {
            Some(count @ 2..) => *count -= 1,
            Some(_) | None => _ = taken.remove(&self.owner),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_does_not_take_what_others_need() {
        let table = Table::new(Places { most: 3, most_of_one: 2 });
        let [one, other]: [Owner; 2] = ["one", "other"].map(|name| name.parse().unwrap());
        let held = [table.take(&one).unwrap(), table.take(&one).unwrap()];
        assert!(table.take(&one).is_err());
        let others = table.take(&other).unwrap();
        assert!(table.take(&other).is_err(), "there are no more at all");
        drop(held);
        assert_eq!(table.lock().len(), 1, "who has none is forgotten");
        assert!(table.take(&one).is_ok());
        drop(others);
        assert!(table.lock().is_empty());
    }
}
