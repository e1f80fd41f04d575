//! What all handles of one service share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio::runtime::Handle;
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

use super::ServiceSettings;
use super::clock::{Clock, Moment};
use super::context::Contexts;
use super::expiry::Expiry;
use super::facts::Facts;
use super::job::{Displayed, Jobs, Journals, Kept};
use super::languages::Language;
use super::ledger::{Ledger, Reading, Record, RecordName, RecordState};
use super::lifecycle::{Refusal, State};
use super::packages::Installations;
use super::ports::Tally;
use super::quota::{Bounds, Quotas};
use super::registry::{Found, Registry};
use super::slots::Slots;
use crate::engine::{Capabilities, Engine};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, EventKind, StopReason};
use crate::id::{Owner, SandboxId, SandboxName};
use crate::image::ImageProgram;
use crate::pace::{Paces, TooSoon};
use crate::spec::{Persistence, SandboxSpec};

pub(super) struct Core {
    pub engine: Arc<dyn Engine>,
    pub capabilities: Capabilities,
    pub settings: ServiceSettings,
    pub registry: Registry,
    pub quotas: Quotas,
    paces: Mutex<Paces>,
    pub ledger: Ledger,
    pub clock: Clock,
    pub slots: Slots,
    pub jobs: Jobs,
    /// What is on disk of those in persistent sandboxes.
    pub journals: Journals,
    /// Artifacts of sandboxes that ended with their job.
    pub kept: Kept,
    pub packages: Installations,
    pub contexts: Contexts,
    pub displayed: Displayed,
    /// Connections to what programs listen on.
    pub tally: Tally,
    /// Wakes the reaper before its time.
    pub poke: Arc<Notify>,
    /// When the reaper wakes by itself.
    pub wakes_at: AtomicU64,
    /// Whether an image's program passed a runner's check.
    pub suitable: Facts<Vec<String>, bool>,
    pub languages: Facts<(), Vec<Language>>,
    /// For work that starts where no runtime is entered, in a `drop` on another thread.
    pub runtime: Handle,
}

impl Core {
    pub fn new(engine: Arc<dyn Engine>, capabilities: Capabilities, settings: ServiceSettings) -> Result<Self> {
        Ok(Self {
            engine,
            capabilities,
            registry: Registry::default(),
            quotas: Quotas::new(Bounds { usual: settings.quota, of: settings.quota_of.clone() }),
            paces: Mutex::default(),
            ledger: Ledger::open(&settings.state_dir)?,
            clock: Clock::start(),
            slots: Slots::new(settings.create_slots, settings.create_queue),
            jobs: Jobs::new(settings.create_queue),
            journals: Journals::new(&settings.state_dir),
            kept: Kept::new(settings.jobs),
            packages: Installations::new(&settings.state_dir, settings.packages.as_ref()),
            contexts: Contexts::new(settings.contexts),
            displayed: Displayed::default(),
            tally: Tally::default(),
            poke: Arc::new(Notify::new()),
            wakes_at: AtomicU64::new(0),
            suitable: Facts::default(),
            languages: Facts::default(),
            runtime: Handle::current(),
            settings,
        })
    }

