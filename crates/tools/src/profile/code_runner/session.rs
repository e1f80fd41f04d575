//! One run: a fresh sandbox with the files of its conversation, which get back what came of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandbox::{
    ByteSize, Environment, Error, ErrorKind, ExecStatus, GuestPath, JobPlace, JobRequest, JobWork, Limits, Network,
    Result, RunCode, SandboxInfo, SandboxSpec,
};

use super::conversations::{Conversation, Conversations};
use super::names::Links;
use super::told::{self, FileObject, Ran};
use crate::call::Call;
use crate::catalog::run;
use crate::error::tell;
use crate::network::NetworkArgument;
use crate::policy::Asked;
use crate::profile::work::{self, Ended};
use crate::tool;

/// Where code runs and its files are.
pub const DIRECTORY: &str = "/data";

/// What code can make addresses of its files from.
const BASE_URL: &str = "FILE_BASE_URL";

/// What a call asks for.
#[derive(Debug)]
pub struct Asking {
    pub conversation: Vec<u8>,
    pub language: String,
    pub code: String,
    pub network: bool,
    pub environment: BTreeMap<String, String>,
}

/// Goes on to its end by itself, so that a caller who goes away loses nothing of what the run has written.
pub async fn run(call: Call, conversations: Arc<dyn Conversations>, asking: Asking) -> Ran {
    let session = tokio::spawn(async move { serve(&call, &*conversations, asking).await });
    session.await.unwrap_or_else(|_| Ran::failed(tell(&Error::internal("the run was torn down")), Vec::new()))
}

async fn serve(call: &Call, conversations: &dyn Conversations, asking: Asking) -> Ran {
    let language = match call.service.runner(&asking.language).await {
        Ok(runner) => runner.name,
        Err(error) if error.kind() == ErrorKind::NotFound => return unsupported(&asking, Vec::new()),
        Err(error) => return failed(&error, Vec::new()),
    };
    let opening = conversations.open(&asking.conversation, super::bounds(&call.policy));
    let opened = tokio::select! {
        opened = opening => opened,
        () = call.cancelled.cancelled() => Err(cancelled()),
    };
    let mut conversation = match opened {
        Ok(conversation) => conversation,
        Err(error) => return failed(&error, Vec::new()),
    };
    let links = conversations.links();
    let ran = in_sandbox(call, &mut *conversation, links, &language, &asking).await;
    let files = listed(&*conversation, links).await;
    match ran {
        Ok(told) => Ran::new(told.success, told.stdout, told.stderr, files),
        Err(error) if is_missing(call, &language, &error).await => unsupported(&asking, files),
        Err(error) => failed(&error, files),
    }
}

/// Whether a run failed because nothing here runs its language. Nobody looks for that before a run: most are of one that is
/// there.
async fn is_missing(call: &Call, language: &str, error: &Error) -> bool {
    if !matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::NotFound) {
        return false;
    }
    let found = super::found(call).await;
    found.is_ok_and(|found| found.iter().all(|found| found.name != language))
}

fn unsupported(asking: &Asking, files: Vec<FileObject>) -> Ran {
    Ran::failed(format!("Unsupported language: {}", asking.language), files)
}

struct Told {
    success: bool,
    stdout: String,
    stderr: String,
}

async fn in_sandbox(
    call: &Call,
    conversation: &mut dyn Conversation,
    links: &Links,
    language: &str,
    asking: &Asking,
) -> Result<Told> {
    let mut code = RunCode::new(language, asking.code.as_str(), call.policy.timeout);
    code.environment = environment(&asking.environment, &links.directory(conversation.directory()))?;
    let spec = spec(call, language, asking.network).await?;
    let sandbox = tokio::select! {
        made = create(call, spec, conversation) => made?,
        () = call.cancelled.cancelled() => return Err(cancelled()),
    };
    let told = work_in(call, conversation, &sandbox, code).await;
    if let Err(error) = call.service.stop(&call.owner, &sandbox.id).await {
        // It expires by itself.
        tracing::warn!(id = %sandbox.id, ?error, "the sandbox of a run was not stopped");
    }
    told
}

