//! Making a sandbox. A task of its own does the work, so that a caller who goes away leaves nothing half done.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument, info_span};

use super::SandboxInfo;
use super::core::Core;
use super::history::Log;
use super::hold::Hold;
use super::ledger::{Record, RecordLock, RecordState};
use super::lifecycle::State;
use super::quota::Elsewhere;
use super::registry::{FIRST_ENGINE_DEADLINE, name_taken};
use crate::SPANS;
use crate::engine::Made;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{EventKind, StopReason};
use crate::id::{Owner, SandboxId};
use crate::network::Network;
use crate::spec::{Persistence, SandboxSpec};
use crate::tree::Snapshots;

/// Where the files of a new sandbox come from.
pub(super) enum Origin {
    Image,
    /// Another sandbox, which is held until the branch is made.
    Fork {
        snapshots: Arc<dyn Snapshots>,
        source: Hold,
    },
}

impl Core {
    pub(super) async fn create(self: &Arc<Self>, spec: SandboxSpec, origin: Origin) -> Result<SandboxInfo> {
        let id = SandboxId::random()?;
        let slot = match self.slots.slot(&spec.owner).await {
            Ok(slot) => slot,
            Err(error) => {
                self.emit(&spec.owner, &id, EventKind::CreateRefused { kind: error.kind() });
                return Err(error);
            }
        };
        let (answer, answered) = oneshot::channel();
        let core = Arc::clone(self);
        let making = async move {
            let made = core.make(&id, &spec, &origin, std::future::pending()).await;
            drop((slot, origin));
            // Dropping the delivery unread, here or in the channel, is how we learn that nobody wants the sandbox.
            let _ = answer.send(made.map(|info| Delivery { core, info: Some(info) }));
        };
        tokio::spawn(making.in_current_span());
        match answered.await {
            Ok(Ok(delivery)) => Ok(delivery.accept()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::internal("creating the sandbox ended without an answer")),
        }
    }

    /// Must not be dropped before it ends; `unwanted` is how to give up.
    pub(super) async fn make(
        self: &Arc<Self>,
        id: &SandboxId,
        spec: &SandboxSpec,
        origin: &Origin,
        unwanted: impl Future<Output = ()>,
    ) -> Result<SandboxInfo> {
        let span = info_span!(
            target: SPANS,
            "create sandbox",
            "sandpen.sandbox.id" = id.as_str(),
            "sandpen.engine" = self.capabilities.name,
            "otel.error" = Empty,
        );
        let made = self.make_it(id, spec, origin, unwanted).instrument(span.clone()).await;
        if let Err(error) = &made {
            span.record("otel.error", error.kind().as_str());
        }
        made
    }

    async fn make_it(
        self: &Arc<Self>,
        id: &SandboxId,
        spec: &SandboxSpec,
        origin: &Origin,
        unwanted: impl Future<Output = ()>,
    ) -> Result<SandboxInfo> {
        let started = Instant::now();
        let owner = &spec.owner;
        let admitted = loop {
            match self.admit(id, spec).await {
                Err(error) if error.kind() == ErrorKind::LimitExceeded && self.makes_room(owner).await => {}
                admitted => break admitted,
            }
        };
        let (reservation, record) =
            admitted.inspect_err(|error| self.emit(owner, id, EventKind::CreateRefused { kind: error.kind() }))?;

        let log = self.first_log(spec, origin);
        let made = tokio::select! {
            made = self.bring_about(id, spec, origin) => made,
            () = unwanted => {
                // A create that is given up leaves nothing; this is how we know.
                let _ = self.engine.destroy(id).await;
                Err(Error::unavailable("the sandbox was stopped while it was being created"))
            }
        };
        let made = match made {
            Ok(made) => made,
            Err(error) => return Err(self.not_made(owner, id, error, record).await),
        };
        let state = self.registry.made(id, made.clone(), self.clock.now())?;
        reservation.keep();
        if let Err(error) = self.write_down(id, made, record, log).await {
            self.emit(owner, id, EventKind::CreateFailed { kind: error.kind() });
            let _ = self.end(id, StopReason::Abandoned).await;
            return Err(error);
        }
        match state {
            State::Live => {}
            State::Creating | State::Stopping | State::Gone => {
                let reason = self.registry.stop_reason(id).unwrap_or(StopReason::Asked);
                let _ = self.destroy(id, reason).await;
                return Err(Error::unavailable("the sandbox was stopped while it was being created"));
            }
        }
        let took = started.elapsed();
        let info = self.registry.info(owner, id, &self.clock)?;
        let (network, secrets) = (info.network.clone(), spec.secrets.clone());
        let (persistence, limits) = (info.persistence, info.limits);
        self.emit(owner, id, EventKind::Created { persistence, limits, network, secrets, took });
        self.wake_by(self.clock.now().after(spec.lifetime.idle.min(FIRST_ENGINE_DEADLINE)));
        Ok(info)
    }

    /// Of one that could not be made nothing stays behind.
    async fn not_made(
        &self,
        owner: &Owner,
        id: &SandboxId,
        error: Error,
        record: Option<(Record, RecordLock)>,
    ) -> Error {
        self.emit(owner, id, EventKind::CreateFailed { kind: error.kind() });
        if let Some((record, lock)) = record
            && let Err(error) = self.ledger.remove(&record.name(), lock).await
        {
            tracing::warn!(%id, ?error, "the record of a sandbox that was not made stays until the next sweep");
        }
        error
    }

