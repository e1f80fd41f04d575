//! Live contexts: interpreters that stay in their sandbox, and runs in them, one at a time in each.
//!
//! ```text
//! run ─▶ claim ─▶ seat, in order ─▶ hold the sandbox ─▶ interpreter, if there is none ─▶ turn ─▶ results ─▶ seat is free
//!                 └ given up: no trace                                                    └ interrupted, or killed
//! ```
//!
//! Between two runs a context holds nothing: it does not keep its sandbox alive, and ends with it. What comes from a driver
//! is what any program could have written, and decides about the result of this run alone.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::sync::{MutexGuard, OwnedMutexGuard};

use super::SandboxInfo;
use super::core::Core;
use super::files::HeldFiles;
use super::hold::Hold;
use super::registry::Use;
use super::run::write_whole;
use crate::context::results::{LIST, MOST_BYTES};
use crate::context::{ContextEnd, ContextInfo, ContextLanguage, ContextName, ContextReport, ContextState, Results};
use crate::engine::Process;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::exec::{ExecOutcome, ExecRequest, Script};
use crate::file::ByteRange;
use crate::id::{Owner, SandboxId};
use crate::path::GuestPath;
use crate::runner::{Plan, RunCode, Runs};
use crate::spec::Environment;

mod branch;
mod driver;
mod feed;
mod table;

pub use branch::BranchRequest;
use driver::{Driver, Turned};
pub(super) use feed::Sink;
pub(super) use table::Contexts;
use table::{Claim, Seat, Slot};

/// An interpreter ends with its context, its sandbox or this process. The engine wants to know how long it may run all the
/// same.
const FOREVER: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long an interpreter may take to say what it can.
const CHECK: Duration = Duration::from_secs(30);

/// How often whoever closes a context looks whether there is something new to end.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Runs whose results stay in the sandbox, per context.
const KEPT_RESULTS: usize = 8;

/// The right to run something in a context, alone.
pub(super) struct TakenSeat<'a> {
    seat: OwnedMutexGuard<Seat>,
    claim: Claim<'a>,
}

/// How a run in a context ended.
pub(super) struct ContextRun {
    pub outcome: ExecOutcome,
    pub report: ContextReport,
    pub results: Results,
}

