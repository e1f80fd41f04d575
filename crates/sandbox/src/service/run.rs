//! Running something in a sandbox: commands, and code in a language.

use std::pin::pin;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

use super::SandboxInfo;
use super::core::Core;
use super::execution::Execution;
use super::files::HeldFiles;
use super::history::{DeedKey, Line, keepable, now_ns};
use super::hold::Hold;
use super::registry::Use;
use crate::engine::Files;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventKind;
use crate::exec::{ExecRequest, ExecStatus, Script};
use crate::file::WriteOptions;
use crate::history::Deed;
use crate::id::{Owner, SandboxId};
use crate::image::Image;
use crate::output::OutputCaps;
use crate::path::GuestPath;
use crate::runner::{ImageRunner, Plan, RunCode, Runs, Step};

impl Core {
    pub(super) async fn exec(
        self: &Arc<Self>,
        owner: &Owner,
        id: &SandboxId,
        request: &ExecRequest,
    ) -> Result<Execution> {
        let started = self.start(owner, id, request, Remembered::AsCommand).await;
        if let Err(error) = &started {
            self.emit(owner, id, EventKind::ExecRefused { kind: error.kind() });
        }
        started
    }

    async fn start(
        self: &Arc<Self>,
        owner: &Owner,
        id: &SandboxId,
        request: &ExecRequest,
        remembered: Remembered,
    ) -> Result<Execution> {
        if request.terminal.is_some() && !self.capabilities.terminal {
            return Err(Error::unsupported(format!("the {} engine has no terminals", self.capabilities.name)));
        }
        let hold = Hold::take(self, owner, id, Use::Exec(request, &self.quotas.of(owner)))?;
        hold.keep_alive(request.timeout).await?;
        let started_ns = now_ns();
        match self.engine.start(id, request).await {
            Ok(process) => {
                let deed = match remembered {
                    Remembered::Not => None,
                    Remembered::AsCommand => self.command_deed(owner, id, request),
                    Remembered::As(deed) => Some(*deed),
                };
                let key = deed.map(|deed| {
                    let key = DeedKey::random();
                    self.remember(id, Line::Began { key, started_ns, deed });
                    key
                });
                Ok(Execution::supervise(hold, request, process, key))
            }
            Err(error) => Err(hold.explain(error).await),
        }
    }

    /// `None` when the sandbox is gone already.
    fn command_deed(&self, owner: &Owner, id: &SandboxId, request: &ExecRequest) -> Option<Deed> {
        let work_directory = match &request.work_directory {
            Some(directory) => directory.clone(),
            None => self.registry.info(owner, id, &self.clock).ok()?.work_directory,
        };
        Some(Deed::Command {
            argv: request.argv().to_vec(),
            environment: self.known_environment(&request.environment),
            work_directory,
            status: None,
        })
    }

    pub(super) async fn run_code(self: &Arc<Self>, owner: &Owner, id: &SandboxId, run: RunCode) -> Result<Execution> {
        let (execution, tidy) = self.run_code_until(owner, id, run, Runs::Many, std::future::pending()).await?;
        let ended = execution.control.ended();
        tokio::spawn(async move {
            ended.await;
            // Whoever waits for the end hears of it first; perhaps the sandbox ends then, and there is nothing to tidy.
            tokio::task::yield_now().await;
            drop(tidy);
        });
        Ok(execution)
    }

    /// A build that is `unwanted` is cancelled, which is its outcome; of a program that has started, the caller has the
    /// control. The code is to be left alone until the end.
    pub(super) async fn run_code_until(
        self: &Arc<Self>,
        owner: &Owner,
        id: &SandboxId,
        run: RunCode,
        runs: Runs,
        unwanted: impl Future<Output = ()>,
    ) -> Result<(Execution, Tidy)> {
        let started = self.start_code(owner, id, &run, runs, unwanted).await;
        if let Err(error) = &started {
            self.emit(owner, id, EventKind::ExecRefused { kind: error.kind() });
        }
        started
    }

