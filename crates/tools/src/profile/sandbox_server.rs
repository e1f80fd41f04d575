//! The server that calls itself `sandbox-server`: containers from any image, commands as words, saves and Dockerfiles.

use std::sync::Arc;
use std::time::Duration;

use sandbox::{
    Error, ErrorKind, ExecRequest, ExecStatus, GuestPath, Image, JobPlace, JobRequest, JobWork, OutputTarget, Owner,
    Persistence, Reach, Result, SandboxInfo, SavedImage, WriteOptions,
};
use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt;

use super::fastmcp::{self, Field, Given, Kind, Signature};
use super::{Identity, Offers, Profile, ProfileOption, ProfileOptions, containers, work};
use crate::call::Call;
use crate::catalog::export_dockerfile;
use crate::content::Output;
use crate::error::tell;
use crate::export;
use crate::image;
use crate::policy::Policy;
use crate::resources::Contents;
use crate::select::Toolset;
use crate::text;
use crate::tool::{self, Definition, Hints, Reason, Rejection, Tool};

mod names;
mod parts;
mod words;

const DIRECTORY: &str = "/workspace";

/// How long a container may be there at most that nobody asked to keep.
const LEFT_FOR: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The argument of all tools but one.
const ID: &str = "container_id";

#[derive(Debug)]
pub struct SandboxServer {
    options: ProfileOptions,
}

impl SandboxServer {
    pub fn new(options: ProfileOptions) -> Self {
        Self { options }
    }
}

#[async_trait::async_trait]
impl Profile for SandboxServer {
    fn identity(&self) -> Identity {
        Identity { name: "sandbox-server", version: "1.2.0" }
    }

    /// Its library had handlers for all of it.
    fn offers(&self) -> Offers {
        Offers { resources: true, prompts: true }
    }

    fn tools(self: Arc<Self>, _policy: &Policy) -> Vec<Tool> {
        let tool = |which: Which| {
            let (profile, signature) = (Arc::clone(&self), Arc::new(which.signature()));
            let schema = signature.schema();
            Tool::older(self.definition(which), schema, move |call, arguments| {
                let (profile, signature) = (Arc::clone(&profile), Arc::clone(&signature));
                async move { Ok(profile.answer(which, &call, &signature, &arguments).await) }
            })
            .with_output_schema(fastmcp::text_result_schema(which.name()))
        };
        Which::ALL.map(tool).into()
    }

    fn unknown_tool(&self, name: &str) -> Result<Output, Rejection> {
        Ok(fastmcp::unknown_tool(name))
    }

    async fn read(&self, _call: &Call, uri: &str) -> Result<Contents, Rejection> {
        Err(Rejection::new(Reason::Parameters, format!("Unknown resource: {uri}")))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Create,
    File,
    Execute,
    Save,
    Export,
    Exit,
}

impl Which {
    const ALL: [Self; 6] = [Self::Create, Self::File, Self::Execute, Self::Save, Self::Export, Self::Exit];

    fn name(self) -> &'static str {
        match self {
            Self::Create => "create_container_environment",
            Self::File => "create_file_in_container",
            Self::Execute => "execute_command_in_container",
            Self::Save => "save_container_state",
            Self::Export => "export_dockerfile",
            Self::Exit => "exit_container",
        }
    }

    fn signature(self) -> Signature {
        let id = (ID, Kind::Text);
        let fields: &[(&str, Kind)] = match self {
            Self::Create => &[("image", Kind::Text), ("persist", Kind::Truth)],
            Self::File => &[id, ("filename", Kind::Text), ("content", Kind::Text)],
            Self::Execute => &[id, ("command", Kind::Text)],
            Self::Save => &[id, ("name", Kind::Text)],
            Self::Export => &[id],
            Self::Exit => &[id, ("force", Kind::TruthOr(false))],
        };
        let fields = fields.iter().map(|(name, kind)| Field::new(name, *kind)).collect();
        Signature { tool: self.name(), fields }
    }

    /// What a failure of it begins with.
    fn failing(self) -> &'static str {
        match self {
            Self::Create => "Error creating container",
            Self::File => "Error creating file",
            Self::Execute => "Error executing command",
            Self::Save => "Error saving container",
            Self::Export => "Error generating Dockerfile",
            Self::Exit => "Error cleaning up container",
        }
    }
}

