//! Files and directories on their way out.

use axum::body::Body;
use axum::response::Response;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, ETAG};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use sandbox::{ByteRange, Error, ErrorKind, FileKind, ListOptions, ReadFile};
use serde_json::{Value, json};
use tokio_util::io::ReaderStream;

use super::failure::{Answer, Failure};
use super::part::{self, Tag, Wanted};
use super::served::{self, Manner};
use super::{Target, address};
use crate::http::answer;
use crate::time;

/// So much of a file is in memory for each who downloads it.
pub const PIECE: usize = 64 << 10;

/// Names are chosen by the code in the sandbox, and may be as long as they are many.
const MOST_ENTRIES: usize = 10_000;

/// A file as it is, or what a directory holds.
pub async fn file_or_listing(target: &Target, parts: &Parts) -> Answer {
    match target.files.stat(&target.path).await?.kind {
        FileKind::Directory => listing(target).await,
        FileKind::Regular | FileKind::Other => file(target, parts).await,
        FileKind::Link => match file(target, parts).await {
            Err(Failure::Service(error)) if error.kind() == ErrorKind::InvalidInput => listing(target).await,
            answer => answer,
        },
    }
}

/// The bytes of a regular file, or the part of it that is wanted.
pub async fn file(target: &Target, parts: &Parts) -> Answer {
    let asks_for_body = parts.method != Method::HEAD;
    let nothing = ByteRange { offset: 0, length: Some(0) };
    let whole = ByteRange { offset: 0, length: None };
    let opened = target.files.read(&target.path, if asks_for_body { whole } else { nothing }).await?;
    let (tag, length) = (Tag::of(&opened.stat), opened.stat.bytes);
    let (status, start, end) = match Wanted::of(&parts.headers, &tag, length) {
        Wanted::Whole => (StatusCode::OK, 0, length),
        Wanted::Part { start, end } => (StatusCode::PARTIAL_CONTENT, start, end),
        Wanted::Beyond => return Err(Failure::Beyond { length }),
        Wanted::Another => return Err(Failure::Precondition("it is not the file that the request means")),
        Wanted::NotModified => return Ok(described(StatusCode::NOT_MODIFIED, Body::empty(), &tag)),
    };
    let body = match status {
        _ if !asks_for_body => Body::empty(),
        StatusCode::OK => contents(opened, length),
        _ => {
            drop(opened);
            let part = target.files.read(&target.path, part::bytes(start, end)).await?;
            if Tag::of(&part.stat) != tag {
                return Err(Failure::Conflict("the file changed while it was opened; ask again"));
            }
            contents(part, end - start)
        }
    };
    let mut response = described(status, body, &tag);
    let manner = match address::query(parts.uri.query(), "inline") {
        Some(_) => Manner::InPlace,
        None => Manner::Attached,
    };
    served::describe(&mut response, target.path.file_name().unwrap_or_default(), manner);
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(end - start));
    if status == StatusCode::PARTIAL_CONTENT
        && let Ok(range) = HeaderValue::try_from(format!("bytes {start}-{}/{length}", end - 1))
    {
        headers.insert(CONTENT_RANGE, range);
    }
    Ok(response)
}

fn described(status: StatusCode, body: Body, tag: &Tag) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some(tag) = tag.value() {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

/// As many as were promised, should the file grow meanwhile. One that shrinks breaks the connection, which its reader sees.
fn contents(file: ReadFile, length: u64) -> Body {
    let stream = tokio::io::AsyncReadExt::take(file.stream, length);
    Body::from_stream(ReaderStream::with_capacity(stream, PIECE))
}

async fn listing(target: &Target) -> Answer {
    let options = ListOptions { recursive: false, max_entries: MOST_ENTRIES };
    let listing = target.files.list(&target.path, options).await?;
    let entries: Vec<Value> = listing
        .entries
        .iter()
        .map(|entry| {
            let name = entry.path.file_name().unwrap_or_default();
            let modified = u64::try_from(entry.stat.modified_ns / 1_000_000_000).unwrap_or(0);
            json!({
                "name": String::from_utf8_lossy(name),
                // A name that is not UTF-8 is found by this alone.
                "href": address::encode(name),
                "kind": kind(entry.stat.kind),
                "bytes": entry.stat.bytes,
                "modified": time::rfc3339(time::moment(modified)),
            })
        })
        .collect();
    let path = target.path.to_string_lossy();
    Ok(answer::json(StatusCode::OK, &json!({ "path": path, "entries": entries, "truncated": listing.truncated })))
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Link => "link",
        FileKind::Other => "other",
    }
}

/// For whoever asks for an archive in another form.
pub fn unknown_archive(format: &str) -> Failure {
    let shown: String = format.chars().take(32).collect();
    Error::invalid_input(format!("{shown:?} is no form of an archive")).with_hint("there are tar and zip").into()
}