    async fn bring_about(&self, id: &SandboxId, spec: &SandboxSpec, origin: &Origin) -> Result<Made> {
        match origin {
            Origin::Image => self.engine.create(id, spec).await,
            Origin::Fork { snapshots, source } => {
                // Asked for first: the source may end while it is branched, and its branch is there all the same.
                let SandboxInfo { work_directory, program, .. } =
                    self.registry.info(&source.owner, &source.id, &self.clock)?;
                match snapshots.fork(&source.id, id, spec).await {
                    Ok(()) => {
                        self.emit(&source.owner, &source.id, EventKind::Forked { into: id.clone() });
                        Ok(Made { work_directory, program })
                    }
                    Err(error) => Err(source.explain(error).await),
                }
            }
        }
    }

    /// A branch has done what the other has done so far. Taken before the branch is: what comes later is not in its files.
    fn first_log(&self, spec: &SandboxSpec, origin: &Origin) -> Log {
        match origin {
            Origin::Image => Log::new(self.known_environment(&spec.environment).withheld),
            Origin::Fork { source, .. } => match self.log(&source.owner, &source.id) {
                Ok((_, log)) => log.without_marks(),
                Err(_) => Log::incomplete(),
            },
        }
    }

    /// Promise the sandbox to its owner: in memory, and on disk if it is to outlive us.
    async fn admit(
        self: &Arc<Self>,
        id: &SandboxId,
        spec: &SandboxSpec,
    ) -> Result<(Reservation, Option<(Record, RecordLock)>)> {
        spec.limits.check()?;
        let persistent = spec.persistence == Persistence::Persistent;
        if persistent && !self.capabilities.persistence {
            return Err(Error::unsupported(format!(
                "the {} engine cannot keep a sandbox beyond its process",
                self.capabilities.name
            )));
        }
        if !spec.network.is_none() && !self.capabilities.network {
            return Err(Error::unsupported(format!(
                "the {} engine cannot give a sandbox a network and hold it to its rules",
                self.capabilities.name
            )));
        }
        if let (Network::None, Some(secret)) = (&spec.network, spec.secrets.first()) {
            return Err(Error::invalid_input(format!("a sandbox without a network cannot use the secret {secret}"))
                .with_hint("name the secret's host in its network, or leave the secret out"));
        }
        let now = self.clock.now();
        let quota = &self.quotas.of(&spec.owner);
        let reservation = || Reservation { core: Arc::clone(self), id: id.clone(), kept: false };
        if !persistent && spec.name.is_none() && quota.disk.is_none() {
            self.registry.reserve(id, spec, quota, &Elsewhere::default(), now)?;
            return Ok((reservation(), None));
        }

        let admission = self.ledger.lock_admission().await?;
        self.lose_ended_elsewhere();
        let records = self.ledger.scan(&spec.owner)?;
        if let Some(name) = &spec.name
            && records.iter().any(|record| record.spec.name.as_ref() == Some(name) && self.is_mine(record))
        {
            return Err(name_taken(name));
        }
        let elsewhere = self.elsewhere(&spec.owner, &records, &admission).await?;
        self.registry.reserve(id, spec, quota, &elsewhere, now)?;
        let reservation = reservation();
        if !persistent {
            return Ok((reservation, None));
        }
        let record = self.record(id, spec.clone(), RecordState::Creating, now);
        let lock = self.ledger.lock(id).await?;
        if let Err(error) = self.ledger.write(&record, &lock).await {
            let _ = self.ledger.remove(&record.name(), lock).await;
            return Err(error);
        }
        Ok((reservation, Some((record, lock))))
    }

    /// What the engine enforces may be tighter than what was asked; what is shown later must be what is in force.
    async fn write_down(
        &self,
        id: &SandboxId,
        made: Made,
        record: Option<(Record, RecordLock)>,
        log: Log,
    ) -> Result<()> {
        let limits = self.engine.isolation(id).await?.limits;
        self.registry.set_limits(id, limits);
        match record {
            Some((mut record, lock)) => {
                record.spec.limits = limits;
                record.spec.work_directory = Some(made.work_directory);
                record.program = made.program;
                self.ledger.history(id).make(&log)?;
                self.make_durable(record, lock).await
            }
            None => {
                self.registry.set_history(id, log);
                Ok(())
            }
        }
    }

    /// From here on the sandbox can be found, used and ended by every process.
    async fn make_durable(&self, mut record: Record, lock: RecordLock) -> Result<()> {
        let now = self.clock.now();
        let expiry = record.expiry(&self.clock, Some(now));
        let deadline = expiry.engine_deadline(now, Duration::ZERO);
        self.engine.set_deadline(&record.id, Some(deadline.since(now))).await?;
        let lease = self.ledger.lease(&record.id);
        lease.make(now)?;
        if let Some(hold) = lease.hold()? {
            hold.set_engine_deadline(deadline)?;
        }
        record.state = RecordState::Live;
        self.ledger.write(&record, &lock).await
    }
}

/// A promise that is taken back unless it is kept.
struct Reservation {
    core: Arc<Core>,
    id: SandboxId,
    kept: bool,
}

impl Reservation {
    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.kept {
            self.core.registry.not_made(&self.id);
        }
    }
}

/// A sandbox on its way to the caller. Nobody knows its id before it arrives, so one that does not is ended.
struct Delivery {
    core: Arc<Core>,
    info: Option<SandboxInfo>,
}

impl Delivery {
    fn accept(mut self) -> SandboxInfo {
        self.info.take().expect("a delivery is accepted once, and only this empties it")
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let Some(info) = self.info.take() else { return };
        let core = Arc::clone(&self.core);
        self.core.runtime.spawn(async move { core.end(&info.id, StopReason::Abandoned).await });
    }
}
