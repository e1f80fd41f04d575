//! `manage_contexts`: the live interpreters of a sandbox, seen, begun anew and closed.

use sandbox::{ContextInfo, ContextName, ContextState, Error, Result};
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
    /// What to do.
    action: Action,
    /// Which context; not for list.
    context: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Action {
    List,
    Restart,
    Close,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Contexts {
    /// Those that the sandbox has now, by name.
    contexts: Vec<ContextObject>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ContextObject {
    name: String,
    language: &'static str,
    state: State,
    /// Why, when its state is ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    /// Runs since it began.
    runs: u32,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum State {
    Idle,
    Running,
    Ended,
}

impl From<&ContextInfo> for ContextObject {
    fn from(info: &ContextInfo) -> Self {
        let (state, ended) = match &info.state {
            ContextState::Idle => (State::Idle, None),
            ContextState::Running => (State::Running, None),
            ContextState::Ended(end) => (State::Ended, Some(end.to_string())),
        };
        Self { name: info.name.to_string(), language: info.language.as_str(), state, ended, runs: info.runs }
    }
}

impl ContextObject {
    fn told(&self) -> String {
        let Self { name, language, runs, .. } = self;
        match (&self.state, &self.ended) {
            (State::Running, _) => format!("{name}: {language}, in its run {runs}"),
            (State::Ended, Some(why)) => format!("{name}: {language}, ended: {why}"),
            (State::Idle | State::Ended, _) => format!("{name}: {language}, {runs} runs so far"),
        }
    }
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "manage_contexts",
        title: "Manage contexts",
        description: "The live interpreters of a sandbox, which run_code with context makes: list them, restart one \
                      (its variables are lost, its name stays) or close one. What runs in it is killed. Files stay."
            .to_owned(),
        toolset: Toolset::Run,
        hints: Hints { read_only: false, destructive: true, idempotent: true, open_world: false },
    };
    Tool::new(definition, manage)
}

async fn manage(call: Call, arguments: Arguments) -> Result<Answer<Contexts>> {
    let sandbox = target::sandbox(&call, &arguments.sandbox_id).await?;
    let name: Option<ContextName> = arguments.context.as_deref().map(str::parse).transpose()?;
    let done = match (arguments.action, name) {
        (Action::List, _) => None,
        (Action::Restart, Some(name)) => {
            call.service.restart_context(&call.owner, &sandbox.id, &name).await?;
            Some(format!("the context {name} begins anew"))
        }
        (Action::Close, Some(name)) => {
            call.service.close_context(&call.owner, &sandbox.id, &name).await?;
            Some(format!("the context {name} is closed"))
        }
        (Action::Restart | Action::Close, None) => {
            return Err(Error::invalid_input("which context is missing").with_hint("name it in context"));
        }
    };
    let contexts: Vec<_> = call.service.contexts(&call.owner, &sandbox.id)?.iter().map(ContextObject::from).collect();
    let mut lines: Vec<String> = done.into_iter().collect();
    match contexts.as_slice() {
        [] => lines.push("this sandbox has no contexts".to_owned()),
        contexts => lines.extend(contexts.iter().map(ContextObject::told)),
    }
    Ok(Answer { content: vec![Content::Text(lines.join("\n"))], value: Contexts { contexts } })
}
