//! What becomes of a request on its way to a host: checked, then filled in. No connection is touched here.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Method, StatusCode, Version};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sandbox::{Host, SecretName};

use super::keepsake::Placeholder;
use super::refusal::Refusal;
use super::replace::{Patterns, Replacer};
use super::spelling::Spelling;
use super::vault::{Purpose, Secret};

/// Where a request goes, as the sandbox's connection says and not as the request does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub host: Host,
    pub port: u16,
    pub channel: Channel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    Encrypted,
    /// Nothing is ever put in here.
    Plain,
}

impl Target {
    /// What the `Host` header says.
    fn authority(&self) -> String {
        let usual = match self.channel {
            Channel::Encrypted => 443,
            Channel::Plain => 80,
        };
        if self.port == usual { self.host.to_string() } else { format!("{}:{}", self.host, self.port) }
    }

    fn is_named_by(&self, authority: &Authority) -> bool {
        let usual = match self.channel {
            Channel::Encrypted => 443,
            Channel::Plain => 80,
        };
        let port = match authority.port() {
            Some(port) => Some(port.as_u16()),
            // `host:` is allowed by the grammar and means the usual port; `host:99999` is not.
            None => (authority.as_str().len() <= authority.host().len() + 1).then_some(usual),
        };
        port == Some(self.port) && authority.host().parse().is_ok_and(|host: Host| host == self.host)
    }
}

/// The secrets that belong to one target.
#[derive(Debug, Default)]
pub(super) struct Filling {
    names: Vec<SecretName>,
    /// One of them is for nothing else.
    only_reading: bool,
    plain: Arc<Patterns>,
    percent: Arc<Patterns>,
    json: Arc<Patterns>,
    headers: Vec<(usize, HeaderName, HeaderValue)>,
}

impl Filling {
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a Secret, &'a Placeholder)>) -> Self {
        let (mut plain, mut percent, mut json) = <(Patterns, Patterns, Patterns)>::default();
        let (mut names, mut headers, mut only_reading) = (Vec::new(), Vec::new(), false);
        for (secret, placeholder) in secrets {
            let value = secret.value().expose();
            let look_for = || vec![Spelling::plain(placeholder.as_str())];
            let number = plain.add(look_for(), value.into());
            percent.add(look_for(), utf8_percent_encode(value, RESERVED).to_string().into());
            json.add(look_for(), json_escaped(value).into());
            headers.extend(secret.filled_header().map(|(name, value)| (number, name.clone(), value.clone())));
            names.push(secret.name().clone());
            only_reading |= secret.purpose() == Purpose::Reading;
        }
        Self { names, only_reading, plain: plain.into(), percent: percent.into(), json: json.into(), headers }
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub fn name(&self, number: usize) -> &SecretName {
        &self.names[number]
    }

    /// Whether a request is one that the secrets are for.
    pub fn admit(&self, head: &Parts) -> Result<(), Refusal> {
        let reads = matches!(head.method, Method::GET | Method::HEAD);
        // Some servers take these for the method.
        let pretends = ["x-http-method-override", "x-http-method", "x-method-override"];
        if !self.only_reading || (reads && !pretends.iter().any(|name| head.headers.contains_key(*name))) {
            return Ok(());
        }
        Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "the login of this host is for reading: GET and HEAD alone"))
    }

    /// How values are spelled in a body with these headers; `None` if nothing can be put into it.
    pub fn for_body(&self, headers: &HeaderMap) -> Option<Arc<Patterns>> {
        let encoded = headers.get_all(header::CONTENT_ENCODING).iter().any(|coding| !is_identity(coding));
        if self.is_empty() || encoded {
            return None;
        }
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let (_, subtype) = kind.split_once('/').unwrap_or_default();
        let json =
            matches!(subtype, "json" | "x-ndjson" | "ndjson" | "jsonl" | "x-jsonlines" | "json-seq" | "csp-report");
        Some(Arc::clone(match subtype {
            _ if json || subtype.ends_with("+json") => &self.json,
            "x-www-form-urlencoded" => &self.percent,
            _ => &self.plain,
        }))
    }

    /// Put values into a head that was checked. The numbers of the secrets that are in it now.
    pub fn fill(&self, head: &mut Parts) -> Result<BTreeSet<usize>, Refusal> {
        let mut used = BTreeSet::new();
        if self.is_empty() {
            return Ok(used);
        }
        let path = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let (filled, replacer) = Replacer::whole(&self.percent, path.as_bytes());
        if replacer.replaced().next().is_some() {
            used.extend(replacer.replaced());
            head.uri = Uri::try_from(filled).map_err(|_| {
                Refusal::new(StatusCode::URI_TOO_LONG, "the address is too long once the secret is in it")
            })?;
        }
        for (name, value) in &mut head.headers {
            if let Some(filled) = self.fill_value(name, value, &mut used) {
                *value = HeaderValue::from_maybe_shared(bytes::Bytes::from(filled)).map_err(|_| {
                    Refusal::new(StatusCode::BAD_REQUEST, "the secret does not fit into the header it was put into")
                })?;
                value.set_sensitive(true);
            }
        }
        for (number, name, value) in &self.headers {
            used.insert(*number);
            head.headers.insert(name.clone(), value.clone());
        }
        Ok(used)
    }

    fn fill_value(&self, name: &HeaderName, value: &HeaderValue, used: &mut BTreeSet<usize>) -> Option<Vec<u8>> {
        let basic = (name == header::AUTHORIZATION)
            .then(|| value.as_bytes().split_at_checked("Basic ".len()))
            .flatten()
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Basic "))
            .and_then(|(_, credentials)| STANDARD.decode(credentials.trim_ascii()).ok());
        let (filled, replacer) = Replacer::whole(&self.plain, basic.as_deref().unwrap_or(value.as_bytes()));
        replacer.replaced().next()?;
        used.extend(replacer.replaced());
        Some(if basic.is_some() { format!("Basic {}", STANDARD.encode(filled)).into() } else { filled })
    }
}

