//! `run_command`: a shell command, or a program with its arguments.

use std::collections::BTreeMap;

use sandbox::{Error, ExecRequest, JobRequest, JobWork, Result, RunProgram};
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
    /// argv; with neither, the image's own program runs: its entry point with its command.
    command: Option<String>,
    /// A program and its arguments, passed on as they are, without a shell. Give this or command.
    argv: Option<Vec<String>>,
    /// Run the image's entry point, with argv as its arguments. Default false: argv is the whole command.
    #[serde(default)]
    entrypoint: bool,
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
    let environment = environment(&arguments.env)?;
    let command = |mut request: ExecRequest| {
        request.environment = environment.clone();
        JobWork::Command(request)
    };
    let work = match (&arguments.command, arguments.argv, arguments.entrypoint) {
        (Some(line), None, false) => command(ExecRequest::shell(line, timeout)?),
        (None, Some(argv), false) => command(ExecRequest::new(argv, timeout)?),
        (None, arguments, _) => JobWork::Program(RunProgram { arguments, environment, timeout }),
        (Some(_), Some(_), false) => {
            return Err(Error::invalid_input("run_command takes either command or argv")
                .with_hint("give a shell command line in command, or a program and its arguments in argv"));
        }
        (Some(_), _, true) => {
            return Err(Error::invalid_input("an entry point takes arguments, not a command line")
                .with_hint("give the arguments in argv, or leave entrypoint out"));
        }
    };
    let asked = Asked { image: arguments.image.as_deref(), network: arguments.network.as_ref() };
    let place = run::place(&call, arguments.sandbox_id.as_deref(), asked).await?;
    let files = arguments.files.into_iter().map(FileArgument::into_file).collect::<Result<_>>()?;
    let request = JobRequest {
        work_directory: arguments.cwd.as_deref().map(str::parse).transpose()?,
        files,
        stdin: arguments.stdin.into_bytes(),
        checkpoint: arguments.checkpoint,
        key: arguments.idempotency_key.as_deref().map(str::parse).transpose()?,
        ..JobRequest::new(place, work)
    };
    run::run(call, request, waiting).await
}
