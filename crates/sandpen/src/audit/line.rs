//! What is told of one event or one deed: the same for the log and for the trail.
//!
//! Names of secrets, never values; hosts, never what was asked of them; programs, never their arguments.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use sandbox::{Event, EventKind, GuestPath, Owner, Persistence, SandboxId, SecretName};
use serde_json::{Value, json};

/// The event of a line that stands for lines which are not there.
pub const MISSED: &str = "missed";

/// Characters of a name that somebody else chose.
const MOST_CHARACTERS: usize = 256;

/// Something that a caller did, which the service does not see.
#[derive(Clone, Debug)]
pub enum Deed {
    Called {
        owner: Owner,
        tool: CalledTool,
        /// The one that was named.
        sandbox: Option<SandboxId>,
        outcome: CallOutcome,
        took: Duration,
    },
    /// A request about files, which may have been refused.
    Files {
        owner: Owner,
        sandbox: Option<SandboxId>,
        action: &'static str,
        /// How the caller got in.
        door: &'static str,
        path: Option<GuestPath>,
        status: u16,
        took: Duration,
    },
    /// Somebody has signed in, and lets a client do things for them.
    Granted { owner: Owner, who: String, client: String, scope: String },
    /// Somebody was not let in.
    TurnedAway { source: Option<IpAddr>, why: &'static str },
}

/// A tool by its name: one that there is, or whatever a client called it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CalledTool {
    Known(&'static str),
    Unknown(String),
}

impl CalledTool {
    /// One of few words, whatever a client says.
    pub fn known(&self) -> &'static str {
        match self {
            Self::Known(name) => name,
            Self::Unknown(_) => "unknown",
        }
    }

    fn as_str(&self) -> &str {
        match self {
            Self::Known(name) => name,
            Self::Unknown(name) => name,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    Done,
    /// It goes on, and is asked about later.
    Begun,
    /// The tool said so.
    Failed,
    /// It was no call that could be made.
    Refused,
}

impl CallOutcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Begun => "begun",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    pub owner: Option<Owner>,
    pub sandbox: Option<SandboxId>,
    pub event: &'static str,
    pub details: Vec<(&'static str, Value)>,
}

impl Line {
    /// Of what came faster than it could be written; `of` what that was.
    pub fn missed(of: &'static str, count: u64) -> Self {
        Self { owner: None, sandbox: None, event: MISSED, details: vec![("of", of.into()), ("count", count.into())] }
    }
}

impl From<Deed> for Line {
    fn from(deed: Deed) -> Self {
        match deed {
            Deed::Called { owner, tool, sandbox, outcome, took } => Self {
                owner: Some(owner),
                sandbox,
                event: "called",
                details: vec![
                    ("tool", chosen(tool.as_str())),
                    ("outcome", outcome.as_str().into()),
                    ("took_ms", milliseconds(took)),
                ],
            },
            Deed::Files { owner, sandbox, action, door, path, status, took } => Self {
                owner: Some(owner),
                sandbox,
                event: "files",
                details: vec![
                    ("action", action.into()),
                    ("by", door.into()),
                    ("path", path.as_ref().map_or(Value::Null, place)),
                    ("status", status.into()),
                    ("took_ms", milliseconds(took)),
                ],
            },
            Deed::Granted { owner, who, client, scope } => Self {
                owner: Some(owner),
                sandbox: None,
                event: "granted",
                details: vec![("who", chosen(&who)), ("client", chosen(&client)), ("scope", chosen(&scope))],
            },
            Deed::TurnedAway { source, why } => Self {
                owner: None,
                sandbox: None,
                event: "turned_away",
                details: vec![("source", json!(source.map(|source| source.to_string()))), ("why", why.into())],
            },
        }
    }
}

impl From<&Event> for Line {
    fn from(Event { owner, id, kind }: &Event) -> Self {
        Self { owner: Some(owner.clone()), sandbox: id.clone(), event: kind.as_str(), details: details(kind) }
    }
}

/// As the log has it. Whatever somebody chose cannot look like a line of ours.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(owner) = &self.owner {
            write!(f, "owner={owner} ")?;
        }
        if let Some(sandbox) = &self.sandbox {
            write!(f, "sandbox={sandbox} ")?;
        }
        write!(f, "event=\"{}\"", self.event)?;
        for (name, value) in &self.details {
            write!(f, " {name}=")?;
            for character in value.to_string().chars() {
                match character {
                    ' '..='~' => write!(f, "{character}")?,
                    other => write!(f, "{}", other.escape_unicode())?,
                }
            }
        }
        Ok(())
    }
}

