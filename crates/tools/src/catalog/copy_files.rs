//! `copy_files`: between a sandbox and the places of the host that the operator opened.

use sandbox::{ByteSize, Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::target;
use crate::call::Call;
use crate::content::Content;
use crate::policy::Policy;
use crate::select::Toolset;
use crate::tool::{Answer, Definition, Hints, Tool};

/// It can be left out where it is not there anyhow: one configuration fits several servers.
pub const NAME: &str = "copy_files";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The sandbox's id or name.
    sandbox_id: String,
    /// in: from the host into the sandbox; out: from the sandbox to the host.
    direction: Direction,
    /// A file or directory of the host, as an absolute path below one of the opened places.
    host_path: String,
    /// A path in the sandbox; a relative one starts at the work directory, which is the default.
    #[serde(default)]
    sandbox_path: String,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Direction {
    In,
    Out,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CopiedObject {
    files: u64,
    bytes: u64,
    /// Links that lead elsewhere, devices and sockets, which are never copied.
    skipped: u64,
}

pub fn tool(policy: &Policy) -> Tool {
    let description = format!(
        "Copy a file or a directory between the host and a sandbox. Of the host only these places are open: {}.",
        policy.roots.join(", ")
    );
    let definition = Definition {
        name: NAME,
        title: "Copy files",
        description,
        toolset: Toolset::Files,
        hints: Hints { read_only: false, destructive: true, idempotent: true, open_world: true },
    };
    Tool::new(definition, copy)
}

async fn copy(call: Call, arguments: Arguments) -> Result<Answer<CopiedObject>> {
    let host_files = call.host_files.clone().ok_or_else(|| {
        Error::unsupported("no place of the host is open").with_hint("write files with write_file, read with read_file")
    })?;
    let path = if arguments.sandbox_path.is_empty() { "." } else { &arguments.sandbox_path };
    let target = target::file(&call, &arguments.sandbox_id, path).await?;
    let host = &arguments.host_path;
    let copying = async {
        match arguments.direction {
            Direction::In => host_files.copy_in(host, &*target.files, &target.path).await,
            Direction::Out => host_files.copy_out(&*target.files, &target.path, host, target.sandbox.limits).await,
        }
    };
    let copied = tokio::select! {
        copied = copying => copied?,
        () = call.cancelled.cancelled() => return Err(Error::unavailable("the request was cancelled")),
    };
    let value = CopiedObject { files: copied.files, bytes: copied.bytes, skipped: copied.skipped };
    let files = if value.files == 1 { "1 file".to_owned() } else { format!("{} files", value.files) };
    let mut text = format!("copied {files} ({})", ByteSize::new(value.bytes));
    if value.skipped > 0 {
        text += &format!("; left out {} links and special files", value.skipped);
    }
    Ok(Answer { content: vec![Content::Text(text)], value })
}