/// Files took nothing from a program while they were the host's. In the sandbox they are in its memory, which is larger by as
/// much, as far as the operator lets it be. What files may grow to stays as it was.
async fn create(call: &Call, spec: SandboxSpec, conversation: &dyn Conversation) -> Result<SandboxInfo> {
    let lent = conversation.memory().await?.bytes();
    let memory = spec.limits.memory;
    let most = call.policy.ceiling.memory.max(memory);
    let larger = Limits {
        memory: most.min(ByteSize::new(memory.bytes().saturating_add(lent))),
        disk: ByteSize::new(super::room(&spec.limits)),
        ..spec.limits
    };
    match call.service.create(&call.owner, SandboxSpec { limits: larger, ..spec.clone() }).await {
        // All that the owner may have is not enough for that, and perhaps for what every run has.
        Err(error) if error.kind() == ErrorKind::LimitExceeded && larger.memory > memory => {
            call.service.create(&call.owner, spec).await
        }
        made => made,
    }
}

async fn work_in(
    call: &Call,
    conversation: &mut dyn Conversation,
    sandbox: &SandboxInfo,
    code: RunCode,
) -> Result<Told> {
    let files = call.service.files(&call.owner, &sandbox.id)?;
    let directory: GuestPath = DIRECTORY.parse()?;
    conversation.lend(&*files, &directory).await?;
    let request = JobRequest::new(JobPlace::Existing(sandbox.id.clone()), JobWork::Code(code));
    let ran = work::run(call, request).await;
    if ran.is_err() {
        // What its caller left while it ran must not change files any more that are being copied.
        for job in call.service.jobs(&call.owner).iter().filter(|job| *job.sandbox() == sandbox.id) {
            let _ = job.stop().await;
        }
    }
    // Also of a run that failed, as if they had been in place all the time.
    let kept = conversation.take_back(&*files, &directory).await;
    let mut told = told(call, ran?);
    if let Err(error) = kept {
        tool::log(super::RUN_CODE, &error);
        told.success = false;
        add_line(&mut told.stderr, &format!("Failed to keep files: {}", tell(&error)));
    }
    Ok(told)
}

fn told(call: &Call, ended: Ended) -> Told {
    let success = ended.succeeded();
    let why = match ended.status {
        ExecStatus::TimedOut => Some(format!("Execution timed out after {}", told::duration(call.policy.timeout))),
        ExecStatus::OutOfMemory => Some("Execution killed: memory ran out".to_owned()),
        ExecStatus::Killed => Some("Execution killed with its sandbox".to_owned()),
        ExecStatus::Exited(_) | ExecStatus::Signalled(_) | ExecStatus::Cancelled => None,
    };
    let Ended { stdout, stderr, .. } = ended;
    let stderr = match why {
        Some(why) if stderr.is_empty() => why,
        Some(why) => format!("{why}\n{stderr}"),
        None => stderr,
    };
    Told { success, stdout, stderr }
}

async fn spec(call: &Call, language: &str, network: bool) -> Result<SandboxSpec> {
    let asked = match (network, &call.policy.ceiling.network) {
        (false, _) => Network::None,
        (true, Network::None) => {
            return Err(Error::denied("network access is not allowed on this server")
                .with_hint("only its operator can allow it"));
        }
        // As much as the operator allows: the older server knew only all or nothing.
        (true, most @ (Network::Hosts(_) | Network::Internet)) => most.clone(),
    };
    let asked = NetworkArgument::Text(asked.to_string());
    let place = run::fresh(call, Asked { image: None, network: Some(&asked) }, Some(language)).await?;
    let JobPlace::Fresh(spec) = place else { return Err(Error::internal("a fresh sandbox was asked for")) };
    Ok(SandboxSpec { work_directory: Some(DIRECTORY.parse()?), ..*spec })
}

fn environment(asked: &BTreeMap<String, String>, base: &str) -> Result<Environment> {
    let mut environment = Environment::default();
    for (name, value) in asked {
        environment.insert(name, value)?;
    }
    environment.insert(BASE_URL, base)?;
    Ok(environment)
}

/// A list that cannot be had is not worth the result of a run.
async fn listed(conversation: &dyn Conversation, links: &Links) -> Vec<FileObject> {
    let names = conversation.files().await.unwrap_or_else(|error| {
        tool::log(super::RUN_CODE, &error);
        Vec::new()
    });
    let directory = conversation.directory();
    names.iter().map(|name| FileObject { name: name.shown(), url: links.file(directory, name) }).collect()
}

fn failed(error: &Error, files: Vec<FileObject>) -> Ran {
    tool::log(super::RUN_CODE, error);
    Ran::failed(tell(error), files)
}

fn cancelled() -> Error {
    Error::unavailable("the request was cancelled")
}

fn add_line(text: &mut String, line: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(line);
}
