//! Who owns which sandbox, and what state it is in. The only map; nothing is awaited while it is locked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::SandboxInfo;
use super::clock::{Clock, Moment};
use super::expiry::Expiry;
use super::lifecycle::{self, Happening, Refusal, State};
use super::quota::{Holdings, Quota};
use crate::error::{Error, ErrorKind, Result};
use crate::event::StopReason;
use crate::exec::ExecRequest;
use crate::id::{Owner, SandboxId, SandboxName};
use crate::spec::{Lifetime, Persistence, SandboxSpec};

/// An engine that fails to destroy is asked again after this, and then ever more seldom.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);
/// A sandbox that lives shorter than this costs no call for the engine's deadline: it dies with its process anyway.
const FIRST_ENGINE_DEADLINE: Duration = Duration::from_secs(1);

/// Another process may be at work on a persistent sandbox that seems expired.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Entry {
    spec: SandboxSpec,
    state: State,
    created_at: SystemTime,
    expiry: Expiry,
    /// Calls and commands that hold off the idle time.
    uses: usize,
    execs: usize,
    engine_deadline_at: Moment,
    /// Whoever tells the engine about its deadline.
    deadline_turn: Arc<tokio::sync::Mutex<()>>,
    /// A persistent one that seemed expired is not looked at again before this.
    look_at: Moment,
    stop: Option<Stop>,
    states: watch::Sender<State>,
}

#[derive(Debug)]
struct Stop {
    reason: StopReason,
    /// Whether somebody is at work on it.
    taken: bool,
    retry_at: Moment,
    retry_after: Duration,
}

#[derive(Debug, Default)]
struct Map {
    entries: HashMap<SandboxId, Entry>,
    holdings: HashMap<Owner, Holdings>,
    closed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    map: Mutex<Map>,
}

/// What a use is for; only commands count against the quota of commands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use<'a> {
    Call,
    Exec(&'a ExecRequest, &'a Quota),
}

/// Who ends a sandbox.
#[derive(Debug)]
pub(crate) enum StopTicket {
    /// The caller does, and reports with [`Registry::destroyed`] or [`Registry::not_destroyed`].
    Yours,
    /// Somebody else is at it; wait for `Gone`.
    Theirs(watch::Receiver<State>),
}

/// What the clock asks for now.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Ephemeral ones, already moved to `Stopping`: the caller ends them.
    pub expired: Vec<(SandboxId, StopReason)>,
    /// Persistent ones, still live: another process may have used them since.
    pub maybe_expired: Vec<(SandboxId, StopReason)>,
    /// Ephemeral ones whose engine deadline must be moved.
    pub deadlines: Vec<SandboxId>,
    pub next: Option<Moment>,
}