    async fn start_code(
        self: &Arc<Self>,
        owner: &Owner,
        id: &SandboxId,
        run: &RunCode,
        runs: Runs,
        unwanted: impl Future<Output = ()>,
    ) -> Result<(Execution, Tidy)> {
        if run.context.is_some() {
            return Err(Error::invalid_input("a run in a context is a job, and this is none"));
        }
        let deadline = Instant::now() + run.timeout;
        let runner = &self.runner(&run.language).await?;
        self.locate(owner, id)?;
        // Where the code lies does not follow where it runs: of those two the sandbox's own directory is more often writable.
        let info = self.registry.info(owner, id, &self.clock)?;
        let deed = Deed::Code {
            language: runner.name.clone(),
            code: keepable(&run.code),
            arguments: run.arguments.clone(),
            environment: self.known_environment(&run.environment),
            work_directory: run.work_directory.clone().unwrap_or_else(|| info.work_directory.clone()),
            status: None,
        };
        if let (Image::Named(image), None) = (&info.image, run.terminal)
            && let Some(own) = self.image_runner(runner, image).await?
        {
            let execution = self.start_entry_point(&info, own, run, deadline, deed).await?;
            return Ok((execution, Tidy { core: Arc::clone(self), id: id.clone(), leftover: None, displays: None }));
        }
        let plan = runner.plan(run, &info.work_directory, runs)?;
        let lies_there = info.work_directory.contains(&plan.file);
        let mut unwanted = pin!(unwanted);
        match self.start_planned(&info, plan, deadline, deed.clone(), unwanted.as_mut()).await {
            // An image's own directory may be read-only for its user, who can run programs in it all the same.
            Err(error) if error.kind() == ErrorKind::Denied && lies_there => {
                let plan = runner.plan(run, &GuestPath::scratch(), runs)?;
                self.start_planned(&info, plan, deadline, deed, unwanted).await
            }
            started => started,
        }
    }

    async fn start_planned(
        self: &Arc<Self>,
        info: &SandboxInfo,
        plan: Plan,
        deadline: Instant,
        deed: Deed,
        unwanted: impl Future<Output = ()>,
    ) -> Result<(Execution, Tidy)> {
        let (owner, id) = (&info.owner, &info.id);
        let script = match &plan.build {
            None if !plan.makes_directory => Script::new(&plan.file, &plan.code),
            None | Some(_) => None,
        };
        if script.is_none() {
            let files = HeldFiles::new(self, owner, id).unrecorded();
            write_whole(&files, &plan.file, &plan.code, plan.makes_directory).await?;
        }
        let (leftover, displays) = (Some(plan.leftover.clone()), plan.displays.clone());
        let tidy = Tidy { core: Arc::clone(self), id: id.clone(), leftover, displays };
        if let Some(build) = &plan.build {
            let started_ns = now_ns();
            let building = self.start_first(info, build, None, deadline, Remembered::Not).await?;
            let control = building.control.clone();
            let mut capturing = pin!(building.capture(OutputCaps::default()));
            let captured = tokio::select! {
                captured = &mut capturing => captured?,
                () = unwanted => {
                    control.cancel().await?;
                    capturing.await?
                }
            };
            if captured.outcome.status != ExecStatus::Exited(0) {
                let key = DeedKey::random();
                self.remember(id, Line::Began { key, started_ns, deed });
                self.remember(id, Line::Ended { key, ended_ns: now_ns(), status: captured.outcome.status });
                return Ok((Execution::ended(&captured), tidy));
            }
        }
        let execution = self.start_first(info, &plan.run, script, deadline, Remembered::As(Box::new(deed))).await?;
        Ok((execution, tidy))
    }

    /// What an image brings along for its language: the code is what it reads, so there is nothing else to read.
    async fn start_entry_point(
        self: &Arc<Self>,
        info: &SandboxInfo,
        own: ImageRunner,
        run: &RunCode,
        deadline: Instant,
        deed: Deed,
    ) -> Result<Execution> {
        let argv = own.command.into_iter().chain(run.arguments.iter().cloned());
        let mut request = ExecRequest::new(argv, deadline.saturating_duration_since(Instant::now()))?;
        request.environment = run.environment.clone();
        request.work_directory = run.work_directory.clone();
        let mut execution = self.start(&info.owner, &info.id, &request, Remembered::As(Box::new(deed))).await?;
        if let Some(mut stdin) = execution.stdin.take() {
            let code = run.code.clone();
            // One that does not read all of it has its reasons; its end tells them.
            self.runtime.spawn(async move {
                if stdin.write_all(&code).await.is_ok() {
                    let _ = stdin.shutdown().await;
                }
            });
        }
        Ok(execution)
    }

