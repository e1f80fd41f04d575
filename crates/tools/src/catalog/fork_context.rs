//! `fork_context`: further live interpreters with the variables of one.

use sandbox::{BranchRequest, ContextName, Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// The context to branch. Of Python.
    context: String,
    /// How many. Default 1, or as many as there are names.
    #[schemars(range(min = 1, max = 16))]
    count: Option<usize>,
    /// Names for the first of them; the others are named after the context, with a number.
    #[serde(default)]
    names: Vec<String>,
    /// Give each a copy of the directory that the context is in, below branches/ of the work directory. Default false: they
    /// share all files.
    #[serde(default)]
    copy_files: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Forked {
    /// Names of the new contexts, in order.
    contexts: Vec<String>,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "fork_context",
        title: "Fork a context",
        description: "Branch a live Python context: each branch is a context of its own in the same sandbox, with a copy of all \
                      variables, imports and functions, and fresh random numbers, in milliseconds. Use it to try several ways \
                      from one state without loading data again. Threads, and connections that were open, are not copied."
            .to_owned(),
        toolset: Toolset::Run,
        hints: Hints { read_only: false, destructive: false, idempotent: false, open_world: false },
    };
    Tool::new(definition, fork)
}

async fn fork(call: Call, arguments: Arguments) -> Result<Answer<Forked>> {
    let context: ContextName = arguments.context.parse()?;
    let mut names: Vec<ContextName> = arguments.names.iter().map(|name| name.parse()).collect::<Result<_>>()?;
    let count = arguments.count.unwrap_or_else(|| names.len().max(1));
    if !(1..=MOST).contains(&count) || names.len() > count {
        return Err(Error::invalid_input(format!(
            "count must be 1 to {MOST}, and there can be no more names than that"
        )));
    }
    let sandbox = target::sandbox(&call, &arguments.sandbox_id).await?;
    let there = call.service.contexts(&call.owner, &sandbox.id)?;
    let mut number = 0;
    while names.len() < count {
        number += 1;
        let name: ContextName = format!("{context}-{number}").parse()?;
        if !names.contains(&name) && there.iter().all(|info| info.name != name) {
            names.push(name);
        }
    }
    let request = BranchRequest { names, copies_files: arguments.copy_files };
    let branches = tokio::select! {
        branches = call.service.branch_context(&call.owner, &sandbox.id, &context, &request) => branches?,
        () = call.cancelled.cancelled() => return Err(Error::unavailable("the request was cancelled")),
    };
    let value = Forked { contexts: branches.iter().map(|info| info.name.to_string()).collect() };
    let text = format!("branched {context} into {}", value.contexts.join(", "));
    Ok(Answer { content: vec![Content::Text(text)], value })
}
