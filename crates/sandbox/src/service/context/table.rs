//! Which contexts there are, and whose turn it is in each. Nothing is awaited while the table is locked.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::driver::{Driver, Life};
use crate::context::{ContextEnd, ContextInfo, ContextLanguage, ContextName, ContextSettings, ContextState};
use crate::error::{Error, ErrorKind, Result};
use crate::id::SandboxId;
use crate::path::GuestPath;
use crate::runner::RunCode;

#[derive(Default)]
pub(in crate::service) struct Contexts {
    sandboxes: Mutex<HashMap<SandboxId, BTreeMap<ContextName, Arc<Slot>>>>,
    settings: ContextSettings,
}

/// One context: whoever has its seat may run something in it.
pub(super) struct Slot {
    pub name: ContextName,
    pub language: ContextLanguage,
    /// Given in the order in which it was asked for.
    pub seat: Arc<tokio::sync::Mutex<Seat>>,
    /// Who has the seat or waits for it.
    claims: AtomicUsize,
    facts: Mutex<Facts>,
}

#[derive(Default)]
pub(super) struct Seat {
    pub driver: Option<Driver>,
    pub runs: u32,
    /// Why the interpreter before was lost, until a run was told.
    pub lost: Option<ContextEnd>,
    /// How the interpreter was started, to start it so again.
    pub start: Option<RunCode>,
    /// Results of the last runs, the oldest first: more are not kept.
    pub results: VecDeque<GuestPath>,
}

/// What can be told without a seat.
struct Facts {
    life: Option<Arc<Life>>,
    running: bool,
    runs: u32,
    started_at: SystemTime,
    /// No longer in the table.
    closed: bool,
}

impl Slot {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn started(&self, life: &Arc<Life>) {
        let mut facts = self.facts();
        facts.life = Some(Arc::clone(life));
        facts.started_at = SystemTime::now();
        facts.runs = 0;
    }

    pub fn set_running(&self, running: bool, runs: u32) {
        let mut facts = self.facts();
        (facts.running, facts.runs) = (running, runs);
    }

    pub fn life(&self) -> Option<Arc<Life>> {
        self.facts().life.clone()
    }

    pub fn is_closed(&self) -> bool {
        self.facts().closed
    }

    fn lives(&self) -> bool {
        self.life().is_some_and(|life| life.end_reason().is_none())
    }

    pub fn info(&self) -> ContextInfo {
        let facts = self.facts();
        let ended = facts.life.as_ref().and_then(|life| life.end_reason());
        let state = match ended {
            Some(end) => ContextState::Ended(end),
            None if facts.running => ContextState::Running,
            None => ContextState::Idle,
        };
        ContextInfo {
            name: self.name.clone(),
            language: self.language,
            state,
            runs: facts.runs,
            started_at: facts.started_at,
        }
    }
}

/// The right to wait for a seat.
pub(super) struct Claim<'a> {
    contexts: &'a Contexts,
    sandbox: SandboxId,
    pub slot: Arc<Slot>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut sandboxes = self.contexts.lock();
        let was_last = self.slot.claims.fetch_sub(1, Ordering::AcqRel) == 1;
        // One whose interpreter never came to life is none.
        if was_last && self.slot.life().is_none() {
            remove(&mut sandboxes, &self.sandbox, &self.slot);
        }
    }
}

type Sandboxes = HashMap<SandboxId, BTreeMap<ContextName, Arc<Slot>>>;

fn remove(sandboxes: &mut Sandboxes, sandbox: &SandboxId, slot: &Arc<Slot>) {
    let Some(slots) = sandboxes.get_mut(sandbox) else { return };
    if slots.get(&slot.name).is_some_and(|there| Arc::ptr_eq(there, slot)) {
        slots.remove(&slot.name);
    }
    if slots.is_empty() {
        sandboxes.remove(sandbox);
    }
}

impl Contexts {
    pub fn new(settings: ContextSettings) -> Self {
        Self { sandboxes: Mutex::default(), settings }
    }

