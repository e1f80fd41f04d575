//! What a run displayed, as blocks in the order in which it came with the text.

use sandbox::service::Job;
use sandbox::{Artifact, ContextReport, Display, Shown};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::Call;
use crate::content::{Content, ResourceLink};
use crate::results::{IMAGE_BYTES, image};
use crate::text::{self, Budget};
use crate::{mime, uri};

/// Images of one run that are shown in place.
const IMAGES: usize = 8;
/// Encoded bytes of all tables and texts of one run.
const TEXT: usize = 48 * 1024;
/// Encoded bytes of the value of the last expression.
const VALUE: Budget = Budget { head: 12 * 1024, tail: 4 * 1024 };

/// Something that a run displayed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DisplayObject {
    pub mime_type: &'static str,
    /// Of tables and text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Of images and pages: to read it as a resource, until eight more runs of the context have displayed something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

/// The context that a run was in.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ContextObject {
    pub name: String,
    /// The number of this run since the context began; tracebacks name it.
    pub run: u32,
    /// Why the context ended with this run. Its variables are lost; the next run begins anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// Why this run began anew: what became of the context before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

impl From<&ContextReport> for ContextObject {
    fn from(report: &ContextReport) -> Self {
        Self {
            name: report.name.to_string(),
            run: report.run,
            ended: report.ended.map(|end| end.to_string()),
            lost: report.lost.map(|end| end.to_string()),
        }
    }
}

impl ContextObject {
    /// What must not be overlooked.
    pub fn notes(&self) -> Vec<String> {
        let name = &self.name;
        let lost = self
            .lost
            .as_ref()
            .map(|why| format!("[the context {name} began anew with this run: {why}, and what it knew is lost]"));
        let ended = self.ended.as_ref().map(|why| {
            format!("[the context {name} has ended: {why}. Its variables are lost; the next run in it begins anew]")
        });
        lost.into_iter().chain(ended).collect()
    }
}

/// A value as it is shown.
pub fn value(text: &str) -> String {
    let all = VALUE.head + VALUE.tail;
    if text::encoded_prefix(text, all) == text.len() {
        return text.to_owned();
    }
    let head = &text[..text::encoded_prefix(text, VALUE.head)];
    let tail = &text[text::encoded_suffix(text, VALUE.tail)..];
    format!("{head}\n[… {} bytes left out …]\n{tail}", text.len() - head.len() - tail.len())
}

/// What was printed, cut where something was displayed.
pub struct Printed<'a> {
    /// All of it, in order; `None` when something was left out, so that places in it are not known.
    pub whole: Option<&'a [u8]>,
    /// As it is shown.
    pub shown: &'a str,
}

/// Blocks of text and of what was displayed, in order. The last text is not among them but returned: more comes after it.
pub async fn in_order(
    call: &Call,
    job: &Job,
    printed: Printed<'_>,
    displays: &[Display],
) -> (Vec<Content>, Vec<DisplayObject>, String) {
    let (mut content, mut objects) = (Vec::new(), Vec::new());
    let (mut images, mut room, mut from) = (0, TEXT, 0);
    let mut text = if printed.whole.is_some() { String::new() } else { printed.shown.to_owned() };
    for display in displays {
        if let Some(whole) = printed.whole {
            let at = usize::try_from(display.at).unwrap_or(usize::MAX).clamp(from, whole.len());
            text.push_str(&String::from_utf8_lossy(&whole[from..at]));
            from = at;
        }
        match &display.shown {
            Shown::Text(shown) | Shown::Markdown(shown) => {
                let shown = &shown[..text::encoded_prefix(shown, room)];
                room -= text::encoded(shown);
                let is_markdown = matches!(display.shown, Shown::Markdown(_));
                end_line(&mut text);
                text.push_str(shown);
                text.push_str(if is_markdown { "\n\n" } else { "\n" });
                objects.push(DisplayObject {
                    mime_type: if is_markdown { "text/markdown" } else { "text/plain" },
                    text: Some(shown.to_owned()),
                    bytes: None,
                    uri: None,
                });
            }
            Shown::File(file) => {
                let (object, block) = show_file(call, job, file, images < IMAGES).await;
                images += usize::from(matches!(block, Content::Image { .. }));
                if !text.is_empty() {
                    content.push(Content::Text(std::mem::take(&mut text)));
                }
                content.push(block);
                objects.push(object);
            }
        }
    }
    if let Some(whole) = printed.whole {
        text.push_str(&String::from_utf8_lossy(&whole[from..]));
    }
    (content, objects, text)
}

fn end_line(text: &mut String) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}

async fn show_file(call: &Call, job: &Job, file: &Artifact, in_place: bool) -> (DisplayObject, Content) {
    let uri = uri::file(job.sandbox(), &file.path);
    let read = if in_place && file.bytes <= IMAGE_BYTES { image(call, job, file).await } else { None };
    let mime_type = read.as_ref().map_or_else(|| mime::by_name(file.path.as_bytes()), |(mime_type, _)| *mime_type);
    let object = DisplayObject { mime_type, text: None, bytes: Some(file.bytes), uri: Some(uri.clone()) };
    let block = match read {
        Some((mime_type, bytes)) => Content::Image { mime_type, bytes },
        None => Content::Link(ResourceLink {
            uri,
            name: String::from_utf8_lossy(file.path.file_name().unwrap_or_default()).into_owned(),
            mime_type,
            bytes: file.bytes,
        }),
    };
    (object, block)
}
