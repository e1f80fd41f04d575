//! What passes between a browser and the server inside: its own words, and nothing that is ours or that lets anybody in.

use std::net::IpAddr;

use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ALT_SVC, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, LOCATION, ORIGIN,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, REFERER, REFERRER_POLICY, SET_COOKIE, STRICT_TRANSPORT_SECURITY, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use sandbox::GuestPort;

use super::base::Base;
use super::table::Name;

const CLEAR_SITE_DATA: HeaderName = HeaderName::from_static("clear-site-data");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What is about one connection and not about the request.
const OF_CONNECTION: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// All of our tokens begin like this, whoever they are for.
const OUR_TOKENS: &[u8] = b"sandpen_";

/// The one preview that a request is for.
pub struct Place<'a> {
    pub base: &'a Base,
    pub name: &'a Name,
    pub port: GuestPort,
}

/// The page that asks, as it is known outside and inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    outside: HeaderValue,
    inside: HeaderValue,
}

/// A page of somewhere else asks, or nobody can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign;

impl Place<'_> {
    /// Which page asks, if any does. One of another preview may when `port_of` knows that one; a link of any page may lead
    /// here.
    pub fn page(
        &self,
        method: &Method,
        headers: &HeaderMap,
        port_of: impl FnOnce(&Name) -> Option<GuestPort>,
    ) -> Result<Option<Page>, Foreign> {
        let mut origins = headers.get_all(ORIGIN).iter();
        let (origin, None) = (origins.next(), origins.next()) else { return Err(Foreign) };
        let Some(origin) = origin else {
            return match headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes) {
                None | Some(b"none" | b"same-origin") => Ok(None),
                Some(_) if self.is_link(method, headers) => Ok(None),
                Some(_) => Err(Foreign),
            };
        };
        let text = origin.to_str().map_err(|_| Foreign)?;
        let (scheme, authority) = text.split_once("://").ok_or(Foreign)?;
        let name = self.base.name_in(authority).filter(|_| scheme == self.base.scheme()).ok_or(Foreign)?;
        let port = if name == *self.name { self.port } else { port_of(&name).ok_or(Foreign)? };
        Ok(Some(Page { outside: origin.clone(), inside: value(&inside(port)) }))
    }

    fn is_link(&self, method: &Method, headers: &HeaderMap) -> bool {
        let is_navigation = headers.get(SEC_FETCH_MODE).is_some_and(|mode| mode == "navigate");
        is_navigation && (method == Method::GET || method == Method::HEAD)
    }

    /// What the server inside is told. It knows itself by `localhost` and its port, and so does what it is told of pages. The
    /// name of the preview is in none of it: it would let in whoever reads the server's log.
    pub fn request(&self, told: &HeaderMap, page: Option<&Page>, peer: Option<IpAddr>) -> HeaderMap {
        let mut headers = passed(told);
        let upgrade = upgrade(told).cloned();
        headers.remove(EXPECT);
        let is_ours = |value: &HeaderValue| value.as_bytes().windows(OUR_TOKENS.len()).any(|part| part == OUR_TOKENS);
        if headers.get_all(AUTHORIZATION).iter().any(is_ours) {
            headers.remove(AUTHORIZATION);
        }
        headers.insert(HOST, value(&format!("localhost:{}", self.port)));
        headers.remove(ORIGIN);
        if let Some(page) = page {
            headers.insert(ORIGIN, page.inside.clone());
        }
        let referer = headers.remove(REFERER).and_then(|from| self.seen_inside(&from));
        if let Some(referer) = referer {
            headers.insert(REFERER, referer);
        }
        if let Some(peer) = peer {
            let before = headers.get(X_FORWARDED_FOR).and_then(|before| before.to_str().ok());
            let all = before.map_or_else(|| peer.to_string(), |before| format!("{before}, {peer}"));
            headers.insert(X_FORWARDED_FOR, value(&all));
        }
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(self.base.scheme()));
        let name = self.name.as_str().as_bytes();
        let tells_name =
            |value: &HeaderValue| value.as_bytes().windows(name.len()).any(|part| part.eq_ignore_ascii_case(name));
        let telling: Vec<HeaderName> =
            headers.iter().filter(|(_, value)| tells_name(value)).map(|(header, _)| header.clone()).collect();
        for header in telling {
            headers.remove(header);
        }
        if let Some(upgrade) = upgrade {
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, upgrade);
        }
        headers
    }

    /// What a browser is told of an answer.
    pub fn response(&self, told: &HeaderMap, page: Option<&Page>) -> HeaderMap {
        let mut headers = passed(told);
        // About the whole host, which is not the program's.
        headers.remove(STRICT_TRANSPORT_SECURITY);
        headers.remove(ALT_SVC);
        // Browsers take cookies away from the whole registered domain, and so from everybody else's previews.
        headers.remove(CLEAR_SITE_DATA);
        // Of an answer that says both, the pieces are its length.
        if told.contains_key(TRANSFER_ENCODING) {
            headers.remove(CONTENT_LENGTH);
        }
        let location = headers.get(LOCATION).and_then(|to| self.seen_outside(to));
        if let Some(location) = location {
            headers.insert(LOCATION, location);
        }
        if let Some(page) = page
            && headers.get(ACCESS_CONTROL_ALLOW_ORIGIN).is_some_and(|allowed| *allowed == page.inside)
        {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, page.outside.clone());
        }
        let cookies: Vec<HeaderValue> = headers.get_all(SET_COOKIE).iter().filter_map(of_this_host).collect();
        headers.remove(SET_COOKIE);
        for cookie in cookies {
            headers.append(SET_COOKIE, cookie);
        }
        // Links that lead away must not carry the name along.
        headers.entry(REFERRER_POLICY).or_insert(HeaderValue::from_static("same-origin"));
        headers
    }

    fn seen_inside(&self, url: &HeaderValue) -> Option<HeaderValue> {
        let (scheme, rest) = url.to_str().ok()?.split_once("://")?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let is_own = scheme == self.base.scheme() && self.base.name_in(authority).as_ref() == Some(self.name);
        is_own.then(|| value(&format!("{}{path}", inside(self.port))))
    }

    /// Relative to where the browser is, which may have come by a tunnel.
    fn seen_outside(&self, url: &HeaderValue) -> Option<HeaderValue> {
        let rest = url.to_str().ok()?.strip_prefix("http://")?;
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
        let is_own = ["localhost", "127.0.0.1", "0.0.0.0", "[::1]"].contains(&host) && port == self.port.to_string();
        // What begins with two slashes would name another host.
        let path = format!("/{}", path.trim_start_matches('/'));
        is_own.then(|| value(&path))
    }
}

