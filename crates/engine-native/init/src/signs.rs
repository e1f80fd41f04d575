//! Signs of life of bridges: each says regularly that it is there. One that does not has stopped, and with it nobody serves
//! the sandbox through it, although its socket is open.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::frame::SILENCE;

/// A bridge that hears no server ends before.
const MISSED: Duration = SILENCE.saturating_add(Duration::from_secs(30));

/// Who is listened to. Whoever is not cannot be missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    All,
    Only(RawFd),
}

#[derive(Debug, Default)]
pub struct Signs(BTreeMap<RawFd, Instant>);

impl Signs {
    pub fn saw(&mut self, bridge: RawFd) {
        self.0.insert(bridge, Instant::now());
    }

    /// If it is a bridge at all.
    pub fn saw_again(&mut self, bridge: RawFd) {
        self.0.entry(bridge).and_modify(|seen| *seen = Instant::now());
    }

    /// Nobody could be seen for a while.
    pub fn saw_all(&mut self) {
        self.0.values_mut().for_each(|seen| *seen = Instant::now());
    }

    pub fn forget(&mut self, bridge: RawFd) {
        self.0.remove(&bridge);
    }

    /// When the next one will be missed, of those that are listened to.
    pub fn due(&self, heard: Heard) -> Option<Instant> {
        self.heard(heard).map(|(_, seen)| seen + MISSED).min()
    }

    pub fn missed(&self, heard: Heard) -> Option<RawFd> {
        self.missed_at(Instant::now(), heard)
    }

    fn missed_at(&self, now: Instant, heard: Heard) -> Option<RawFd> {
        self.heard(heard).find(|&(_, seen)| seen + MISSED <= now).map(|(bridge, _)| bridge)
    }

    fn heard(&self, heard: Heard) -> impl Iterator<Item = (RawFd, Instant)> {
        let is_heard = move |bridge: RawFd| match heard {
            Heard::All => true,
            Heard::Only(one) => bridge == one,
        };
        self.0.iter().map(|(&bridge, &seen)| (bridge, seen)).filter(move |&(bridge, _)| is_heard(bridge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_shows_no_sign_is_missed() {
        let mut signs = Signs::default();
        signs.saw(3);
        signs.saw_again(4);
        let later = Instant::now() + MISSED;
        assert_eq!(signs.missed(Heard::All), None);
        assert_eq!(signs.missed_at(later, Heard::All), Some(3), "and 4 is no bridge");
        assert!(signs.due(Heard::All).is_some_and(|due| due <= later));
        signs.forget(3);
        assert_eq!((signs.missed_at(later, Heard::All), signs.due(Heard::All)), (None, None));
    }

    #[test]
    fn only_those_who_are_listened_to_are_missed() {
        let mut signs = Signs::default();
        signs.saw(3);
        signs.saw(5);
        let later = Instant::now() + MISSED;
        assert_eq!(signs.missed_at(later, Heard::Only(5)), Some(5));
        assert_eq!((signs.missed_at(later, Heard::Only(4)), signs.due(Heard::Only(4))), (None, None));
    }
}