/// Why a call was not served; told as the text of a normal answer.
enum Failure {
    /// There is no such container, for this caller.
    Gone,
    /// All that there is to say.
    Told(String),
    Ours(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

/// What was said, and whether it is about something that failed.
struct Said {
    text: String,
    failed: bool,
}

impl Said {
    fn failed(text: String) -> Self {
        Self { text, failed: true }
    }
}

impl From<String> for Said {
    fn from(text: String) -> Self {
        Self { text, failed: false }
    }
}

impl SandboxServer {
    fn definition(&self, which: Which) -> Definition {
        const CHANGES: Hints = Hints { read_only: false, destructive: true, idempotent: false, open_world: false };
        let is_shell = self.options.has(ProfileOption::Shell);
        let (title, description, toolset, hints) = match which {
            Which::Create => (
                "Create a container",
                "Create a container from an image and keep it running.\n\nArgs:\n    image: the image to use, for example \
                 python:3.12-slim, or one that save_container_state made\n    persist: whether the container is to \
                 outlive this server\n\nReturns:\n    The container's id, for the other tools",
                Toolset::Sandboxes,
                Hints { destructive: false, open_world: true, ..CHANGES },
            ),
            Which::File => (
                "Create a file",
                "Create a file in a container, with the directories it is in.\n\nArgs:\n    container_id: the container\n    \
                 filename: its name, below /workspace\n    content: its content\n\nReturns:\n    Whether it was created",
                Toolset::Files,
                Hints { idempotent: true, ..CHANGES },
            ),
            Which::Execute if is_shell => (
                "Execute a command",
                "Execute a command line in a container, in /workspace, by its shell.\n\nArgs:\n    container_id: the \
                 container\n    command: the line for sh\n\nReturns:\n    What it printed",
                Toolset::Run,
                Hints { open_world: true, ..CHANGES },
            ),
            Which::Execute => (
                "Execute a command",
                "Execute a command in a container, in /workspace. It is a program with its arguments, not a line for a shell: \
                 for pipes, && and redirections write sh -c '...'.\n\nArgs:\n    container_id: the container\n    command: the \
                 command\n\nReturns:\n    What it printed",
                Toolset::Run,
                Hints { open_world: true, ..CHANGES },
            ),
            Which::Save => (
                "Save a container",
                "Save all files of a container, /workspace too, as an image for create_container_environment.\n\nArgs:\n    \
                 container_id: the container\n    name: what to call the image, for example my-python-env:v1\n\nReturns:\n    \
                 How to use the image",
                Toolset::Snapshots,
                Hints { idempotent: true, ..CHANGES },
            ),
            Which::Export => (
                "Export as a Dockerfile",
                "Write a Dockerfile that makes the container anew, with the files that it copies.\n\nArgs:\n    container_id: \
                 the container\n\nReturns:\n    The Dockerfile, and how to build it",
                Toolset::Snapshots,
                Hints { destructive: false, idempotent: true, ..CHANGES },
            ),
            Which::Exit => (
                "Stop and remove a container",
                "Stop a container and remove it with its files.\n\nArgs:\n    container_id: the container\n    force: makes no \
                 difference, its programs are ended at once\n\nReturns:\n    Whether it was removed",
                Toolset::Sandboxes,
                CHANGES,
            ),
        };
        Definition { name: which.name(), title, description: description.to_owned(), toolset, hints }
    }

    async fn answer(&self, which: Which, call: &Call, signature: &Signature, arguments: &Map<String, Value>) -> Output {
        let given = match signature.check(arguments) {
            Ok(given) => given,
            Err(refusal) => return refusal,
        };
        let Said { text, failed } = match self.serve(which, call, &given).await {
            Ok(said) => said,
            Err(Failure::Gone) => Said::failed(format!("Container {} not found", given.text(ID))),
            Err(Failure::Told(text)) => Said::failed(text),
            Err(Failure::Ours(error)) => {
                tool::log(which.name(), &error);
                Said::failed(format!("{}: {}", which.failing(), tell(&error)))
            }
        };
        let is_error = failed && self.options.has(ProfileOption::FlagFailures);
        Output { is_error, ..fastmcp::text_result(text) }
    }

    async fn serve(&self, which: Which, call: &Call, given: &Given<'_>) -> Result<Said, Failure> {
        let id = given.text(ID);
        let done = match which {
            Which::Create => return self.create(call, given.text("image"), given.truth("persist")).await,
            Which::File => write(call, &find(call, id).await?, given.text("filename"), given.text("content")).await,
            Which::Execute => self.execute(call, &find(call, id).await?, given.text("command")).await,
            Which::Save => save(call, &find(call, id).await?, given.text("name")).await,
            Which::Export => export(call, &find(call, id).await?).await,
            Which::Exit => exit(call, &find(call, id).await?, given).await,
        };
        match done {
            // It may have ended meanwhile.
            Err(Failure::Ours(error)) if error.kind() == ErrorKind::NotFound => {
                find(call, id).await.and(Err(Failure::Ours(error)))
            }
            done => done,
        }
    }

    async fn create(&self, call: &Call, image: &str, persist: bool) -> Result<Said, Failure> {
        let stay = self.stay(persist);
        let sandbox = match make(call, image, stay).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                tool::log(Which::Create.name(), &error);
                return Err(Failure::Told(format!("Error: Image {image} not found. Please verify the image name.")));
            }
            made => made?,
        };
        let mut text = format!(
            "Container created with ID: {}\nWorking directory is {DIRECTORY}\nContainer is ready for commands",
            containers::id_of(&sandbox.id)
        );
        if stay == Stay::Persists {
            // Without its id nobody could ever end it: how else it is reached is worth less than that.
            match reach(call, &sandbox).await {
                Ok(ways) => text.push_str(&ways),
                Err(error) => tool::log(Which::Create.name(), &error),
            }
        }
        Ok(text.into())
    }