/// The protocol that a client wants to go on with. The second version of HTTP is none: what is said in it could not be looked at.
pub fn upgrade(headers: &HeaderMap) -> Option<&HeaderValue> {
    let is_asked = words(headers, &CONNECTION).any(|word| word.eq_ignore_ascii_case("upgrade"));
    let protocol = headers.get(UPGRADE).filter(|_| is_asked && headers.get_all(UPGRADE).iter().count() == 1)?;
    (!words(headers, &UPGRADE).any(|word| word.len() >= 2 && word[..2].eq_ignore_ascii_case("h2"))).then_some(protocol)
}

fn inside(port: GuestPort) -> String {
    format!("http://localhost:{port}")
}

/// Those that are not about the connection.
fn passed(told: &HeaderMap) -> HeaderMap {
    let mut headers = told.clone();
    for header in words(told, &CONNECTION) {
        headers.remove(header);
    }
    for header in &OF_CONNECTION {
        headers.remove(header);
    }
    headers
}

fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|word| !word.is_empty())
}

/// A cookie for the host that sets it, and for no other.
fn of_this_host(cookie: &HeaderValue) -> Option<HeaderValue> {
    let is_domain = |part: &[u8]| {
        let name = part.split(|byte| *byte == b'=').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(b"domain")
    };
    let mut parts = cookie.as_bytes().split(|byte| *byte == b';');
    let first = parts.next()?;
    let kept: Vec<&[u8]> = std::iter::once(first).chain(parts.filter(|part| !is_domain(part))).collect();
    HeaderValue::from_bytes(&kept.join(&b';')).ok()
}

fn value(text: &str) -> HeaderValue {
    // All of it was a header before, or a number.
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
#[path = "headers_tests.rs"]
mod tests;
