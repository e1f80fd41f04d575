//! The task of a job: one for each, which sees it from its registration to the end of its sandbox, whoever goes away.
//!
//! ```text
//! register ─▶ make the sandbox ─▶ write files ─▶ start ─▶ feed and read ─▶ end ─▶ artifacts ─▶ begin the sandbox's end ─▶ tell
//!             └ fresh only                                                        └ keep them ─┘ fresh only
//! ```
//!
//! One that was stopped, or ran into a limit, is told when nothing of its sandbox is left.
//!
//! A stop is seen at every step, and leads to the end of the line by the shortest way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch};
use tracing::Instrument;

use super::attend::Attendants;
use super::stream::Streams;
use super::work::{Assignment, Worked, nothing_ran};
use super::{Job, Outliving, Shared};
use crate::context::ContextName;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{EventKind, StopReason};
use crate::exec::{ExecStatus, OnDisconnect, OutputTarget};
use crate::id::{JobId, Owner, SandboxId};
use crate::job::{JobFailure, JobPlace, JobRequest, JobResult, JobStatus, JobWork};
use crate::output::OutputCaps;
use crate::runner::RunCode;
use crate::service::core::Core;
use crate::service::create::Origin;
use crate::spec::{Expected, Persistence, SandboxSpec};

/// How much longer than its time-out a run may take before it is given up. Engines end a run in time; one that hangs must
/// not hang its callers.
const GRACE: Duration = Duration::from_secs(30);
/// The same for a run that was asked to stop, where nothing but its own end can show that it has.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// The same where the end of its sandbox shows it too.
const FRESH_STOP_GRACE: Duration = Duration::from_millis(500);

impl Core {
    pub(in crate::service) fn start_job(self: &Arc<Self>, owner: &Owner, mut request: JobRequest) -> Result<Job> {
        let key = request.key.clone().map(|key| (key, self.jobs.digest(&request)));
        if let Some((key, digest)) = &key
            && let Some(known) = self.jobs.known(owner, key, *digest)?
        {
            return Ok(known);
        }
        self.check(owner, &mut request)?;
        self.admit_run(owner)?;
        let (sandbox, fresh, network, persistence) = match &request.place {
            JobPlace::Existing(id) => {
                let info = self.registry.info(owner, id, &self.clock)?;
                (id.clone(), false, info.network, info.persistence)
            }
            JobPlace::Fresh(spec) => (SandboxId::random()?, true, spec.network.clone(), Persistence::Ephemeral),
        };
        let recorded = request.recorded.filter(|_| persistence == Persistence::Persistent);
        let shared = Arc::new(Shared {
            id: JobId::random()?,
            owner: owner.clone(),
            sandbox,
            fresh,
            network,
            started_at: SystemTime::now(),
            title: self.title(&request.work),
            streams: Arc::new(Streams::new(self.kept_of(&request))),
            status: watch::Sender::new(JobStatus::Running),
            stop: watch::Sender::new(false),
            attendants: Attendants::default(),
            kept_for: recorded.unwrap_or(self.settings.jobs.kept_for),
            unproven: AtomicBool::new(false),
            leaving: OnceLock::new(),
            outliving: (persistence == Persistence::Persistent)
                .then(|| Outliving { journals: self.journals.clone(), engine: self.engine_of_records() }),
        });
        if let Some(known) = self.jobs.register(&shared, key, self.quotas.of(owner).jobs)? {
            return Ok(known);
        }
        if recorded.is_some() {
            shared.outlive();
        }
        let promise = Promise { core: Arc::clone(self), job: Arc::clone(&shared) };
        let seeing_through = async move {
            let ended = promise.core.see_through(&promise.job, request).await;
            promise.keep(ended);
        };
        self.runtime.spawn(seeing_through.in_current_span());
        Ok(Job { shared })
    }

    fn kept_of(&self, request: &JobRequest) -> OutputCaps {
        let jobs = &self.settings.jobs;
        request.kept.map_or(jobs.output, |asked| asked.at_most(jobs.most_output))
    }

