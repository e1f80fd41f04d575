//! Which pages may talk to this server: the check that keeps a web page from using a server on its reader's machine.
//!
//! A page can make a browser send requests to any address, and can make its own name resolve to ours (DNS rebinding).
//! It cannot choose what the browser writes into `Host`, `Origin` and `Sec-Fetch-Site`. Programs that are no browsers
//! write what they like, and are not what this is about.
//!
//! Where a token is asked for, a page that has made its name resolve to ours gets no further than any stranger: it does not
//! have the token. There the server may be addressed by any name, as those who reach it from other machines do.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use sandbox::{Error, Result};

use super::Entrance;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Decided once, when the server knows its own address.
#[derive(Clone, Debug)]
pub struct Access {
    scheme: String,
    entrance: Entrance,
    hosts: Vec<AllowedHost>,
    origins: Vec<AllowedOrigin>,
}

/// A name under which the server may be addressed, with the port or with any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost {
    name: String,
    port: Option<u16>,
}

/// Pages that may use the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedOrigin {
    scheme: String,
    name: String,
    port: AllowedPort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllowedPort {
    Any,
    This(u16),
}

/// Who asks, as far as headers tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    Program,
    /// A page of this origin, which is allowed.
    Page(HeaderValue),
}

/// Why a request is not looked at any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    UnclearHost,
    ForeignHost,
    ForeignOrigin,
    /// A browser says that another site's page made the request, and names no origin that is allowed.
    CrossSite,
}

impl Access {
    /// Pages served from the address itself are allowed, whatever port other pages of this machine have: those may show
    /// what sandboxed code made.
    pub fn new(
        scheme: &str,
        listening: SocketAddr,
        entrance: Entrance,
        hosts: &[AllowedHost],
        origins: &[AllowedOrigin],
    ) -> Self {
        let loopback = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        let own = loopback.map(|name| AllowedOrigin {
            scheme: scheme.to_owned(),
            name,
            port: AllowedPort::This(listening.port()),
        });
        let origins = own.into_iter().chain(origins.iter().cloned()).collect();
        Self { scheme: scheme.to_owned(), entrance, hosts: hosts.to_vec(), origins }
    }

    pub fn admit(&self, uri: &Uri, headers: &HeaderMap) -> std::result::Result<Caller, Refusal> {
        let host = only(headers, &HOST)?.ok_or(Refusal::UnclearHost)?;
        let host = authority(host).ok_or(Refusal::UnclearHost)?;
        for named in [Some(&host), uri.authority()].into_iter().flatten() {
            if !self.allows_host(named) {
                return Err(Refusal::ForeignHost);
            }
        }
        if let Some(origin) = only(headers, &ORIGIN).map_err(|_| Refusal::ForeignOrigin)? {
            if self.allows_origin(origin) || self.is_own_page(origin, &host, headers) {
                return Ok(Caller::Page(origin.clone()));
            }
            return Err(Refusal::ForeignOrigin);
        }
        // An image or a script of another site is asked for without an origin.
        match headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes) {
            None | Some(b"none" | b"same-origin") => Ok(Caller::Program),
            Some(_) => Err(Refusal::CrossSite),
        }
    }

    /// Loopback names are allowed with any port, because a tunnel has one of its own and a page cannot have such a
    /// name without being on this machine.
    fn allows_host(&self, host: &Authority) -> bool {
        let name = host.host().to_ascii_lowercase();
        self.entrance == Entrance::Token
            || is_loopback(&name)
            || self.hosts.iter().any(|allowed| {
                allowed.name == name
                    && allowed
                        .port
                        .is_none_or(|port| host.port_u16().map_or(port == 80 || port == 443, |named| named == port))
            })
    }

    /// A page of ours, by whatever name and port its reader reaches us: a browser says of both what it used. The name has been
    /// looked at before. Where somebody in front speaks TLS for us, the operator says by which address. A name that anybody could
    /// make lead here proves nothing, also where tokens are asked for; an address cannot be made to.
    fn is_own_page(&self, origin: &HeaderValue, host: &Authority, headers: &HeaderMap) -> bool {
        let Some((scheme, name, port)) = origin.to_str().ok().and_then(parse_origin) else { return false };
        let is_same = name == host.host().to_ascii_lowercase()
            && (port == host.port_u16() || port.or(default_port(&scheme)) == host.port_u16());
        let is_said = matches!(headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes), None | Some(b"same-origin"));
        let literal = name.trim_start_matches('[').trim_end_matches(']');
        let is_sure = literal.parse::<IpAddr>().is_ok()
            || is_loopback(&name)
            || self.hosts.iter().any(|allowed| allowed.name == name);
        is_same && scheme == self.scheme && is_said && is_sure
    }

    fn allows_origin(&self, origin: &HeaderValue) -> bool {
        let Some((scheme, name, port)) = origin.to_str().ok().and_then(parse_origin) else { return false };
        let port = port.or(default_port(&scheme));
        self.origins.iter().any(|allowed| {
            let same_port = match allowed.port {
                AllowedPort::Any => true,
                AllowedPort::This(this) => port == Some(this),
            };
            allowed.scheme == scheme && allowed.name == name && same_port
        })
    }
}

impl FromStr for AllowedHost {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let host = Authority::from_str(text).ok().filter(is_plain).ok_or_else(|| {
            Error::invalid_input(format!("{text:?} is not the name of a host"))
                .with_hint("write sandpen.example.com or sandpen.example.com:8443")
        })?;
        Ok(Self { name: host.host().to_ascii_lowercase(), port: host.port_u16() })
    }
}

impl FromStr for AllowedOrigin {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (base, any) = match text.strip_suffix(":*") {
            Some(base) => (base, true),
            None => (text, false),
        };
        let wrong = || {
            Error::invalid_input(format!("{text:?} is not the origin of a page"))
                .with_hint("write https://app.example.com, with :PORT or :* when it has another port than usual")
        };
        let (scheme, name, port) = parse_origin(base).ok_or_else(wrong)?;
        let port = match (port.or(default_port(&scheme)), any) {
            (_, true) if port.is_none() => AllowedPort::Any,
            (Some(port), false) => AllowedPort::This(port),
            (_, true) | (None, false) => return Err(wrong()),
        };
        Ok(Self { scheme, name, port })
    }
}

/// A header that was sent twice means two things to two readers.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> std::result::Result<Option<&'a HeaderValue>, Refusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(Refusal::UnclearHost),
    }
}

fn authority(value: &HeaderValue) -> Option<Authority> {
    Authority::try_from(value.as_bytes()).ok().filter(is_plain)
}

/// Without a user's name in front, and with a port that is a port.
fn is_plain(authority: &Authority) -> bool {
    let rest = authority.as_str().strip_prefix(authority.host());
    rest.is_some_and(|rest| rest.is_empty() || authority.port_u16().is_some()) && !authority.host().is_empty()
}

fn parse_origin(text: &str) -> Option<(String, String, Option<u16>)> {
    let (scheme, authority) = text.split_once("://")?;
    let authority = Authority::from_str(authority).ok().filter(is_plain)?;
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|character| character.is_ascii_alphanumeric() || "+-.".contains(character));
    is_scheme.then(|| (scheme.to_ascii_lowercase(), authority.host().to_ascii_lowercase(), authority.port_u16()))
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

fn is_loopback(name: &str) -> bool {
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
