//! What was found out about images, for as long as it can be relied on.
//!
//! Finding out takes a sandbox and some programs, so it is done once. But what a name means can change: an image is pulled
//! anew, a sandbox is saved under the same name, by this process or another. So what is known of a name is forgotten after a
//! while; of a name with a digest it holds for ever, and of the host's own tree as long as the process lives.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clock::Moment;
use crate::id::Owner;
use crate::image::Image;
use crate::tree::SavedName;

/// Long enough for a conversation to ask once, short enough for a person to wait.
const KNOWN_FOR: Duration = Duration::from_secs(60);

/// Images are named by callers, who must not fill the memory with them.
const MOST: usize = 1000;

#[derive(Debug)]
pub(super) struct Facts<K, V> {
    known: Mutex<HashMap<(Subject, K), (Moment, V)>>,
}

/// An image, and whose: names of saved ones mean something else to each owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Subject {
    owner: Option<Owner>,
    image: Image,
}

impl Subject {
    fn new(owner: &Owner, image: &Image) -> Self {
        let owner = match image {
            Image::Saved(_) => Some(owner.clone()),
            Image::Host | Image::Directory(_) | Image::Archive(_) | Image::Named(_) => None,
        };
        Self { owner, image: image.clone() }
    }

    fn may_change(&self) -> bool {
        match &self.image {
            Image::Host => false,
            Image::Named(name) => !name.as_str().contains('@'),
            Image::Directory(_) | Image::Archive(_) | Image::Saved(_) => true,
        }
    }
}

impl<K, V> Default for Facts<K, V> {
    fn default() -> Self {
        Self { known: Mutex::default() }
    }
}

impl<K: Clone + Eq + Hash, V: Clone> Facts<K, V> {
    pub fn get(&self, owner: &Owner, image: &Image, question: &K, now: Moment) -> Option<V> {
        let subject = Subject::new(owner, image);
        let may_change = subject.may_change();
        let known = self.lock();
        let (found_at, value) = known.get(&(subject, question.clone()))?;
        (!may_change || now < found_at.after(KNOWN_FOR)).then(|| value.clone())
    }

    /// `asked_at` is before the answer was looked for: the name may have changed its meaning meanwhile.
    pub fn put(&self, owner: &Owner, image: &Image, question: K, value: V, asked_at: Moment) {
        let mut known = self.lock();
        if known.len() >= MOST {
            known.retain(|(subject, _), (found_at, _)| !subject.may_change() || asked_at < found_at.after(KNOWN_FOR));
        }
        if known.len() < MOST {
            known.insert((Subject::new(owner, image), question), (asked_at, value));
        }
    }

    /// This owner has something else under this name now, or nothing.
    pub fn forget_saved(&self, owner: &Owner, name: &SavedName) {
        let changed = Subject::new(owner, &Image::Saved(name.clone()));
        self.lock().retain(|(subject, _), _| *subject != changed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Subject, K), (Moment, V)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(0).after(Duration::from_secs(seconds))
    }

    #[test]
    fn what_a_name_means_is_forgotten_and_what_a_digest_means_is_not() {
        let (facts, owner) = (Facts::<(), u8>::default(), Owner::local());
        for (text, lasts) in
            [("host", true), ("a@sha256:00", true), ("a:1", false), ("saved:a", false), ("dir:/a", false)]
        {
            let image: Image = text.parse().unwrap();
            facts.put(&owner, &image, (), 1, at(0));
            assert_eq!(facts.get(&owner, &image, &(), at(59)), Some(1), "{text}");
            assert_eq!(facts.get(&owner, &image, &(), at(61)).is_some(), lasts, "{text}");
        }
    }

    #[test]
    fn saved_names_are_an_owners_own() {
        let (facts, image) = (Facts::<(), u8>::default(), "saved:a".parse::<Image>().unwrap());
        let (one, other): (Owner, Owner) = ("one".parse().unwrap(), "other".parse().unwrap());
        facts.put(&one, &image, (), 1, at(0));
        assert_eq!(facts.get(&other, &image, &(), at(1)), None);
        facts.forget_saved(&other, &"a".parse().unwrap());
        assert_eq!(facts.get(&one, &image, &(), at(1)), Some(1));
        facts.forget_saved(&one, &"a".parse().unwrap());
        assert_eq!(facts.get(&one, &image, &(), at(1)), None);
    }

    #[test]
    fn memory_is_bounded() {
        let (facts, owner) = (Facts::<usize, u8>::default(), Owner::local());
        let image: Image = "a:1".parse().unwrap();
        (0..MOST + 10).for_each(|number| facts.put(&owner, &image, number, 1, at(0)));
        assert_eq!(facts.lock().len(), MOST);
        facts.put(&owner, &image, MOST + 11, 1, at(61));
        assert_eq!(facts.lock().len(), 1);
    }
}
