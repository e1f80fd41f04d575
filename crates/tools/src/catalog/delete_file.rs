//! `delete_file`: a file, a link, or a directory with all below it.

use sandbox::{Error, FileKind, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::target;
use crate::call::Call;
use crate::content::Content;
use crate::select::Toolset;
use crate::tool::{Answer, Definition, Hints, Tool};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The sandbox's id or name.
    sandbox_id: String,
    /// What to delete; a relative path starts at the work directory.
    path: String,
    /// Needed for a directory, which goes with all below it. Default false.
    #[serde(default)]
    recursive: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Deleted {
    path: String,
    deleted: bool,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "delete_file",
        title: "Delete a file",
        description: "Delete a file in a sandbox, or a directory with all below it when recursive is set.".to_owned(),
        toolset: Toolset::Files,
        hints: Hints { read_only: false, destructive: true, idempotent: false, open_world: false },
    };
    Tool::new(definition, delete)
}

async fn delete(call: Call, arguments: Arguments) -> Result<Answer<Deleted>> {
    let target = target::file(&call, &arguments.sandbox_id, &arguments.path).await?;
    let path = target.path.to_string_lossy().into_owned();
    // These stay whatever is asked for, and must not be emptied by an attempt that then fails.
    if target.path.components().count() < 2 {
        return Err(Error::invalid_input(format!("{path} belongs to the sandbox and stays"))
            .with_hint("delete what is in it, by name, or call stop_sandbox"));
    }
    if target.files.stat(&target.path).await?.kind == FileKind::Directory && !arguments.recursive {
        return Err(Error::invalid_input(format!("{path} is a directory"))
            .with_hint("set recursive to delete it with all below it"));
    }
    target.files.remove(&target.path).await?;
    let text = format!("deleted {path}");
    Ok(Answer { content: vec![Content::Text(text)], value: Deleted { path, deleted: true } })
}
