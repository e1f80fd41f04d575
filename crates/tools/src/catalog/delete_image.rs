//! `delete_image`: the end of an image that was saved.

use sandbox::{Error, Image, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::content::Content;
use crate::select::Toolset;
use crate::tool::{Answer, Definition, Hints, Tool};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The image as save_sandbox gave it, for example "saved:lab".
    image: String,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Deleted {
    image: String,
    deleted: bool,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "delete_image",
        title: "Delete a saved image",
        description: "Delete an image that save_sandbox made. Sandboxes that were made from it stay as they are. \
                      describe_environment lists your saved images."
            .to_owned(),
        toolset: Toolset::Snapshots,
        hints: Hints { read_only: false, destructive: true, idempotent: true, open_world: false },
    };
    Tool::new(definition, delete)
}

async fn delete(call: Call, arguments: Arguments) -> Result<Answer<Deleted>> {
    let not_saved = || {
        Error::invalid_input("only images that were saved can be deleted")
            .with_hint("name it as save_sandbox did, for example saved:lab")
    };
    let Image::Saved(name) = arguments.image.parse::<Image>().map_err(|_| not_saved())? else {
        return Err(not_saved());
    };
    if !call.service.forget(&call.owner, &name).await? {
        return Err(Error::not_found(format!("you have no image saved:{name}"))
            .with_hint("describe_environment lists those that there are"));
    }
    let value = Deleted { image: format!("saved:{name}"), deleted: true };
    Ok(Answer { content: vec![Content::Text(format!("deleted image {}", value.image))], value })
}