    /// The older server cleaned nothing up when it ended, whatever its documents said.
    fn stay(&self, persist: bool) -> Stay {
        match persist {
            _ if self.options.has(ProfileOption::EndContainers) => Stay::Ends,
            true => Stay::Persists,
            false if self.options.has(ProfileOption::EndTemporary) => Stay::Ends,
            false => Stay::LeftBehind,
        }
    }

    async fn execute(&self, call: &Call, sandbox: &SandboxInfo, command: &str) -> Result<Said, Failure> {
        let timeout = call.policy.timeout;
        let mut request = match self.options.has(ProfileOption::Shell) {
            true => ExecRequest::shell(command, timeout)?,
            false => ExecRequest::new(words::split(command)?, timeout)?,
        };
        request.output = OutputTarget::Joined;
        // For apt-get, which would ask questions that nobody answers.
        request.environment.insert("DEBIAN_FRONTEND", "noninteractive")?;
        let program = request.argv()[0].clone();
        let job = JobRequest::new(JobPlace::Existing(sandbox.id.clone()), JobWork::Command(request));
        let ended = match work::run(call, job).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                find(call, &containers::id_of(&sandbox.id)).await?;
                return Ok(Said::failed(not_started(&program)));
            }
            ended => ended?,
        };
        let why = match ended.status {
            ExecStatus::TimedOut => format!("[killed after {}, its time limit]\n", text::spoken(timeout)),
            ExecStatus::OutOfMemory => "[killed, because memory ran out]\n".to_owned(),
            ExecStatus::Exited(_) | ExecStatus::Signalled(_) | ExecStatus::Killed | ExecStatus::Cancelled => {
                String::new()
            }
        };
        Ok(Said { failed: !ended.succeeded(), text: ended.stdout + &why })
    }
}

async fn find(call: &Call, id: &str) -> Result<SandboxInfo, Failure> {
    match containers::find(call, id).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Failure::Gone),
        found => Ok(found?),
    }
}

/// What becomes of a container when its server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    Ends,
    Persists,
    /// It stays, though nobody asked for it.
    LeftBehind,
}

/// The caller's own images come first, as those of a daemon come before those of registries.
async fn make(call: &Call, image: &str, stay: Stay) -> Result<SandboxInfo> {
    let saved = match names::saved_as(image) {
        Ok(name) => saved(call).await?.into_iter().find(|saved| saved.name == name),
        Err(_) => None,
    };
    let asked = saved.map_or_else(|| image.to_owned(), |saved| Image::Saved(saved.name).to_string());
    let spec = containers::spec(call, Some(&asked), DIRECTORY)?;
    image::provide(call, &spec.image).await?;
    let create = |spec| unless_cancelled(call, call.service.create(&call.owner, spec));
    match stay {
        Stay::Ends => create(spec).await,
        Stay::Persists => create(containers::kept(call, spec)).await,
        Stay::LeftBehind => match create(containers::left_behind(call, spec.clone(), LEFT_FOR)).await {
            // So many were left behind that no more may stay, and whoever asks knows of none of them: this one ends with the server.
            Err(error) if error.kind() == ErrorKind::LimitExceeded => create(spec).await,
            made => made,
        },
    }
}

