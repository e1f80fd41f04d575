//! Addresses of servers that must be who they say: with TLS, or on this machine.

use std::fmt;
use std::str::FromStr;

use sandbox::{Error, Result};
use url::{Host, Url};

/// Whether what is said there can be read and changed by nobody on the way.
pub fn is_protected(url: &Url) -> bool {
    match url.scheme() {
        "https" => url.has_host(),
        "http" => is_loopback(url),
        _ => false,
    }
}

pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Scheme, host and port, as a browser writes them.
pub fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

fn plain(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let is_plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
        && is_protected(&url);
    is_plain.then_some(url)
}

/// Whose tokens are believed. Compared as it is written, as its tokens say it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IssuerUrl {
    text: String,
    url: Url,
}

impl IssuerUrl {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Where it says what it has: as RFC 8414 puts it, and as OpenID Connect does.
    pub fn discovery(&self) -> Vec<Url> {
        let path = self.url.path().trim_end_matches('/');
        let at = |path: String| {
            let mut url = self.url.clone();
            url.set_path(&path);
            url
        };
        let mut places = vec![
            at(format!("/.well-known/oauth-authorization-server{path}")),
            at(format!("{path}/.well-known/openid-configuration")),
        ];
        if !path.is_empty() {
            places.push(at(format!("/.well-known/openid-configuration{path}")));
        }
        places
    }
}

impl FromStr for IssuerUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let url = plain(text).ok_or_else(|| {
            Error::invalid_input(format!("{text:?} is not the address of an issuer"))
                .with_hint("write it as its tokens have it in `iss`, for example https://login.example.com/realm")
        })?;
        Ok(Self { text: text.to_owned(), url })
    }
}

impl fmt::Display for IssuerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Where clients reach this server: an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl(String);

impl PublicUrl {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PublicUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let url = plain(text).filter(|url| url.path() == "/").ok_or_else(|| {
            Error::invalid_input(format!("{text:?} is not where clients can reach a server"))
                .with_hint("write https://sandpen.example.com, without a path; http is for loopback addresses alone")
        })?;
        Ok(Self(origin(&url)))
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_protected_addresses_are_taken() {
        for text in ["https://login.example.com", "https://a.example/realm/x", "http://127.0.0.1:9/a", "http://[::1]"] {
            assert_eq!(text.parse::<IssuerUrl>().unwrap().as_str(), text);
        }
        for text in [
            "",
            "login.example.com",
            "http://login.example.com",
            "http://127.0.0.1.example.com",
            "https://a@b.example",
            "https://a.example/?x",
            "https://a.example/#x",
            "file:///etc/passwd",
        ] {
            assert!(text.parse::<IssuerUrl>().is_err(), "{text:?}");
        }
        assert_eq!("https://A.example:443/".parse::<PublicUrl>().unwrap().as_str(), "https://a.example");
        assert!("https://a.example/path".parse::<PublicUrl>().is_err());
        assert!("http://a.example".parse::<PublicUrl>().is_err());
    }

    #[test]
    fn a_path_goes_where_each_standard_puts_it() {
        let places = |text: &str| -> Vec<String> {
            text.parse::<IssuerUrl>().unwrap().discovery().iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            places("https://a.example/realm/"),
            [
                "https://a.example/.well-known/oauth-authorization-server/realm",
                "https://a.example/realm/.well-known/openid-configuration",
                "https://a.example/.well-known/openid-configuration/realm",
            ]
        );
        assert_eq!(places("https://a.example").len(), 2);
    }
}
