//! How bytes that nobody trusts are served from our origin: a browser is told to run nothing of them, to guess nothing about
//! them, to tell nobody where they are, and to show in place only what can do nothing.

use axum::response::Response;
use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, HeaderValue};

use super::address;

const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Whether a browser may show it instead of keeping it as a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Attached,
    /// Where it can do nothing.
    InPlace,
}

/// Of every answer about files, errors included.
pub fn confine(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    // The address of a link is all that protects its file.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    response
}

/// Say what a file is.
pub fn describe(response: &mut Response, name: &[u8], manner: Manner) {
    let kind = harmless(name);
    let disposition = match (manner, kind) {
        (Manner::InPlace, Some(_)) => HeaderValue::from_static("inline"),
        (Manner::InPlace, None) | (Manner::Attached, _) => attachment(name),
    };
    // What could be a page or a program is some bytes, so that nobody makes one of it by what we say.
    let kind = HeaderValue::from_static(kind.unwrap_or("application/octet-stream"));
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response.headers_mut().insert(CONTENT_DISPOSITION, disposition);
}

pub fn attachment(name: &[u8]) -> HeaderValue {
    HeaderValue::try_from(format!("attachment; filename*=UTF-8''{}", address::encode(name)))
        .unwrap_or(HeaderValue::from_static("attachment"))
}

/// The kinds that no browser runs anything of.
fn harmless(name: &[u8]) -> Option<&'static str> {
    match tools::mime::by_name(name) {
        kind @ ("image/png" | "image/jpeg" | "image/gif" | "image/webp" | "audio/wav" | "audio/mpeg" | "video/mp4") => {
            Some(kind)
        }
        "text/plain"
        | "text/csv"
        | "text/tab-separated-values"
        | "application/json"
        | "application/x-ndjson"
        | "application/yaml" => Some("text/plain; charset=utf-8"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn described(name: &str, manner: Manner) -> (String, String) {
        let mut response = Response::new(Body::empty());
        describe(&mut response, name.as_bytes(), manner);
        let header = |name| response.headers()[name].to_str().unwrap().to_owned();
        (header(CONTENT_TYPE), header(CONTENT_DISPOSITION))
    }

    #[test]
    fn only_what_can_do_nothing_is_shown_in_place() {
        for name in ["a.png", "a.JPG", "a.txt", "a.py", "a.csv", "a.json"] {
            assert_eq!(described(name, Manner::InPlace).1, "inline", "{name}");
            assert!(described(name, Manner::Attached).1.starts_with("attachment; "), "{name}");
        }
        for name in ["a.html", "a.svg", "a.xml", "a.pdf", "a.js", "a.css", "a", "a.bin", ".html", "a.html.", "a.xhtml"]
        {
            let (kind, disposition) = described(name, Manner::InPlace);
            assert_eq!(kind, "application/octet-stream", "{name}");
            assert!(disposition.starts_with("attachment; "), "{name}");
        }
    }

    #[test]
    fn a_name_ends_no_header() {
        assert_eq!(described("ä\"\r\n.html", Manner::Attached).1, "attachment; filename*=UTF-8''%C3%A4%22%0D%0A.html");
    }
}
