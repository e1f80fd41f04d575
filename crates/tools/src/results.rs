//! Results of runs: one object for programs, and blocks that a model and a person both can read.

use std::fmt::Write;
use std::time::Duration;

use sandbox::service::Job;
use sandbox::{
    Artifact, ByteRange, ByteSize, CappedOutput, Checkpoint, ExecOutcome, ExecStatus, GuestPath, JobId, JobResult,
    JobStatus, Layer, Result,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::Call;
use crate::catalog::get_job::page::Page;
use crate::content::{Content, ResourceLink};
use crate::displays::{self, ContextObject, DisplayObject, Printed};
use crate::network::{self, Asking, NetworkObject};
use crate::text::{self, Budget};
use crate::tool::Answer;
use crate::uri::{self, OutputStream};
use crate::{mime, policy::Policy};

/// Larger images are linked instead of shown: they would fill a model's context.
pub const IMAGE_BYTES: u64 = 1 << 20;

const IMAGES: usize = 8;
const LINKS: usize = 20;

/// Encoded bytes of the names of artifacts.
const NAMES: usize = 32 * 1024;

/// What both streams of a run may take in an answer. The end matters more: that is where results and errors are.
const STDOUT: Budget = Budget { head: 8 * 1024, tail: 16 * 1024 };
const STDERR: Budget = Budget { head: 4 * 1024, tail: 8 * 1024 };

/// A run, as far as it has come.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunObject {
    pub sandbox_id: String,
    /// False when the sandbox ended with the run: its id is of no use any more, its artifacts are, for ten minutes.
    pub sandbox_kept: bool,
    pub status: Status,
    /// Present when status is exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Present when a signal ended the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// Something was left out of stdout or stderr, where it says so.
    pub truncated: bool,
    /// Files below the work directory that the run made or changed.
    pub artifacts: Vec<ArtifactObject>,
    /// Artifacts that are not listed.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(default)]
    pub artifacts_left_out: usize,
    /// What was installed for the run, with versions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    pub packages: Vec<String>,
    /// The value of the last expression, of a run in a context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Figures, images, tables and pages that the run displayed, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    pub displays: Vec<DisplayObject>,
    /// Present once a run in a context has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextObject>,
    /// Present once the run has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageObject>,
    /// Present once a run in a sandbox with a network has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkObject>,
    /// For get_job and stop_job; present while the run goes on, and when its output was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// The files as they were before the run, for diff_sandbox and restore_sandbox; present when it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<u32>,
    /// Present when get_job was asked for a part of the output, in place of stdout and stderr.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<Page>,
    /// Walls that the operator allowed to be missing, and that were missing around this run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    pub missing_layers: Vec<&'static str>,
}

impl RunObject {
    fn is_silent(&self) -> bool {
        self.stdout.is_empty() && self.stderr.is_empty() && self.result.is_none() && self.displays.is_empty()
    }

