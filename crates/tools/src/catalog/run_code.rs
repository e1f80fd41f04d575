//! `run_code`: code in a language, in a fresh sandbox or in one that stays.

use std::collections::BTreeMap;

use sandbox::{Error, JobFile, JobPlace, JobRequest, JobWork, PackageLanguage, Result, RunCode, SandboxId};
use schemars::JsonSchema;
use serde::Deserialize;

use super::create_sandbox::environment;
use super::run::{self, Waiting};
use super::write_file::Encoding;
use crate::call::Call;
use crate::content::Content;
use crate::network::NetworkArgument;
use crate::packages;
use crate::policy::{Asked, Policy};
use crate::results::RunObject;
use crate::select::Toolset;
use crate::text;
use crate::tool::{Answer, Definition, Hints, Tool};
use crate::words;

pub const NAME: &str = "run_code";
/// The argument whose values may change while a server runs.
pub const LANGUAGE: &str = "language";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// The language of the code.
    language: String,
    /// The code: a whole program. Print what you want to see.
    code: String,
    /// Run in this sandbox, by id or name. Left out: in a fresh one that ends with the run.
    sandbox_id: Option<String>,
    /// Keep variables, imports and functions in a live interpreter of this name, for later runs in it; the value of the
    /// last expression is the result. For python, javascript, typescript and bash. Without sandbox_id, a sandbox is made that stays.
    context: Option<String>,
    /// Arguments for the program.
    #[serde(default)]
    args: Vec<String>,
    /// Files to write before the run.
    #[serde(default)]
    files: Vec<FileArgument>,
    /// What the program reads from its standard input.
    #[serde(default)]
    stdin: String,
    /// Environment variables for the program.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The directory to run in, when not the work directory.
    cwd: Option<String>,
    /// The image to start from.
    image: Option<String>,
    /// Packages to have there.
    #[serde(default)]
    packages: Vec<String>,
    /// What the run may reach.
    network: Option<NetworkArgument>,
    /// Seconds until the run is killed.
    #[schemars(range(min = 0.001))]
    timeout_s: Option<f64>,
    /// Return at once with a job_id, for get_job and stop_job. Default false.
    #[serde(default)]
    background: bool,
    /// Seconds to wait before a run that goes on is answered with a job_id.
    #[schemars(range(min = 0))]
    wait_s: Option<f64>,
    /// Remember the files before the run, for diff_sandbox and restore_sandbox. Only with sandbox_id. Default false.
    #[serde(default)]
    checkpoint: bool,
    /// Any text of yours that names this run: the same call sent again does not run again but gets the same result.
    idempotency_key: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileArgument {
    /// Where to write; a relative path starts at the work directory.
    path: String,
    /// What to write: text, or base64 when encoding says so.
    content: String,
    /// How content is written. Default text.
    #[serde(default)]
    encoding: Encoding,
}

impl FileArgument {
    pub fn into_file(self) -> Result<JobFile> {
        Ok(JobFile { path: self.path.parse()?, contents: self.encoding.decode(self.content)? })
    }
}

pub fn tool(policy: &Policy) -> Tool {
    let description = format!(
        "Run code in an isolated Linux sandbox and get its output. Without sandbox_id it runs in a fresh sandbox that \
         ends with the run; with one, files stay for later calls, and with context variables too. Images that the code saves in the \
         work directory (PNG, JPEG, SVG, GIF, WebP) come back as images, other new files as links. {} \
         Limits unless you say otherwise: {}, {} of memory. A non-zero exit code is a result, not an error. For shell \
         commands use run_command.",
        words::network(policy),
        text::spoken(policy.timeout),
        policy.limits.memory,
    );
    let definition = Definition {
        name: NAME,
        title: "Run code",
        description,
        toolset: Toolset::Run,
        hints: Hints { read_only: false, destructive: true, idempotent: false, open_world: policy.reaches_out() },
    };
    let mut tool = Tool::new(definition, run_code);
    tool.refine(LANGUAGE, "enum", policy.languages.clone());
    let usual = "They are of the code's language, or of npm with npm: before. Not with sandbox_id: give them to \
                 create_sandbox instead.";
    tool.refine("packages", "description", packages::argument(policy, usual));
    run::refine(&mut tool, policy);
    tool
}

