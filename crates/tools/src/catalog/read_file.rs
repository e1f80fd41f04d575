//! `read_file`: text as text, images as images, anything else as bytes.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sandbox::{ByteRange, GuestPath, Result, SandboxId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::target;
use super::write_file::Encoding;
use crate::call::Call;
use crate::content::{Content, ResourceLink};
use crate::mime;
use crate::results::IMAGE_BYTES;
use crate::select::Toolset;
use crate::text;
use crate::tool::{Answer, Definition, Hints, Tool};
use crate::uri;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The sandbox's id or name.
    sandbox_id: String,
    /// The file; a relative path starts at the work directory.
    path: String,
    /// The byte to start at. Default 0.
    #[serde(default)]
    offset: u64,
    /// The most bytes to read. Default 32768, which is also the most of a file that is not an image.
    #[schemars(range(min = 1))]
    length: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct FileObject {
    path: String,
    mime_type: &'static str,
    /// Of the whole file.
    bytes: u64,
    uri: String,
    /// Where the next part begins, when there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<u64>,
    /// How content is written; absent for images, which come as an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<Encoding>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

pub fn tool() -> Tool {
    let definition = Definition {
        name: "read_file",
        title: "Read a file",
        description:
            "Read a file of a sandbox: text as text, PNG, JPEG, GIF, WebP and SVG as an image, other bytes as \
                      base64. Large files are read in parts, with offset and length; next_offset says how to go on."
                .to_owned(),
        toolset: Toolset::Files,
        hints: Hints { read_only: true, destructive: false, idempotent: true, open_world: false },
    };
    Tool::new(definition, read)
}

async fn read(call: Call, arguments: Arguments) -> Result<Answer<FileObject>> {
    let (id, path) = find(&call, &arguments).await?;
    // A character that does not fit would never be shown.
    let most = arguments.length.unwrap_or(text::PART).clamp(4, text::PART);
    let part = ByteRange { offset: arguments.offset, length: Some(most) };
    let (stat, mut bytes) = call.service.read_artifact(&call.owner, &id, &path, part).await?;
    let image = mime::image(path.file_name().unwrap_or_default(), &bytes);
    let total = stat.bytes;
    let mut value = FileObject {
        path: path.to_string_lossy().into_owned(),
        mime_type: image.unwrap_or_else(|| mime::by_name(path.as_bytes())),
        bytes: total,
        uri: uri::file(&id, &path),
        next_offset: None,
        encoding: None,
        content: None,
    };
    let whole = arguments.offset == 0 && arguments.length.is_none();
    if let Some(mime_type) = image.filter(|_| whole) {
        let block = if total <= IMAGE_BYTES {
            let range = ByteRange { offset: 0, length: Some(IMAGE_BYTES) };
            let (_, bytes) = call.service.read_artifact(&call.owner, &id, &path, range).await?;
            Content::Image { mime_type, bytes }
        } else {
            Content::Link(link(&value, &path))
        };
        return Ok(Answer { content: vec![Content::Text(heading(&value)), block], value });
    }
    let more_follows = arguments.offset + (bytes.len() as u64) < total;
    let (shown, encoding) = show(&mut bytes, more_follows);
    let end = arguments.offset + bytes.len() as u64;
    value.next_offset = (end < total && !bytes.is_empty()).then_some(end);
    if encoding == Encoding::Text {
        value.mime_type = mime::of_text(path.as_bytes());
    }
    value.encoding = Some(encoding);
    value.content = Some(shown.clone());
    let mut content = vec![Content::Text(shown)];
    if let Some(next) = value.next_offset {
        content.push(Content::Text(format!(
            "[bytes {} to {next} of {total}; call read_file with offset {next} for more]",
            arguments.offset
        )));
    }
    Ok(Answer { content, value })
}

/// In a sandbox that lives, or among what was kept of one that ended with its run.
async fn find(call: &Call, arguments: &Arguments) -> Result<(SandboxId, GuestPath)> {
    match target::sandbox(call, &arguments.sandbox_id).await {
        Ok(sandbox) => {
            let path = GuestPath::resolve(&sandbox.work_directory, arguments.path.as_bytes())?;
            Ok((sandbox.id, path))
        }
        Err(gone) => match arguments.sandbox_id.parse() {
            Ok(id) => {
                let kept = call.service.kept_artifacts(&call.owner, &id);
                if kept.is_empty() {
                    return Err(gone);
                }
                // Nobody remembers where it worked, but all that is kept was below that.
                let path = GuestPath::resolve(&GuestPath::root(), arguments.path.as_bytes())?;
                let is_relative = !arguments.path.starts_with('/');
                let meant = kept.into_iter().map(|artifact| artifact.path);
                let meant = meant.filter(|kept| is_relative && kept.as_bytes().ends_with(path.as_bytes()));
                Ok((id, meant.min_by_key(|kept| kept.as_bytes().len()).unwrap_or(path)))
            }
            Err(_) => Err(gone),
        },
    }
}

/// Text as far as it is text; a character that the end cuts through belongs to the next part.
fn show(bytes: &mut Vec<u8>, more_follows: bool) -> (String, Encoding) {
    let cut = match std::str::from_utf8(bytes) {
        Ok(_) => Some(bytes.len()),
        Err(error) if more_follows && error.error_len().is_none() => Some(error.valid_up_to()),
        Err(_) => None,
    };
    match cut {
        Some(length) if !bytes[..length].contains(&0) => {
            bytes.truncate(length);
            let keep = text::encoded_prefix(&String::from_utf8_lossy(bytes), text::PART as usize * 2);
            bytes.truncate(keep);
            (String::from_utf8_lossy(bytes).into_owned(), Encoding::Text)
        }
        Some(_) | None => (BASE64_STANDARD.encode(&bytes), Encoding::Base64),
    }
}

fn heading(file: &FileObject) -> String {
    format!("{} ({}, {} bytes)", file.path, file.mime_type, file.bytes)
}

fn link(file: &FileObject, path: &GuestPath) -> ResourceLink {
    ResourceLink {
        uri: file.uri.clone(),
        name: String::from_utf8_lossy(path.file_name().unwrap_or_default()).into_owned(),
        mime_type: file.mime_type,
        bytes: file.bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_on_the_edge_is_left_for_the_next_part() {
        let mut bytes = "aä".as_bytes()[..2].to_vec();
        assert_eq!(show(&mut bytes, true), ("a".to_owned(), Encoding::Text));
        assert_eq!(bytes.len(), 1);
        let mut bytes = "aä".as_bytes()[..2].to_vec();
        assert_eq!(show(&mut bytes, false).1, Encoding::Base64);
    }

    #[test]
    fn what_grows_when_it_is_written_down_is_cut_earlier() {
        let mut bytes = vec![1; text::PART as usize];
        let (shown, encoding) = show(&mut bytes, false);
        assert_eq!(encoding, Encoding::Text);
        assert!(serde_json::to_string(&shown).unwrap().len() <= text::PART as usize * 2 + 16);
        assert_eq!(shown.len(), bytes.len());
    }
}
