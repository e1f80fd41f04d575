//! MCP Code Sandbox Server (mcp-code-runner): code in fresh sandboxes, files that stay with the conversation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandbox::{ByteSize, Error, ErrorKind, Language, Limits, Owner, Result};
use serde_json::{Map, Value, json};

pub use self::conversations::{Conversation, Conversations};
pub use self::names::{Directory, FileName, Links, Located, Misplaced, attachment_name, locate};
use self::session::Asking;
use self::told::{FileObject, Listed, RunnerObject, Uploaded};
use super::arguments::{Arguments, Problem, Wrong};
use super::{Identity, Offers, Profile, ProfileOption, ProfileOptions};
use crate::call::Call;
use crate::content::{Body, Output};
use crate::error::tell;
use crate::image;
use crate::mime;
use crate::policy::Policy;
use crate::resources::{Contents, MAX_BYTES, Template};
use crate::select::Toolset;
use crate::tool::{self, Definition, Hints, Reason, Rejection, Tool};

mod conversations;
mod names;
mod session;
mod told;

const UPLOAD_FILE: &str = "upload_file";
const RUN_CODE: &str = "run_code";
const LIST_RUNNERS: &str = "list_runners";

/// Clients ask for the tools first thing, and give up on a server that does not tell them.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct CodeRunner {
    options: ProfileOptions,
    conversations: Arc<dyn Conversations>,
}

impl CodeRunner {
    pub fn new(options: ProfileOptions, conversations: Arc<dyn Conversations>) -> Self {
        Self { options, conversations }
    }
}

#[async_trait]
impl Profile for CodeRunner {
    fn identity(&self) -> Identity {
        Identity { name: "mcp-code-sandbox", version: "1.0.0" }
    }

    /// Where files have no other address they are resources, which the older server did not know.
    fn offers(&self) -> Offers {
        Offers { resources: *self.conversations.links() == Links::Resources, prompts: false }
    }

    fn tools(self: Arc<Self>, policy: &Policy) -> Vec<Tool> {
        let tool = |which: Which| {
            let profile = Arc::clone(&self);
            Tool::older(which.definition(policy), which.schema(policy), move |call, arguments| {
                let profile = Arc::clone(&profile);
                async move { profile.answer(which, call, &arguments).await }
            })
        };
        Which::ALL.map(tool).into()
    }

    /// The older server looked for them before it listened. Here they are looked for to the end, also when the answer cannot
    /// wait for it: the next one has them.
    async fn languages(&self, call: &Call) -> Result<Option<Vec<String>>> {
        let call = call.clone();
        let looking = tokio::spawn(async move { found(&call).await });
        let found = tokio::time::timeout(PATIENCE, looking).await;
        let found = found.map_err(|_| Error::unavailable("which languages there are is still being looked for"))?;
        let found =
            found.map_err(|cause| Error::internal("the search for languages broke off").with_cause(cause))??;
        Ok(Some(found.into_iter().map(|language| language.name).collect()))
    }

    fn unknown_tool(&self, name: &str) -> Result<Output, Rejection> {
        Err(Rejection::new(Reason::Method, format!("Tool not found: {name}")))
    }

    fn unknown_method(&self, name: &str) -> Option<String> {
        Some(format!("Method not found: {name}"))
    }

