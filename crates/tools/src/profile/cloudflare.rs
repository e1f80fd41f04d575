//! Cloudflare's sandbox containers: one for each user, reached by seven tools whose arguments are wrapped in `args`.

use std::sync::Arc;
use std::time::Duration;

use sandbox::{
    ByteRange, Error, ErrorKind, ExecRequest, ExecStatus, FileKind, Files, GuestPath, JobPlace, JobRequest, JobWork,
    ListOptions, Listing, OutputTarget, Rest, Result, SandboxInfo, SandboxName, SandboxSpec, WriteOptions,
};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::arguments::{Arguments, Problem, Wrong, milliseconds};
use super::{Identity, Offers, Profile, ProfileOption, ProfileOptions, containers, work};
use crate::call::Call;
use crate::content::{Body, Content, Embedded, Output};
use crate::error::tell;
use crate::image;
use crate::policy::Policy;
use crate::resources::MAX_BYTES;
use crate::select::Toolset;
use crate::text;
use crate::tool::{self, Definition, Hints, Reason, Rejection, Tool};

/// The work directory was four levels deep, and lists of files named each file from the root.
const OLD_PREFIX: &str = "../../../../";

const DIRECTORY: &str = "/workspace";

/// Entries of a directory that are listed.
const LISTED: usize = 10_000;

/// Under this name a user's container is found again, by every session of that user and by every server that has it.
const NAME: &str = "cloudflare-container";

/// How long a container may be there at most: a program that was left running in it would keep it for ever.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// How long to wait for a container that somebody else is making, or ending.
const PATIENCE: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct Cloudflare {
    options: ProfileOptions,
}

impl Cloudflare {
    pub fn new(options: ProfileOptions) -> Self {
        Self { options }
    }
}

impl Profile for Cloudflare {
    fn identity(&self) -> Identity {
        Identity { name: "sandbox-container", version: "0.2.5" }
    }

    fn offers(&self) -> Offers {
        Offers { resources: false, prompts: false }
    }

    fn instructions(&self, policy: &Policy) -> Option<String> {
        Some(format!(
            "A container for running code, kept for about {} after its last use. Call container_initialize first. \
             Use python3 for Python. Use the file tools to read and write files rather than container_exec. All paths are \
             below the work directory. When something has failed three times, stop and say so.",
            text::spoken(containers::unused(policy))
        ))
    }

    fn tools(self: Arc<Self>, policy: &Policy) -> Vec<Tool> {
        let tool = |which: Which| {
            let profile = Arc::clone(&self);
            Tool::older(which.definition(policy), which.schema(), move |call, arguments| {
                let profile = Arc::clone(&profile);
                async move { Ok(profile.answer(which, &call, &arguments).await) }
            })
        };
        Which::ALL.map(tool).into()
    }

    fn unknown_tool(&self, name: &str) -> Result<Output, Rejection> {
        Err(Rejection::new(Reason::Parameters, format!("Tool {name} not found")))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Initialize,
    Ping,
    Exec,
    Delete,
    Write,
    List,
    Read,
}

impl Which {
    const ALL: [Self; 7] =
        [Self::Initialize, Self::Ping, Self::Exec, Self::Delete, Self::Write, Self::List, Self::Read];

    fn name(self) -> &'static str {
        match self {
            Self::Initialize => "container_initialize",
            Self::Ping => "container_ping",
            Self::Exec => "container_exec",
            Self::Delete => "container_file_delete",
            Self::Write => "container_file_write",
            Self::List => "container_files_list",
            Self::Read => "container_file_read",
        }
    }

    fn definition(self, policy: &Policy) -> Definition {
        const CHANGES: Hints = Hints { read_only: false, destructive: true, idempotent: false, open_world: true };
        const READS: Hints = Hints { read_only: true, destructive: false, idempotent: true, open_world: false };
        let started = format!(
            "Start (or restart) a container. It is kept for about {} after its last use.",
            text::spoken(containers::unused(policy))
        );
        let (title, description, toolset, hints) = match self {
            Self::Initialize => (
                "Start the container",
                started.as_str(),
                Toolset::Sandboxes,
                Hints { destructive: false, idempotent: true, ..CHANGES },
            ),
            Self::Ping => (
                "Ping the container",
                "Ping the container for liveness. Use this to check if the container is running.",
                Toolset::Sandboxes,
                READS,
            ),
            Self::Exec => (
                "Run a command",
                "Run a command in the container and return its output. To run code, write it to a file with \
                 container_file_write first. Use python3 for Python.",
                Toolset::Run,
                CHANGES,
            ),
            Self::Delete => (
                "Delete a file",
                "Delete a file in the work directory, or a directory with all below it.",
                Toolset::Files,
                Hints { open_world: false, ..CHANGES },
            ),
            Self::Write => (
                "Write a file",
                "Create a new file in the work directory with the text, or overwrite the one that is there.",
                Toolset::Files,
                Hints { open_world: false, idempotent: true, ..CHANGES },
            ),
            Self::List => ("List files", "List the files in the work directory.", Toolset::Files, READS),
            Self::Read => {
                ("Read a file", "Read a file of the work directory, or list a directory in it.", Toolset::Files, READS)
            }
        };
        Definition { name: self.name(), title, description: description.to_owned(), toolset, hints }
    }

