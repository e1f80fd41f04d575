//! `save_sandbox`: a sandbox's files as an image of its owner.

use sandbox::{ByteSize, Error, Result, SavedImage, SavedName};
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
    /// What to call the image: lower-case letters, digits and dashes. One of yours that has this name is replaced.
    name: String,
}

/// A saved image as results show it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SavedObject {
    /// What create_sandbox, run_code and run_command take as image.
    pub image: String,
    pub digest: String,
    /// What it holds beyond the image that the sandbox was made from.
    pub bytes: u64,
    /// Sockets, FIFOs and devices, which no image can hold.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(default)]
    pub left_out: u64,
    /// Packages of the sandbox that was saved just now. They are not in the image: pass them again as packages with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    pub packages: Vec<String>,
}

impl From<&SavedImage> for SavedObject {
    fn from(saved: &SavedImage) -> Self {
        Self {
            image: format!("saved:{}", saved.name),
            digest: saved.digest.clone(),
            bytes: saved.bytes,
            left_out: saved.left_out,
            packages: Vec::new(),
        }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "save_sandbox",
        title: "Save a sandbox",
        description: "Keep all files of a sandbox, also those outside of the work directory, as an image that new \
                      sandboxes start from: pass the image of the answer to create_sandbox, run_code or run_command. The \
                      sandbox goes on as it is. Running programs are not saved."
            .to_owned(),
        toolset: Toolset::Snapshots,
        hints: Hints { read_only: false, destructive: true, idempotent: true, open_world: false },
    };
    Tool::new(definition, save)
}

async fn save(call: Call, arguments: Arguments) -> Result<Answer<SavedObject>> {
    let name: SavedName = arguments.name.parse()?;
    let sandbox = target::sandbox(&call, &arguments.sandbox_id).await?;
    let saved = tokio::select! {
        saved = call.service.save(&call.owner, &sandbox.id, &name) => saved?,
        () = call.cancelled.cancelled() => return Err(Error::unavailable("the request was cancelled")),
    };
    let packages = call.service.packages_of(&call.owner, &sandbox.id).await?;
    let value = SavedObject { packages, ..SavedObject::from(&saved) };
    let mut text = format!("saved as image {} ({})", value.image, ByteSize::new(value.bytes));
    if value.left_out > 0 {
        text += &format!("; left out {} sockets, FIFOs and devices", value.left_out);
    }
    if !value.packages.is_empty() {
        text += &format!("; packages are not part of it, pass them again: {}", value.packages.join(", "));
    }
    Ok(Answer { content: vec![Content::Text(text)], value })
}
