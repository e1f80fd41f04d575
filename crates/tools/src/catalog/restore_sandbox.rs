//! `restore_sandbox`: back to the files of a checkpoint.

use sandbox::{Checkpoint, Result};
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
    /// The checkpoint of a run with checkpoint true.
    checkpoint: u32,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Restored {
    sandbox_id: String,
    checkpoint: u32,
    restored: bool,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "restore_sandbox",
        title: "Undo changes",
        description: "Put all files of a sandbox back to what they were at a checkpoint, that is, before the run that \
                      made it. Everything that was written since is gone, and so are later checkpoints. Nothing may run in the \
                      sandbox meanwhile: stop its jobs first; the error names what they left running, and how to end it."
            .to_owned(),
        toolset: Toolset::Snapshots,
        hints: Hints { read_only: false, destructive: true, idempotent: true, open_world: false },
    };
    Tool::new(definition, restore)
}

async fn restore(call: Call, arguments: Arguments) -> Result<Answer<Restored>> {
    let sandbox = target::sandbox(&call, &arguments.sandbox_id).await?;
    call.service.restore(&call.owner, &sandbox.id, Checkpoint(arguments.checkpoint)).await?;
    let value = Restored { sandbox_id: sandbox.id.to_string(), checkpoint: arguments.checkpoint, restored: true };
    let text = format!("the files of {} are as they were at checkpoint {}", value.sandbox_id, value.checkpoint);
    Ok(Answer { content: vec![Content::Text(text)], value })
}