    /// What is given at all is given in `args`.
    fn schema(self) -> Value {
        let path = json!({ "type": "string" });
        let (properties, required) = match self {
            Self::Initialize | Self::Ping | Self::List => return json!({ "type": "object", "properties": {} }),
            Self::Exec => (
                json!({
                    "args": { "type": "string", "description": "The command, for a shell" },
                    "timeout": { "type": "number", "description": "Milliseconds until it is killed" },
                    "streamStderr": { "default": true, "type": "boolean" },
                }),
                json!(["args"]),
            ),
            Self::Delete | Self::Read => (json!({ "path": path }), json!(["path"])),
            Self::Write => (
                json!({ "path": path, "text": { "type": "string", "description": "Full text content of the file" } }),
                json!(["path", "text"]),
            ),
        };
        let inner = json!({ "type": "object", "properties": properties, "required": required });
        json!({ "type": "object", "properties": { "args": inner }, "required": ["args"] })
    }

    fn takes_arguments(self) -> bool {
        !matches!(self, Self::Initialize | Self::Ping | Self::List)
    }
}

/// Why a call was not served.
enum Failure {
    Arguments(Wrong),
    /// The words are the older server's.
    Container(String),
    Start(Error),
    Ours(Error),
}

impl From<Wrong> for Failure {
    fn from(wrong: Wrong) -> Self {
        Self::Arguments(wrong)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

impl Failure {
    fn told(self, tool: &str) -> Output {
        Output::refusal(match self {
            Self::Arguments(wrong) => {
                format!("Input validation error: Invalid arguments for tool {tool}: {wrong}")
            }
            Self::Container(body) => format!("Request to container failed: {body}"),
            Self::Start(error) => {
                tool::log(tool, &error);
                format!("Failed to start container: {}", tell(&error))
            }
            Self::Ours(error) => {
                tool::log(tool, &error);
                format!("Request to container failed: {}", tell(&error))
            }
        })
    }
}

impl Cloudflare {
    async fn answer(&self, which: Which, call: &Call, arguments: &Map<String, Value>) -> Output {
        let arguments = Arguments(arguments);
        let served = match which.takes_arguments() {
            true => match arguments.object("args") {
                Ok(Some(inner)) => self.serve(which, call, inner).await,
                Ok(None) => Err(Wrong { argument: "args", problem: Problem::Missing }.into()),
                Err(wrong) => Err(wrong.into()),
            },
            // Whatever they are given is nothing to them.
            false => self.serve(which, call, arguments).await,
        };
        served.unwrap_or_else(|failure| failure.told(which.name()))
    }

    async fn serve(&self, which: Which, call: &Call, arguments: Arguments<'_>) -> Result<Output, Failure> {
        match which {
            Which::Initialize => self.initialize(call).await.map_err(Failure::Start),
            Which::Ping => ping(call).await,
            Which::Exec => self.exec(call, arguments).await,
            Which::Delete => delete(call, arguments.text("path")?).await,
            Which::Write => write(call, arguments.text("path")?, arguments.text("text")?).await,
            Which::List => self.read(call, "").await,
            Which::Read => self.read(call, arguments.text("path")?).await,
        }
    }

    /// One that runs is left as it is, with its files, as the older server did, whatever its answer says.
    ///
    /// Other sessions and other servers of the same user may be about to make it, or to end it: the answer comes when there is
    /// one to be used, whoever made it.
    async fn initialize(&self, call: &Call) -> Result<Output> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.provide(call).await {
                Ok(()) => return Ok(Output::text("Created new container")),
                Err(error) => match error.kind() {
                    ErrorKind::AlreadyExists | ErrorKind::WrongState if Instant::now() < deadline => {}
                    _ => return Err(error),
                },
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = call.cancelled.cancelled() => return Err(cancelled()),
            }
        }
    }

