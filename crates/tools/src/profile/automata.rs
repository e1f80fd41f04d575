//! code-sandbox-mcp of Automata Labs: containers from any image that stay until they are stopped, and files between them
//! and the host.
//!
//! It told of every failure in ordinary answers, and its clients read them there.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox::{
    Error, ErrorKind, ExecRequest, ExecStatus, GuestPath, JobPlace, JobRequest, JobWork, Result, WriteOptions,
};
use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt;

use super::arguments::Arguments;
use super::{Identity, Offers, Profile, ProfileOption, ProfileOptions, containers, work};
use crate::call::Call;
use crate::content::Output;
use crate::error::tell;
use crate::image;
use crate::policy::Policy;
use crate::resources::{Contents, Template};
use crate::tool::{self, Reason, Rejection, Tool};

mod copies;
mod logs;
mod transcript;
mod words;

use transcript::Transcript;
use words::Which;

/// Where relative paths start.
const DIRECTORY: &str = "/app";

/// What an answer has room for: both streams of one command, whole, and as much again.
const TRANSCRIPT_BYTES: usize = 4 << 20;

#[derive(Debug)]
pub struct Automata {
    options: ProfileOptions,
}

impl Automata {
    pub fn new(options: ProfileOptions) -> Self {
        Self { options }
    }
}

#[async_trait]
impl Profile for Automata {
    fn identity(&self) -> Identity {
        Identity { name: "code-sandbox-mcp", version: "v1.0.0" }
    }

    fn offers(&self) -> Offers {
        Offers { resources: true, prompts: true }
    }

    fn tools(self: Arc<Self>, policy: &Policy) -> Vec<Tool> {
        let unused = match self.options.has(ProfileOption::EndContainers) {
            true => containers::unused(policy),
            false => policy.lifetime.idle,
        };
        let tool = |which: Which| {
            let profile = Arc::clone(&self);
            Tool::older(which.definition(unused), which.schema(policy), move |call, arguments| {
                let profile = Arc::clone(&profile);
                async move { Ok(profile.answer(which, &call, &arguments).await) }
            })
        };
        Which::ALL.map(tool).into()
    }

    fn unknown_tool(&self, name: &str) -> Result<Output, Rejection> {
        Err(Rejection::new(Reason::Parameters, format!("Tool not found: {name}")))
    }

    fn templates(&self) -> &'static [Template] {
        logs::TEMPLATES
    }

    async fn read(&self, call: &Call, uri: &str) -> Result<Contents, Rejection> {
        logs::read(call, uri).await
    }
}

/// What a call comes to; both are told in words.
enum Told {
    Done(String),
    /// A command that failed among them.
    Failed(String),
}

/// Why a call was not served, as the older server said it.
struct Failure {
    text: String,
    /// For the log.
    error: Option<Error>,
}

impl Failure {
    fn said(text: impl Into<String>) -> Self {
        Self { text: text.into(), error: None }
    }

    /// `what` leads the sentence that was its own.
    fn of(what: impl Into<String>) -> impl FnOnce(Error) -> Self {
        let what = what.into();
        move |error| Self { text: format!("{what}: {}", tell(&error)), error: Some(error) }
    }
}

impl Automata {
    async fn answer(&self, which: Which, call: &Call, arguments: &Map<String, Value>) -> Output {
        let arguments = Arguments(arguments);
        let served = match which {
            Which::Initialize => self.initialize(call, arguments).await,
            Which::Exec => exec(call, arguments).await,
            Which::Stop => stop(call, arguments).await,
            Which::Write | Which::WriteSandbox => write(call, arguments).await,
            Which::CopyFile => copies::file_in(call, arguments).await,
            Which::CopyProject => copies::project_in(call, arguments).await,
            Which::CopyFileOut => copies::file_out(call, arguments).await,
        };
        let (text, failed) = match served {
            Ok(Told::Done(text)) => (text, false),
            Ok(Told::Failed(text)) => (text, true),
            Err(Failure { text, error }) => {
                if let Some(error) = &error {
                    tool::log(which.name(), error);
                }
                (text, true)
            }
        };
        Output { is_error: failed && self.options.has(ProfileOption::FlagFailures), ..Output::text(text) }
    }