async fn run_code(call: Call, arguments: Arguments) -> Result<Answer<RunObject>> {
    let waiting = Waiting::new(&call, arguments.background, arguments.wait_s)?;
    let has_context = arguments.context.is_some();
    let (mut request, installed) = request(&call, arguments).await?;
    let made = if has_context { make_place(&call, &mut request).await? } else { None };
    let ran = run::run(call.clone(), request, waiting).await;
    if let (Err(_), Some(id)) = (&ran, &made) {
        // Nobody was told of it. One that cannot be stopped ends when it is idle.
        let _ = call.service.stop(&call.owner, id).await;
    }
    let mut answer = ran?;
    answer.value.packages = installed;
    if let Some(id) = made {
        let told = format!("[sandbox {id} was made for this context and stays: name it in sandbox_id to go on]");
        answer.content.push(Content::Text(told));
    }
    Ok(answer)
}

/// A sandbox that stays, in place of one that would end with the run and take the context with it.
async fn make_place(call: &Call, request: &mut JobRequest) -> Result<Option<SandboxId>> {
    let JobPlace::Fresh(spec) = &request.place else { return Ok(None) };
    if request.key.is_some() {
        return Err(Error::invalid_input("a run that makes the sandbox of its context cannot be sent twice")
            .with_hint("call create_sandbox first and name it in sandbox_id, or leave idempotency_key out"));
    }
    let sandbox = tokio::select! {
        created = call.service.create(&call.owner, (**spec).clone()) => created?,
        () = call.cancelled.cancelled() => return Err(Error::unavailable("the request was cancelled")),
    };
    request.place = JobPlace::Existing(sandbox.id.clone());
    Ok(Some(sandbox.id))
}

/// What is to be run, and what was installed for it.
pub async fn request(call: &Call, arguments: Arguments) -> Result<(JobRequest, Vec<String>)> {
    let asked = Asked { image: arguments.image.as_deref(), network: arguments.network.as_ref() };
    let language = &call.service.runner(&arguments.language).await?.name;
    let usual = PackageLanguage::usual(language, &arguments.packages)?;
    let wanted = packages::asked(&call.policy, usual, &arguments.packages)?;
    let mut place = match arguments.sandbox_id.as_deref() {
        None => run::fresh(call, asked, Some(language)).await?,
        sandbox_id => run::place(call, sandbox_id, asked).await?,
    };
    let mut variables = environment(&arguments.env)?;
    let mut installed = Vec::new();
    if !wanted.is_empty() {
        let JobPlace::Fresh(spec) = &mut place else { return Err(only_when_made()) };
        let prepared = packages::provide(call, &spec.image, &wanted).await?;
        installed = packages::attach(&prepared, spec)?;
        prepared.iter().try_for_each(|prepared| prepared.join(&mut variables))?;
    }
    let code = RunCode {
        context: arguments.context.as_deref().map(str::parse).transpose()?,
        arguments: arguments.args,
        environment: variables,
        displays: true,
        ..RunCode::new(
            arguments.language,
            arguments.code,
            run::timeout(call, arguments.background, arguments.timeout_s)?,
        )
    };
    let files = arguments.files.into_iter().map(FileArgument::into_file).collect::<Result<_>>()?;
    let request = JobRequest {
        work_directory: arguments.cwd.as_deref().map(str::parse).transpose()?,
        files,
        stdin: arguments.stdin.into_bytes(),
        checkpoint: arguments.checkpoint,
        key: arguments.idempotency_key.as_deref().map(str::parse).transpose()?,
        ..JobRequest::new(place, JobWork::Code(code))
    };
    Ok((request, installed))
}

fn only_when_made() -> Error {
    Error::invalid_input("packages are given to a sandbox when it is made")
        .with_hint("call create_sandbox with these packages and run there, or leave sandbox_id out")
}
