//! `/files/…`: what code has made, for whoever has the address.
//!
//! It is the work of code that nobody trusts, and comes from our origin. So a browser is told to run nothing of it, to guess
//! nothing about it, and to show in place only what can do nothing.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::get;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, RANGE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;
use tools::profile::code_runner::{FileName, Misplaced, attachment_name, locate};

use super::store::Store;
use crate::http::answer;
use crate::transfer::kept::Opened;

/// So much of a file is in memory for each who downloads it.
const PIECE: usize = 64 << 10;

const FILES: &str = "/files/";

pub fn routes(store: Arc<Store>) -> Router {
    Router::new().route(FILES, get(download)).route("/files/{*path}", get(download)).with_state(store)
}

async fn download(State(store): State<Arc<Store>>, request: Request) -> Response {
    let path = request.uri().path();
    // As it was written: what an escaped slash means is decided after decoding it, once.
    let path = path.strip_prefix(FILES).unwrap_or(path);
    let located = match locate(path) {
        Ok(located) => located,
        Err(Misplaced::Malformed) => return bad_path(),
        Err(Misplaced::Outside) => {
            return answer::error(StatusCode::FORBIDDEN, "denied", "the path leads out of its directory");
        }
    };
    match store.find(&located).await {
        Ok(Opened::File(file)) => {
            let name = located.path.last().map_or(&[][..], FileName::as_bytes);
            serve(file, name, request.headers()).unwrap_or_else(|error| {
                tracing::warn!(%error, "a file could not be served");
                unavailable()
            })
        }
        Ok(Opened::Directory) => bad_path(),
        // The same whether it is the directory that there is not, or the file.
        Ok(Opened::Nothing) => answer::error(StatusCode::NOT_FOUND, "not_found", "there is no such file"),
        Err(error) => {
            tracing::warn!(?error, "a file could not be opened");
            unavailable()
        }
    }
}

fn bad_path() -> Response {
    answer::error(StatusCode::BAD_REQUEST, "invalid_input", "this is not the address of a file")
}

fn unavailable() -> Response {
    answer::error(StatusCode::INTERNAL_SERVER_ERROR, "unavailable", "the file cannot be read")
}

fn serve(mut file: File, name: &[u8], headers: &HeaderMap) -> io::Result<Response> {
    let length = file.metadata()?.len();
    let asked = headers.get(RANGE).and_then(|range| range.to_str().ok());
    let (status, start, end) = match Asked::new(asked, length) {
        Asked::Whole => (StatusCode::OK, 0, length),
        Asked::Part { start, end } => (StatusCode::PARTIAL_CONTENT, start, end),
        Asked::Beyond => {
            let mut response =
                answer::error(StatusCode::RANGE_NOT_SATISFIABLE, "invalid_input", "the file has no such part");
            response.headers_mut().insert(CONTENT_RANGE, value(&format!("bytes */{length}"))?);
            return Ok(response);
        }
    };
    file.seek(SeekFrom::Start(start))?;
    let stream = tokio::fs::File::from_std(file).take(end - start);
    let mut response = Response::new(Body::from_stream(ReaderStream::with_capacity(stream, PIECE)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let (content_type, disposition) = shown(name);
    headers.insert(CONTENT_TYPE, value(&content_type)?);
    headers.insert(CONTENT_DISPOSITION, value(&disposition)?);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(end - start));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    // The address is all that protects the file.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    if status == StatusCode::PARTIAL_CONTENT {
        headers.insert(CONTENT_RANGE, value(&format!("bytes {start}-{}/{length}", end - 1))?);
    }
    Ok(response)
}

fn value(text: &str) -> io::Result<HeaderValue> {
    HeaderValue::from_str(text).map_err(io::Error::other)
}

/// Pictures and plain text in place; what could be a program, a page or a document, as a file to keep.
fn shown(name: &[u8]) -> (String, String) {
    let kind = tools::mime::by_name(name);
    let in_place = match kind {
        "image/png" | "image/jpeg" | "image/gif" | "image/webp" => Some(kind.to_owned()),
        "text/plain" | "text/csv" | "text/tab-separated-values" | "application/json" => {
            Some("text/plain; charset=utf-8".to_owned())
        }
        _ => None,
    };
    match in_place {
        Some(kind) => (kind, "inline".to_owned()),
        None => (kind.to_owned(), format!("attachment; filename*=UTF-8''{}", attachment_name(name))),
    }
}

/// Which part of a file is wanted. Several at once are answered with the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Whole,
    /// `end` is not part of it.
    Part {
        start: u64,
        end: u64,
    },
    Beyond,
}

impl Asked {
    fn new(range: Option<&str>, length: u64) -> Self {
        let Some((first, last)) = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
            return Self::Whole;
        };
        let (start, end) = match (first.parse::<u64>(), last.parse::<u64>()) {
            (Ok(start), Ok(last)) if start <= last => (start, last.saturating_add(1).min(length)),
            (Ok(start), Err(_)) if last.is_empty() => (start, length),
            (Err(_), Ok(count)) if first.is_empty() => (length.saturating_sub(count), length),
            _ => return Self::Whole,
        };
        if start < end { Self::Part { start, end } } else { Self::Beyond }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_file_are_found() {
        let asked = |range: &str| Asked::new(Some(range), 10);
        for whole in ["", "bytes", "bytes=", "bytes=-", "bytes=5-2", "bytes=a-b", "lines=1-2", "bytes=1-2,4-5"] {
            assert_eq!(asked(whole), Asked::Whole, "{whole:?}");
        }
        assert_eq!(asked("bytes=0-0"), Asked::Part { start: 0, end: 1 });
        assert_eq!(asked("bytes=4-"), Asked::Part { start: 4, end: 10 });
        assert_eq!(asked("bytes=-4"), Asked::Part { start: 6, end: 10 });
        assert_eq!(asked("bytes=-40"), Asked::Part { start: 0, end: 10 });
        assert_eq!(asked("bytes=8-99"), Asked::Part { start: 8, end: 10 });
        assert_eq!(asked(&format!("bytes=8-{}", u64::MAX)), Asked::Part { start: 8, end: 10 });
        for beyond in ["bytes=10-", "bytes=10-11", "bytes=-0"] {
            assert_eq!(asked(beyond), Asked::Beyond, "{beyond:?}");
        }
    }

    #[test]
    fn only_what_can_do_nothing_is_shown_in_place() {
        for name in ["a.png", "a.JPG", "a.txt", "a.py", "a.csv", "a.json"] {
            assert_eq!(shown(name.as_bytes()).1, "inline", "{name}");
        }
        for name in ["a.html", "a.svg", "a.xml", "a.pdf", "a.js", "a.css", "a", "a.bin", ".html"] {
            assert!(shown(name.as_bytes()).1.starts_with("attachment; "), "{name}");
        }
        assert_eq!(shown("ä\"\r\n.html".as_bytes()).1, "attachment; filename*=UTF-8''%C3%A4%22%0D%0A.html");
    }
}