    fn lock(&self) -> MutexGuard<'_, Sandboxes> {
        // A panic under the lock is a fault of one call; the map is changed in single steps and stays whole.
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wait for this context's seat, which is made if there is none.
    pub(super) fn claim(
        &self,
        sandbox: &SandboxId,
        name: &ContextName,
        language: ContextLanguage,
    ) -> Result<Claim<'_>> {
        let mut sandboxes = self.lock();
        let slots = sandboxes.entry(sandbox.clone()).or_default();
        let slot = match slots.get(name) {
            Some(slot) if slot.language != language => return Err(other_language(slot)),
            Some(slot) => Arc::clone(slot),
            None => {
                self.make_room(slots)?;
                let facts = Facts { life: None, running: false, runs: 0, started_at: SystemTime::now(), closed: false };
                let slot = Arc::new(Slot {
                    name: name.clone(),
                    language,
                    seat: Arc::default(),
                    claims: AtomicUsize::new(0),
                    facts: Mutex::new(facts),
                });
                slots.insert(name.clone(), Arc::clone(&slot));
                slot
            }
        };
        if slot.claims.load(Ordering::Acquire) > self.settings.queue {
            return Err(Error::limit_exceeded(format!(
                "{} runs wait for the context {name}, which is all that may",
                self.settings.queue
            ))
            .with_hint("wait for one of them to end, or run in another context"));
        }
        slot.claims.fetch_add(1, Ordering::AcqRel);
        Ok(Claim { contexts: self, sandbox: sandbox.clone(), slot })
    }

    /// Those that have ended are remembered as long as there is room.
    fn make_room(&self, slots: &mut BTreeMap<ContextName, Arc<Slot>>) -> Result<()> {
        if slots.len() < self.settings.per_sandbox {
            return Ok(());
        }
        let is_past = |slot: &Slot| slot.claims.load(Ordering::Acquire) == 0 && !slot.lives();
        let past = slots.values().find(|slot| is_past(slot)).map(|slot| slot.name.clone());
        match past {
            Some(name) => {
                slots.remove(&name);
                Ok(())
            }
            None => Err(Error::limit_exceeded(format!(
                "this sandbox has {} contexts, which is all it may have",
                self.settings.per_sandbox
            ))
            .with_hint("close one that you no longer need, or use one that is there")),
        }
    }

    pub(super) fn slots(&self, sandbox: &SandboxId) -> Vec<Arc<Slot>> {
        self.lock().get(sandbox).map(|slots| slots.values().cloned().collect()).unwrap_or_default()
    }

    pub(super) fn find(&self, sandbox: &SandboxId, name: &ContextName) -> Result<Arc<Slot>> {
        let sandboxes = self.lock();
        let slots = sandboxes.get(sandbox);
        slots.and_then(|slots| slots.get(name)).cloned().ok_or_else(|| {
            let names: Vec<_> = slots.into_iter().flat_map(BTreeMap::keys).map(ContextName::as_str).collect();
            let hint = match names.as_slice() {
                [] => "this sandbox has no contexts: run_code with context makes one".to_owned(),
                names => format!("its contexts are {}", names.join(", ")),
            };
            Error::not_found(format!("this sandbox has no context {name}")).with_hint(hint)
        })
    }

    /// Those who wait for its seat find it closed.
    pub(super) fn take_out(&self, sandbox: &SandboxId, slot: &Arc<Slot>) {
        slot.facts().closed = true;
        remove(&mut self.lock(), sandbox, slot);
    }

    /// Names of those that live in a sandbox.
    pub fn living(&self, sandbox: &SandboxId) -> Vec<ContextName> {
        let slots = self.slots(sandbox);
        slots.iter().filter(|slot| slot.lives()).map(|slot| slot.name.clone()).collect()
    }

    /// The sandbox is gone, and all that ran in it.
    pub fn forget(&self, sandbox: &SandboxId) {
        let slots = self.lock().remove(sandbox);
        for slot in slots.into_iter().flat_map(BTreeMap::into_values) {
            slot.facts().closed = true;
        }
    }

    /// The service is about to end.
    pub fn clear(&self) {
        let all: Vec<SandboxId> = self.lock().keys().cloned().collect();
        for sandbox in all {
            self.forget(&sandbox);
        }
    }

    /// End all of them, and wait for it: what they have started must not be there when this process is not.
    pub async fn end_all(&self) {
        let slots: Vec<_> = self.lock().values().flat_map(BTreeMap::values).cloned().collect();
        let mut endings = tokio::task::JoinSet::new();
        for life in slots.iter().filter_map(|slot| slot.life()) {
            endings.spawn(async move {
                life.takes_branches_along();
                life.end(ContextEnd::Closed).await;
            });
        }
        endings.join_all().await;
        self.clear();
    }

    /// End those that nobody runs anything in. Whether there were any.
    pub async fn end_idle(&self, sandbox: &SandboxId) -> bool {
        let idle: Vec<_> = self.slots(sandbox).into_iter().filter(|slot| slot.lives()).collect();
        for slot in &idle {
            if let Some(life) = slot.life() {
                life.takes_branches_along();
                life.end(ContextEnd::Idle).await;
            }
        }
        !idle.is_empty()
    }
}

fn other_language(slot: &Slot) -> Error {
    let (name, language) = (&slot.name, slot.language);
    Error::new(ErrorKind::InvalidInput, format!("the context {name} is of {language}"))
        .with_hint("use another name for a context of another language, or close this one first")
}