/// What the service must know of a sandbox that it found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub persistence: Persistence,
    pub state: State,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Map> {
        // A panic under the lock is a fault of one call; the map is changed in single steps and stays whole.
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Promise a sandbox to its owner. `elsewhere` is what the owner holds that only other processes know.
    pub fn reserve(
        &self,
        id: &SandboxId,
        spec: &SandboxSpec,
        quota: &Quota,
        elsewhere: &Holdings,
        now: Moment,
    ) -> Result<()> {
        let mut map = self.lock();
        if map.closed {
            return Err(Error::unavailable("the service is shutting down"));
        }
        let held = map.holdings.get(&spec.owner).copied().unwrap_or_default().and(elsewhere);
        quota.admit_sandbox(&held, spec)?;
        if let Some(name) = &spec.name
            && map.named(&spec.owner, name).is_some()
        {
            return Err(name_taken(name));
        }
        map.insert(id.clone(), Entry::new(spec.clone(), State::Creating, now));
        Ok(())
    }

    /// Take over a live sandbox that another process made. Whether it was new to us.
    pub fn adopt(&self, id: &SandboxId, spec: &SandboxSpec, created_at: SystemTime, expiry: Expiry) -> bool {
        let mut map = self.lock();
        if map.closed || map.entries.contains_key(id) {
            return false;
        }
        let entry = Entry { created_at, expiry, ..Entry::new(spec.clone(), State::Live, expiry.last_used) };
        map.insert(id.clone(), entry);
        true
    }

    /// The engine has made it. `Stopping` means that its end was decided meanwhile, and the caller must destroy it.
    pub fn made(&self, id: &SandboxId, now: Moment) -> Result<State> {
        let mut map = self.lock();
        let state = map.happen(id, Happening::Made)?;
        if let Some(entry) = map.entries.get_mut(id) {
            let lifetime = entry.expiry.lifetime;
            entry.expiry.renew(Some(lifetime), now);
            entry.engine_deadline_at = now.after(FIRST_ENGINE_DEADLINE);
        }
        Ok(state)
    }

    pub fn not_made(&self, id: &SandboxId) {
        let _ = self.lock().happen(id, Happening::NotMade);
    }

    pub fn find(&self, owner: &Owner, id: &SandboxId) -> Option<Found> {
        let map = self.lock();
        let entry = map.entries.get(id).filter(|entry| entry.spec.owner == *owner)?;
        Some(Found { persistence: entry.spec.persistence, state: entry.state })
    }

    pub fn find_named(&self, owner: &Owner, name: &SandboxName) -> Option<SandboxId> {
        self.lock().named(owner, name).cloned()
    }

    pub fn contains(&self, id: &SandboxId) -> bool {
        self.lock().entries.contains_key(id)
    }

    pub fn begin_use(&self, owner: &Owner, id: &SandboxId, purpose: Use<'_>, now: Moment) -> Result<Expiry> {
        let mut map = self.lock();
        let held = map.holdings.get(owner).copied().unwrap_or_default();
        let entry = map.owned(owner, id)?;
        lifecycle::next(entry.state, Happening::Use)?;
        entry.expiry.touch(now);
        if let Use::Exec(request, quota) = purpose {
            quota.admit_exec(&held, request)?;
            entry.execs += 1;
        }
        entry.uses += 1;
        let expiry = entry.expiry;
        if let Use::Exec(..) = purpose {
            map.holdings.entry(owner.clone()).or_default().execs += 1;
        }
        Ok(expiry)
    }

    pub fn end_use(&self, owner: &Owner, id: &SandboxId, was_exec: bool, now: Moment) {
        let mut map = self.lock();
        if let Some(entry) = map.entries.get_mut(id) {
            entry.uses = entry.uses.saturating_sub(1);
            entry.expiry.touch(now);
            if was_exec {
                entry.execs = entry.execs.saturating_sub(1);
            }
        }
        if was_exec && let Some(held) = map.holdings.get_mut(owner) {
            held.execs = held.execs.saturating_sub(1);
            map.forget_empty(owner);
        }
    }

    /// In one step with the decision to expire: what this answers is in force.
    pub fn renew(&self, owner: &Owner, id: &SandboxId, lifetime: Option<Lifetime>, now: Moment) -> Result<Expiry> {
        let mut map = self.lock();
        let entry = map.owned(owner, id)?;
        lifecycle::next(entry.state, Happening::Use)?;
        entry.expiry.renew(lifetime, now);
        if let Some(lifetime) = lifetime {
            entry.spec.lifetime = lifetime;
        }
        Ok(entry.expiry)
    }

    /// Another process used it.
    pub fn touch(&self, id: &SandboxId, expiry: Expiry) {
        if let Some(entry) = self.lock().entries.get_mut(id) {
            entry.expiry.lifetime = expiry.lifetime;
            entry.expiry.total_until = expiry.total_until;
            entry.expiry.touch(expiry.last_used);
        }
    }

    /// Why it is due, if it still is.
    pub fn still_due(&self, id: &SandboxId, now: Moment) -> Option<StopReason> {
        let map = self.lock();
        let entry = map.entries.get(id)?;
        entry.expiry.due(entry.uses > 0).filter(|(moment, _)| *moment <= now).map(|(_, reason)| reason)
    }

    pub fn deadline_turn(&self, id: &SandboxId) -> Option<Arc<tokio::sync::Mutex<()>>> {
        self.lock().entries.get(id).map(|entry| Arc::clone(&entry.deadline_turn))
    }

    /// `None` once its end is decided.
    pub fn wanted_deadline(&self, id: &SandboxId, now: Moment) -> Option<Moment> {
        let map = self.lock();
        let entry = map.entries.get(id).filter(|entry| entry.state == State::Live)?;
        Some(entry.expiry.engine_deadline(now, Duration::ZERO))
    }

    pub fn engine_deadline_set(&self, id: &SandboxId, deadline: Moment) {
        if let Some(entry) = self.lock().entries.get_mut(id) {
            entry.engine_deadline_at = entry.expiry.renew_engine_at(deadline).unwrap_or(Moment(u64::MAX));
        }
    }

    /// Decide the end of a sandbox.
    pub fn begin_stop(&self, id: &SandboxId, reason: StopReason) -> Result<StopTicket> {
        let mut map = self.lock();
        let creating = map.entries.get(id).is_some_and(|entry| entry.state == State::Creating);
        map.happen(id, Happening::Stop)?;
        let Some(entry) = map.entries.get_mut(id) else { return Err(Refusal::Gone.into()) };
        match &mut entry.stop {
            Some(stop) if stop.taken => Ok(StopTicket::Theirs(entry.states.subscribe())),
            Some(stop) => {
                stop.taken = true;
                Ok(StopTicket::Yours)
            }
            None => {
                entry.stop = Some(Stop { reason, taken: true, retry_at: Moment(u64::MAX), retry_after: FIRST_RETRY });
                // Whoever creates it will see `Stopping` and destroy it.
                if creating { Ok(StopTicket::Theirs(entry.states.subscribe())) } else { Ok(StopTicket::Yours) }
            }
        }
    }

    pub fn stop_reason(&self, id: &SandboxId) -> Option<StopReason> {
        self.lock().entries.get(id)?.stop.as_ref().map(|stop| stop.reason)
    }

    pub fn destroyed(&self, id: &SandboxId) {
        let _ = self.lock().happen(id, Happening::Destroyed);
    }

    pub fn not_destroyed(&self, id: &SandboxId, now: Moment) {
        let mut map = self.lock();
        let _ = map.happen(id, Happening::NotDestroyed);
        if let Some(stop) = map.entries.get_mut(id).and_then(|entry| entry.stop.as_mut()) {
            stop.taken = false;
            stop.retry_at = now.after(stop.retry_after);
            stop.retry_after = (stop.retry_after * 2).min(LAST_RETRY);
        }
    }

    /// The engine no longer knows it. Whether this was news; the owner for the event.
    pub fn lost(&self, id: &SandboxId) -> Option<Owner> {
        let mut map = self.lock();
        let owner = map.entries.get(id)?.spec.owner.clone();
        matches!(map.happen(id, Happening::Lost), Ok(State::Gone)).then_some(owner)
    }

    pub fn is_live(&self, id: &SandboxId) -> bool {
        self.lock().entries.get(id).is_some_and(|entry| entry.state == State::Live)
    }

    pub fn persistence(&self, id: &SandboxId) -> Option<Persistence> {
        self.lock().entries.get(id).map(|entry| entry.spec.persistence)
    }

    pub fn owner(&self, id: &SandboxId) -> Option<Owner> {
        self.lock().entries.get(id).map(|entry| entry.spec.owner.clone())
    }

    pub fn info(&self, owner: &Owner, id: &SandboxId, clock: &Clock) -> Result<SandboxInfo> {
        let mut map = self.lock();
        let entry = map.owned(owner, id)?;
        Ok(entry.info(id, clock))
    }

    pub fn list(&self, owner: &Owner, clock: &Clock) -> Vec<SandboxInfo> {
        let map = self.lock();
        let owned = map.entries.iter().filter(|(_, entry)| entry.spec.owner == *owner);
        owned.map(|(id, entry)| entry.info(id, clock)).collect()
    }

    /// Those that the engine should know.
    pub fn live(&self, persistence: Persistence) -> Vec<SandboxId> {
        let map = self.lock();
        let live =
            map.entries.iter().filter(|(_, entry)| entry.state == State::Live && entry.spec.persistence == persistence);
        live.map(|(id, _)| id.clone()).collect()
    }

    /// Take no more sandboxes; the ephemeral ones that are left.
    pub fn close(&self) -> Vec<SandboxId> {
        let mut map = self.lock();
        map.closed = true;
        let ephemeral = map.entries.iter().filter(|(_, entry)| entry.spec.persistence == Persistence::Ephemeral);
        ephemeral.map(|(id, _)| id.clone()).collect()
    }

    /// Everything the clock asks for, decided in one step.
    pub fn due(&self, now: Moment) -> Due {
        let mut map = self.lock();
        let mut due = Due::default();
        for (id, entry) in &mut map.entries {
            let next = entry.due(id, now, &mut due);
            due.next = due.next.into_iter().chain(next).min();
        }
        due
    }
}

