//! Room for things that last, shared by owners so that none of them takes all of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox::{Error, Owner};

/// How many there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    pub most: usize,
    pub most_of_one: usize,
}

/// How much of a whole may be one owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of it: there is one owner alone.
    Whole,
    /// There are others, or may be.
    Quarter,
}

impl Share {
    pub fn of(self, whole: usize) -> usize {
        match self {
            Self::Whole => whole,
            Self::Quarter => (whole / 4).max(1),
        }
    }
}

/// Why there is none for somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// All are taken.
    Full,
    /// They have so many, which is all that one owner may have. Others may still come.
    Own(usize),
}

impl From<NoPlace> for Error {
    fn from(no_place: NoPlace) -> Self {
        match no_place {
            NoPlace::Full => {
                Self::limit_exceeded("too many of these are open on this server").with_hint("try again later")
            }
            NoPlace::Own(open) => Self::limit_exceeded(format!("{open} of these are open, which is all you may have"))
                .with_hint("close one, for example another window of the dashboard"),
        }
    }
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

impl Places {
    pub fn shared(most: usize, share: Share) -> Self {
        Self { most, most_of_one: share.of(most) }
    }
}

impl Table {
    pub fn new(places: Places) -> Self {
        Self { places, taken: Arc::default() }
    }

    pub fn take(&self, owner: &Owner) -> Result<Place, NoPlace> {
        let mut taken = self.lock();
        if taken.values().sum::<usize>() >= self.places.most {
            return Err(NoPlace::Full);
        }
        let of_one = taken.get(owner).copied().unwrap_or_default();
        if of_one >= self.places.most_of_one {
            return Err(NoPlace::Own(of_one));
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
        assert_eq!(table.take(&one).unwrap_err(), NoPlace::Own(2));
        let others = table.take(&other).unwrap();
        assert_eq!(table.take(&other).unwrap_err(), NoPlace::Full, "there are no more at all");
        drop(held);
        assert_eq!(table.lock().len(), 1, "who has none is forgotten");
        assert!(table.take(&one).is_ok());
        drop(others);
        assert!(table.lock().is_empty());
    }

    #[test]
    fn who_is_alone_has_all_and_who_is_not_leaves_some() {
        let [one, other]: [Owner; 2] = ["one", "other"].map(|name| name.parse().unwrap());
        for (share, most) in [(Share::Whole, 8), (Share::Quarter, 2)] {
            let table = Table::new(Places::shared(8, share));
            let held: Vec<Place> = std::iter::from_fn(|| table.take(&one).ok()).collect();
            assert_eq!((held.len(), table.take(&other).is_ok()), (most, most < 8));
        }
        assert_eq!(Places::shared(3, Share::Quarter).most_of_one, 1, "nobody is left without");
    }
}
