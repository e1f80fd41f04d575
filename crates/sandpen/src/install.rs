//! `sandpen mcp` as an entry in the configuration of an MCP client. What to write is decided as text; `file.rs` and below
//! alone change anything on the disk.

use std::path::Path;

use sandbox::{Error, ErrorKind};
use serde_json::Value;

pub mod arguments;
pub mod client;
pub mod difference;
pub mod entry;
pub mod file;
pub mod json;
pub mod older;
pub mod place;
pub mod program;
pub mod toml;

use client::{Client, Format};
use entry::{Entry, Name};

/// What a configuration shall hold.
#[derive(Clone, Copy, Debug)]
pub enum Wish<'a> {
    Have(&'a Entry),
    Lack {
        name: &'a Name,
        /// The path by which others start this program, whose entry it is.
        program: &'a str,
    },
}

impl Wish<'_> {
    pub fn name(&self) -> &Name {
        match self {
            Self::Have(entry) => &entry.name,
            Self::Lack { name, .. } => name,
        }
    }

    /// Whether an entry is one that this program may change.
    fn may_change(&self, entry: &Value) -> bool {
        match self {
            Self::Have(wished) => entry::is_ours(entry, &wished.command) || wished.succeeds(entry),
            Self::Lack { program, .. } => entry::is_ours(entry, program),
        }
    }

    /// What is to be set in the entry, if there is to be one.
    fn fields(&self, is_typed: bool, present: Option<&Value>) -> Result<Vec<(String, Value)>, Refusal> {
        match self {
            Self::Have(entry) => {
                present.map_or_else(|| Ok(entry.fields(is_typed)), |present| entry.fields_instead_of(is_typed, present))
            }
            Self::Lack { .. } => Ok(Vec::new()),
        }
    }

    /// What a configuration says with these fields set, or without the entry; its servers are below `key`.
    fn apply(&self, whole: &mut Value, key: &str, fields: &[(String, Value)]) {
        match self {
            Self::Have(entry) => {
                for (field, value) in fields {
                    whole[key][entry.name.as_str()][field] = value.clone();
                }
            }
            Self::Lack { name, .. } => {
                if let Some(servers) = whole.get_mut(key).and_then(Value::as_object_mut) {
                    servers.shift_remove(name.as_str());
                }
            }
        }
    }
}

/// What it takes to get there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Add,
    Update,
    /// In the place of an older server.
    Replace,
    Remove,
    /// The entry is there already, as wished.
    Keep,
    /// There is no entry to remove.
    Miss,
}

impl Action {
    pub fn changes(self) -> bool {
        match self {
            Self::Add | Self::Update | Self::Replace | Self::Remove => true,
            Self::Keep | Self::Miss => false,
        }
    }
}

/// A configuration as it shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    pub action: Action,
    pub text: String,
}

/// Why a configuration is left as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Broken {
        what: String,
        line: usize,
        column: usize,
    },
    /// The entry of this name starts another program.
    Foreign,
    /// It starts this program in a way that nobody can tell how to change.
    Arguments,
    /// It is sound, but written in a way that cannot be changed without touching other things.
    Unusual,
}

impl Refusal {
    /// At a byte of the text; lines and columns count from 1, as editors do.
    pub fn broken(text: &str, position: usize, what: impl Into<String>) -> Self {
        let before = text.get(..position).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        Self::Broken { what: what.into(), line, column: before[line_start..].chars().count() + 1 }
    }

    fn into_error(self, client: Client, path: &Path, wish: Wish<'_>) -> Error {
        let (path, name) = (path.display(), wish.name());
        match self {
            Self::Broken { what, line, column } => {
                Error::invalid_input(format!("{path} is broken at line {line}, column {column}: {what}"))
                    .with_hint("nothing was changed; repair the file first")
            }
            Self::Foreign => {
                let foreign = format!("{path} has a server called {name} that is not sandpen");
                let hint = match wish {
                    Wish::Have(_) => "it was left alone; choose another name with --name",
                    Wish::Lack { .. } => "it was left alone; remove it by hand if you want it gone",
                };
                Error::new(ErrorKind::AlreadyExists, foreign).with_hint(hint)
            }
            Self::Arguments => {
                Error::unsupported(format!("{path} has a server called {name} with arguments that are not understood"))
                    .with_hint("it was left alone; change it by hand, or choose another name with --name")
            }
            Self::Unusual => {
                Error::unsupported(format!("{path} cannot be changed without touching what else is in it"))
                    .with_hint(format!("change it by hand; sandpen install --print {} shows the entry", client.word()))
            }
        }
    }
}

/// How lines end in a text, going by its first.
fn newline_of(text: &str) -> &'static str {
    match text.find('\n') {
        Some(position) if text[..position].ends_with('\r') => "\r\n",
        Some(_) | None => "\n",
    }
}

/// The configuration of a client with its wish fulfilled, or the reason why it must be left alone.
pub fn edit(client: Client, path: &Path, text: &str, wish: Wish<'_>) -> sandbox::Result<Edit> {
    let edited = match client.format() {
        Format::Json(shape) => json::edit(text, shape, wish),
        Format::Toml => toml::edit(text, wish),
    };
    edited.map_err(|refusal| refusal.into_error(client, path, wish))
}

/// An entry by itself, ready to paste.
pub fn snippet(client: Client, entry: &Entry) -> String {
    match client.format() {
        Format::Json(shape) => json::snippet(shape, entry),
        Format::Toml => toml::snippet(entry),
    }
}
