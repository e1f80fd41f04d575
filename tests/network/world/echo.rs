//! An API that gives back what it was told, in every way that one might.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONTENT_ENCODING, HeaderMap, HeaderName, LOCATION};
use hyper::{Response, StatusCode};

use super::web::{full, reply};

/// The ways, as the rest of the path.
pub const WAYS: &[&str] =
    &["plain", "pieces", "header", "redirect", "error", "json", "percent", "hexadecimal", "base64", "compressed"];

/// What came in the header `x-key` goes back.
pub fn answer(way: &str, headers: &HeaderMap) -> Response<BoxBody<Bytes, Infallible>> {
    let told = headers.get("x-key").and_then(|key| key.to_str().ok()).unwrap_or_default().to_owned();
    let escaped = |escape: fn(u8) -> String| -> String { told.bytes().map(escape).collect() };
    match way {
        "pieces" => {
            let pieces = told.into_bytes().into_iter().map(|byte| Ok(Frame::data(Bytes::from(vec![byte]))));
            let mut response = reply(StatusCode::OK, BodyExt::boxed(StreamBody::new(stream::iter(pieces))));
            response.headers_mut().remove("content-length");
            response
        }
        "header" => with_header("x-told", &told),
        "redirect" => {
            let mut response = with_header(LOCATION.as_str(), &format!("/echo/plain?{told}"));
            *response.status_mut() = StatusCode::FOUND;
            response
        }
        "error" => reply(StatusCode::UNAUTHORIZED, full(format!("{told} is not known here"))),
        "json" => reply(StatusCode::OK, full(escaped(|byte| format!("\\u{:04x}", byte)))),
        "percent" => reply(StatusCode::OK, full(escaped(|byte| format!("%{byte:02x}")))),
        "hexadecimal" => reply(StatusCode::OK, full(escaped(|byte| format!("{byte:02X}")))),
        "base64" => reply(StatusCode::OK, full(base64(format!("user:{told}").as_bytes()))),
        // Compressed whatever the client said that it understands; one block that is stored as it is needs no library.
        "compressed" => {
            let mut response = reply(StatusCode::OK, full(stored(told.as_bytes())));
            response.headers_mut().insert(CONTENT_ENCODING, hyper::header::HeaderValue::from_static("deflate"));
            response
        }
        _ => reply(StatusCode::OK, full(told)),
    }
}

fn with_header(name: &str, value: &str) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = reply(StatusCode::OK, full("in a header"));
    if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse()) {
        response.headers_mut().insert(name, value);
    }
    response
}

pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |group: &[u8]| -> String {
        let bits = group.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        let letter = |index: usize| char::from(LETTERS[(bits >> (18 - 6 * index) & 63) as usize]);
        (0..4).map(|index| if index <= group.len() { letter(index) } else { '=' }).collect()
    };
    bytes.chunks(3).map(group).collect()
}

/// A zlib stream of one stored block.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    let (a, b) = bytes.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (b + a) % 65521)
    });
    let mut out = vec![0x78, 0x01, 0x01];
    out.extend(length.to_le_bytes());
    out.extend((!length).to_le_bytes());
    out.extend(bytes);
    out.extend((b << 16 | a).to_be_bytes());
    out
}
