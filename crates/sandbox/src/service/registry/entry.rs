//! One sandbox as the registry knows it: its state, who uses it, and what its clock asks for.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use crate::engine::Rest;
use crate::event::StopReason;
use crate::id::SandboxId;
use crate::image::ImageProgram;
use crate::path::GuestPath;
use crate::service::SandboxInfo;
use crate::service::clock::{Clock, Moment};
use crate::service::expiry::Expiry;
use crate::service::history::Log;
use crate::service::lifecycle::{self, Happening, Refusal, State};
use crate::spec::{Persistence, SandboxSpec};

/// An engine that fails to destroy is asked again after this, and then ever more seldom.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);
/// A sandbox that lives shorter than this costs no call for the engine's deadline: it dies with its process anyway.
pub(crate) const FIRST_ENGINE_DEADLINE: Duration = Duration::from_secs(1);

/// One that seems expired may be in use all the same: by another process, or by what runs in it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Who ends a sandbox.
#[derive(Debug)]
pub(crate) enum StopTicket {
    /// The caller does, and reports with [`super::Registry::destroyed`] or [`super::Registry::not_destroyed`].
    Yours,
    /// Somebody else is at it; wait for `Gone`.
    Theirs(watch::Receiver<State>),
}

/// What the clock asks for now.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Already moved to `Stopping`: the caller ends them.
    pub expired: Vec<(SandboxId, StopReason)>,
    /// Still live: another process may have used them since, or something runs in them that nobody here waits for.
    pub maybe_expired: Vec<SandboxId>,
    /// Ephemeral ones whose engine deadline must be moved.
    pub deadlines: Vec<SandboxId>,
    pub next: Option<Moment>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub spec: SandboxSpec,
    pub program: ImageProgram,
    state: State,
    pub created_at: SystemTime,
    pub expiry: Expiry,
    /// Calls and commands that hold off the idle time.
    pub uses: usize,
    pub execs: usize,
    pub log: Log,
    /// Why it does not run, as the engine said last.
    pub rest: Option<Rest>,
    engine_deadline_at: Moment,
    /// Whoever tells the engine about its deadline.
    pub deadline_turn: Arc<tokio::sync::Mutex<()>>,
    /// One that seemed expired is not looked at again before this.
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

impl Entry {
    pub fn new(spec: SandboxSpec, state: State, now: Moment) -> Self {
        Self {
            state,
            created_at: SystemTime::now(),
            expiry: Expiry::new(spec.lifetime, now),
            uses: 0,
            execs: 0,
            log: Log::default(),
            rest: None,
            engine_deadline_at: now.after(FIRST_ENGINE_DEADLINE),
            deadline_turn: Arc::default(),
            look_at: now,
            stop: None,
            states: watch::Sender::new(state),
            program: ImageProgram::default(),
            spec,
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Tells those who wait for its end, too.
    pub fn happen(&mut self, happening: Happening) -> Result<State, Refusal> {
        let state = lifecycle::next(self.state, happening)?;
        if state != self.state {
            self.state = state;
            self.states.send_replace(state);
        }
        Ok(state)
    }

    /// The time that it took to make it is not its own.
    pub fn start_clock(&mut self, now: Moment) {
        self.expiry = Expiry::new(self.expiry.lifetime, now);
        self.engine_deadline_at = now.after(FIRST_ENGINE_DEADLINE);
    }

    pub fn engine_deadline_set(&mut self, deadline: Moment) {
        self.engine_deadline_at = self.expiry.renew_engine_at(deadline).unwrap_or(Moment(u64::MAX));
    }

    /// When and why it ends if nothing changes.
    pub fn end(&self) -> Option<(Moment, StopReason)> {
        // The idle time of one that rests begins when it runs again.
        self.expiry.due(self.uses > 0 || self.rest.is_some())
    }

    pub fn begin_stop(&mut self, reason: StopReason) -> Result<StopTicket, Refusal> {
        let creating = self.state == State::Creating;
        self.happen(Happening::Stop)?;
        match &mut self.stop {
            Some(stop) if stop.taken => Ok(StopTicket::Theirs(self.states.subscribe())),
            Some(stop) => {
                stop.taken = true;
                Ok(StopTicket::Yours)
            }
            None => {
                self.stop = Some(Stop { reason, taken: true, retry_at: Moment(u64::MAX), retry_after: FIRST_RETRY });
                // Whoever creates it will see `Stopping` and destroy it.
                if creating { Ok(StopTicket::Theirs(self.states.subscribe())) } else { Ok(StopTicket::Yours) }
            }
        }
    }

    pub fn retry_stop(&mut self, now: Moment) {
        if let Some(stop) = &mut self.stop {
            stop.taken = false;
            stop.retry_at = now.after(stop.retry_after);
            stop.retry_after = (stop.retry_after * 2).min(LAST_RETRY);
        }
    }

    /// Its run is over, and so is it, for everybody but those who clear it away and those who count. One that could not be cleared
    /// away is seen again.
    pub fn is_over(&self) -> bool {
        let ends = |stop: &Stop| stop.taken && stop.reason == StopReason::Finished;
        self.state == State::Stopping && self.stop.as_ref().is_some_and(ends)
    }

    pub fn states(&self) -> watch::Receiver<State> {
        self.states.subscribe()
    }

    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop.as_ref().map(|stop| stop.reason)
    }

    /// Adds to `due` what is to be done now; when to ask again.
    pub fn due(&mut self, id: &SandboxId, now: Moment, due: &mut Due) -> Option<Moment> {
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
        let end = self.end();
        if let Some((moment, reason)) = end
            && moment <= now
        {
            if self.spec.persistence == Persistence::Ephemeral && reason != StopReason::Idle {
                if let Ok(StopTicket::Yours) = self.begin_stop(reason) {
                    due.expired.push((id.clone(), reason));
                }
                return None;
            }
            if self.look_at <= now {
                self.look_at = now.after(LOOK_AGAIN);
                due.maybe_expired.push(id.clone());
            }
            return Some(self.look_at);
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

    pub fn info(&self, id: &SandboxId, clock: &Clock) -> SandboxInfo {
        SandboxInfo {
            id: id.clone(),
            owner: self.spec.owner.clone(),
            name: self.spec.name.clone(),
            image: self.spec.image.clone(),
            persistence: self.spec.persistence,
            state: self.state,
            rest: self.rest,
            created_at: self.created_at,
            expires_at: self.end().and_then(|(moment, _)| clock.wall(moment)),
            lifetime: self.expiry.lifetime,
            limits: self.spec.limits,
            network: self.spec.network.clone(),
            work_directory: self.spec.work_directory.clone().unwrap_or_else(GuestPath::workspace),
            program: self.program.clone(),
            running: self.execs,
        }
    }
}
