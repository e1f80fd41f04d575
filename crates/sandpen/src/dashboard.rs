//! `/`: the dashboard's page and its parts, which are in the program.
//!
//! They are the same for everybody and say nothing of this server: whatever is shown comes from `/api/`.

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderName, HeaderValue};

use crate::http::answer;

/// A part of the page, under a name that has a digest of it.
struct Asset {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

// The page and `ASSETS`, as `npm run build` in `crates/sandpen/dashboard` has made them.
include!("../dashboard/dist/assets.rs");

/// Scripts and styles of this origin alone, written nowhere in a page; nothing is asked of others, and no page of others has
/// ours in a frame. Pictures that code has made are shown from memory.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

pub fn routes() -> Router {
    Router::new().route("/", get(page)).route("/assets/{name}", get(asset))
}

async fn page() -> Response {
    // It names its parts, which are others after an update.
    plain(PAGE, "text/html; charset=utf-8", "no-cache")
}

async fn asset(Path(name): Path<String>) -> Response {
    match ASSETS.iter().find(|asset| asset.name == name) {
        Some(asset) => plain(asset.bytes, asset.kind, "public, max-age=31536000, immutable"),
        None => answer::not_found(),
    }
}

fn plain(bytes: &'static [u8], kind: &'static str, kept: &'static str) -> Response {
    let mut response = Response::new(Body::from(Bytes::from_static(bytes)));
    let said = [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, kept),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in said {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