impl Core {
    /// Wait for the turn of a run in a context. `None` when it was stopped before that came.
    pub(super) async fn context_seat(
        &self,
        owner: &Owner,
        id: &SandboxId,
        name: &ContextName,
        language: &str,
        stopped: impl Future<Output = ()>,
    ) -> Result<Option<TakenSeat<'_>>> {
        self.locate(owner, id)?;
        let language = ContextLanguage::of_runner(&self.runner(language).await?.name)?;
        let claim = self.contexts.claim(id, name, language)?;
        let seat = tokio::select! {
            biased;
            () = stopped => return Ok(None),
            seat = Arc::clone(&claim.slot.seat).lock_owned() => seat,
        };
        if claim.slot.is_closed() {
            return Err(closed(name));
        }
        Ok(Some(TakenSeat { seat, claim }))
    }

    pub(super) async fn run_in_context(
        self: &Arc<Self>,
        owner: &Owner,
        id: &SandboxId,
        taken: &mut TakenSeat<'_>,
        run: RunCode,
        sink: Sink,
        stopped: impl Future<Output = ()>,
    ) -> Result<ContextRun> {
        let TakenSeat { seat, claim } = taken;
        let ran = self.turn(owner, id, &claim.slot, seat, run, sink, stopped).await;
        if let Err(error) = &ran {
            self.emit(owner, id, EventKind::ExecRefused { kind: error.kind() });
        }
        ran
    }

    #[expect(clippy::too_many_arguments, reason = "they are what a run is")]
    async fn turn(
        self: &Arc<Self>,
        owner: &Owner,
        id: &SandboxId,
        slot: &Slot,
        seat: &mut Seat,
        run: RunCode,
        sink: Sink,
        stopped: impl Future<Output = ()>,
    ) -> Result<ContextRun> {
        // It counts as a command from here to its end, by the same bounds.
        let request = ExecRequest::new([slot.language.as_str()], run.timeout)?;
        let hold = Hold::take(self, owner, id, Use::Exec(&request, &self.quotas.of(owner)))?;
        hold.keep_alive(run.timeout).await?;
        let info = self.registry.info(owner, id, &self.clock)?;
        seat.bury();
        if slot.is_closed() {
            return Err(closed(&slot.name));
        }
        if seat.driver.is_none() {
            self.start_driver(&info, slot, seat, &run).await?;
        } else if run.environment != Environment::default() || run.work_directory.is_some() {
            return Err(has_begun(&slot.name));
        }
        let Seat { driver: Some(driver), runs, .. } = &mut *seat else {
            return Err(Error::internal("a context was started without an interpreter"));
        };
        *runs += 1;
        let (number, program, base) = (*runs, driver.program.clone(), driver.base.clone());
        self.emit(owner, id, EventKind::ExecStarted { program: program.clone() });
        let busy = Busy::new(slot, number);
        let turned = driver.turn("run", number, &run.code, run.timeout, sink, stopped).await;
        drop(busy);
        let Turned { outcome, seen } = turned?;
        let ended = driver.life.end_reason();
        let (stdout_bytes, stderr_bytes) = (seen.stdout_bytes, seen.stderr_bytes);
        self.emit(owner, id, EventKind::ExecEnded { program, outcome: outcome.clone(), stdout_bytes, stderr_bytes });
        let mut results = Results::default();
        if !seen.places.is_empty() || ended.is_some() {
            let directory = base.join(number.to_string().as_bytes())?;
            results = self.results(id, &directory, &seen.places).await;
            self.keep_results(id, seat, directory).await;
        }
        let lost = seat.lost.take();
        seat.bury();
        let report = ContextReport { name: slot.name.clone(), run: number, ended, lost };
        drop(hold);
        Ok(ContextRun { outcome, report, results })
    }

    async fn start_driver(
        self: &Arc<Self>,
        info: &SandboxInfo,
        slot: &Slot,
        seat: &mut Seat,
        run: &RunCode,
    ) -> Result<()> {
        let language = slot.language;
        let token = SandboxId::random()?;
        let base: GuestPath = format!("/tmp/.context-{}", &token.as_str()["sb-".len()..]).parse()?;
        let start = RunCode {
            arguments: vec![base.to_string_lossy().into_owned(), language.as_str().to_owned()],
            environment: run.environment.clone(),
            work_directory: run.work_directory.clone(),
            ..RunCode::new(language.as_str(), language.driver(), FOREVER)
        };
        let runner = self.runner(language.as_str()).await?.live(language)?;
        let plan = runner.plan(&start, &info.work_directory, Runs::Many)?;
        let lies_there = info.work_directory.contains(&plan.file);
        let started = match self.start_planned_driver(info, &plan).await {
            // An image's own directory may be read-only for its user, who can run programs in it all the same.
            Err(error) if error.kind() == ErrorKind::Denied && lies_there => {
                self.start_planned_driver(info, &runner.plan(&start, &GuestPath::scratch(), Runs::Many)?).await
            }
            started => started,
        };
        let (process, program) = started?;
        let driver = Driver::new(process, program, base)
            .ok_or_else(|| Error::internal("the engine gave an interpreter no input"))?;
        slot.started(&driver.life);
        seat.start = Some(start);
        seat.runs = 0;
        seat.driver = Some(driver);
        Ok(())
    }

    /// The first interpreter that exists, on the driver. The driver removes itself.
    async fn start_planned_driver(self: &Arc<Self>, info: &SandboxInfo, plan: &Plan) -> Result<(Process, String)> {
        let files = HeldFiles::new(self, &info.owner, &info.id).unrecorded();
        let script = Script::new(&plan.file, &plan.code);
        if script.is_none() {
            write_whole(&files, &plan.file, &plan.code, plan.makes_directory).await?;
        }
        for mut attempt in plan.run.attempts(FOREVER)? {
            attempt.request.script.clone_from(&script);
            if let Some(check) = &mut attempt.check {
                check.timeout = CHECK;
                if !self.is_suitable(info, check).await? {
                    continue;
                }
            }
            match self.engine.start(&info.id, &attempt.request).await {
                Ok(process) => return Ok((process, attempt.request.argv()[0].clone())),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    self.locate(&info.owner, &info.id)?;
                    if let Some(directory) = &attempt.request.work_directory {
                        self.engine.files(&info.id).stat(directory).await?;
                    }
                }
                Err(error) => return Err(self.explain(&info.id, error).await),
            }
        }
        let _ = self.engine.files(&info.id).remove(&plan.leftover).await;
        Err(plan.run.missing(&info.image))
    }

    /// What a run has left of its results. What cannot be read is none: the run itself has ended.
    pub(super) async fn results(&self, id: &SandboxId, directory: &GuestPath, places: &[(u32, u64)]) -> Results {
        let read = async {
            let range = ByteRange { offset: 0, length: Some(MOST_BYTES) };
            let file = self.engine.files(id).read(&directory.join(LIST)?, range).await?;
            let mut text = Vec::new();
            let read = file.stream.take(MOST_BYTES).read_to_end(&mut text).await;
            read.map_err(|cause| Error::unavailable("results could not be read").with_cause(cause))?;
            Ok::<_, Error>(Results::parse(&text, directory, places))
        };
        match read.await {
            Ok(results) => results,
            Err(error) => {
                tracing::debug!(%id, ?error, "a run has left no results");
                Results::default()
            }
        }
    }

    /// They take room that is the sandbox's, so the oldest go.
    async fn keep_results(&self, id: &SandboxId, seat: &mut Seat, directory: GuestPath) {
        seat.results.push_back(directory);
        while seat.results.len() > KEPT_RESULTS {
            if let Some(oldest) = seat.results.pop_front() {
                let _ = self.engine.files(id).remove(&oldest).await;
            }
        }
    }

    pub(super) fn contexts_of(&self, owner: &Owner, id: &SandboxId) -> Result<Vec<ContextInfo>> {
        self.locate(owner, id)?;
        Ok(self.contexts.slots(id).iter().map(|slot| slot.info()).collect())
    }

    /// End a context, with whatever runs in it, and forget it.
    pub(super) async fn close_context(
        self: &Arc<Self>,
        owner: &Owner,
        id: &SandboxId,
        name: &ContextName,
    ) -> Result<()> {
        self.locate(owner, id)?;
        let slot = self.contexts.find(id, name)?;
        self.contexts.take_out(id, &slot);
        if let Some(life) = slot.life().filter(|_| self.contexts.living(id).is_empty()) {
            life.takes_branches_along();
        }
        let mut seat = end_and_take(&slot).await;
        self.clear_away(id, &mut seat).await;
        Ok(())
    }

    /// End what runs in a context, and give it a new interpreter, started as the one before.
    pub(super) async fn restart_context(
        self: &Arc<Self>,
        owner: &Owner,
        id: &SandboxId,
        name: &ContextName,
    ) -> Result<ContextInfo> {
        self.locate(owner, id)?;
        let slot = self.contexts.find(id, name)?;
        let mut seat = end_and_take(&slot).await;
        if slot.is_closed() {
            return Err(closed(name));
        }
        let hold = Hold::take(self, owner, id, Use::Call)?;
        hold.keep_alive(Duration::ZERO).await?;
        let start = seat.start.clone();
        self.clear_away(id, &mut seat).await;
        let start = start.ok_or_else(|| Error::internal("a context without a beginning"))?;
        let info = self.registry.info(owner, id, &self.clock)?;
        self.start_driver(&info, &slot, &mut seat, &start).await?;
        Ok(ContextInfo { state: ContextState::Idle, ..slot.info() })
    }

    async fn clear_away(&self, id: &SandboxId, seat: &mut Seat) {
        let base = seat.driver.take().map(|driver| driver.base.clone());
        let earlier = std::mem::take(&mut seat.results);
        seat.lost = None;
        for directory in earlier.into_iter().chain(base) {
            let _ = self.engine.files(id).remove(&directory).await;
        }
    }

    /// Files cannot be frozen or put back under an interpreter that stays.
    pub(super) fn refuse_with_contexts(&self, id: &SandboxId, what: &str) -> Result<()> {
        let living = self.contexts.living(id);
        if living.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = living.iter().map(ContextName::as_str).collect();
        Err(Error::new(ErrorKind::WrongState, format!("{what} while contexts live in it: {}", names.join(", ")))
            .with_hint("close them first with manage_contexts, which loses their variables"))
    }
}

