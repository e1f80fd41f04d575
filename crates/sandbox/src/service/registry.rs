//! Who owns which sandbox, and what state it is in. The only map; nothing is awaited while it is locked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::SandboxInfo;
use super::clock::{Clock, Moment};
use super::expiry::Expiry;
use super::history::{Line, Log};
use super::ledger::Record;
use super::lifecycle::{Happening, Refusal, State};
use super::quota::{Elsewhere, Holdings, Quota};
use crate::engine::{Made, Rest};
use crate::error::{Error, ErrorKind, Result};
use crate::event::StopReason;
use crate::exec::ExecRequest;
use crate::id::{Owner, SandboxId, SandboxName};
use crate::spec::{Lifetime, Limits, Persistence, SandboxSpec};

mod entry;

use entry::{Due, Entry};
pub(crate) use entry::{FIRST_ENGINE_DEADLINE, StopTicket};

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

    /// Promise a sandbox to its owner.
    pub fn reserve(
        &self,
        id: &SandboxId,
        spec: &SandboxSpec,
        quota: &Quota,
        elsewhere: &Elsewhere,
        now: Moment,
    ) -> Result<()> {
        let mut map = self.lock();
        if map.closed {
            return Err(Error::unavailable("the service is shutting down"));
        }
        let held = map.holdings.get(&spec.owner).copied().unwrap_or_default();
        quota.admit_sandbox(&held, elsewhere, spec)?;
        if let Some(name) = &spec.name
            && map.named(&spec.owner, name).is_some()
        {
            return Err(name_taken(name));
        }
        map.insert(id.clone(), Entry::new(spec.clone(), State::Creating, now));
        Ok(())
    }

    pub fn held(&self, owner: &Owner) -> Holdings {
        self.lock().holdings.get(owner).copied().unwrap_or_default()
    }

    /// Take over a live sandbox that another process made. Whether it was new to us.
    pub fn adopt(&self, record: &Record, expiry: Expiry) -> bool {
        let mut map = self.lock();
        if map.closed || map.entries.contains_key(&record.id) {
            return false;
        }
        let mut entry = Entry::new(record.spec.clone(), State::Live, expiry.last_used);
        entry.program = record.program.clone();
        entry.created_at = record.created_at;
        entry.expiry = expiry;
        map.insert(record.id.clone(), entry);
        true
    }

    /// The engine has made it. `Stopping` means that its end was decided meanwhile, and the caller must destroy it.
    pub fn made(&self, id: &SandboxId, made: Made, now: Moment) -> Result<State> {
        let mut map = self.lock();
        let state = map.happen(id, Happening::Made)?;
        if let Some(entry) = map.entries.get_mut(id) {
            entry.start_clock(now);
            entry.spec.work_directory = Some(made.work_directory);
            entry.program = made.program;
        }
        Ok(state)
    }

    /// The quota counts what is in force, too.
    pub fn set_limits(&self, id: &SandboxId, limits: Limits) {
        let mut map = self.lock();
        let Some(entry) = map.entries.get_mut(id) else { return };
        let before = Holdings::of(&entry.spec);
        entry.spec.limits = limits;
        let (owner, after) = (entry.spec.owner.clone(), Holdings::of(&entry.spec));
        if let Some(held) = map.holdings.get_mut(&owner) {
            *held = held.without(&before).and(&after);
        }
    }

    pub fn not_made(&self, id: &SandboxId) {
        let _ = self.lock().happen(id, Happening::NotMade);
    }

    pub fn find(&self, owner: &Owner, id: &SandboxId) -> Option<Found> {
        let map = self.lock();
        let entry = map.entries.get(id).filter(|entry| entry.spec.owner == *owner && !entry.is_over())?;
        Some(Found { persistence: entry.spec.persistence, state: entry.state() })
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
        entry.happen(Happening::Use)?;
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
        entry.happen(Happening::Use)?;
        entry.expiry.renew(lifetime, now);
        if let Some(lifetime) = lifetime {
            entry.spec.lifetime = lifetime;
        }
        Ok(entry.expiry)
    }

    /// Whether it runs, as the engine says.
    pub fn set_rest(&self, id: &SandboxId, rest: Option<Rest>) {
        if let Some(entry) = self.lock().entries.get_mut(id) {
            entry.rest = rest;
        }
    }

    /// Another process used it.
    pub fn touch(&self, id: &SandboxId, expiry: Expiry) {
        if let Some(entry) = self.lock().entries.get_mut(id) {
            entry.expiry.lifetime = expiry.lifetime;
            entry.expiry.total_until = expiry.total_until;
            entry.expiry.touch(expiry.last_used);
        }
    }

    pub fn used(&self, id: &SandboxId, moment: Moment) {
        if let Some(entry) = self.lock().entries.get_mut(id) {
            entry.expiry.touch(moment);
        }
    }

    /// Why it is due, if it still is.
    pub fn still_due(&self, id: &SandboxId, now: Moment) -> Option<StopReason> {
        let map = self.lock();
        let entry = map.entries.get(id)?;
        entry.end().filter(|(moment, _)| *moment <= now).map(|(_, reason)| reason)
    }

    /// Decide the end of one that is still due, in one step with the question whether it is.
    pub fn begin_expiry(&self, id: &SandboxId, now: Moment) -> Option<StopReason> {
        let mut map = self.lock();
        let entry = map.entries.get_mut(id)?;
        let (_, reason) = entry.end().filter(|(moment, _)| *moment <= now)?;
        matches!(entry.begin_stop(reason), Ok(StopTicket::Yours)).then_some(reason)
    }

    /// Those of an owner whose time is over as far as the clock knows.
    pub fn overdue(&self, owner: &Owner, now: Moment) -> Vec<SandboxId> {
        let map = self.lock();
        let overdue = map.entries.iter().filter(|(_, entry)| {
            let is_due = entry.end().is_some_and(|(moment, _)| moment <= now);
            entry.spec.owner == *owner && entry.state() == State::Live && is_due
        });
        overdue.map(|(id, _)| id.clone()).collect()
    }

    pub fn deadline_turn(&self, id: &SandboxId) -> Option<Arc<tokio::sync::Mutex<()>>> {
        self.lock().entries.get(id).map(|entry| Arc::clone(&entry.deadline_turn))
    }

    /// `None` once its end is decided.
    pub fn wanted_deadline(&self, id: &SandboxId, now: Moment) -> Option<Moment> {
        let map = self.lock();
        let entry = map.entries.get(id).filter(|entry| entry.state() == State::Live)?;
        Some(entry.expiry.engine_deadline(now, Duration::ZERO))
    }

    pub fn engine_deadline_set(&self, id: &SandboxId, deadline: Moment) {
        if let Some(entry) = self.lock().entries.get_mut(id) {
            entry.engine_deadline_set(deadline);
        }
    }

    /// Decide the end of a sandbox.
    pub fn begin_stop(&self, id: &SandboxId, reason: StopReason) -> Result<StopTicket> {
        let mut map = self.lock();
        let entry = map.entries.get_mut(id).ok_or(Refusal::Gone)?;
        Ok(entry.begin_stop(reason)?)
    }

    pub fn stop_reason(&self, id: &SandboxId) -> Option<StopReason> {
        self.lock().entries.get(id)?.stop_reason()
    }

    pub fn states(&self, id: &SandboxId) -> Option<watch::Receiver<State>> {
        self.lock().entries.get(id).map(Entry::states)
    }

    /// One of an owner whose run is over and that is not cleared away yet.
    pub fn leaving(&self, owner: &Owner) -> Option<watch::Receiver<State>> {
        let map = self.lock();
        let leaving = map.entries.values().find(|entry| entry.spec.owner == *owner && entry.is_over());
        leaving.map(Entry::states)
    }

    pub fn destroyed(&self, id: &SandboxId) {
        let _ = self.lock().happen(id, Happening::Destroyed);
    }

    pub fn not_destroyed(&self, id: &SandboxId, now: Moment) {
        let mut map = self.lock();
        let _ = map.happen(id, Happening::NotDestroyed);
        if let Some(entry) = map.entries.get_mut(id) {
            entry.retry_stop(now);
        }
    }

    /// The engine no longer knows it. Whether this was news; the owner for the event.
    pub fn lost(&self, id: &SandboxId) -> Option<Owner> {
        let mut map = self.lock();
        let owner = map.entries.get(id)?.spec.owner.clone();
        matches!(map.happen(id, Happening::Lost), Ok(State::Gone)).then_some(owner)
    }

    pub fn is_live(&self, id: &SandboxId) -> bool {
        self.lock().entries.get(id).is_some_and(|entry| entry.state() == State::Live)
    }

    /// Whether something is done in it, or was at `moment` or later.
    pub fn is_used_since(&self, id: &SandboxId, moment: Moment) -> bool {
        let map = self.lock();
        map.entries.get(id).is_some_and(|entry| entry.uses > 0 || entry.expiry.last_used >= moment)
    }

    pub fn persistence(&self, id: &SandboxId) -> Option<Persistence> {
        self.lock().entries.get(id).map(|entry| entry.spec.persistence)
    }

    pub fn owner(&self, id: &SandboxId) -> Option<Owner> {
        self.lock().entries.get(id).map(|entry| entry.spec.owner.clone())
    }

    /// As it was asked for, and how long it lives by now.
    pub fn spec(&self, owner: &Owner, id: &SandboxId) -> Result<(SandboxSpec, Lifetime)> {
        let mut map = self.lock();
        let entry = map.owned(owner, id)?;
        Ok((entry.spec.clone(), entry.expiry.lifetime))
    }

    pub fn set_history(&self, id: &SandboxId, log: Log) {
        if let Some(entry) = self.lock().entries.get_mut(id) {
            entry.log = log;
        }
    }

    pub fn record(&self, id: &SandboxId, line: Line) {
        if let Some(entry) = self.lock().entries.get_mut(id) {
            entry.log.push(line);
        }
    }

    pub fn history(&self, owner: &Owner, id: &SandboxId) -> Result<(SandboxSpec, Log)> {
        let mut map = self.lock();
        let entry = map.owned(owner, id)?;
        Ok((entry.spec.clone(), entry.log.clone()))
    }

    pub fn info(&self, owner: &Owner, id: &SandboxId, clock: &Clock) -> Result<SandboxInfo> {
        let mut map = self.lock();
        let entry = map.owned(owner, id)?;
        Ok(entry.info(id, clock))
    }

    pub fn list(&self, owner: &Owner, clock: &Clock) -> Vec<SandboxInfo> {
        let map = self.lock();
        let owned = map.entries.iter().filter(|(_, entry)| entry.spec.owner == *owner && !entry.is_over());
        owned.map(|(id, entry)| entry.info(id, clock)).collect()
    }

    pub fn list_all(&self, clock: &Clock) -> Vec<SandboxInfo> {
        let map = self.lock();
        map.entries.iter().filter(|(_, entry)| !entry.is_over()).map(|(id, entry)| entry.info(id, clock)).collect()
    }

    /// Sandboxes, and commands that run in them.
    pub fn count(&self) -> (usize, usize) {
        let map = self.lock();
        (map.entries.len(), map.holdings.values().map(|held| held.execs).sum())
    }

    /// Those that the engine should know.
    pub fn live(&self, persistence: Persistence) -> Vec<SandboxId> {
        let map = self.lock();
        let live = map
            .entries
            .iter()
            .filter(|(_, entry)| entry.state() == State::Live && entry.spec.persistence == persistence);
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

impl Map {
    fn owned(&mut self, owner: &Owner, id: &SandboxId) -> Result<&mut Entry> {
        let is_there = |entry: &&mut Entry| entry.spec.owner == *owner && !entry.is_over();
        self.entries.get_mut(id).filter(is_there).ok_or_else(|| Refusal::Gone.into())
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
        let state = entry.happen(happening)?;
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