    pub fn emit(&self, owner: &Owner, id: &SandboxId, kind: EventKind) {
        self.settings.events.emit(owner, id, kind);
    }

    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.settings.events.subscribe()
    }

    /// Whether this owner may start something now; it counts from here on.
    pub fn admit_run(&self, owner: &Owner) -> Result<()> {
        let Some(rate) = self.quotas.of(owner).runs else { return Ok(()) };
        let mut paces = self.paces.lock().unwrap_or_else(PoisonError::into_inner);
        paces.take(owner, rate, Instant::now().into_std()).map_err(|too_soon: TooSoon| {
            Error::limit_exceeded(format!("you may start {} runs in a minute, and have", rate.0))
                .with_hint(format!("try again in {} s", too_soon.seconds()))
        })
    }

    /// Wake the reaper if it would sleep past `moment`.
    pub fn wake_by(&self, moment: Moment) {
        if self.wakes_at.load(Ordering::Acquire) > moment.0 {
            self.poke.notify_one();
        }
    }

    /// From memory, or from the ledger if another process made it a moment ago.
    pub fn locate(&self, owner: &Owner, id: &SandboxId) -> Result<Found> {
        if let Some(found) = self.registry.find(owner, id) {
            let ended_elsewhere = found.persistence == Persistence::Persistent
                && found.state == State::Live
                && !self.ledger.has_record(&RecordName::new(owner, id));
            if ended_elsewhere {
                self.lose(id);
                return Err(Refusal::Gone.into());
            }
            return Ok(found);
        }
        // One that is somebody else's, in memory or not, is looked for on disk as its asker's, like an unknown one: both answers
        // must take the same way.
        if let Reading::Record(record) = self.ledger.read(&RecordName::new(owner, id))?
            && record.spec.owner == *owner
            && self.is_mine(&record)
        {
            match record.state {
                RecordState::Creating => return Err(Refusal::StillCreating.into()),
                RecordState::Stopping => return Err(Refusal::Stopping.into()),
                RecordState::Live => self.adopt(&record),
            }
            return Ok(Found { persistence: Persistence::Persistent, state: State::Live });
        }
        Err(Refusal::Gone.into())
    }

    /// By id, or by the name that its owner gave it.
    pub fn find(&self, owner: &Owner, id_or_name: &str) -> Result<SandboxId> {
        if let Ok(id) = id_or_name.parse::<SandboxId>() {
            self.locate(owner, &id)?;
            return Ok(id);
        }
        let Ok(name) = id_or_name.parse::<SandboxName>() else { return Err(Refusal::Gone.into()) };
        if let Some(id) = self.registry.find_named(owner, &name)
            && self.locate(owner, &id).is_ok()
        {
            return Ok(id);
        }
        let records = self.ledger.scan(owner)?;
        let named = records.iter().find(|record| record.spec.name.as_ref() == Some(&name) && self.is_mine(record));
        let id = named.map(|record| record.id.clone()).ok_or(Refusal::Gone)?;
        self.locate(owner, &id)?;
        Ok(id)
    }

    pub fn may_have_persistent(&self) -> Result<bool> {
        Ok(!self.registry.live(Persistence::Persistent).is_empty() || !self.ledger.names()?.is_empty())
    }

    /// Records of other engines in the same state directory are none of our business.
    pub fn is_mine(&self, record: &Record) -> bool {
        record.engine == self.engine_of_records()
    }

    pub fn engine_of_records(&self) -> String {
        let Capabilities { name, realm, .. } = &self.capabilities;
        realm.as_ref().map_or_else(|| (*name).to_owned(), |realm| format!("{name} {realm}"))
    }

    /// The record of a sandbox whose life begins now.
    pub fn record(&self, id: &SandboxId, spec: SandboxSpec, state: RecordState, now: Moment) -> Record {
        Record {
            id: id.clone(),
            engine: self.engine_of_records(),
            instance: self.settings.instance.clone(),
            state,
            created_at: SystemTime::now(),
            boot: self.clock.boot().to_owned(),
            created: now,
            total_until: Expiry::new(spec.lifetime, now).total_until,
            spec,
            program: ImageProgram::default(),
        }
    }

    pub fn adopt(&self, record: &Record) {
        let expiry = record.expiry(&self.clock, self.ledger.lease(&record.id).last_used());
        if self.registry.adopt(record, expiry) {
            self.emit(&record.spec.owner, &record.id, EventKind::Adopted);
            self.poke.notify_one();
        }
    }

    /// Names and quotas must not count what another process has ended.
    pub fn lose_ended_elsewhere(&self) {
        for id in self.registry.live(Persistence::Persistent) {
            if self.record_name(&id).is_some_and(|name| !self.ledger.has_record(&name)) {
                self.lose(&id);
            }
        }
    }

    /// Of one that is known here.
    pub fn record_name(&self, id: &SandboxId) -> Option<RecordName> {
        self.registry.owner(id).map(|owner| RecordName::new(&owner, id))
    }

    /// The engine, or another process, has ended it.
    pub fn lose(&self, id: &SandboxId) {
        if let Some(owner) = self.registry.lost(id) {
            self.contexts.forget(id);
            self.displayed.forget(id);
            self.emit(&owner, id, EventKind::Stopped { reason: StopReason::Lost });
        }
    }

    /// An engine says `NotFound` of a program, a file or the whole sandbox alike; find out which, and forget a lost one.
    pub async fn explain(&self, id: &SandboxId, error: Error) -> Error {
        if error.kind() != ErrorKind::NotFound {
            return error;
        }
        match self.engine.usage(id).await {
            Err(gone) if gone.kind() == ErrorKind::NotFound => {
                let name = self.record_name(id);
                self.lose(id);
                if let Some(name) = name {
                    self.forget_record(&name).await;
                }
                Refusal::Gone.into()
            }
            Ok(_) | Err(_) => error,
        }
    }

    /// Remove the record of a sandbox that the engine no longer has.
    pub async fn forget_record(&self, name: &RecordName) {
        let id = &name.id;
        if matches!(self.ledger.read(name), Ok(Reading::Nothing)) {
            return;
        }
        let Ok(Some(lock)) = self.ledger.try_lock(id) else { return };
        let gone = self.engine.usage(id).await.is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if gone && let Err(error) = self.ledger.remove(name, lock).await {
            tracing::warn!(%id, ?error, "the record of a sandbox that is gone stays");
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // So that the reaper sees the end now, and not at its next turn.
        self.poke.notify_one();
    }
}
