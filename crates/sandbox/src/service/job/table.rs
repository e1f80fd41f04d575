//! Which jobs there are. The only map of them; nothing is awaited while it is locked.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use super::{Job, JobSettings, Shared};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{JobId, Owner};
use crate::job::{IdempotencyKey, JobRequest};
use crate::service::clock::Moment;

pub(crate) struct Jobs {
    map: Mutex<Map>,
    digests: RandomState,
    makers: usize,
}

#[derive(Default)]
struct Map {
    owners: HashMap<Owner, Owned>,
    last_number: u64,
    closed: bool,
}

struct Owned {
    /// By number, which is the order in which they were started. An owner has few enough to look at all of them.
    jobs: BTreeMap<u64, Entry>,
    /// Those whose sandbox is being made. The rest waits here and not in the service's queue, which would refuse them.
    makers: Arc<Semaphore>,
}

struct Entry {
    shared: Arc<Shared>,
    key: Option<(IdempotencyKey, Digest)>,
    ended: Option<Ended>,
}

struct Ended {
    at: Moment,
    /// What it holds in memory for those who come to read it.
    bytes: usize,
}

/// Tells requests of one owner apart. Who makes two that collide under a secret of this process harms only himself, and
/// keeping whole requests would keep all files that came with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digest(u64);