    /// What can be known to be wrong before anything is done.
    fn check(&self, owner: &Owner, request: &mut JobRequest) -> Result<()> {
        match &mut request.work {
            JobWork::Code(run) => {
                // Where images bring languages along, the run itself finds out whether one has come with this.
                if self.settings.image_runners.is_none() {
                    self.settings.runners.find(&run.language)?;
                }
                self.quotas.of(owner).admit_timeout(run.timeout)?;
                if let Some(name) = run.context.clone() {
                    check_context(&name, run, &request.place, &request.stdin)?;
                }
            }
            JobWork::Command(command) => {
                if command.output == OutputTarget::Log {
                    return Err(Error::invalid_input("a job keeps its output itself, so it cannot go to a log"));
                }
                command.on_disconnect = OnDisconnect::Kill;
                self.quotas.of(owner).admit_timeout(command.timeout)?;
            }
            JobWork::Program(program) => self.quotas.of(owner).admit_timeout(program.timeout)?,
        }
        match &mut request.place {
            JobPlace::Existing(id) => self.locate(owner, id).map(drop),
            JobPlace::Fresh(spec) => {
                if spec.persistence == Persistence::Persistent {
                    return Err(Error::invalid_input("a sandbox that ends with its job cannot be persistent")
                        .with_hint("create the sandbox first and run in it"));
                }
                if request.checkpoint {
                    return Err(Error::invalid_input("a sandbox that ends with its job has nothing to go back to")
                        .with_hint("create the sandbox first and run in it, or leave the checkpoint out"));
                }
                spec.owner = owner.clone();
                spec.limits.check().map(drop)
            }
        }
    }

    /// At most one line of some words, without anything that could drive a terminal.
    fn title(&self, work: &JobWork) -> String {
        const MOST_CHARACTERS: usize = 80;
        let text = match work {
            JobWork::Code(run) => match self.settings.runners.find(&run.language) {
                Ok(runner) => runner.name.clone(),
                Err(_) => run.language.clone(),
            },
            JobWork::Command(command) => match command.argv() {
                [shell, flag, script] if flag == "-c" && shell.ends_with("sh") => script.clone(),
                argv => argv.join(" "),
            },
            JobWork::Program(program) => match &program.arguments {
                Some(arguments) => format!("the image's program {}", arguments.join(" ")),
                None => "the image's program".to_owned(),
            },
        };
        let line = text.trim().lines().next().unwrap_or_default();
        let mut characters = line.chars().map(|character| if character.is_control() { ' ' } else { character });
        let mut title: String = characters.by_ref().take(MOST_CHARACTERS - 1).collect();
        if line.len() < text.trim().len() || characters.next().is_some() {
            title.push('…');
        }
        title
    }

    async fn see_through(self: &Arc<Self>, job: &Shared, request: JobRequest) -> Result<JobResult> {
        let JobRequest { place, work, work_directory, files, stdin, key: _, checkpoint, kept: _, recorded: _ } =
            request;
        let assignment = Assignment { work, work_directory, files, stdin, checkpoint };
        match place {
            JobPlace::Existing(_) => match self.work_in_time(job, assignment).await? {
                Worked::Ended(result) => Ok(result),
                Worked::Unproven(error) => {
                    job.unproven.store(true, Ordering::Release);
                    Err(error)
                }
            },
            JobPlace::Fresh(mut spec) => {
                spec.expected = self.expected(&assignment);
                if !self.make_for(job, &spec).await? {
                    return Ok(nothing_ran());
                }
                match self.work_in_time(job, assignment).await {
                    // Nobody is kept waiting for the kernel, or a daemon, to clear away what nobody can reach any more.
                    Ok(Worked::Ended(result)) if has_ended_by_itself(result.outcome.status) => {
                        if let Some(leaving) = self.begin_end(&job.sandbox, StopReason::Finished) {
                            let _ = job.leaving.set(leaving);
                        }
                        Ok(result)
                    }
                    worked => {
                        let destroyed = self.end(&job.sandbox, StopReason::Finished).await;
                        match (worked?, destroyed) {
                            (Worked::Ended(result), _) => Ok(result),
                            (Worked::Unproven(_), Ok(())) => {
                                let stopped = job.is_asked_to_stop();
                                let status = if stopped { ExecStatus::Cancelled } else { ExecStatus::TimedOut };
                                let mut result = nothing_ran();
                                result.outcome.status = status;
                                Ok(result)
                            }
                            (Worked::Unproven(error), Err(_)) => {
                                job.unproven.store(true, Ordering::Release);
                                Err(error)
                            }
                        }
                    }
                }
            }
        }
    }

    /// What will be the first to happen in a sandbox that is made for this.
    fn expected(&self, assignment: &Assignment) -> Option<Expected> {
        let Assignment { work: JobWork::Code(run), work_directory: None, files, .. } = assignment else { return None };
        if !self.settings.warm || !files.is_empty() {
            return None;
        }
        self.settings.runners.find(&run.language).ok()?.expected(run)
    }