    async fn provide(&self, call: &Call) -> Result<()> {
        if let Some(sandbox) = find(call).await? {
            match answers(call, &sandbox).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // It would never go on by itself, and whoever asks for a container wants one that does.
                Err(error) if error.kind() == ErrorKind::WrongState && is_interrupted(call, &sandbox).await? => {
                    call.service.stop(&call.owner, &sandbox.id).await?;
                }
                Err(error) => return Err(error),
            }
        }
        let spec = SandboxSpec { name: Some(NAME.parse::<SandboxName>()?), ..containers::spec(call, None, DIRECTORY)? };
        let spec = match self.options.has(ProfileOption::EndContainers) {
            true => spec,
            false => containers::left_behind(call, spec, LONGEST),
        };
        image::provide(call, &spec.image).await?;
        tokio::select! {
            made = call.service.create(&call.owner, spec) => made.map(drop),
            () = call.cancelled.cancelled() => Err(cancelled()),
        }
    }

    async fn exec(&self, call: &Call, arguments: Arguments<'_>) -> Result<Output, Failure> {
        let line = arguments.text("args")?;
        let wanted = arguments.number("timeout")?.and_then(milliseconds).unwrap_or(call.policy.timeout);
        let with_errors = arguments.truth("streamStderr")?.unwrap_or(true);
        let sandbox = running(call).await?;
        let timeout = wanted.min(call.policy.longest_timeout);
        let mut request = ExecRequest::shell(line, timeout)?;
        request.output = if with_errors { OutputTarget::Joined } else { OutputTarget::Streams };
        let ended = work::run(call, JobRequest::new(JobPlace::Existing(sandbox.id), JobWork::Command(request))).await?;
        let (why, code) = match ended.status {
            ExecStatus::Exited(code) => (String::new(), code.to_string()),
            ExecStatus::TimedOut => (format!("[killed after {} ms, its time limit]\n", timeout.as_millis()), null()),
            ExecStatus::OutOfMemory => ("[killed, because memory ran out]\n".to_owned(), null()),
            ExecStatus::Signalled(_) | ExecStatus::Killed | ExecStatus::Cancelled => (String::new(), null()),
        };
        let text = format!("{}{why}Process exited with code: {code}", ended.stdout);
        let is_error = self.options.has(ProfileOption::FlagFailures) && !ended.succeeded();
        Ok(Output { is_error, ..Output::text(text) })
    }

    /// A file, or the names in a directory, as one embedded resource.
    async fn read(&self, call: &Call, path: &str) -> Result<Output, Failure> {
        let sandbox = running(call).await?;
        let guest = inside(path)?;
        let files = call.service.files(&call.owner, &sandbox.id)?;
        let stat = files.stat(&guest).await.map_err(not_found)?;
        let listing = match stat.kind {
            FileKind::Directory => Some(list(&*files, &guest).await?),
            // What it leads to is known only by trying.
            FileKind::Link => match list(&*files, &guest).await {
                Err(error) if error.kind() == ErrorKind::InvalidInput => None,
                listing => Some(listing.map_err(not_found)?),
            },
            FileKind::Regular | FileKind::Other => None,
        };
        let (mime_type, body) = match &listing {
            Some(listing) => ("text/directory".to_owned(), Body::Text(self.uris(listing))),
            None => contents(&*files, &guest).await?,
        };
        let uri = format!("file://{}", plain(path));
        let mut content = vec![Content::Embedded(Embedded { uri, mime_type, body })];
        if listing.is_some_and(|listing| listing.truncated) {
            // Beside the list, whose lines are addresses.
            content.push(Content::Text(format!("[there are more: only {LISTED} are listed]")));
        }
        Ok(Output { content, ..Output::text("") })
    }

    fn uris(&self, listing: &Listing) -> String {
        let is_plain = self.options.has(ProfileOption::PlainUris);
        let uri = |path: &GuestPath| match path.to_string_lossy()[DIRECTORY.len()..].trim_start_matches('/') {
            name if !is_plain => format!("file:///{OLD_PREFIX}{name}"),
            // Its name alone would be that of the work directory, and lead there.
            name if is_from_root(&format!("/{name}")) => format!("file://{DIRECTORY}/{name}"),
            name => format!("file:///{name}"),
        };
        listing.entries.iter().map(|entry| uri(&entry.path)).collect::<Vec<_>>().join("\n")
    }
}