/// What is worth knowing of each event, after what all of them have.
fn details(kind: &EventKind) -> Vec<(&'static str, Value)> {
    match kind {
        EventKind::Created { persistence, limits, network, secrets, took } => vec![
            ("persistent", (*persistence == Persistence::Persistent).into()),
            ("memory", limits.memory.bytes().into()),
            ("cpu_millis", limits.cpu_millis.into()),
            ("processes", limits.processes.into()),
            ("disk", limits.disk.bytes().into()),
            ("network", network.to_string().into()),
            ("secrets", names(secrets)),
            ("took_ms", milliseconds(*took)),
        ],
        EventKind::CreateRefused { kind: error }
        | EventKind::CreateFailed { kind: error }
        | EventKind::ExecRefused { kind: error } => vec![("error", error.as_str().into())],
        EventKind::Adopted | EventKind::Renewed => Vec::new(),
        EventKind::ExecStarted { program } => vec![("program", chosen(program))],
        EventKind::ExecEnded { program, outcome, stdout_bytes, stderr_bytes } => vec![
            ("program", chosen(program)),
            ("status", outcome.status.as_str().into()),
            ("exit_code", json!(outcome.status.exit_code())),
            ("signal", json!(outcome.status.signal())),
            ("took_ms", milliseconds(outcome.usage.wall)),
            ("cpu_ms", milliseconds(outcome.usage.cpu)),
            ("stdout_bytes", (*stdout_bytes).into()),
            ("stderr_bytes", (*stderr_bytes).into()),
            ("connections", outcome.network.usage.connections.into()),
            ("refused", outcome.network.usage.refused.into()),
        ],
        EventKind::FileRead { path, bytes } | EventKind::FileWritten { path, bytes } => {
            vec![("path", place(path)), ("bytes", (*bytes).into())]
        }
        EventKind::FileRemoved { path } => vec![("path", place(path))],
        EventKind::FileRenamed { from, to } => vec![("from", place(from)), ("to", place(to))],
        EventKind::Connected { host, port, bytes_in, bytes_out, took, secrets } => vec![
            ("host", host.to_string().into()),
            ("port", (*port).into()),
            ("bytes_in", (*bytes_in).into()),
            ("bytes_out", (*bytes_out).into()),
            ("took_ms", milliseconds(*took)),
            ("secrets", names(secrets)),
        ],
        EventKind::ConnectionRefused { host, port, denial } => {
            vec![("host", host.to_string().into()), ("port", json!(port)), ("rule", denial.as_str().into())]
        }
        EventKind::Saved { name, bytes, took } => {
            vec![("name", name.to_string().into()), ("bytes", (*bytes).into()), ("took_ms", milliseconds(*took))]
        }
        EventKind::Forgotten { name } => vec![("name", name.to_string().into())],
        EventKind::Forked { into } => vec![("into", into.as_str().into())],
        EventKind::Checkpointed { checkpoint, took } | EventKind::Restored { checkpoint, took } => {
            vec![("checkpoint", checkpoint.0.into()), ("took_ms", milliseconds(*took))]
        }
        EventKind::TreeFailed { work, kind: error } => {
            vec![("work", work.as_str().into()), ("error", error.as_str().into())]
        }
        EventKind::Stopped { reason } => vec![("reason", reason.as_str().into())],
        EventKind::StopFailed { reason, kind: error } => {
            vec![("reason", reason.as_str().into()), ("error", error.as_str().into())]
        }
    }
}

fn milliseconds(duration: Duration) -> Value {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).into()
}

fn names<'a>(secrets: impl IntoIterator<Item = &'a SecretName>) -> Value {
    secrets.into_iter().map(SecretName::as_str).collect::<Vec<_>>().join(",").into()
}

/// It must not fill the log.
fn chosen(name: &str) -> Value {
    name.chars().take(MOST_CHARACTERS).collect::<String>().into()
}

fn place(path: &GuestPath) -> Value {
    chosen(&path.to_string_lossy())
}
