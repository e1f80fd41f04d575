//! `list_files`: what a directory holds.

use std::fmt::Write;

use sandbox::{ByteSize, FileKind, ListOptions, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::target;
use crate::call::Call;
use crate::content::Content;
use crate::mime;
use crate::select::Toolset;
use crate::text;
use crate::tool::{Answer, Definition, Hints, Tool};

const DEFAULT_ENTRIES: u32 = 200;
const MOST_ENTRIES: u32 = 2000;
/// Names are chosen by the code in the sandbox, and may be as long as they are many.
const MOST_BYTES: usize = 256 * 1024;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The sandbox's id or name.
    sandbox_id: String,
    /// The directory; a relative path starts at the work directory, which is the default.
    #[serde(default)]
    path: String,
    /// List what is below directories too. Default false.
    #[serde(default)]
    recursive: bool,
    /// The most entries to list. Default 200.
    #[schemars(range(min = 1, max = MOST_ENTRIES))]
    max_entries: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Files {
    path: String,
    entries: Vec<Entry>,
    /// There is more than was listed.
    truncated: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Entry {
    path: String,
    kind: Kind,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    mime_type: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Kind {
    File,
    Directory,
    Link,
    Other,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "list_files",
        title: "List files",
        description: "List a directory of a sandbox, in order of the names, with kinds and sizes.".to_owned(),
        toolset: Toolset::Files,
        hints: Hints { read_only: true, destructive: false, idempotent: true, open_world: false },
    };
    Tool::new(definition, list)
}

async fn list(call: Call, arguments: Arguments) -> Result<Answer<Files>> {
    let path = if arguments.path.is_empty() { "." } else { &arguments.path };
    let target = target::file(&call, &arguments.sandbox_id, path).await?;
    let most = arguments.max_entries.unwrap_or(DEFAULT_ENTRIES).clamp(1, MOST_ENTRIES);
    let options = ListOptions { recursive: arguments.recursive, max_entries: most as usize };
    let listing = target.files.list(&target.path, options).await?;
    let entries = listing.entries.iter().map(|entry| {
        let kind = match entry.stat.kind {
            FileKind::Regular => Kind::File,
            FileKind::Directory => Kind::Directory,
            FileKind::Link => Kind::Link,
            FileKind::Other => Kind::Other,
        };
        Entry {
            path: entry.path.to_string_lossy().into_owned(),
            kind,
            bytes: entry.stat.bytes,
            mime_type: matches!(kind, Kind::File).then(|| mime::by_name(entry.path.as_bytes())),
        }
    });
    let mut room = MOST_BYTES;
    let fitting = entries.take_while(|entry| {
        let takes = text::encoded(&entry.path) + 80;
        room = room.saturating_sub(takes);
        room > 0
    });
    let entries: Vec<_> = fitting.collect();
    let value = Files {
        path: target.path.to_string_lossy().into_owned(),
        truncated: listing.truncated || entries.len() < listing.entries.len(),
        entries,
    };
    Ok(Answer { content: vec![Content::Text(shown(&value))], value })
}

fn shown(files: &Files) -> String {
    if files.entries.is_empty() {
        return format!("{} is empty", files.path);
    }
    let mut text = String::new();
    for entry in &files.entries {
        let path = text::on_one_line(&entry.path);
        let _ = match entry.kind {
            Kind::File => writeln!(text, "{path}  {}", ByteSize::new(entry.bytes)),
            Kind::Directory => writeln!(text, "{path}/"),
            Kind::Link => writeln!(text, "{path}  (link)"),
            Kind::Other => writeln!(text, "{path}  (special file)"),
        };
    }
    if files.truncated {
        text += "there is more: list a directory below, or raise max_entries\n";
    }
    text
}