    /// `false` when the job was asked to stop first: then there is no sandbox, and will be none.
    async fn make_for(self: &Arc<Self>, job: &Shared, spec: &SandboxSpec) -> Result<bool> {
        let turn = async {
            let maker = match self.jobs.makers(&job.owner) {
                Some(makers) => makers.acquire_owned().await.ok(),
                None => None,
            };
            self.slots.slot(&job.owner).await.map(|slot| (slot, maker))
        };
        let turn = tokio::select! {
            biased;
            () = job.asked_to_stop() => return Ok(false),
            turn = turn => turn.inspect_err(|error| {
                self.emit(&job.owner, &job.sandbox, EventKind::CreateRefused { kind: error.kind() });
            })?,
        };
        let made = self.make(&job.sandbox, spec, &Origin::Image, job.asked_to_stop()).await;
        drop(turn);
        match made {
            Ok(_) => Ok(true),
            Err(_) if job.is_asked_to_stop() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn work_in_time(self: &Arc<Self>, job: &Shared, assignment: Assignment) -> Result<Worked> {
        let (timeout, waits) = match &assignment.work {
            JobWork::Code(run) => (run.timeout, run.context.is_some()),
            JobWork::Command(command) => (command.timeout, false),
            JobWork::Program(program) => (program.timeout, false),
        };
        let turn = Notify::new();
        let overtime = async {
            // In a context its time begins with its turn. Whoever drives that sees to it that the code ends; the files of the
            // sandbox are asked for before and after it all the same, and programs can hold up whoever looks at them.
            if waits {
                turn.notified().await;
            }
            tokio::time::sleep(timeout.saturating_add(GRACE)).await;
        };
        let stopping = async {
            job.asked_to_stop().await;
            tokio::time::sleep(if job.fresh { FRESH_STOP_GRACE } else { STOP_GRACE }).await;
        };
        let overdue = |what: &str| {
            let error = Error::new(ErrorKind::TimedOut, format!("the sandbox does not show that the run {what}"));
            Ok(Worked::Unproven(error.with_hint("stop the sandbox: that ends all that runs in it")))
        };
        tokio::select! {
            worked = self.work(job, assignment, &turn) => worked,
            () = stopping => overdue("was stopped"),
            () = overtime => overdue("has ended in time"),
        }
    }
}

/// Whoever had a run stopped, or was told that it had to be, may rely on it that nothing of it runs any more.
fn has_ended_by_itself(status: ExecStatus) -> bool {
    match status {
        ExecStatus::Exited(_) | ExecStatus::Signalled(_) => true,
        ExecStatus::TimedOut | ExecStatus::OutOfMemory | ExecStatus::Killed | ExecStatus::Cancelled => false,
    }
}

/// What a run in a context cannot be given.
fn check_context(name: &ContextName, run: &RunCode, place: &JobPlace, stdin: &[u8]) -> Result<()> {
    let refused = |what: &str, hint: &str| {
        Err(Error::invalid_input(format!("a run in the context {name} {what}")).with_hint(hint.to_owned()))
    };
    if matches!(place, JobPlace::Fresh(_)) {
        return refused("needs a sandbox that stays", "create the sandbox first and run in it");
    }
    if !stdin.is_empty() || run.terminal.is_some() {
        return refused("has no standard input", "put the data into a variable or a file, or leave context out");
    }
    if !run.arguments.is_empty() {
        return refused("has no arguments", "put them into variables, or leave context out");
    }
    Ok(())
}

/// That a job which was registered gets an end, whatever happens to its task.
struct Promise {
    core: Arc<Core>,
    job: Arc<Shared>,
}

impl Promise {
    fn keep(&self, ended: Result<JobResult>) {
        let status = match ended {
            // Nobody has asked for that: it goes because we do.
            Ok(result)
                if result.outcome.status == ExecStatus::Cancelled
                    && self.core.jobs.is_closed()
                    && self.job.streams.is_on_disk() =>
            {
                JobStatus::Interrupted
            }
            Ok(result) => JobStatus::Ended(result),
            Err(error) => {
                if error.kind() == ErrorKind::Internal {
                    tracing::warn!(job = %self.job.id, sandbox = %self.job.sandbox, ?error, "a job could not be served");
                }
                JobStatus::Failed(JobFailure::from(&error))
            }
        };
        let names: usize = match &status {
            JobStatus::Ended(result) => {
                let names = result.artifacts.iter().map(|artifact| artifact.path.as_bytes().len());
                names.sum::<usize>() + result.results.bytes()
            }
            JobStatus::Running | JobStatus::Failed(_) | JobStatus::Interrupted => 0,
        };
        self.job.streams.close();
        if let Err(error) = self.job.streams.conclude(&status) {
            tracing::warn!(job = %self.job.id, ?error, "the end of a job is not written down");
        }
        let now = self.core.clock.now();
        let settings = &self.core.settings.jobs;
        // Whoever waits may start the next one at once, and must find room for it.
        self.core.jobs.ended(&self.job, self.job.streams.kept_bytes() + names, now, settings);
        self.job.status.send_replace(status);
        self.core.wake_by(now.after(self.job.kept_for));
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if self.job.is_running() {
            self.keep(Err(Error::internal("the job ended without an answer")));
        }
    }
}