    fn templates(&self) -> &'static [Template] {
        &[Template {
            uri_template: "files://{directory}/{name}",
            name: "conversation_file",
            title: "File of a conversation",
            description: "A file that was uploaded or written to /data, by the address that results give for it",
            mime_type: None,
            priority: None,
        }]
    }

    async fn read(&self, _call: &Call, uri: &str) -> Result<Contents, Rejection> {
        let unknown = || Rejection::new(Reason::Parameters, format!("there is no resource {uri}"));
        let path = uri.strip_prefix(Links::SCHEME).ok_or_else(unknown)?;
        let located = locate(path).map_err(|_| unknown())?;
        let bytes = self.conversations.read(&located, MAX_BYTES).await.map_err(|error| {
            tool::log("resources/read", &error);
            match error.kind() {
                ErrorKind::NotFound => unknown(),
                _ => Rejection::new(Reason::Internal, tell(&error)),
            }
        })?;
        let name = located.path.last().map_or(&[][..], FileName::as_bytes);
        Ok(match String::from_utf8(bytes) {
            Ok(text) => Contents { mime_type: mime::of_text(name), body: Body::Text(text) },
            Err(bytes) => Contents { mime_type: mime::by_name(name), body: Body::Bytes(bytes.into_bytes()) },
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Upload,
    Run,
    List,
}

impl Which {
    const ALL: [Self; 3] = [Self::Upload, Self::Run, Self::List];

    fn definition(self, policy: &Policy) -> Definition {
        let (name, title, description, toolset, hints) = match self {
            Self::Upload => (
                UPLOAD_FILE,
                "Upload a file",
                "Store a file for a conversation. Code that run_code runs in the same conversation finds it in /data. The \
                 answer has an address to download it from."
                    .to_owned(),
                Toolset::Files,
                Hints { read_only: false, destructive: true, idempotent: true, open_world: false },
            ),
            Self::Run => (
                RUN_CODE,
                "Run code",
                format!(
                    "Run code in a fresh, isolated sandbox, in the directory /data. Files in /data stay with the \
                     conversation: later runs find them, and the answer has an address for each. In the code, the \
                     address of a file is the value of the environment variable FILE_BASE_URL, a slash, and the file's \
                     name, percent-encoded; use it for links and images in what you write. Variables and everything \
                     outside of /data are gone after the run, which may take {}.",
                    told::duration(policy.timeout)
                ),
                Toolset::Run,
                Hints { read_only: false, destructive: true, idempotent: false, open_world: policy.reaches_out() },
            ),
            Self::List => (
                LIST_RUNNERS,
                "List runners",
                "List the languages that run_code runs, each with its image.".to_owned(),
                Toolset::Run,
                Hints { read_only: true, destructive: false, idempotent: true, open_world: false },
            ),
        };
        Definition { name, title, description, toolset, hints }
    }

    fn schema(self, policy: &Policy) -> Value {
        let conversation = json!({
            "type": "string",
            "description": "The conversation whose files are meant: the same text for all calls of one conversation",
        });
        match self {
            Self::Upload => json!({
                "type": "object",
                "properties": {
                    "conversationId": conversation,
                    "filename": { "type": "string", "description": "A plain name, without directories" },
                    "content": { "type": "string", "description": "The contents of the file, in base64" },
                },
                "required": ["conversationId", "filename", "content"],
            }),
            Self::Run => json!({
                "type": "object",
                "properties": {
                    "conversationId": conversation,
                    "language": {
                        "type": "string",
                        "description": "The language of the code",
                        "enum": policy.languages,
                    },
                    "code": { "type": "string", "description": "The code: a whole program" },
                    "network": {
                        "type": "boolean",
                        "description": "Whether the code may use the network (default: false)",
                    },
                    "environment": {
                        "type": "object",
                        "description": "Environment variables for the code",
                        "additionalProperties": { "type": "string" },
                    },
                },
                "required": ["conversationId", "language", "code"],
            }),
            Self::List => json!({ "type": "object", "properties": {} }),
        }
    }
}

impl CodeRunner {
    async fn answer(&self, which: Which, call: Call, arguments: &Map<String, Value>) -> Result<Output, Rejection> {
        let arguments = Arguments(arguments);
        let (success, output) = match which {
            Which::Upload => {
                let [conversation, name, content] = texts(arguments, ["conversationId", "filename", "content"])?;
                let uploaded = self.upload(&call, &key(&call.owner, conversation), name, content).await;
                let uploaded = uploaded.unwrap_or_else(|error| {
                    tool::log(UPLOAD_FILE, &error);
                    Uploaded { success: false, message: tell(&error), file: None }
                });
                (uploaded.success, told::output(&uploaded))
            }
            Which::Run => {
                let asking = asking(&call.owner, arguments)?;
                let ran = session::run(call, Arc::clone(&self.conversations), asking).await;
                (ran.success, told::output(&ran))
            }
            Which::List => {
                let languages = runners(&call).await.map_err(|error| {
                    tool::log(LIST_RUNNERS, &error);
                    Rejection::new(Reason::Internal, tell(&error))
                })?;
                (true, told::output(&Listed { languages }))
            }
        };
        Ok(Output { is_error: !success && self.options.has(ProfileOption::FlagFailures), ..output })
    }

    async fn upload(&self, call: &Call, conversation: &[u8], name: &str, content: &str) -> Result<Uploaded> {
        let name = FileName::new(name)?;
        let contents = decode(content)?;
        let bytes = contents.len();
        let mut conversation = tokio::select! {
            opened = self.conversations.open(conversation, bounds(&call.policy)) => opened?,
            () = call.cancelled.cancelled() => return Err(Error::unavailable("the request was cancelled")),
        };
        conversation.put(&name, contents).await?;
        let url = self.conversations.links().file(conversation.directory(), &name);
        let shown = name.shown();
        Ok(Uploaded {
            success: true,
            message: format!("File '{shown}' uploaded successfully ({bytes} bytes)"),
            file: Some(FileObject { name: shown, url }),
        })
    }
}

/// What a conversation can hold: as much as fits into a sandbox, whose files live in memory, and room for the code besides.
/// One that was full could not even be tidied up any more.
fn bounds(policy: &Policy) -> Limits {
    Limits { disk: ByteSize::new(room(&policy.limits) / 8 * 7), ..policy.limits }
}

/// Bytes of files that a sandbox has room for.
fn room(limits: &Limits) -> u64 {
    limits.disk.bytes().min(limits.memory.bytes() / 4 * 3)
}

/// Lines of base64 are as good as one.
fn decode(content: &str) -> Result<Vec<u8>> {
    let text: String = content.chars().filter(|character| !matches!(character, '\r' | '\n')).collect();
    STANDARD.decode(text).map_err(|_| Error::invalid_input("the content is not valid base64"))
}

/// What a conversation is known by. That of another owner is another one, whatever it is called; those of the one owner
/// that the older server knew are called as they were.
fn key(owner: &Owner, conversation: &str) -> Vec<u8> {
    if *owner == Owner::local() {
        return conversation.as_bytes().to_vec();
    }
    // No text begins with this byte, and no owner has a zero in it.
    [&[0xff], owner.to_string().as_bytes(), &[0], conversation.as_bytes()].concat()
}

/// All are looked at before any is missed, as the older server did. What is empty is missing.
fn texts<'a, const COUNT: usize>(
    arguments: Arguments<'a>,
    names: [&'static str; COUNT],
) -> Result<[&'a str; COUNT], Rejection> {
    let mut found = [""; COUNT];
    for (found, name) in found.iter_mut().zip(names) {
        *found = arguments.optional_text(name).map_err(refused)?.unwrap_or_default();
    }
    match names.into_iter().zip(found).find(|(_, text)| text.is_empty()) {
        Some((argument, _)) => Err(refused(Wrong { argument, problem: Problem::Missing })),
        None => Ok(found),
    }
}

fn asking(owner: &Owner, arguments: Arguments<'_>) -> Result<Asking, Rejection> {
    let network = arguments.truth("network").map_err(refused)?.unwrap_or(false);
    let mut environment = BTreeMap::new();
    for (name, value) in arguments.object("environment").map_err(refused)?.map_or(&Map::new(), |object| object.0) {
        let text = match value {
            Value::Null => "",
            Value::String(text) => text,
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                return Err(refused(Wrong { argument: "environment", problem: Problem::Not("map of strings") }));
            }
        };
        environment.insert(name.clone(), text.to_owned());
    }
    let [conversation, language, code] = texts(arguments, ["conversationId", "language", "code"])?;
    Ok(Asking {
        conversation: key(owner, conversation),
        language: language.to_owned(),
        code: code.to_owned(),
        network,
        environment,
    })
}

fn refused(wrong: Wrong) -> Rejection {
    match wrong.problem {
        Problem::Missing => Rejection::new(Reason::Parameters, wrong.to_string()),
        Problem::Not(_) => Rejection {
            detail: Some(Value::String(wrong.to_string())),
            ..Rejection::new(Reason::Parameters, "Invalid arguments")
        },
    }
}

/// What is listed, what is offered, and what is not refused as unknown. One of ours that has no program here would be chosen
/// in vain.
async fn found(call: &Call) -> Result<Vec<Language>> {
    image::provide(call, &call.policy.image).await?;
    let languages = call.service.languages(&call.owner, &call.policy.image).await?;
    Ok(languages.into_iter().filter(|language| language.version.is_some()).collect())
}

async fn runners(call: &Call) -> Result<Vec<RunnerObject>> {
    let mut runners = Vec::new();
    for language in found(call).await? {
        let image = call.service.image_for(&language.name, call.policy.image.clone()).await?;
        runners.push(RunnerObject { language: language.name, image: image.shown() });
    }
    Ok(runners)
}
