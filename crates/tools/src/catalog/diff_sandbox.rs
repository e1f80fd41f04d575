//! `diff_sandbox`: which files are different from what they were.

use sandbox::{ByteSize, Change, ChangeKind, Checkpoint, FileKind, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::target;
use crate::call::Call;
use crate::content::Content;
use crate::select::Toolset;
use crate::text;
use crate::tool::{Answer, Definition, Hints, Tool};

const MOST: usize = 500;
/// Encoded bytes of all names together.
const NAMES: usize = 32 * 1024;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The sandbox's id or name.
    sandbox_id: String,
    /// The checkpoint to compare with, from a run with checkpoint true. Left out: what the sandbox started with.
    since: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Difference {
    sandbox_id: String,
    /// In the order of their paths.
    changes: Vec<ChangeObject>,
    /// There are more than are listed.
    truncated: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ChangeObject {
    path: String,
    change: Word,
    /// file, directory, link or other.
    kind: &'static str,
    /// What it has now.
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Word {
    Added,
    Modified,
    Removed,
}

impl From<&Change> for ChangeObject {
    fn from(change: &Change) -> Self {
        Self {
            path: change.path.to_string_lossy().into_owned(),
            change: match change.kind {
                ChangeKind::Added => Word::Added,
                ChangeKind::Modified => Word::Modified,
                ChangeKind::Removed => Word::Removed,
            },
            kind: match change.file {
                FileKind::Regular => "file",
                FileKind::Directory => "directory",
                FileKind::Link => "link",
                FileKind::Other => "other",
            },
            bytes: change.bytes,
        }
    }
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "diff_sandbox",
        title: "Show changed files",
        description:
            "List the files of a sandbox that were added, modified or removed since a checkpoint, or since it \
                      was made. Checkpoints come from run_code and run_command with checkpoint true."
                .to_owned(),
        toolset: Toolset::Snapshots,
        hints: Hints { read_only: true, destructive: false, idempotent: true, open_world: false },
    };
    Tool::new(definition, diff)
}

async fn diff(call: Call, arguments: Arguments) -> Result<Answer<Difference>> {
    let sandbox = target::sandbox(&call, &arguments.sandbox_id).await?;
    let since = arguments.since.map(Checkpoint);
    let found = call.service.changes(&call.owner, &sandbox.id, since, MOST).await?;
    let mut value = Difference { sandbox_id: sandbox.id.to_string(), changes: Vec::new(), truncated: found.truncated };
    let mut room = NAMES;
    for change in &found.entries {
        // Names are chosen by the code that ran.
        room = room.saturating_sub(text::encoded(&change.path.to_string_lossy()));
        if room == 0 {
            value.truncated = true;
            break;
        }
        value.changes.push(change.into());
    }
    Ok(Answer { content: vec![Content::Text(told(&value))], value })
}

fn told(difference: &Difference) -> String {
    if difference.changes.is_empty() {
        return "nothing has changed".to_owned();
    }
    let mut lines: Vec<String> = difference.changes.iter().map(line).collect();
    if difference.truncated {
        lines.push("[more files have changed than are listed]".to_owned());
    }
    lines.join("\n")
}

fn line(change: &ChangeObject) -> String {
    let path = text::on_one_line(&change.path);
    match (change.change, change.kind) {
        (Word::Removed, _) => format!("- {path}"),
        (Word::Added, "file") => format!("+ {path} ({})", ByteSize::new(change.bytes)),
        (Word::Modified, "file") => format!("M {path} ({})", ByteSize::new(change.bytes)),
        (Word::Added, kind) => format!("+ {path} ({kind})"),
        (Word::Modified, kind) => format!("M {path} ({kind})"),
    }
}
