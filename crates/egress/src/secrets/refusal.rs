//! An answer of the proxy's own, in place of the host's.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};

use crate::inspect::Body;

/// Told to the sandbox, so it never holds more than the sandbox knows already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub status: StatusCode,
    pub text: String,
}

impl Refusal {
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// The host, or the way to it, is at fault.
    pub fn upstream(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, text)
    }

    pub fn response(self) -> Response<Body> {
        let text = Bytes::from(format!("sandpen: {}\n", self.text));
        let mut response = Response::new(Full::new(text).map_err(|never| match never {}).boxed_unsync());
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }
}
