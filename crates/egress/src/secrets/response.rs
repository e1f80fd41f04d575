//! What becomes of an answer on its way to the sandbox: read, masked, or refused when it cannot be read.

use std::sync::Arc;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::response::Parts;
use http::{Method, StatusCode};

use super::keepsake::Placeholder;
use super::refusal::Refusal;
use super::replace::{Patterns, Replacer};
use super::request::{is_identity, take_off_hops};
use super::spelling::Spelling;
use super::vault::Secret;

/// What no answer may hold, and what stands there instead.
#[derive(Clone, Debug, Default)]
pub(super) struct Masks {
    pub texts: Arc<Patterns>,
    /// Names of headers lose their capitals on the way.
    names: Arc<Patterns>,
}

impl Masks {
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a Secret, &'a Placeholder)>) -> Self {
        let (mut texts, mut names) = <(Patterns, Patterns)>::default();
        for (secret, placeholder) in secrets {
            let (value, placeholder) = (secret.value().expose(), placeholder.as_str());
            texts.add(Spelling::all(value), placeholder.into());
            names.add(Spelling::all(value), placeholder.into());
            names.add(Spelling::all(&value.to_ascii_lowercase()), placeholder.into());
        }
        Self { texts: texts.into(), names: names.into() }
    }
}

/// Whether a body follows an answer's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    Body,
    Nothing,
}

/// Make a head fit for the sandbox.
pub(super) fn mask(head: &mut Parts, asked: &Method, follows: Follows, masks: &Masks) -> Result<(), Refusal> {
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Refusal::upstream("the host wants to speak another protocol, which could not be masked"));
    }
    let unreadable = |name: HeaderName| head.headers.get_all(name).iter().any(|coding| !is_identity(coding));
    if follows == Follows::Body && unreadable(header::CONTENT_ENCODING) {
        return Err(Refusal::upstream(
            "the host compressed its answer although it was asked not to, so secrets in it could not be masked",
        ));
    }
    let chunked = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    if head.headers.get_all(header::TRANSFER_ENCODING).iter().any(|coding| !chunked(coding)) {
        return Err(Refusal::upstream("the host sent its answer in a form that could not be masked"));
    }
    take_off_hops(&mut head.headers);
    // The length changes with each mask, parts cannot be asked for, and other ways to the host are not open.
    if follows == Follows::Body && asked != Method::HEAD {
        head.headers.remove(header::CONTENT_LENGTH);
    }
    head.headers.remove(header::ACCEPT_RANGES);
    head.headers.remove(header::ALT_SVC);
    mask_headers(&mut head.headers, masks);
    // The phrase after the status code is in there, and the spelling of the headers' names.
    head.extensions.clear();
    Ok(())
}

/// Also for what comes after a body.
pub(super) fn mask_headers(headers: &mut HeaderMap, masks: &Masks) {
    let mut masked = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers.iter() {
        if was_replaced(&masks.names, name.as_str().as_bytes()).is_some() {
            continue;
        }
        match was_replaced(&masks.texts, value.as_bytes()) {
            None => masked.append(name.clone(), value.clone()),
            // What stands in place of a value is always fit for a header.
            Some(text) => match HeaderValue::from_maybe_shared(bytes::Bytes::from(text)) {
                Ok(value) => masked.append(name.clone(), value),
                Err(_) => continue,
            },
        };
    }
    *headers = masked;
}

fn was_replaced(patterns: &Arc<Patterns>, text: &[u8]) -> Option<Vec<u8>> {
    if patterns.cannot_be_in(text) {
        return None;
    }
    let (text, replacer) = Replacer::whole(patterns, text);
    replacer.replaced().next().is_some().then_some(text)
}
