//! `fork_sandbox`: further sandboxes with the files of one.

use sandbox::{Error, ForkRequest, Persistence, Result, SandboxId, SandboxName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::list_sandboxes::ReachObject;
use super::target;
use crate::call::Call;
use crate::content::Content;
use crate::select::Toolset;
use crate::tool::{Answer, Definition, Hints, Tool};

const MOST: usize = 16;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The sandbox's id or name.
    sandbox_id: String,
    /// How many. Default 1, or as many as there are names.
    #[schemars(range(min = 1, max = 16))]
    count: Option<usize>,
    /// Names for the first of them: lower-case letters, digits and dashes, unique among your sandboxes.
    #[serde(default)]
    names: Vec<String>,
    /// They outlive this server, until they are stopped or idle for too long. Default false.
    #[serde(default)]
    persist: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Forked {
    /// Of the new sandboxes, in the order of their names.
    sandbox_ids: Vec<String>,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "fork_sandbox",
        title: "Fork a sandbox",
        description:
            "Make sandboxes with the same files, limits, network and environment as one that you have, to try \
                      several ways from one state. What one of them writes the others do not see. Running programs \
                      stay in the original. It is fastest while nothing runs there."
                .to_owned(),
        toolset: Toolset::Snapshots,
        hints: Hints { read_only: false, destructive: false, idempotent: false, open_world: false },
    };
    Tool::new(definition, fork)
}

async fn fork(call: Call, arguments: Arguments) -> Result<Answer<Forked>> {
    let names: Vec<SandboxName> = arguments.names.iter().map(|name| name.parse()).collect::<Result<_>>()?;
    let count = arguments.count.unwrap_or_else(|| names.len().max(1));
    if !(1..=MOST).contains(&count) || names.len() > count {
        return Err(Error::invalid_input(format!(
            "count must be 1 to {MOST}, and there can be no more names than that"
        )));
    }
    let sandbox = target::sandbox(&call, &arguments.sandbox_id).await?;
    // It may have been made by somebody else, by the command line or through another server, with more than may be had here.
    call.policy.ceiling.network.admit(sandbox.network.clone())?;
    let persistence = if arguments.persist { Persistence::Persistent } else { Persistence::Ephemeral };
    let mut made = Made { call: &call, ids: Vec::new() };
    for index in 0..count {
        let request = ForkRequest { name: names.get(index).cloned(), persistence, lifetime: None };
        let forked = tokio::select! {
            forked = call.service.fork(&call.owner, &sandbox.id, request) => forked,
            () = call.cancelled.cancelled() => Err(Error::unavailable("the request was cancelled")),
        };
        match forked {
            Ok(forked) => made.ids.push(forked.id),
            Err(error) => return Err(made.undone(error).await),
        }
    }
    let value = Forked { sandbox_ids: made.ids.iter().map(ToString::to_string).collect() };
    let mut text = format!("forked {} into {}", sandbox.id, value.sandbox_ids.join(", "));
    for id in &made.ids {
        if let Some(reach) = call.service.reach(&call.owner, id).await? {
            text.push_str(&format!("\n{id}: {}", ReachObject::from(reach).told()));
        }
    }
    Ok(Answer { content: vec![Content::Text(text)], value })
}

/// Either all of them or none.
struct Made<'a> {
    call: &'a Call,
    ids: Vec<SandboxId>,
}

impl Made<'_> {
    async fn undone(self, error: Error) -> Error {
        for id in &self.ids {
            // One that cannot be stopped ends when it is idle.
            let _ = self.call.service.stop(&self.call.owner, id).await;
        }
        error
    }
}
