//! What a single run displays: where in its output that was, and for how long it stays in a sandbox that does.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use crate::context::marks::{Mark, Piece, Scanner};
use crate::id::SandboxId;
use crate::path::GuestPath;

/// Places that are remembered; a run displays less.
const MOST_PLACES: usize = 64;
/// Runs whose displays stay in the sandbox.
const KEPT: usize = 8;

/// Finds the marks in the stdout of a run, and takes them out.
pub(super) struct Places {
    pub directory: GuestPath,
    scanner: Scanner,
    bytes: u64,
    /// How much of stdout came before the display of each number.
    pub found: Vec<(u32, u64)>,
}

impl Places {
    /// The directory's name is what marks are told by: in a sandbox no two runs have the same, and no program says it by
    /// accident.
    pub fn new(directory: GuestPath) -> Self {
        let mut scanner = Scanner::default();
        scanner.begin(&String::from_utf8_lossy(directory.file_name().unwrap_or_default()));
        Self { directory, scanner, bytes: 0, found: Vec::new() }
    }

    pub fn push(&mut self, bytes: &[u8], mut take: impl FnMut(&[u8])) {
        let Self { scanner, bytes: count, found, .. } = self;
        scanner.push(bytes, |piece| match piece {
            Piece::Output(bytes) => {
                *count += bytes.len() as u64;
                take(bytes);
            }
            Piece::Mark(Mark::Item(number)) if found.len() < MOST_PLACES => found.push((number, *count)),
            // Nothing else is said by what we have put there.
            Piece::Mark(_) | Piece::Broken => {}
        });
    }

    /// What looked like the beginning of a mark, at the end.
    pub fn rest(&mut self) -> Vec<u8> {
        self.scanner.end()
    }
}

/// Directories of the last runs that displayed something, in sandboxes that stay. They take room that is the sandbox's.
#[derive(Default)]
pub(in crate::service) struct Displayed {
    sandboxes: Mutex<HashMap<SandboxId, VecDeque<GuestPath>>>,
}

impl Displayed {
    /// The one that has to go, if any.
    pub fn add(&self, id: &SandboxId, directory: GuestPath) -> Option<GuestPath> {
        let mut sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = sandboxes.entry(id.clone()).or_default();
        kept.push_back(directory);
        if kept.len() > KEPT { kept.pop_front() } else { None }
    }

    /// The sandbox is no more.
    pub fn forget(&self, id: &SandboxId) {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_taken_out_and_their_places_kept() {
        let mut places = Places::new("/tmp/.run-only".parse().unwrap());
        let mut text = Vec::new();
        let output =
            b"one\n\x1e.run-only item 1\ntwo\x1e.run-only item 2\n\x1e.run-other item 3\n\x1e.run-only done\nx\x1e.run";
        for byte in output {
            places.push(&[*byte], |bytes| text.extend_from_slice(bytes));
        }
        text.extend(places.rest());
        assert_eq!(String::from_utf8(text).unwrap(), "one\ntwo\x1e.run-other item 3\nx\x1e.run");
        assert_eq!(places.found, [(1, 4), (2, 7)]);
    }

    #[test]
    fn the_oldest_displays_make_room() {
        let displayed = Displayed::default();
        let id = SandboxId::random().unwrap();
        let directory = |number: usize| -> GuestPath { format!("/tmp/.run-{number}").parse().unwrap() };
        let gone: Vec<_> = (0..KEPT + 2).filter_map(|number| displayed.add(&id, directory(number))).collect();
        assert_eq!(gone, [directory(0), directory(1)]);
        displayed.forget(&id);
        assert_eq!(displayed.add(&id, directory(0)), None);
    }
}