impl Seat {
    /// An interpreter that is no more is of no use, and why is for the next run to tell.
    fn bury(&mut self) {
        if let Some(end) = self.driver.as_ref().and_then(|driver| driver.life.end_reason()) {
            self.driver = None;
            self.lost = Some(end);
        }
    }
}

/// End what runs until the seat is free: who had it first may just be starting an interpreter anew.
async fn end_and_take(slot: &Slot) -> MutexGuard<'_, Seat> {
    let mut waiting = pin!(slot.seat.lock());
    loop {
        if let Some(life) = slot.life() {
            life.end(ContextEnd::Closed).await;
        }
        if let Ok(seat) = tokio::time::timeout(LOOK_AGAIN, &mut waiting).await {
            return seat;
        }
    }
}

/// That something runs, for those who look.
struct Busy<'a> {
    slot: &'a Slot,
    number: u32,
}

impl<'a> Busy<'a> {
    fn new(slot: &'a Slot, number: u32) -> Self {
        slot.set_running(true, number);
        Self { slot, number }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.slot.set_running(false, self.number);
    }
}

fn closed(name: &ContextName) -> Error {
    Error::new(ErrorKind::WrongState, format!("the context {name} was closed while this waited for it"))
        .with_hint("run it again to begin a new one")
}

fn has_begun(name: &ContextName) -> Error {
    Error::invalid_input(format!("the context {name} has begun, with the directory and the variables that it has"))
        .with_hint("leave cwd and env out, and set them in the code; or restart the context")
}