impl Entry {
    fn new(spec: SandboxSpec, state: State, now: Moment) -> Self {
        Self {
            state,
            created_at: SystemTime::now(),
            expiry: Expiry::new(spec.lifetime, now),
            uses: 0,
            execs: 0,
            engine_deadline_at: now.after(FIRST_ENGINE_DEADLINE),
            deadline_turn: Arc::default(),
            look_at: now,
            stop: None,
            states: watch::Sender::new(state),
            spec,
        }
    }

    fn due(&mut self, id: &SandboxId, now: Moment, due: &mut Due) -> Option<Moment> {
        match self.state {
            State::Creating | State::Gone => return None,
            State::Stopping => {
                let stop = self.stop.as_mut().filter(|stop| !stop.taken)?;
                if stop.retry_at > now {
                    return Some(stop.retry_at);
                }
                stop.taken = true;
                due.expired.push((id.clone(), stop.reason));
                return None;
            }
            State::Live => {}
        }
        let end = self.expiry.due(self.uses > 0);
        if let Some((moment, reason)) = end
            && moment <= now
        {
            match self.spec.persistence {
                Persistence::Persistent => {
                    if self.look_at <= now {
                        self.look_at = now.after(LOOK_AGAIN);
                        due.maybe_expired.push((id.clone(), reason));
                    }
                    return Some(self.look_at);
                }
                Persistence::Ephemeral => {
                    self.state = State::Stopping;
                    self.stop =
                        Some(Stop { reason, taken: true, retry_at: Moment(u64::MAX), retry_after: FIRST_RETRY });
                    self.states.send_replace(State::Stopping);
                    due.expired.push((id.clone(), reason));
                    return None;
                }
            }
        }
        let end = end.map(|(moment, _)| moment);
        if self.spec.persistence == Persistence::Persistent {
            return end;
        }
        if self.engine_deadline_at <= now {
            // Until the engine has answered; its answer sets the next one.
            self.engine_deadline_at = now.after(FIRST_ENGINE_DEADLINE);
            due.deadlines.push(id.clone());
        }
        Some(end.map_or(self.engine_deadline_at, |end| end.min(self.engine_deadline_at)))
    }