impl Jobs {
    /// `create_queue` is how many creates may wait in the service's queue.
    pub fn new(create_queue: usize) -> Self {
        // One owner alone may have half of the places; with half of that there is one for its other creates too.
        Self { map: Mutex::default(), digests: RandomState::new(), makers: (create_queue / 4).max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, Map> {
        // A panic under the lock is a fault of one call; the map is changed in single steps and stays whole.
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn digest(&self, request: &JobRequest) -> Digest {
        Digest(self.digests.hash_one(request))
    }

    /// The job that was started with this key, if it was for the same request.
    pub(super) fn known(&self, owner: &Owner, key: &IdempotencyKey, digest: Digest) -> Result<Option<Job>> {
        self.lock().known(owner, key, digest)
    }

    /// `Some` is the job that another call with the same key has started a moment earlier.
    pub(super) fn register(
        &self,
        shared: &Arc<Shared>,
        key: Option<(IdempotencyKey, Digest)>,
        most_running: usize,
    ) -> Result<Option<Job>> {
        let mut map = self.lock();
        if map.closed {
            return Err(Error::unavailable("the service is shutting down"));
        }
        if let Some((key, digest)) = &key
            && let Some(known) = map.known(&shared.owner, key, *digest)?
        {
            return Ok(Some(known));
        }
        let running = map.of(&shared.owner).filter(|entry| entry.ended.is_none()).count();
        if running >= most_running {
            return Err(Error::limit_exceeded(format!("{running} jobs are running, which is all you may run"))
                .with_hint("wait for one to end, or stop one"));
        }
        self.insert(&mut map, Entry { shared: Arc::clone(shared), key, ended: None });
        Ok(None)
    }

    /// Whose permit an owner's job needs to ask for a sandbox.
    pub(super) fn makers(&self, owner: &Owner) -> Option<Arc<Semaphore>> {
        self.lock().owners.get(owner).map(|owned| Arc::clone(&owned.makers))
    }

    pub(crate) fn find(&self, owner: &Owner, id: &JobId) -> Result<Job> {
        let map = self.lock();
        let found = map.of(owner).find(|entry| entry.shared.id == *id).map(Entry::job);
        found.ok_or_else(|| Error::not_found("there is no such job").with_hint("an ended job is kept for a while only"))
    }

    pub(crate) fn list(&self, owner: &Owner) -> Vec<Job> {
        self.lock().of(owner).map(Entry::job).collect()
    }

    /// It takes no more of its owner's room to run, and makes room for itself among those that have ended.
    pub(super) fn ended(&self, shared: &Arc<Shared>, bytes: usize, now: Moment, settings: &JobSettings) {
        let mut map = self.lock();
        let Some(Owned { jobs: entries, .. }) = map.owners.get_mut(&shared.owner) else { return };
        let Some(entry) = entries.values_mut().find(|entry| Arc::ptr_eq(&entry.shared, shared)) else { return };
        entry.ended = Some(Ended { at: now, bytes });
        map.make_room(&shared.owner, settings);
    }

    /// One that an earlier process has left.
    pub(super) fn add_ended(&self, shared: &Arc<Shared>, at: Moment, settings: &JobSettings) {
        let bytes = shared.streams.kept_bytes();
        let entry = Entry { shared: Arc::clone(shared), key: None, ended: Some(Ended { at, bytes }) };
        let mut map = self.lock();
        self.insert(&mut map, entry);
        map.make_room(&shared.owner, settings);
    }

    fn insert(&self, map: &mut Map, entry: Entry) {
        map.last_number += 1;
        let number = map.last_number;
        let owned = map.owners.entry(entry.shared.owner.clone());
        let new = || Owned { jobs: BTreeMap::new(), makers: Arc::new(Semaphore::new(self.makers)) };
        owned.or_insert_with(new).jobs.insert(number, entry);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Forget what ended too long ago; when to ask again.
    pub(crate) fn expire(&self, now: Moment) -> Option<Moment> {
        let mut map = self.lock();
        let mut next: Option<Moment> = None;
        for owned in map.owners.values_mut() {
            owned.jobs.retain(|_, entry| {
                let Some(ended) = &entry.ended else { return true };
                let until = ended.at.after(entry.shared.kept_for);
                if until > now {
                    next = Some(next.map_or(until, |next| next.min(until)));
                } else {
                    entry.shared.streams.forget();
                }
                until > now
            });
        }
        map.forget_empty();
        next
    }

    /// Take no more, and ask those that run to stop.
    pub(crate) fn close(&self) -> Vec<Job> {
        let mut map = self.lock();
        map.closed = true;
        let running =
            map.owners.values().flat_map(|owned| owned.jobs.values()).filter(|entry| entry.shared.is_running());
        let running: Vec<_> = running.map(Entry::job).collect();
        for job in &running {
            job.shared.ask_to_stop();
        }
        running
    }
}

impl Map {
    /// For those of one owner that have ended.
    fn make_room(&mut self, owner: &Owner, settings: &JobSettings) {
        let Some(Owned { jobs: entries, .. }) = self.owners.get_mut(owner) else { return };
        let mut ended: Vec<_> = entries
            .iter()
            .filter_map(|(number, entry)| entry.ended.as_ref().map(|ended| (ended.at, *number, ended.bytes)))
            .collect();
        ended.sort_unstable();
        let (mut count, mut total) = (ended.len(), ended.iter().map(|(_, _, bytes)| bytes).sum::<usize>());
        for (_, number, bytes) in ended {
            if count <= settings.kept_jobs && total <= settings.kept_output {
                break;
            }
            if let Some(entry) = entries.remove(&number) {
                entry.shared.streams.forget();
            }
            count -= 1;
            total -= bytes;
        }
        self.forget_empty();
    }

    fn of(&self, owner: &Owner) -> impl Iterator<Item = &Entry> {
        self.owners.get(owner).into_iter().flat_map(|owned| owned.jobs.values())
    }

    fn known(&self, owner: &Owner, key: &IdempotencyKey, digest: Digest) -> Result<Option<Job>> {
        let same_key = self.of(owner).find_map(|entry| match &entry.key {
            // Who asks again after it was stopped wants it to run, not to hear that it was stopped.
            Some(_) if entry.shared.is_asked_to_stop() => None,
            Some((known, known_digest)) if known == key => Some((entry, *known_digest)),
            Some(_) | None => None,
        });
        match same_key {
            Some((entry, known)) if known == digest => Ok(Some(entry.job())),
            Some(_) => Err(Error::new(ErrorKind::AlreadyExists, "this idempotency key was used for another request")
                .with_hint("use a new key for each new run, and an old one only to repeat the same request")),
            None => Ok(None),
        }
    }

    /// Owners come and go; a server must not remember each that it ever saw.
    fn forget_empty(&mut self) {
        self.owners.retain(|_, owned| !owned.jobs.is_empty());
    }
}

impl Entry {
    fn job(&self) -> Job {
        Job { shared: Arc::clone(&self.shared) }
    }
}