    /// The first of several ways whose program exists. Trying costs nothing when the first one is there.
    async fn start_first(
        self: &Arc<Self>,
        info: &SandboxInfo,
        step: &Step,
        script: Option<Script>,
        deadline: Instant,
        remembered: Remembered,
    ) -> Result<Execution> {
        let (owner, id) = (&info.owner, &info.id);
        for mut attempt in step.attempts(deadline.saturating_duration_since(Instant::now()))? {
            attempt.request.script.clone_from(&script);
            let started = match &attempt.check {
                Some(check) if !self.is_suitable(info, check).await? => continue,
                Some(_) | None => self.start(owner, id, &attempt.request, remembered.clone()).await,
            };
            match started {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    // Not the program but the place for it may be missing, and then no other program helps.
                    self.locate(owner, id)?;
                    if let Some(directory) = &attempt.request.work_directory {
                        HeldFiles::new(self, owner, id).stat(directory).await?;
                    }
                }
                started => return started,
            }
        }
        Err(step.missing(&info.image))
    }

    /// Asked once per image, as long as it is the same.
    pub(super) async fn is_suitable(self: &Arc<Self>, info: &SandboxInfo, check: &ExecRequest) -> Result<bool> {
        let (question, asked_at) = (check.argv().to_vec(), self.clock.now());
        if let Some(known) = self.suitable.get(&info.owner, &info.image, &question, asked_at) {
            return Ok(known);
        }
        let suitable = match self.start(&info.owner, &info.id, check, Remembered::Not).await {
            Ok(execution) => {
                let captured = execution.capture(OutputCaps { head: 0, tail: 0 }).await?;
                captured.outcome.status == ExecStatus::Exited(0)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.locate(&info.owner, &info.id)?;
                false
            }
            Err(error) => return Err(error),
        };
        self.suitable.put(&info.owner, &info.image, question, suitable, asked_at);
        Ok(suitable)
    }
}

/// What the history of a sandbox has of a command.
#[derive(Clone)]
enum Remembered {
    /// It only asks.
    Not,
    AsCommand,
    /// It is how this is done.
    As(Box<Deed>),
}

/// Takes the code away again once nobody needs it, so that runs do not litter the user's files.
pub(super) struct Tidy {
    core: Arc<Core>,
    id: SandboxId,
    leftover: Option<GuestPath>,
    displays: Option<GuestPath>,
}

impl Tidy {
    /// Where the run leaves what it displays.
    pub fn displays(&self) -> Option<&GuestPath> {
        self.displays.as_ref()
    }

    /// What the run has displayed is somebody's.
    pub fn keep_displays(&mut self) {
        self.displays = None;
    }

    /// Returns when the code is gone.
    pub async fn clear(mut self) {
        for leftover in self.leftover.take().into_iter().chain(self.displays.take()) {
            remove(&*self.core.engine.files(&self.id), &leftover).await;
        }
    }

    /// The sandbox is about to go anyway.
    pub fn leave(mut self) {
        (self.leftover, self.displays) = (None, None);
    }
}

impl Drop for Tidy {
    fn drop(&mut self) {
        let leftovers: Vec<_> = self.leftover.take().into_iter().chain(self.displays.take()).collect();
        // A sandbox that is being stopped takes its files with it.
        if leftovers.is_empty() || !self.core.registry.is_live(&self.id) {
            return;
        }
        let files = self.core.engine.files(&self.id);
        self.core.runtime.spawn(async move {
            for leftover in leftovers {
                remove(&*files, &leftover).await;
            }
        });
    }
}

async fn remove(files: &dyn Files, leftover: &GuestPath) {
    if let Err(error) = files.remove(leftover).await {
        tracing::debug!(path = %leftover, ?error, "the code of a run stays in its sandbox");
    }
}

pub(super) async fn write_whole(files: &HeldFiles, path: &GuestPath, contents: &[u8], parents: bool) -> Result<()> {
    let options = WriteOptions { parents, ..WriteOptions::default() };
    let mut file = files.write(path, options).await?;
    let written = async {
        file.write_all(contents).await?;
        file.shutdown().await
    };
    let written = written.await;
    // After a failed write this fails too, and knows the reason better than the stream does.
    file.commit().await?;
    written.map_err(|cause| Error::internal(format!("{path} was not written whole")).with_cause(cause))
}