/// Make a head fit for the target: what would lead it elsewhere is refused, what belongs to one connection is taken off,
/// and what would make the answer unreadable is taken out.
pub(super) fn check(head: &mut Parts, target: &Target) -> Result<(), Refusal> {
    if head.method == Method::CONNECT {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "there is no proxy behind a host that has a secret"));
    }
    let elsewhere = || {
        let text = format!("this connection leads to {} only", target.authority());
        Refusal::new(StatusCode::MISDIRECTED_REQUEST, text)
    };
    let scheme = match target.channel {
        Channel::Encrypted => Scheme::HTTPS,
        Channel::Plain => Scheme::HTTP,
    };
    if head.uri.scheme().is_some_and(|named| *named != scheme)
        || head.uri.authority().is_some_and(|named| !target.is_named_by(named))
    {
        return Err(elsewhere());
    }
    let mut hosts = head.headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => {
            let named = Authority::try_from(host.as_bytes()).ok().filter(|host| !host.as_str().contains('@'));
            if !named.is_some_and(|named| target.is_named_by(&named)) {
                return Err(elsewhere());
            }
        }
        (None, _) if head.version == Version::HTTP_10 => {}
        (None, _) => return Err(Refusal::new(StatusCode::BAD_REQUEST, "the request has no Host header")),
        (Some(_), Some(_)) => return Err(Refusal::new(StatusCode::BAD_REQUEST, "the request has two Host headers")),
    }
    if let Some(protocol) = head.headers.get(header::UPGRADE) {
        // Java's client offers HTTP/2 this way with each plain request, and is content with no for an answer.
        if !protocol.as_bytes().eq_ignore_ascii_case(b"h2c") {
            return Err(Refusal::new(
                StatusCode::NOT_IMPLEMENTED,
                "a host that has a secret cannot be spoken to by WebSocket or another protocol that begins as HTTP, \
                 because what comes back could not be masked",
            ));
        }
    }
    let takes_trailers = head.headers.get(header::TE).is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    take_off_hops(&mut head.headers);
    if takes_trailers {
        head.headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    for name in [header::RANGE, header::IF_RANGE, HeaderName::from_static("a-im"), header::EXPECT] {
        head.headers.remove(name);
    }
    head.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let authority = HeaderValue::try_from(target.authority()).map_err(|_| elsewhere())?;
    head.headers.insert(header::HOST, authority);
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    head.uri = Uri::from(path);
    head.version = Version::HTTP_11;
    head.extensions.clear();
    Ok(())
}

/// Headers that speak of one connection and not of the message.
pub(super) fn take_off_hops(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').filter_map(|name| name.trim().parse().ok()))
        .collect();
    let fixed = [
        header::CONNECTION,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        HeaderName::from_static("http2-settings"),
    ];
    for name in fixed.into_iter().chain(named) {
        // A message keeps its end and its address, whatever it says about them.
        if name != header::CONTENT_LENGTH && name != header::HOST {
            headers.remove(name);
        }
    }
}

pub(super) fn is_identity(coding: &HeaderValue) -> bool {
    coding.as_bytes().trim_ascii().is_empty() || coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity")
}

/// Everything that means something somewhere in an address or a form.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// As it stands between the quotes of a JSON text.
fn json_escaped(value: &str) -> String {
    let quoted = serde_json::to_string(value).unwrap_or_default();
    quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_owned()
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
