//! `list_sandboxes`: what the caller has.

use std::time::SystemTime;

use sandbox::{Network, Persistence, Reach, Result, SandboxInfo};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::content::Content;
use crate::select::Toolset;
use crate::tool::{Answer, Definition, Hints, Tool};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {}

#[derive(Debug, Serialize, JsonSchema)]
struct SandboxList {
    sandboxes: Vec<SandboxObject>,
}

/// A sandbox as results show it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SandboxObject {
    /// What the other tools take.
    pub sandbox_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub state: String,
    /// What it started from.
    pub image: String,
    pub work_directory: String,
    pub cpus: f64,
    pub memory_mb: u64,
    pub disk_mb: u64,
    pub processes: u32,
    /// What it may reach.
    pub network: String,
    /// What was installed for it, with versions: told by create_sandbox alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    pub packages: Vec<String>,
    pub persist: bool,
    /// Commands that run in it now.
    pub running: usize,
    /// How its operator reaches it without this server: told by create_sandbox alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reach: Option<ReachObject>,
    /// When it ends if nothing uses it from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_s: Option<u64>,
}

/// Commands for a shell on the server's machine.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ReachObject {
    pub enter: String,
    /// Its files are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// With all that belongs to it.
    pub remove: String,
}

impl ReachObject {
    /// For whoever reads the answer.
    pub fn told(&self) -> String {
        let Self { enter, stop, start, remove } = self;
        let mut text = format!("its operator can also enter it ({enter})");
        if let (Some(stop), Some(start)) = (stop, start) {
            text.push_str(&format!(", stop it ({stop}) and start it ({start}) with its files kept"));
        }
        text.push_str(&format!(", and remove it ({remove})"));
        text
    }
}

impl From<Reach> for ReachObject {
    fn from(Reach { enter, stop, start, remove }: Reach) -> Self {
        Self { enter, stop, start, remove }
    }
}

impl From<&SandboxInfo> for SandboxObject {
    fn from(sandbox: &SandboxInfo) -> Self {
        let left = |at: SystemTime| at.duration_since(SystemTime::now()).unwrap_or_default().as_secs();
        Self {
            sandbox_id: sandbox.id.to_string(),
            name: sandbox.name.as_ref().map(ToString::to_string),
            state: sandbox.condition().to_owned(),
            image: sandbox.image.shown().to_owned(),
            work_directory: sandbox.work_directory.to_string_lossy().into_owned(),
            cpus: f64::from(sandbox.limits.cpu_millis) / 1000.0,
            memory_mb: sandbox.limits.memory.bytes() >> 20,
            disk_mb: sandbox.limits.disk.bytes() >> 20,
            processes: sandbox.limits.processes,
            network: sandbox.network.to_string(),
            packages: Vec::new(),
            persist: sandbox.persistence == Persistence::Persistent,
            running: sandbox.running,
            reach: None,
            expires_in_s: sandbox.expires_at.map(left),
        }
    }
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "list_sandboxes",
        title: "List sandboxes",
        description: "List your sandboxes, oldest first, with their limits and when they end.".to_owned(),
        toolset: Toolset::Sandboxes,
        hints: Hints { read_only: true, destructive: false, idempotent: true, open_world: false },
    };
    Tool::new(definition, list)
}

async fn list(call: Call, _arguments: Arguments) -> Result<Answer<SandboxList>> {
    let sandboxes: Vec<_> = call.service.list(&call.owner).await?.iter().map(SandboxObject::from).collect();
    let mut text = match sandboxes.len() {
        0 => "you have no sandboxes".to_owned(),
        1 => "1 sandbox".to_owned(),
        count => format!("{count} sandboxes"),
    };
    for sandbox in &sandboxes {
        text += &format!("\n{} {}", sandbox.sandbox_id, sandbox.state);
        if let Some(name) = &sandbox.name {
            text += &format!(" {name:?}");
        }
        if sandbox.network != Network::None.to_string() {
            text += &format!(", network: {}", sandbox.network);
        }
        if let Some(left) = sandbox.expires_in_s {
            text += &format!(", ends in {left} s");
        }
    }
    Ok(Answer { content: vec![Content::Text(text)], value: SandboxList { sandboxes } })
}
