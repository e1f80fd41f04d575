//! The run of a job, in a sandbox that is there.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use super::Shared;
use super::displayed::Places;
use super::look::look;
use crate::artifact::{Artifact, Baseline, DOUBT};
use crate::context::{Results, Shown};
use crate::error::{Error, Result};
use crate::exec::{ExecOutcome, ExecRequest, ExecStatus, ExecUsage};
use crate::image::ImageProgram;
use crate::job::{JobFile, JobResult, JobStream, JobWork, RunProgram};
use crate::network::NetworkActivity;
use crate::path::{AskedPath, GuestPath};
use crate::runner::{RunCode, Runs};
use crate::service::SandboxInfo;
use crate::service::context::Sink;
use crate::service::core::Core;
use crate::service::execution::Execution;
use crate::service::files::HeldFiles;
use crate::service::run::{Tidy, write_whole};

/// Artifacts that a result names.
const MOST_ARTIFACTS: usize = 100;

/// What a terminal takes for the end of input.
const END_OF_INPUT: &[u8] = b"\x04";

pub(super) struct Assignment {
    pub work: JobWork,
    pub work_directory: Option<AskedPath>,
    pub files: Vec<JobFile>,
    pub stdin: Vec<u8>,
    pub checkpoint: bool,
}

pub(super) enum Worked {
    Ended(JobResult),
    /// Something may still run.
    Unproven(Error),
}

/// The result of a job that was stopped before there was anything to stop.
pub(super) fn nothing_ran() -> JobResult {
    JobResult {
        outcome: ExecOutcome {
            status: ExecStatus::Cancelled,
            usage: ExecUsage::default(),
            network: NetworkActivity::default(),
        },
        artifacts: Vec::new(),
        artifacts_left_out: 0,
        missing_layers: Vec::new(),
        context: None,
        results: Box::default(),
        checkpoint: None,
    }
}

/// What is done, now that it is known where.
enum Work {
    Code(RunCode),
    Command(ExecRequest),
}

impl Work {
    fn new(work: JobWork, asked: Option<GuestPath>, program: &ImageProgram) -> Result<Self> {
        match work {
            JobWork::Code(mut run) => {
                run.work_directory = asked.or(run.work_directory);
                Ok(Self::Code(run))
            }
            JobWork::Command(mut command) => {
                command.work_directory = asked.or(command.work_directory);
                Ok(Self::Command(command))
            }
            JobWork::Program(RunProgram { arguments, environment, timeout }) => {
                let mut command = ExecRequest::new(program.argv(arguments.as_deref())?, timeout)?;
                (command.work_directory, command.environment) = (asked, environment);
                Ok(Self::Command(command))
            }
        }
    }
}

impl Core {
    /// `turn` is told when a run in a context need not wait for others any longer.
    pub(super) async fn work(self: &Arc<Self>, job: &Shared, assignment: Assignment, turn: &Notify) -> Result<Worked> {
        let Assignment { work, work_directory, files, stdin, checkpoint } = assignment;
        let (owner, id) = (&job.owner, &job.sandbox);
        let SandboxInfo { work_directory: directory, program, .. } = self.registry.info(owner, id, &self.clock)?;
        let asked = work_directory.map(|path| path.below(&directory)).transpose()?;
        let work = Work::new(work, asked, &program)?;
        let missing_layers = match self.engine.isolation(id).await {
            Ok(report) => report.missing(),
            Err(error) => return Err(self.explain(id, error).await),
        };
        let mut result = JobResult { missing_layers, ..nothing_ran() };

        // To the end, so that what runs before or after it in the same context is not taken for its own doing.
        let mut seat = match &work {
            Work::Code(RunCode { context: Some(name), language, .. }) => {
                match self.context_seat(owner, id, name, language, job.asked_to_stop()).await? {
                    Some(seat) => {
                        turn.notify_one();
                        Some(seat)
                    }
                    None => return Ok(Worked::Ended(result)),
                }
            }
            Work::Code(_) | Work::Command(_) => None,
        };
        if checkpoint {
            result.checkpoint = Some(self.checkpoint(owner, id).await?);
        }
        let used = !job.fresh && self.registry.is_used_since(id, self.clock.now().before(DOUBT));
        let is_doubtful = used || !files.is_empty();
        let held = HeldFiles::new(self, owner, id);
        for JobFile { path, contents } in &files {
            let path = path.below(&directory)?;
            tokio::select! {
                biased;
                () = job.asked_to_stop() => return Ok(Worked::Ended(result)),
                written = write_whole(&held, &path, contents, true) => written?,
            }
        }
        drop(files);
        let before = if is_doubtful { look(&*self.engine.files(id), &directory).await } else { Vec::new() };
        if job.is_asked_to_stop() {
            return Ok(Worked::Ended(result));
        }

        let baseline = Baseline::now().note(before);
        let has_terminal = match &work {
            Work::Code(run) => run.terminal.is_some(),
            Work::Command(command) => command.terminal.is_some(),
        };
        let started = match (work, &mut seat) {
            (Work::Code(run), Some(seat)) => {
                let streams = Arc::clone(&job.streams);
                let sink: Sink = Box::new(move |stream, bytes| streams.push(stream, bytes));
                let ran = self.run_in_context(owner, id, seat, run, sink, job.asked_to_stop()).await?;
                result.outcome = ran.outcome;
                (result.context, result.results) = (Some(Box::new(ran.report)), Box::new(ran.results));
                None
            }
            (Work::Code(run), None) => {
                let runs = if job.fresh { Runs::One } else { Runs::Many };
                let (execution, tidy) = self.run_code_until(owner, id, run, runs, job.asked_to_stop()).await?;
                Some((execution, Some(tidy)))
            }
            (Work::Command(command), _) => Some((self.exec(owner, id, &command).await?, None)),
        };
        let mut tidy = None;
        if let Some((execution, to_tidy)) = started {
            tidy = to_tidy;
            let end_of_input = if has_terminal { END_OF_INPUT } else { b"" };
            let mut places = tidy.as_ref().and_then(Tidy::displays).cloned().map(Places::new);
            match drive(job, execution, [&stdin, end_of_input], places.as_mut()).await? {
                Ok(outcome) => result.outcome = outcome,
                Err(not_killed) => return Ok(Worked::Unproven(not_killed)),
            }
            if let (Some(places), Some(tidy)) = (places.filter(|places| !places.found.is_empty()), &mut tidy) {
                result.results = Box::new(self.results(id, &places.directory, &places.found).await);
                tidy.keep_displays();
                if !job.fresh
                    && let Some(oldest) = self.displayed.add(id, places.directory)
                {
                    let _ = self.engine.files(id).remove(&oldest).await;
                }
            }
        }
        job.streams.close();

        // Whoever lists the files next must not find the code among them.
        let tidying = async {
            match tidy {
                Some(tidy) if job.fresh => tidy.leave(),
                Some(tidy) => tidy.clear().await,
                None => {}
            }
        };
        let looking = self.artifacts(job, &directory, &baseline, result.outcome.status, &result.results);
        tokio::select! {
            biased;
            () = job.asked_to_stop() => {}
            (found, ()) = async { tokio::join!(looking, tidying) } => {
                (result.artifacts, result.artifacts_left_out) = found;
            }
        }
        Ok(Worked::Ended(result))
    }

