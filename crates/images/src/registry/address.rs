//! Addresses of requests, and which of them may have what was meant for another.

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};

use crate::error::{Error, Result};
use crate::reference::DEFAULT_REGISTRY;

/// Whom one talks to: two addresses with the same origin are the same server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    pub encrypted: bool,
    pub host: String,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub origin: Origin,
    /// With the question mark and what follows it.
    pub path: String,
}

impl Address {
    /// The interface of a registry.
    pub fn of_registry(registry: &str, path: &str, encrypted: bool) -> Result<Self> {
        // What everybody calls Docker's registry answers under another name.
        let host = if registry == DEFAULT_REGISTRY { "registry-1.docker.io" } else { registry };
        let scheme = if encrypted { "https" } else { "http" };
        Self::parse(&format!("{scheme}://{host}/v2/{path}"))
    }

    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::Refused("the registry names an address that is none".to_owned());
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let encrypted = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(_) | None => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?;
        // A user in an address would be a password in a log.
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(wrong());
        }
        let origin = Origin {
            encrypted,
            host: authority.host().to_ascii_lowercase(),
            port: authority.port_u16().unwrap_or(if encrypted { 443 } else { 80 }),
        };
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        Ok(Self { origin, path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") } })
    }

    /// What a `Location` in the answer to a request for this address means.
    pub fn join(&self, location: &str) -> Result<Self> {
        if location.contains("://") {
            return Self::parse(location);
        }
        let path = if location.starts_with("//") {
            return Self::parse(&format!("{}:{location}", if self.origin.encrypted { "https" } else { "http" }));
        } else if location.starts_with('/') {
            location.to_owned()
        } else {
            let directory = self.path.split('?').next().unwrap_or_default();
            let directory = directory.rsplit_once('/').map_or("", |(directory, _)| directory);
            format!("{directory}/{location}")
        };
        PathAndQuery::try_from(path.as_str())
            .map_err(|_| Error::Refused("the registry names an address that is none".to_owned()))?;
        Ok(Self { origin: self.origin.clone(), path })
    }

    /// The same with one more question.
    pub fn with_query(&self, key: &str, value: &str) -> Self {
        let separator = if self.path.contains('?') { '&' } else { '?' };
        let value = percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC);
        Self { origin: self.origin.clone(), path: format!("{}{separator}{key}={value}", self.path) }
    }
}

impl Origin {
    /// As in the `Host` header.
    pub fn authority(&self) -> String {
        let usual = if self.encrypted { 443 } else { 80 };
        if self.port == usual { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// The host without the brackets of an address of version 6.
    pub fn name(&self) -> &str {
        self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&self.host)
    }
}

/// Whether a host was named as one to talk to in the clear, with its port or for all of them.
pub fn is_insecure(insecure: &std::collections::BTreeSet<String>, origin: &Origin) -> bool {
    let with_port = format!("{}:{}", origin.host, origin.port);
    insecure.contains(&origin.host)
        || insecure.iter().any(|named| {
            named.parse::<Authority>().is_ok_and(|named| {
                let port = named.port_u16().unwrap_or(80);
                format!("{}:{port}", named.host()) == with_port
            })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_understood_as_browsers_do_it() {
        let base = Address::parse("https://one.example/v2/a/blobs/uploads/").unwrap();
        for (location, expected) in [
            ("https://two.example:8443/x?y=z", ("https", "two.example:8443", "/x?y=z")),
            ("http://two.example/x", ("http", "two.example", "/x")),
            ("/x", ("https", "one.example", "/x")),
            ("x?y", ("https", "one.example", "/v2/a/blobs/uploads/x?y")),
            ("//two.example/x", ("https", "two.example", "/x")),
            ("https://ONE.example:443", ("https", "one.example", "/")),
        ] {
            let joined = base.join(location).unwrap();
            let scheme = if joined.origin.encrypted { "https" } else { "http" };
            assert_eq!((scheme, joined.origin.authority().as_str(), joined.path.as_str()), expected, "{location}");
        }
        for location in ["ftp://two.example/", "https://", "https://user:password@two.example/", "https://two example/"]
        {
            assert!(base.join(location).is_err(), "{location}");
        }
    }

    #[test]
    fn only_named_hosts_are_spoken_to_in_the_clear() {
        let insecure = ["one.example:5000".to_owned(), "two.example".to_owned()].into();
        let origin = |text: &str| Address::parse(text).unwrap().origin;
        for (address, expected) in [
            ("http://one.example:5000/", true),
            ("http://one.example/", false),
            ("http://two.example:7/", true),
            ("http://evil-one.example:5000/", false),
        ] {
            assert_eq!(is_insecure(&insecure, &origin(address)), expected, "{address}");
        }
    }
}
