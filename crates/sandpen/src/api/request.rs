//! What is sent to these routes, understood.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use sandbox::{ByteSize, Error};
use serde::de::DeserializeOwned;

use super::answers::Refused;
use crate::http::answer;
use crate::http::body::{Bodies, Unread};

/// An object in the body. It must say that it is JSON: what a page can send to others without asking cannot say that.
pub async fn object<T: DeserializeOwned>(bodies: &Bodies, headers: &HeaderMap, body: Body) -> Result<T, Refused> {
    if !is_json(headers) {
        let message = "this address takes application/json";
        return Err(answer::error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_input", message).into());
    }
    let whole = bodies.read(body).await.map_err(unread)?;
    serde_json::from_slice(&whole.bytes)
        .map_err(|problem| Error::invalid_input(format!("the body is not as it must be: {problem}")).into())
}

/// A few bytes as they are.
pub async fn bytes(most: u64, body: Body) -> Result<Bytes, Refused> {
    Ok(Bodies::new(ByteSize::new(most)).read(body).await.map_err(unread)?.bytes)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

fn unread(unread: Unread) -> Response {
    match unread {
        Unread::TooLarge => {
            answer::error(StatusCode::PAYLOAD_TOO_LARGE, "limit_exceeded", "the body is larger than this server takes")
        }
        Unread::NoRoom => {
            let message = "others are using the memory for bodies";
            answer::retry_soon(answer::error(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message))
        }
        Unread::TooSlow => answer::error(StatusCode::REQUEST_TIMEOUT, "timed_out", "the body did not come in time"),
        Unread::Broken => answer::error(StatusCode::BAD_REQUEST, "invalid_input", "the body broke off"),
    }
}