    async fn artifacts(
        &self,
        job: &Shared,
        directory: &GuestPath,
        baseline: &Baseline,
        status: ExecStatus,
        results: &Results,
    ) -> (Vec<Artifact>, usize) {
        match status {
            // With its sandbox.
            ExecStatus::Killed => return (Vec::new(), 0),
            ExecStatus::Exited(_)
            | ExecStatus::Signalled(_)
            | ExecStatus::TimedOut
            | ExecStatus::OutOfMemory
            | ExecStatus::Cancelled => {}
        }
        let files = self.engine.files(&job.sandbox);
        let mut artifacts = baseline.artifacts(look(&*files, directory).await);
        let left_out = artifacts.len().saturating_sub(MOST_ARTIFACTS);
        artifacts.truncate(MOST_ARTIFACTS);
        if job.fresh {
            let displayed = results.displays.iter().filter_map(|display| match &display.shown {
                Shown::File(file) => Some(file),
                Shown::Text(_) | Shown::Markdown(_) => None,
            });
            let kept: Vec<_> = artifacts.iter().chain(displayed).cloned().collect();
            self.kept.keep(&job.owner, &job.sandbox, &kept, &*files, self.clock.now()).await;
        }
        (artifacts, left_out)
    }
}

/// Feed a command and read it to its end. The inner error is of a kill that did not work.
async fn drive(
    job: &Shared,
    mut execution: Execution,
    input: [&[u8]; 2],
    mut places: Option<&mut Places>,
) -> Result<Result<ExecOutcome>> {
    let control = execution.control.clone();
    let feeding = feed(execution.stdin.take(), input);
    let stopping = async {
        job.asked_to_stop().await;
        match control.cancel().await {
            Ok(()) => pending().await,
            Err(error) => error,
        }
    };
    let show = |bytes: &[u8]| job.streams.push(JobStream::Stdout, bytes);
    let on_stdout = |bytes: &[u8]| match places.as_deref_mut() {
        Some(places) => places.push(bytes, show),
        None => show(bytes),
    };
    let on_stderr = |bytes: &[u8]| job.streams.push(JobStream::Stderr, bytes);
    let ended = {
        let mut reading = pin!(execution.read(on_stdout, on_stderr));
        tokio::select! {
            outcome = &mut reading => outcome.map(Ok),
            never = feeding => match never {},
            error = stopping => Ok(Err(error)),
        }
    };
    let rest = places.map(Places::rest).unwrap_or_default();
    if !rest.is_empty() {
        show(&rest);
    }
    ended
}

/// All of the input and then its end. A program that does not read it to the end is none of our business.
async fn feed(stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>, input: [&[u8]; 2]) -> Infallible {
    if let Some(mut stdin) = stdin {
        for bytes in input {
            if stdin.write_all(bytes).await.is_err() {
                break;
            }
        }
        let _ = stdin.shutdown().await;
    }
    pending().await
}