async fn list(files: &dyn Files, directory: &GuestPath) -> Result<Listing> {
    files.list(directory, ListOptions { recursive: false, max_entries: LISTED }).await
}

/// Whether it is there. What the service knows of one may be older than its end. To ask is to use it.
async fn answers(call: &Call, sandbox: &SandboxInfo) -> Result<bool> {
    let directory = DIRECTORY.parse()?;
    let asked = async { call.service.files(&call.owner, &sandbox.id)?.stat(&directory).await };
    match asked.await {
        Ok(_) => Ok(true),
        // The directory may be gone and the container not.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(find(call).await?.is_some()),
        Err(error) => Err(error),
    }
}

/// Asks the engine, as a list does.
async fn is_interrupted(call: &Call, sandbox: &SandboxInfo) -> Result<bool> {
    let listed = call.service.list(&call.owner).await?;
    Ok(listed.iter().any(|one| one.id == sandbox.id && one.rest == Some(Rest::Interrupted)))
}

async fn ping(call: &Call) -> Result<Output, Failure> {
    let sandbox = running(call).await?;
    match answers(call, &sandbox).await? {
        true => Ok(Output::text("pong!")),
        false => Err(not_running()),
    }
}

async fn find(call: &Call) -> Result<Option<SandboxInfo>> {
    match call.service.find(&call.owner, NAME).await {
        Ok(sandbox) => {
            // Somebody else may have made it, through another server, with more than may be had here.
            call.policy.ceiling.network.admit(sandbox.network.clone())?;
            Ok(Some(sandbox))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

async fn running(call: &Call) -> Result<SandboxInfo, Failure> {
    find(call).await?.ok_or_else(not_running)
}

fn not_running() -> Failure {
    Failure::Container("no container is running, call container_initialize first".to_owned())
}

async fn write(call: &Call, path: &str, text: &str) -> Result<Output, Failure> {
    let sandbox = running(call).await?;
    let guest = inside(path)?;
    let files = call.service.files(&call.owner, &sandbox.id)?;
    let options = WriteOptions { parents: false, ..WriteOptions::default() };
    let missing = |error: Error| match error.kind() {
        ErrorKind::NotFound => {
            let shown = plain(path);
            Failure::Container(format!("Error: Error: ENOENT: no such file or directory, open '{shown}'"))
        }
        _ => Failure::Ours(error),
    };
    let mut writer = files.write(&guest, options).await.map_err(missing)?;
    // A failed write is told by the commit.
    let _ = writer.write_all(text.as_bytes()).await;
    writer.commit().await.map_err(missing)?;
    Ok(Output::text(format!("Wrote file: {}", plain(path))))
}

async fn delete(call: &Call, path: &str) -> Result<Output, Failure> {
    let sandbox = running(call).await?;
    let guest = inside(path)?;
    let told = |deleted: bool| Output::text(format!("File deleted: {deleted}."));
    if guest == DIRECTORY.parse()? {
        return Ok(told(false));
    }
    match call.service.files(&call.owner, &sandbox.id)?.remove(&guest).await {
        Ok(()) => Ok(told(true)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(told(false)),
        Err(error) => Err(error.into()),
    }
}

async fn contents(files: &dyn Files, path: &GuestPath) -> Result<(String, Body), Failure> {
    let range = ByteRange { offset: 0, length: Some(MAX_BYTES + 1) };
    let file = files.read(path, range).await.map_err(not_found)?;
    let mut bytes = Vec::new();
    let unread = |cause| Error::unavailable("the file could not be read to its end").with_cause(cause);
    file.stream.take(MAX_BYTES + 1).read_to_end(&mut bytes).await.map_err(unread)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::limit_exceeded(format!("the file has more than {MAX_BYTES} bytes"))
            .with_hint("read a part of it with container_exec")
            .into());
    }
    let (mime_type, body) = match mime_type(path) {
        Some(kind) if !kind.starts_with("text") => (kind, Body::Bytes(bytes)),
        Some(kind) => (kind, Body::Text(String::from_utf8_lossy(&bytes).into_owned())),
        None => match String::from_utf8(bytes) {
            Ok(text) => ("text/plain; charset=UTF-8", Body::Text(text)),
            // The older server made text of it, and nobody could make the file of that again.
            Err(no_text) => ("application/octet-stream", Body::Bytes(no_text.into_bytes())),
        },
    };
    Ok((mime_type.to_owned(), body))
}

/// As the older server's library mapped names: sources in TypeScript are videos to it. What it does not know is text where it
/// can be.
fn mime_type(path: &GuestPath) -> Option<&'static str> {
    let name = String::from_utf8_lossy(path.file_name().unwrap_or_default()).to_ascii_lowercase();
    let (_, extension) = name.rsplit_once('.')?;
    Some(match extension {
        "txt" | "text" | "log" | "conf" | "def" | "list" | "in" | "ini" => "text/plain",
        "md" | "markdown" => "text/markdown",
        "csv" => "text/csv",
        "tsv" => "text/tab-separated-values",
        "html" | "htm" | "shtml" => "text/html",
        "css" => "text/css",
        "js" | "mjs" => "text/javascript",
        "yaml" | "yml" => "text/yaml",
        "c" | "cc" | "cxx" | "cpp" | "h" | "hh" => "text/x-c",
        "json" | "map" => "application/json",
        "ts" | "m2t" | "m2ts" | "mts" => "video/mp2t",
        "sh" => "application/x-sh",
        "toml" => "application/toml",
        "xml" | "xsl" | "xsd" => "application/xml",
        "svg" | "svgz" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" | "jpe" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "bmp" => "image/bmp",
        "tif" | "tiff" => "image/tiff",
        "ico" => "image/vnd.microsoft.icon",
        "pdf" => "application/pdf",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "xls" => "application/vnd.ms-excel",
        "doc" => "application/msword",
        "ppt" => "application/vnd.ms-powerpoint",
        "zip" => "application/zip",
        "gz" => "application/gzip",
        "bz2" => "application/x-bzip2",
        "7z" => "application/x-7z-compressed",
        "tar" => "application/x-tar",
        "jar" => "application/java-archive",
        "wasm" => "application/wasm",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        "mov" => "video/quicktime",
        "webm" => "video/webm",
        "ttf" => "font/ttf",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "bin" | "exe" | "so" | "o" | "a" => "application/octet-stream",
        _ => return None,
    })
}

fn plain(path: &str) -> &str {
    path.strip_prefix("file://").unwrap_or(path)
}

/// Where a path leads: never out of the work directory, however it is written. The names in lists of files come back right.
fn inside(path: &str) -> Result<GuestPath> {
    let directory: GuestPath = DIRECTORY.parse()?;
    let mut names: Vec<&str> = Vec::new();
    for name in plain(path).split('/') {
        match name {
            "" | "." => {}
            ".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    let below = match is_from_root(plain(path)) {
        true => names.strip_prefix(&[&DIRECTORY[1..]]).unwrap_or(&names),
        false => &names[..],
    };
    below.iter().try_fold(directory, |path, name| path.join(name.as_bytes()))
}

/// Whether a path names the work directory from the root of the container. Every other begins in the work directory, where
/// something may have the same name.
fn is_from_root(path: &str) -> bool {
    path.strip_prefix(DIRECTORY).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn not_found(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::NotFound => Failure::Container("404 Not Found".to_owned()),
        _ => Failure::Ours(error),
    }
}

fn cancelled() -> Error {
    Error::unavailable("the request was cancelled")
}

fn null() -> String {
    "null".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out_of_the_work_directory() {
        for (path, expected) in [
            ("a.txt", "/workspace/a.txt"),
            ("file://a.txt", "/workspace/a.txt"),
            ("file:///../../../../a.txt", "/workspace/a.txt"),
            ("/a/b", "/workspace/a/b"),
            ("/workspace/a", "/workspace/a"),
            ("/workspace/", "/workspace"),
            ("file:///workspace/a", "/workspace/a"),
            ("../../etc/passwd", "/workspace/etc/passwd"),
            ("/workspace/../etc/passwd", "/workspace/etc/passwd"),
            ("", "/workspace"),
            ("./", "/workspace"),
        ] {
            assert_eq!(inside(path).unwrap().to_string_lossy(), expected, "{path:?}");
        }
    }

    #[test]
    fn a_directory_that_is_called_like_the_work_directory_is_not_it() {
        for (path, expected) in [
            ("workspace", "/workspace/workspace"),
            ("workspace/a", "/workspace/workspace/a"),
            ("./workspace/a", "/workspace/workspace/a"),
            ("file://workspace/a", "/workspace/workspace/a"),
            ("file:///../../../../workspace", "/workspace/workspace"),
            ("/workspace/workspace", "/workspace/workspace"),
            ("/workspaces", "/workspace/workspaces"),
        ] {
            assert_eq!(inside(path).unwrap().to_string_lossy(), expected, "{path:?}");
        }
    }
}
