//! What a browser must be told so that a page of an allowed origin can use the server.
//!
//! Nothing here decides who is allowed; an origin that is not has been refused before.

use axum::body::Body;
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ALLOW, VARY,
};
use http::{HeaderMap, HeaderValue, StatusCode};

const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");

/// What clients of the protocols here send.
const REQUEST_HEADERS: &[&str] = &[
    "accept",
    "authorization",
    // Sent by clients of an older server to each server alike.
    "cf-account-id",
    "content-type",
    "if-match",
    "if-none-match",
    "if-range",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "range",
    "tus-resumable",
    "upload-length",
    "upload-metadata",
    "upload-offset",
];

/// Headers that repeat an argument of a tool begin with this.
const ARGUMENT_PREFIX: &str = "mcp-param-";

const EXPOSED: HeaderValue = HeaderValue::from_static(
    "Mcp-Session-Id, WWW-Authenticate, Retry-After, Accept-Ranges, Content-Disposition, Content-Range, ETag, Location, \
     Tus-Extension, Tus-Max-Size, Tus-Resumable, Tus-Version, Upload-Expires, Upload-Length, Upload-Offset",
);

/// The answer to `OPTIONS`, which needs no route.
pub fn options(headers: &HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answer = response.headers_mut();
    answer.insert(ALLOW, METHODS);
    if headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        answer.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers(headers));
        answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    }
    response
}

/// Let the page that asked read the answer.
pub fn show_to(origin: HeaderValue, response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    headers.append(VARY, HeaderValue::from_static("Origin"));
}

fn allowed_headers(headers: &HeaderMap) -> HeaderValue {
    let asked = headers.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let arguments = asked
        .split(',')
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| name.starts_with(ARGUMENT_PREFIX))
        .filter(|name| http::HeaderName::from_bytes(name.as_bytes()).is_ok());
    let names: Vec<_> = REQUEST_HEADERS.iter().map(|name| (*name).to_owned()).chain(arguments).collect();
    HeaderValue::from_str(&names.join(", ")).unwrap_or(HeaderValue::from_static("content-type"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_for(names: &'static str) -> String {
        let headers = HeaderMap::from_iter([
            (ACCESS_CONTROL_REQUEST_METHOD, HeaderValue::from_static("POST")),
            (ACCESS_CONTROL_REQUEST_HEADERS, HeaderValue::from_static(names)),
        ]);
        options(&headers).headers()[ACCESS_CONTROL_ALLOW_HEADERS].to_str().unwrap().to_owned()
    }

    #[test]
    fn headers_of_the_protocol_are_allowed_and_no_others() {
        let allowed = asked_for("X-Other, Mcp-Param-Region, mcp-param-a b, mcp-session-id");
        let allowed: Vec<_> = allowed.split(", ").collect();
        assert!(allowed.contains(&"mcp-session-id") && allowed.contains(&"cf-account-id"));
        assert!(allowed.contains(&"mcp-param-region"));
        assert_eq!(allowed.len(), REQUEST_HEADERS.len() + 1, "{allowed:?}");
    }

    #[test]
    fn options_from_a_program_says_only_what_there_is() {
        let response = options(&HeaderMap::new());
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        assert!(!response.headers().contains_key(ACCESS_CONTROL_ALLOW_METHODS));
        assert_eq!(response.headers()[ALLOW], METHODS);
    }
}