async fn unless_cancelled<T>(call: &Call, doing: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        done = doing => done,
        () = call.cancelled.cancelled() => Err(Error::unavailable("the request was cancelled")),
    }
}

async fn saved(call: &Call) -> Result<Vec<SavedImage>> {
    match call.service.saved(&call.owner).await {
        // Who cannot save has nothing saved.
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Vec::new()),
        saved => saved,
    }
}

/// What a daemon said of a program that is not there, where the output of the program would be.
fn not_started(program: &str) -> String {
    let why = match program.contains('/') {
        true => format!("stat {program}: no such file or directory"),
        false => "executable file not found in $PATH".to_owned(),
    };
    format!(
        "OCI runtime exec failed: exec failed: unable to start container process: exec: {program:?}: {why}: unknown"
    )
}

/// How a container that outlives its server is reached without it.
async fn reach(call: &Call, sandbox: &SandboxInfo) -> Result<String> {
    let idle = text::spoken(sandbox.lifetime.idle);
    let mut text = format!("\n\nIt outlives this server, and ends when it was not used for {idle}.");
    let by_command_line = || Reach {
        enter: format!("sandpen exec -t {} -- sh", sandbox.id),
        stop: None,
        start: None,
        remove: format!("sandpen stop {}", sandbox.id),
    };
    let reach = call.service.reach(&call.owner, &sandbox.id).await?;
    // Containers of others than the local user are not the command line's.
    let Some(Reach { enter, stop, start, remove }) = reach.or_else(|| is_local(call).then(by_command_line)) else {
        return Ok(text);
    };
    text.push_str(" From a shell on the server's machine:");
    let lines = [("Enter it", Some(enter)), ("Stop it", stop), ("Start it", start), ("Remove it", Some(remove))];
    for (what, command) in lines {
        if let Some(command) = command {
            text.push_str(&format!("\n- {what}: {command}"));
        }
    }
    Ok(text)
}

fn is_local(call: &Call) -> bool {
    call.owner == Owner::local()
}

async fn write(call: &Call, sandbox: &SandboxInfo, name: &str, content: &str) -> Result<Said, Failure> {
    let path = inside(name)?;
    let files = call.service.files(&call.owner, &sandbox.id)?;
    let mut file = files.write(&path, WriteOptions::default()).await?;
    // A write that fails is told by the commit.
    let _ = file.write_all(content.as_bytes()).await;
    file.commit().await?;
    Ok(format!("File {name} has been created in {DIRECTORY}").into())
}

/// Where a name leads: to a file below the work directory, or nowhere.
fn inside(name: &str) -> Result<GuestPath> {
    let outside = || {
        Error::denied(format!("{name:?} is outside of {DIRECTORY}"))
            .with_hint(format!("give a name below {DIRECTORY}, such as src/main.py"))
    };
    let directory: GuestPath = DIRECTORY.parse()?;
    let start = if name.starts_with('/') { Vec::new() } else { vec![&DIRECTORY[1..]] };
    let mut parts = start;
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop().ok_or_else(outside)?),
            part => parts.push(part),
        }
    }
    let path = GuestPath::resolve(&GuestPath::root(), format!("/{}", parts.join("/")).as_bytes())?;
    if !directory.contains(&path) {
        return Err(outside());
    }
    if path == directory || name.ends_with('/') {
        return Err(Error::invalid_input(format!("{name:?} is not the name of a file")));
    }
    Ok(path)
}