    async fn initialize(&self, call: &Call, arguments: Arguments<'_>) -> Result<Told, Failure> {
        let asked = optional(arguments, "image");
        let named = asked.map_or_else(|| call.policy.image.shown(), str::to_owned);
        let not_pulled = || Failure::of(format!("Error: failed to pull Docker image {named}"));
        let spec = containers::spec(call, asked, DIRECTORY).map_err(not_pulled())?;
        let spec = match self.options.has(ProfileOption::EndContainers) {
            true => spec,
            false => containers::kept(call, spec),
        };
        image::provide(call, &spec.image).await.map_err(not_pulled())?;
        let made = tokio::select! {
            made = call.service.create(&call.owner, spec) => made,
            () = call.cancelled.cancelled() => Err(cancelled()),
        };
        match made {
            Ok(sandbox) => Ok(Told::Done(format!("container_id: {}", containers::id_of(&sandbox.id)))),
            // Known only now where the engine itself looks for the image.
            Err(error) if error.kind() == ErrorKind::NotFound => Err(not_pulled()(error)),
            Err(error) => Err(Failure::of("Error: failed to create container")(error)),
        }
    }
}

/// Each command in a shell of its own, until one fails.
async fn exec(call: &Call, arguments: Arguments<'_>) -> Result<Told, Failure> {
    let id = required(arguments, "container_id")?;
    let commands = commands(arguments)?;
    let not_run = || Failure::of("Error executing command");
    let sandbox = containers::find(call, id).await.map_err(not_run())?;
    let timeout = call.policy.timeout.min(call.policy.longest_timeout);
    let mut transcript = Transcript::new(TRANSCRIPT_BYTES);
    for command in commands {
        let request = ExecRequest::shell(command, timeout).map_err(not_run())?;
        let request = JobRequest::new(JobPlace::Existing(sandbox.id.clone()), JobWork::Command(request));
        let request = JobRequest { recorded: Some(logs::KEPT_FOR), ..request };
        let ended = work::run(call, request).await.map_err(not_run())?;
        let mut ran = words::transcript(command, &ended.stdout, &ended.stderr);
        match ended.status {
            ExecStatus::TimedOut => {
                ran += &format!("Error: killed after {} s, its time limit\n", timeout.as_secs());
            }
            ExecStatus::OutOfMemory => ran += "Error: killed, because memory ran out\n",
            ExecStatus::Exited(_) | ExecStatus::Signalled(_) | ExecStatus::Killed | ExecStatus::Cancelled => {}
        }
        if !ended.succeeded() {
            ran += &words::exited(ended.exit_code());
            transcript.push(ran);
            return Ok(Told::Failed(transcript.text()));
        }
        transcript.push(ran);
    }
    Ok(Told::Done(transcript.text()))
}

fn commands<'a>(arguments: Arguments<'a>) -> Result<Vec<&'a str>, Failure> {
    let commands: Vec<&str> = match arguments.0.get("commands") {
        None | Some(Value::Null) => return Err(Failure::said("commands is required")),
        Some(Value::String(command)) => vec![command],
        Some(Value::Array(commands)) => commands
            .iter()
            .map(|command| command.as_str().ok_or_else(|| Failure::said("Each command must be a string")))
            .collect::<Result<_, _>>()?,
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            return Err(Failure::said("commands must be a string or an array of strings"));
        }
    };
    if commands.is_empty() {
        return Err(Failure::said("at least one command is required"));
    }
    Ok(commands)
}