    fn info(&self, id: &SandboxId, clock: &Clock) -> SandboxInfo {
        SandboxInfo {
            id: id.clone(),
            owner: self.spec.owner.clone(),
            name: self.spec.name.clone(),
            image: self.spec.image.clone(),
            persistence: self.spec.persistence,
            state: self.state,
            created_at: self.created_at,
            expires_at: self.expiry.due(self.uses > 0).and_then(|(moment, _)| clock.wall(moment)),
            lifetime: self.expiry.lifetime,
            limits: self.spec.limits,
            network: self.spec.network,
            work_directory: self.spec.work_directory.clone(),
            running: self.execs,
        }
    }
}

impl Map {
    fn owned(&mut self, owner: &Owner, id: &SandboxId) -> Result<&mut Entry> {
        self.entries.get_mut(id).filter(|entry| entry.spec.owner == *owner).ok_or_else(|| Refusal::Gone.into())
    }

    fn named(&self, owner: &Owner, name: &SandboxName) -> Option<&SandboxId> {
        let mut entries = self.entries.iter();
        entries
            .find(|(_, entry)| entry.spec.owner == *owner && entry.spec.name.as_ref() == Some(name))
            .map(|(id, _)| id)
    }

    fn insert(&mut self, id: SandboxId, entry: Entry) {
        let held = self.holdings.entry(entry.spec.owner.clone()).or_default();
        *held = held.and(&Holdings::of(&entry.spec));
        self.entries.insert(id, entry);
    }

    fn happen(&mut self, id: &SandboxId, happening: Happening) -> Result<State> {
        let entry = self.entries.get_mut(id).ok_or(Refusal::Gone)?;
        let state = lifecycle::next(entry.state, happening)?;
        if state != entry.state {
            entry.state = state;
            entry.states.send_replace(state);
        }
        if state == State::Gone
            && let Some(entry) = self.entries.remove(id)
        {
            if let Some(held) = self.holdings.get_mut(&entry.spec.owner) {
                *held = held.without(&Holdings::of(&entry.spec));
            }
            self.forget_empty(&entry.spec.owner);
        }
        Ok(state)
    }

    /// Owners come and go; a server must not remember each that it ever saw.
    fn forget_empty(&mut self, owner: &Owner) {
        if self.holdings.get(owner).is_some_and(|held| *held == Holdings::default()) {
            self.holdings.remove(owner);
        }
    }
}

pub(crate) fn name_taken(name: &SandboxName) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("you have a sandbox named {name}"))
        .with_hint("choose another name, or stop that sandbox first")
}
