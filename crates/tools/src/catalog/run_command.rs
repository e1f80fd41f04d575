//! `run_command`: a shell command, or a program with its arguments.

use std::collections::BTreeMap;

use sandbox::{Error, ExecRequest, GuestPath, JobRequest, JobWork, Result};
use schemars::JsonSchema;
use serde::Deserialize;

use super::create_sandbox::environment;
use super::run::{self, Waiting};
use super::run_code::FileArgument;
use crate::call::Call;
use crate::network::NetworkArgument;
use crate::policy::{Asked, Policy};
use crate::results::RunObject;
use crate::select::Toolset;
use crate::tool::{Answer, Definition, Hints, Tool};
use crate::words;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// A command line for /bin/sh, for example "ls -l | head"; for Bash use run_code with language bash. Give this or
    /// argv.
    command: Option<String>,
    /// A program and its arguments, passed on as they are, without a shell. Give this or command.
    argv: Option<Vec<String>>,
    /// Run in this sandbox, by id or name. Left out: in a fresh one that ends with the run.
    sandbox_id: Option<String>,
    /// The directory to run in, when not the work directory.
    cwd: Option<String>,
    /// Files to write before the run.
    #[serde(default)]
    files: Vec<FileArgument>,
    /// What the program reads from its standard input.
    #[serde(default)]
    stdin: String,
    /// Environment variables for the program.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The image to start from.
    image: Option<String>,
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

pub fn tool(policy: &Policy) -> Tool {
    let definition = Definition {
        name: "run_command",
        title: "Run a command",
        description: format!(
            "Run a shell command in a sandbox and get its output, as run_code does for code. Use sandbox_id to work on \
             files that stay, and background for servers and long work. {}",
            words::network(policy)
        ),
        toolset: Toolset::Run,
        hints: Hints { read_only: false, destructive: true, idempotent: false, open_world: policy.reaches_out() },
    };
    let mut tool = Tool::new(definition, run_command);
    run::refine(&mut tool, policy);
    tool
}

async fn run_command(call: Call, arguments: Arguments) -> Result<Answer<RunObject>> {
    let waiting = Waiting::new(&call, arguments.background, arguments.wait_s)?;
    let timeout = run::timeout(&call, arguments.background, arguments.timeout_s)?;
    let mut command = match (&arguments.command, arguments.argv) {
        (Some(line), None) => ExecRequest::shell(line, timeout)?,
        (None, Some(argv)) => ExecRequest::new(argv, timeout)?,
        (Some(_), Some(_)) | (None, None) => {
            return Err(Error::invalid_input("run_command needs either command or argv")
                .with_hint("give a shell command line in command, or a program and its arguments in argv"));
        }
    };
    let asked = Asked { image: arguments.image.as_deref(), network: arguments.network.as_ref() };
    let (place, work_directory) = run::place(&call, arguments.sandbox_id.as_deref(), asked).await?;
    let resolve = |path: &String| GuestPath::resolve(&work_directory, path.as_bytes());
    command.environment = environment(&arguments.env)?;
    command.work_directory = arguments.cwd.as_ref().map(resolve).transpose()?;
    let files = arguments.files.into_iter().map(|file| file.into_file(&work_directory)).collect::<Result<_>>()?;
    let request = JobRequest {
        files,
        stdin: arguments.stdin.into_bytes(),
        checkpoint: arguments.checkpoint,
        key: arguments.idempotency_key.as_deref().map(str::parse).transpose()?,
        ..JobRequest::new(place, JobWork::Command(command))
    };
    run::run(call, request, waiting).await
}