async fn save(call: &Call, sandbox: &SandboxInfo, name: &str) -> Result<Said, Failure> {
    let saved_as = names::saved_as(name)?;
    unless_cancelled(call, call.service.save(&call.owner, &sandbox.id, &saved_as)).await?;
    let mut text = format!(
        "Environment saved as image: {name}\n\nTo use this environment later:\n1. Create new container: \
         create_container_environment(image=\"{name}\", persist=false)"
    );
    if is_local(call) {
        let image = Image::Saved(saved_as);
        text.push_str(&format!("\n2. Or from a shell on the server's machine: sandpen create --image {image}"));
    }
    text.push_str(&format!(
        "\n\nThe image contains all installed packages and configurations, and the files in {DIRECTORY}."
    ));
    Ok(text.into())
}

async fn export(call: &Call, sandbox: &SandboxInfo) -> Result<Said, Failure> {
    let stays = sandbox.persistence == Persistence::Persistent && is_local(call);
    let exported = export_dockerfile::write(call, sandbox, None, true).await;
    let export_dockerfile::Written { dockerfile, report, context_bytes } =
        exported.map_err(|error| match error.kind() {
            // This tool has no argument for what is missing.
            ErrorKind::InvalidInput => error.with_hint(match stays {
                true => format!("run on the server's machine: sandpen export {} DIRECTORY --base IMAGE", sandbox.id),
                false => "create the container from an image that a registry has, such as python:3.12-slim".to_owned(),
            }),
            ErrorKind::Unsupported => error.with_hint("use save_container_state to keep the files"),
            _ => error,
        })?;
    let archive = export::CONTEXT;
    let mut way_out = parts::way_out(archive, context_bytes);
    if stays {
        way_out = format!("on the server's machine, sandpen cp {}:{archive} context.tar; or {way_out}", sandbox.id);
    }
    let mut text = format!(
        "Here's a Dockerfile to recreate this environment:\n\n{}\n\nTo use this Dockerfile:\n1. Get the build context, an \
         archive of it and of all files that it copies, which is {archive} in the container: {way_out}\n2. Build: docker build \
         -t your-image-name - < context.tar\n3. Run: docker run -it your-image-name",
        dockerfile.trim_end()
    );
    if stays {
        text.push_str(&format!(
            "\n\nInstead of 1, sandpen export {} DIRECTORY writes all of it to a directory.",
            sandbox.id
        ));
    }
    text.push_str(&format!("\n\n{report}"));
    Ok(text.into())
}

/// Whatever runs in it ends at once, with or without `force`.
async fn exit(call: &Call, sandbox: &SandboxInfo, given: &Given<'_>) -> Result<Said, Failure> {
    match call.service.stop(&call.owner, &sandbox.id).await {
        Ok(()) => Ok(format!("Container {} has been stopped and removed.", given.text(ID)).into()),
        Err(error) if error.kind() == ErrorKind::NotFound || given.truth("force") => Err(error.into()),
        Err(error) => {
            tool::log(Which::Exit.name(), &error);
            let why = tell(&error);
            Err(Failure::Told(format!("Failed to stop container gracefully: {why}. Try using force=True if needed.")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_files_below_the_work_directory_and_nowhere_else() {
        for (name, path) in [
            ("a.txt", "/workspace/a.txt"),
            ("./src//main.py", "/workspace/src/main.py"),
            ("src/../a.txt", "/workspace/a.txt"),
            ("/workspace/a.txt", "/workspace/a.txt"),
            ("../workspace/a.txt", "/workspace/a.txt"),
            ("a b\n.txt", "/workspace/a b\n.txt"),
        ] {
            assert_eq!(inside(name).unwrap().to_string_lossy(), path, "{name:?}");
        }
        for name in
            ["/etc/passwd", "../a", "../../a", "src/../../etc/passwd", "/workspace/../etc/passwd", "/workspaces/a"]
        {
            assert_eq!(inside(name).unwrap_err().kind(), ErrorKind::Denied, "{name:?}");
        }
        for name in ["", ".", "a/..", "/workspace", "a/", "a\0b"] {
            assert_eq!(inside(name).unwrap_err().kind(), ErrorKind::InvalidInput, "{name:?}");
        }
    }

    #[test]
    fn a_program_that_is_missing_is_told_as_daemons_told_it() {
        let start = "OCI runtime exec failed: exec failed: unable to start container process: exec: ";
        let told = not_started("nope");
        assert_eq!(told, format!("{start}\"nope\": executable file not found in $PATH: unknown"));
        assert_eq!(not_started("./x"), format!("{start}\"./x\": stat ./x: no such file or directory: unknown"));
    }
}