async fn stop(call: &Call, arguments: Arguments<'_>) -> Result<Told, Failure> {
    let id = optional(arguments, "container_id").ok_or_else(|| Failure::said("Error: container_id is required"))?;
    let not_stopped = || Failure::of("Error: failed to stop container");
    let sandbox = containers::find(call, id).await.map_err(not_stopped())?;
    call.service.stop(&call.owner, &sandbox.id).await.map_err(not_stopped())?;
    Ok(Told::Done(format!("Successfully stopped and removed container: {id}")))
}

async fn write(call: &Call, arguments: Arguments<'_>) -> Result<Told, Failure> {
    let id = required(arguments, "container_id")?;
    let name = required(arguments, "file_name")?;
    // A file may be empty.
    let contents = arguments.text("file_contents").map_err(|_| Failure::said("file_contents is required"))?;
    let no_directory = || Failure::of("Error creating directory");
    let not_written = || Failure::of("Error writing file");
    let directory = inside(optional(arguments, "dest_dir").unwrap_or(DIRECTORY)).map_err(no_directory())?;
    let path = inside(&format!("{}/{name}", directory.to_string_lossy())).map_err(not_written())?;
    let sandbox = containers::find(call, id).await.map_err(no_directory())?;
    let files = call.service.files(&call.owner, &sandbox.id).map_err(no_directory())?;
    files.make_directory(&directory).await.map_err(no_directory())?;
    let mut writer = files.write(&path, WriteOptions::default()).await.map_err(not_written())?;
    // A failed write is told by the commit.
    let _ = writer.write_all(contents.as_bytes()).await;
    writer.commit().await.map_err(not_written())?;
    Ok(Told::Done(format!("Successfully wrote file {path} to container {id}")))
}

/// What is of another type counts as left out, as it did.
fn optional<'a>(arguments: Arguments<'a>, argument: &'static str) -> Option<&'a str> {
    arguments.optional_text(argument).ok().flatten().filter(|text| !text.is_empty())
}

fn required<'a>(arguments: Arguments<'a>, argument: &'static str) -> Result<&'a str, Failure> {
    optional(arguments, argument).ok_or_else(|| Failure::said(format!("{argument} is required")))
}

/// A path in the container. The whole container is the client's, so `..` is only a way of writing.
fn inside(path: &str) -> Result<GuestPath> {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{DIRECTORY}/{path}") };
    GuestPath::resolve(&GuestPath::root(), clean(&whole).as_bytes())
}

/// The same path without detours.
fn clean(path: &str) -> String {
    let is_whole = path.starts_with('/');
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => match names.last() {
                Some(&last) if last != ".." => drop(names.pop()),
                Some(_) | None if is_whole => {}
                Some(_) | None => names.push(name),
            },
            name => names.push(name),
        }
    }
    match (is_whole, names.is_empty()) {
        (true, _) => format!("/{}", names.join("/")),
        (false, true) => ".".to_owned(),
        (false, false) => names.join("/"),
    }
}

fn cancelled() -> Error {
    Error::unavailable("the request was cancelled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_below_the_work_directory_unless_they_are_whole() {
        for (path, expected) in [
            ("a.txt", "/app/a.txt"),
            ("./src/a b.txt", "/app/src/a b.txt"),
            ("/etc/x", "/etc/x"),
            ("../tmp/x", "/tmp/x"),
            ("../../../x", "/x"),
            (".", "/app"),
            ("$(id);x", "/app/$(id);x"),
        ] {
            assert_eq!(inside(path).unwrap().to_string_lossy(), expected, "{path:?}");
        }
        assert!(inside("a\0b").is_err());
    }

    #[test]
    fn paths_of_the_host_are_shown_without_detours() {
        for (path, expected) in [
            ("/home/user/project/", "/home/user/project"),
            ("./main.py", "main.py"),
            ("a/../../b", "../b"),
            ("../../b", "../../b"),
            ("/../b", "/b"),
            ("./", "."),
            ("/", "/"),
        ] {
            assert_eq!(clean(path), expected, "{path:?}");
        }
    }
}