    /// Whether it was in a context, and that is still there.
    fn has_context(&self) -> bool {
        self.context.as_ref().is_some_and(|context| context.ended.is_none())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Running,
    Exited,
    TimedOut,
    OutOfMemory,
    Killed,
    Cancelled,
    Interrupted,
}

impl From<ExecStatus> for Status {
    fn from(status: ExecStatus) -> Self {
        match status {
            ExecStatus::Exited(_) => Self::Exited,
            ExecStatus::Signalled(_) | ExecStatus::Killed => Self::Killed,
            ExecStatus::TimedOut => Self::TimedOut,
            ExecStatus::OutOfMemory => Self::OutOfMemory,
            ExecStatus::Cancelled => Self::Cancelled,
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ArtifactObject {
    pub path: String,
    pub mime_type: &'static str,
    pub bytes: u64,
    /// To read it as a resource, or with read_file by its path. Absent when it was too large to keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// To download it over HTTP without a token, for 15 minutes and while its sandbox is there. Give it to the person who is to
    /// have the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct UsageObject {
    pub wall_ms: u64,
    pub cpu_ms: u64,
    pub peak_memory_bytes: u64,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A job as it stands now.
pub async fn answer(call: &Call, job: &Job) -> Result<Answer<RunObject>> {
    match job.status() {
        JobStatus::Running => Ok(running(job)),
        JobStatus::Ended(result) => Ok(ended(call, job, &result).await),
        JobStatus::Interrupted => Ok(interrupted(job)),
        JobStatus::Failed(failure) => Err(failure.to_error()),
    }
}

fn running(job: &Job) -> Answer<RunObject> {
    let mut value = object(job, Status::Running);
    value.job_id = Some(job.id().to_string());
    let mut text = streams(&value.stdout, &value.stderr);
    let _ = write!(
        text,
        "[still running as {id}: call get_job with this job_id for its output and its end, stop_job to end it]",
        id = job.id()
    );
    Answer { content: vec![Content::Text(text)], value }
}

/// Nobody saw how it ended.
fn interrupted(job: &Job) -> Answer<RunObject> {
    let mut value = object(job, Status::Interrupted);
    value.job_id = Some(job.id().to_string());
    let mut text = streams(&value.stdout, &value.stderr);
    text += "[the server was ended while this ran, and the run with it: this is what it had written; start it again]";
    let mut content = vec![Content::Text(text)];
    if value.truncated {
        content.extend(whole_outputs(job.id(), &job.output().stdout, &job.output().stderr));
    }
    Answer { content, value }
}

async fn ended(call: &Call, job: &Job, result: &JobResult) -> Answer<RunObject> {
    let ExecOutcome { status, usage, network } = &result.outcome;
    let status = *status;
    let mut value = object(job, status.into());
    let milliseconds = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    value.exit_code = status.exit_code();
    value.signal = status.signal();
    value.usage = Some(UsageObject {
        wall_ms: milliseconds(usage.wall),
        cpu_ms: milliseconds(usage.cpu),
        peak_memory_bytes: usage.peak_memory,
    });
    // Of a run in a context nobody has counted it.
    value.network = (!job.network().is_none() && result.context.is_none()).then(|| network.into());
    value.job_id = value.truncated.then(|| job.id().to_string());
    value.artifacts_left_out = result.artifacts_left_out;
    value.checkpoint = result.checkpoint.map(|Checkpoint(number)| number);
    value.missing_layers = result.missing_layers.iter().map(|layer| Layer::as_str(*layer)).collect();
    let (blocks, not_shown) = show(call, job, &result.artifacts, &mut value.artifacts).await;
    value.artifacts_left_out += result.artifacts.len() - value.artifacts.len();
    value.context = result.context.as_deref().map(ContextObject::from);
    value.result = result.results.value.as_deref().map(displays::value);
    let crowd = crowd(call, job, status).await;
    let stdout = job.output().stdout;
    let is_whole = value.stdout.len() as u64 == stdout.total();
    let bytes = stdout.bytes();
    let printed = Printed { whole: is_whole.then_some(&bytes), shown: &value.stdout };
    let (mut content, shown, last) = displays::in_order(call, job, printed, &result.results.displays).await;
    value.displays = shown;
    let mut text = streams(&last, &value.stderr);
    if let Some(result) = value.result.as_ref().filter(|_| !result.results.value_is_displayed) {
        let _ = writeln!(text, "[result]\n{result}");
    }
    text += &crowd;
    let how = if job.is_fresh() { Asking::SameTool } else { Asking::NewSandbox };
    if let Some(refused) = network::told(network, job.network(), &call.policy.ceiling.network, how) {
        text += &refused;
        text.push('\n');
    } else if job.network().is_none()
        && [&value.stdout, &value.stderr].iter().any(|text| network::is_missed_in(text.as_bytes()))
    {
        text += &network::missed(&call.policy.ceiling.network, how);
        text.push('\n');
    }
    text += &closing(&value, status, &call.policy, not_shown + result.artifacts_left_out);
    if !text.is_empty() || content.is_empty() {
        content.push(Content::Text(text));
    }
    content.extend(blocks);
    if value.truncated {
        content.extend(whole_outputs(job.id(), &job.output().stdout, &job.output().stderr));
    }
    Answer { content, value }
}

fn object(job: &Job, status: Status) -> RunObject {
    let output = job.output();
    let (stdout, stdout_cut) = text::cut(&output.stdout, STDOUT);
    let (stderr, stderr_cut) = text::cut(&output.stderr, STDERR);
    RunObject {
        sandbox_id: job.sandbox().to_string(),
        sandbox_kept: !job.is_fresh(),
        status,
        exit_code: None,
        signal: None,
        stdout,
        stderr,
        truncated: stdout_cut || stderr_cut,
        artifacts: Vec::new(),
        artifacts_left_out: 0,
        packages: Vec::new(),
        result: None,
        displays: Vec::new(),
        context: None,
        usage: None,
        network: None,
        job_id: None,
        checkpoint: None,
        page: None,
        missing_layers: Vec::new(),
    }
}

/// What was printed, as a terminal would show it; errors under their own heading.
fn streams(stdout: &str, stderr: &str) -> String {
    let mut text = stdout.to_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    if !stderr.is_empty() {
        let _ = write!(text, "[stderr]\n{stderr}");
        if !stderr.ends_with('\n') {
            text.push('\n');
        }
    }
    text
}

/// How it ended, when that is not plain from the output, and what to do about it.
fn closing(run: &RunObject, status: ExecStatus, policy: &Policy, files_not_shown: usize) -> String {
    let mut notes = Vec::new();
    match status {
        ExecStatus::Exited(0) if run.is_silent() => {
            notes.push("[no output, exit code 0]".to_owned());
        }
        ExecStatus::Exited(0) => {}
        ExecStatus::Exited(code) => notes.push(format!("[exit code {code}]")),
        ExecStatus::Signalled(signal) => notes.push(format!("[ended by signal {signal}]")),
        ExecStatus::TimedOut if run.has_context() => notes.push(format!(
            "[time ran out and the run was interrupted, its variables are there: raise timeout_s, {} at most, or do less at once]",
            policy.longest_timeout.as_secs()
        )),
        ExecStatus::TimedOut => notes.push(format!(
            "[time ran out, everything was killed: raise timeout_s, {} at most, or do less at once]",
            policy.longest_timeout.as_secs()
        )),
        ExecStatus::OutOfMemory => {
            let hint = if run.sandbox_kept { "a sandbox" } else { "create_sandbox, and run in it," };
            notes.push(format!(
                "[memory ran out, the program was killed: use {hint} with more memory_mb, or less data]"
            ));
        }
        ExecStatus::Killed => notes.push("[the sandbox was stopped while it ran]".to_owned()),
        ExecStatus::Cancelled => notes.push("[stopped on request]".to_owned()),
    }
    notes.extend(run.context.iter().flat_map(ContextObject::notes));
    if !run.artifacts.is_empty() {
        let files = run.artifacts.iter().take(LINKS);
        let listed: Vec<_> =
            files.map(|file| format!("{} ({})", text::on_one_line(&file.path), ByteSize::new(file.bytes))).collect();
        notes.push(format!("[files: {}]", listed.join(", ")));
    }
    let lost: Vec<_> =
        run.artifacts.iter().filter(|file| file.uri.is_none()).map(|file| text::on_one_line(&file.path)).collect();
    if !lost.is_empty() {
        notes.push(format!(
            "[too large to keep: {}; call create_sandbox and run in it to keep such files]",
            lost.join(", ")
        ));
    }
    if files_not_shown > 0 {
        let hint = if run.sandbox_kept { "list_files shows all" } else { "run in a sandbox that stays to see all" };
        notes.push(format!("[{files_not_shown} more files: {hint}]"));
    }
    if let Some(checkpoint) = run.checkpoint {
        notes.push(format!("[checkpoint {checkpoint} has the files as they were before: restore_sandbox goes back]"));
    }
    if !run.missing_layers.is_empty() {
        notes.push(format!("[this sandbox stands without {}]", run.missing_layers.join(", ")));
    }
    notes.join("\n")
}

/// A sandbox that is full of processes fails in ways that do not say so.
async fn crowd(call: &Call, job: &Job, status: ExecStatus) -> String {
    if job.is_fresh() || status == ExecStatus::Exited(0) {
        return String::new();
    }
    let Ok(sandbox) = call.service.find(&call.owner, job.sandbox().as_str()).await else { return String::new() };
    let usage = call.service.usage(&call.owner, job.sandbox()).await.ok().and_then(|usage| usage.processes);
    let most = sandbox.limits.processes;
    match usage {
        Some(processes) if processes * 10 >= u64::from(most) * 9 => format!(
            "[{processes} processes run in this sandbox, and {most} may: end those that earlier runs left behind, for example \
             with argv [\"pkill\", \"-9\", \"NAME\"], or call stop_sandbox]\n"
        ),
        Some(_) | None => String::new(),
    }
}

/// Images in place, everything else as links; returns how many files got neither.
async fn show(
    call: &Call,
    job: &Job,
    artifacts: &[Artifact],
    objects: &mut Vec<ArtifactObject>,
) -> (Vec<Content>, usize) {
    let (mut images, mut links, mut not_shown) = (Vec::new(), Vec::new(), 0);
    let mut room = NAMES;
    let remembered = if job.is_fresh() { call.service.kept_artifacts(&call.owner, job.sandbox()) } else { Vec::new() };
    let kept = |path: &GuestPath| !job.is_fresh() || remembered.iter().any(|artifact| artifact.path == *path);
    for (index, artifact) in artifacts.iter().enumerate() {
        // Names are chosen by the code that ran.
        room = room.saturating_sub(text::encoded(&artifact.path.to_string_lossy()));
        if room == 0 {
            not_shown += artifacts.len() - index;
            break;
        }
        let mut object = ArtifactObject {
            path: artifact.path.to_string_lossy().into_owned(),
            mime_type: mime::by_name(artifact.path.as_bytes()),
            bytes: artifact.bytes,
            uri: kept(&artifact.path).then(|| uri::file(job.sandbox(), &artifact.path)),
            url: address(call, job, &artifact.path),
        };
        let image = if images.len() < IMAGES { image(call, job, artifact).await } else { None };
        match image {
            Some((mime_type, bytes)) => {
                object.mime_type = mime_type;
                images.push(Content::Image { mime_type, bytes });
            }
            None => match &object.uri {
                Some(uri) if links.len() < LINKS => links.push(Content::Link(link(uri, &object, artifact))),
                Some(_) => not_shown += 1,
                None => {}
            },
        }
        objects.push(object);
    }
    images.extend(links);
    (images, not_shown)
}

/// Files of a sandbox that ended with its run are kept as resources alone.
fn address(call: &Call, job: &Job, path: &GuestPath) -> Option<String> {
    let links = call.links.as_ref().filter(|_| !job.is_fresh())?;
    links.link(&call.owner, job.sandbox(), path)
}

/// The first images among what a run made, as far as they are small enough to be shown.
pub async fn images(call: &Call, job: &Job, artifacts: &[Artifact]) -> Vec<Content> {
    let mut images = Vec::new();
    for artifact in artifacts {
        if images.len() == IMAGES {
            break;
        }
        if let Some((mime_type, bytes)) = image(call, job, artifact).await {
            images.push(Content::Image { mime_type, bytes });
        }
    }
    images
}

pub async fn image(call: &Call, job: &Job, artifact: &Artifact) -> Option<(&'static str, Vec<u8>)> {
    let name = artifact.path.file_name()?;
    if artifact.bytes > IMAGE_BYTES || !mime::may_be_image(name) {
        return None;
    }
    let range = ByteRange { offset: 0, length: Some(IMAGE_BYTES + 1) };
    let read = call.service.read_artifact(&call.owner, job.sandbox(), &artifact.path, range).await;
    // A file that is gone by now, or has grown, is still worth its link.
    let (_, bytes) = read.ok().filter(|(_, bytes)| bytes.len() as u64 <= IMAGE_BYTES)?;
    Some((mime::image(name, &bytes)?, bytes))
}

fn link(uri: &str, object: &ArtifactObject, artifact: &Artifact) -> ResourceLink {
    ResourceLink {
        uri: uri.to_owned(),
        name: String::from_utf8_lossy(artifact.path.file_name().unwrap_or_default()).into_owned(),
        mime_type: object.mime_type,
        bytes: object.bytes,
    }
}

fn whole_outputs(id: &JobId, stdout: &CappedOutput, stderr: &CappedOutput) -> Vec<Content> {
    let link = |stream: OutputStream, output: &CappedOutput, budget: Budget| {
        let whole = ResourceLink {
            uri: uri::output(id, stream),
            name: stream.as_str().to_owned(),
            mime_type: "text/plain",
            bytes: output.total(),
        };
        text::cut(output, budget).1.then_some(Content::Link(whole))
    };
    [link(OutputStream::Stdout, stdout, STDOUT), link(OutputStream::Stderr, stderr, STDERR)]
        .into_iter()
        .flatten()
        .collect()
}
