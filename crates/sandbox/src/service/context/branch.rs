//! Branches of a live context: its interpreter forks, inside of its sandbox, and each copy becomes a context of its own.
//!
//! A copy needs streams that are its own, and only an exec has such. So a relay is started for each, a command of a few lines,
//! which hands its streams over to the copy and lives as long as that does.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use super::closed;
use super::driver::Driver;
use super::table::{Claim, Seat};
use crate::context::{ContextEnd, ContextInfo, ContextLanguage, ContextName};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::{ExecRequest, ExecStatus};
use crate::id::{Owner, SandboxId};
use crate::path::GuestPath;
use crate::service::core::Core;
use crate::service::hold::Hold;
use crate::service::registry::Use;

/// How long a fork may take: files may be copied for it.
const PATIENCE: Duration = Duration::from_secs(30);

const RELAY: &str = include_str!("../../context/drivers/relay.py");

/// How branches are to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchRequest {
    /// One branch for each, under names that no context has.
    pub names: Vec<ContextName>,
    /// Each gets a copy of the directory that the context is in, and is in that. Otherwise they share all files.
    pub copies_files: bool,
}

/// One branch on its way.
struct Planned<'a> {
    claim: Claim<'a>,
    address: GuestPath,
    base: GuestPath,
    directory: Option<GuestPath>,
}

impl Core {
    /// All of them or none. Waits for the context's turn.
    pub(in crate::service) async fn branch_context(
        self: &Arc<Self>,
        owner: &Owner,
        id: &SandboxId,
        name: &ContextName,
        request: &BranchRequest,
    ) -> Result<Vec<ContextInfo>> {
        self.locate(owner, id)?;
        let source = self.contexts.find(id, name)?;
        if source.language != ContextLanguage::Python {
            let language = source.language;
            return Err(Error::unsupported(format!("a context of {language} cannot be branched"))
                .with_hint("contexts of python can; fork_sandbox branches all files of a sandbox"));
        }
        let claim = self.contexts.claim(id, name, source.language)?;
        let work_directory = self.registry.info(owner, id, &self.clock)?.work_directory;
        // Their seats are had from the beginning: whoever runs something under one of the names meanwhile waits for the branch.
        let (mut planned, mut seats) = (Vec::new(), Vec::new());
        for branch in &request.names {
            let (branch, seat) = self.plan_branch(id, branch, request.copies_files, &work_directory)?;
            planned.push(branch);
            seats.push(seat);
        }
        let mut seat = claim.slot.seat.lock().await;
        if claim.slot.is_closed() {
            return Err(closed(name));
        }
        let hold = Hold::take(self, owner, id, Use::Call)?;
        hold.keep_alive(PATIENCE).await?;
        seat.bury();
        let Seat { driver: Some(driver), runs, start, .. } = &mut *seat else { return Err(has_ended(name)) };
        self.fork_driver(driver, &planned).await?;
        let mut made = Vec::new();
        for branch in &planned {
            match self.attach(id, &driver.program, branch).await {
                Ok(driver) => made.push(driver),
                Err(error) => {
                    for driver in made {
                        driver.life.end(ContextEnd::Closed).await;
                    }
                    return Err(hold.explain(error).await);
                }
            }
        }
        let mut infos = Vec::new();
        for ((branch, mut theirs), driver) in planned.iter().zip(seats).zip(made) {
            branch.claim.slot.started(&driver.life);
            branch.claim.slot.set_running(false, *runs);
            (theirs.driver, theirs.runs, theirs.start) = (Some(driver), *runs, start.clone());
            infos.push(branch.claim.slot.info());
        }
        Ok(infos)
    }

    fn plan_branch(
        &self,
        id: &SandboxId,
        name: &ContextName,
        copies_files: bool,
        work_directory: &GuestPath,
    ) -> Result<(Planned<'_>, OwnedMutexGuard<Seat>)> {
        let taken = || {
            Error::new(ErrorKind::AlreadyExists, format!("this sandbox has a context {name}"))
                .with_hint("choose another name, or close that context first")
        };
        if self.contexts.find(id, name).is_ok() {
            return Err(taken());
        }
        let claim = self.contexts.claim(id, name, ContextLanguage::Python)?;
        // Somebody may have come between.
        let seat = Arc::clone(&claim.slot.seat).try_lock_owned().map_err(|_| taken())?;
        if claim.slot.life().is_some() {
            return Err(taken());
        }
        let token = SandboxId::random()?;
        let base: GuestPath = format!("/tmp/.context-{}", &token.as_str()["sb-".len()..]).parse()?;
        let directory = match copies_files {
            true => Some(work_directory.join(b"branches")?.join(name.as_str().as_bytes())?),
            false => None,
        };
        Ok((Planned { claim, address: base.join(b"relay")?, base, directory }, seat))
    }

    async fn fork_driver(&self, driver: &mut Driver, planned: &[Planned<'_>]) -> Result<()> {
        let line = |branch: &Planned<'_>| {
            let directory = branch.directory.as_ref().map(GuestPath::to_string_lossy).unwrap_or_default();
            format!("{}\t{}\t{directory}\n", branch.address.to_string_lossy(), branch.base.to_string_lossy())
        };
        let body: String = planned.iter().map(line).collect();
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let sink = Box::new(move |_, bytes: &[u8]| {
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            let room = MOST_SAID.saturating_sub(heard.len());
            heard.extend_from_slice(&bytes[..bytes.len().min(room)]);
        });
        driver.life.has_branches();
        let turned = driver.turn("fork", 0, body.as_bytes(), PATIENCE, sink, std::future::pending()).await?;
        if turned.outcome.status == ExecStatus::Exited(0) {
            return Ok(());
        }
        let said = said.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = String::from_utf8_lossy(&said).lines().last().unwrap_or("it did not answer").to_owned();
        Err(Error::new(ErrorKind::WrongState, format!("the context could not be branched: {reason}")))
    }

    /// Start the relay of a branch, and see that the branch answers.
    async fn attach(&self, id: &SandboxId, program: &str, branch: &Planned<'_>) -> Result<Driver> {
        let argv =
            [program.to_owned(), "-c".to_owned(), RELAY.to_owned(), branch.address.to_string_lossy().into_owned()];
        let request = ExecRequest::new(argv, super::FOREVER)?;
        let process = self.engine.start(id, &request).await?;
        let mut driver = Driver::new(process, program.to_owned(), branch.base.clone())
            .ok_or_else(|| Error::internal("the engine gave a relay no input"))?;
        let sink = Box::new(|_, _: &[u8]| {});
        let answered = driver.turn("run", 0, b"", PATIENCE, sink, std::future::pending()).await?;
        match answered.outcome.status {
            ExecStatus::Exited(0) if driver.life.end_reason().is_none() => Ok(driver),
            _ => Err(Error::new(ErrorKind::WrongState, "a branch of the context did not come to life")
                .with_hint("the sandbox may be out of memory or processes; stop what is not needed there")),
        }
    }
}

/// Of the reason why a fork did not work.
const MOST_SAID: usize = 4096;

fn has_ended(name: &ContextName) -> Error {
    Error::new(ErrorKind::WrongState, format!("the context {name} has ended, so there is nothing to branch"))
        .with_hint("run something in it first")
}
