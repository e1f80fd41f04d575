//! `write_file`: a whole file, in one step.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sandbox::{ByteSize, Error, Overwrite, Result, WriteOptions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;

use super::target;
use crate::call::Call;
use crate::content::Content;
use crate::select::Toolset;
use crate::tool::{Answer, Definition, Hints, Tool};
use crate::uri;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The sandbox's id or name.
    sandbox_id: String,
    /// Where to write; a relative path starts at the work directory, and missing directories are made.
    path: String,
    /// What to write: text, or base64 when encoding says so.
    content: String,
    /// How content is written. Default text.
    #[serde(default)]
    encoding: Encoding,
    /// Make the file executable. Default false.
    #[serde(default)]
    executable: bool,
    /// Refuse when the file exists. Default false: it is replaced.
    #[serde(default)]
    create_only: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    #[default]
    Text,
    Base64,
}

impl Encoding {
    pub fn decode(self, content: String) -> Result<Vec<u8>> {
        match self {
            Self::Text => Ok(content.into_bytes()),
            Self::Base64 => BASE64_STANDARD.decode(content.trim_ascii()).map_err(|cause| {
                Error::invalid_input(format!("content is not base64: {cause}"))
                    .with_hint("use the standard alphabet with padding, or encoding text")
            }),
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
struct Written {
    path: String,
    bytes: u64,
    uri: String,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "write_file",
        title: "Write a file",
        description: "Write a file in a sandbox, whole or not at all; one that exists is replaced. For files of the \
                      host use copy_files, when it is offered."
            .to_owned(),
        toolset: Toolset::Files,
        hints: Hints { read_only: false, destructive: true, idempotent: true, open_world: false },
    };
    Tool::new(definition, write)
}

async fn write(call: Call, arguments: Arguments) -> Result<Answer<Written>> {
    let bytes = arguments.encoding.decode(arguments.content)?;
    let target = target::file(&call, &arguments.sandbox_id, &arguments.path).await?;
    let options = WriteOptions {
        mode: if arguments.executable { 0o755 } else { 0o644 },
        parents: true,
        overwrite: if arguments.create_only { Overwrite::Refuse } else { Overwrite::Replace },
    };
    let mut file = target.files.write(&target.path, options).await?;
    let sent = async {
        file.write_all(&bytes).await?;
        file.shutdown().await
    };
    let sent = sent.await;
    // After a failed write this fails too, and knows the reason better than the stream does.
    file.commit().await?;
    sent.map_err(|cause| Error::internal("the file was not written whole").with_cause(cause))?;
    let value = Written {
        path: target.path.to_string_lossy().into_owned(),
        bytes: bytes.len() as u64,
        uri: uri::file(&target.sandbox.id, &target.path),
    };
    let text = format!("wrote {} ({})", value.path, ByteSize::new(value.bytes));
    Ok(Answer { content: vec![Content::Text(text)], value })
}
