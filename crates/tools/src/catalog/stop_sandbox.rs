//! `stop_sandbox`: the end of a sandbox and of all that is in it.

use sandbox::Result;
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
}

#[derive(Debug, Serialize, JsonSchema)]
struct Stopped {
    sandbox_id: String,
    stopped: bool,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "stop_sandbox",
        title: "Stop a sandbox",
        description: "End a sandbox: every process in it is killed and its files are gone. Read what you need first."
            .to_owned(),
        toolset: Toolset::Sandboxes,
        hints: Hints { read_only: false, destructive: true, idempotent: false, open_world: false },
    };
    Tool::new(definition, stop)
}

async fn stop(call: Call, arguments: Arguments) -> Result<Answer<Stopped>> {
    let sandbox = target::sandbox(&call, &arguments.sandbox_id).await?;
    call.service.stop(&call.owner, &sandbox.id).await?;
    let value = Stopped { sandbox_id: sandbox.id.to_string(), stopped: true };
    Ok(Answer { content: vec![Content::Text(format!("stopped sandbox {}", value.sandbox_id))], value })
}
