//! One line of an allow-list.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::host::{Host, HostName};
use crate::error::{Error, Result};

/// Hosts that may be reached, on some ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostRule {
    pub pattern: HostPattern,
    pub ports: Ports,
}

impl HostRule {
    /// Whether everything that `other` lets through is let through by this one.
    pub fn covers(&self, other: &HostRule) -> bool {
        self.pattern.covers(&other.pattern) && self.ports.cover(other.ports)
    }

    /// Whether something is let through by both.
    pub fn meets(&self, other: &HostRule) -> bool {
        (self.pattern.covers(&other.pattern) || other.pattern.covers(&self.pattern)) && self.ports.meet(other.ports)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// Every name that ends so, but not the suffix itself.
    Below(HostName),
    Name(HostName),
    Address(IpAddr),
}

impl HostPattern {
    pub fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Name(allowed), Host::Name(name)) => allowed == name,
            (Self::Below(suffix), Host::Name(name)) => name.is_below(suffix),
            (Self::Address(allowed), Host::Address(address)) => allowed == address,
            (Self::Name(_) | Self::Below(_), Host::Address(_)) | (Self::Address(_), Host::Name(_)) => false,
        }
    }

    pub fn covers(&self, other: &HostPattern) -> bool {
        match (self, other) {
            (Self::Below(suffix), Self::Below(other)) => other == suffix || other.is_below(suffix),
            (_, Self::Below(_)) => false,
            (pattern, Self::Name(name)) => pattern.matches(&Host::Name(name.clone())),
            (pattern, Self::Address(address)) => pattern.matches(&Host::Address(*address)),
        }
    }
}

impl From<&Host> for HostPattern {
    /// This host and no other.
    fn from(host: &Host) -> Self {
        match host {
            Host::Name(name) => Self::Name(name.clone()),
            Host::Address(address) => Self::Address(*address),
        }
    }
}

impl FromStr for HostPattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(suffix) = text.strip_prefix("*.") {
            return suffix.parse().map(Self::Below);
        }
        if text == "*" {
            return Err(Error::invalid_input("* is not a host").with_hint("to reach every public host, use internet"));
        }
        Ok(Self::from(&text.parse::<Host>()?))
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Below(suffix) => write!(f, "*.{suffix}"),
            Self::Address(address) => Host::Address(*address).fmt(f),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ports {
    /// 80 and 443: what a host without a port means.
    Web,
    One(u16),
    Any,
}

impl Ports {
    pub fn contain(self, port: u16) -> bool {
        match self {
            Self::Web => matches!(port, 80 | 443),
            Self::One(one) => one == port,
            Self::Any => true,
        }
    }

    fn meet(self, other: Ports) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) | (Self::Web, Self::Web) => true,
            (Self::One(port), ports) | (ports, Self::One(port)) => ports.contain(port),
        }
    }

    fn cover(self, other: Ports) -> bool {
        match (self, other) {
            (Self::Any, _) | (Self::Web, Self::Web) => true,
            (ports, Self::One(port)) => ports.contain(port),
            (Self::Web, Self::Any) | (Self::One(_), Self::Web | Self::Any) => false,
        }
    }
}

impl FromStr for HostRule {
    type Err = Error;

    /// `HOST`, `HOST:PORT` or `HOST:*`, where an IPv6 address with a port stands in brackets.
    fn from_str(text: &str) -> Result<Self> {
        if text.contains('/') {
            return Err(not_a_host_alone(text));
        }
        let (host, port) = match text.rsplit_once(':') {
            // An address without a port has colons of its own.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
            Some(_) | None => (text, None),
        };
        let ports = match port {
            None => Ports::Web,
            Some("*") => Ports::Any,
            Some(port) => match port.parse() {
                Ok(port @ 1..) if !text.ends_with(&format!(":+{port}")) => Ports::One(port),
                Ok(_) | Err(_) => {
                    return Err(Error::invalid_input(format!("{port:?} is not a port"))
                        .with_hint("write a number from 1 to 65535, or * for all ports"));
                }
            },
        };
        Ok(Self { pattern: host.parse()?, ports })
    }
}

fn not_a_host_alone(text: &str) -> Error {
    let shown: String = text.chars().take(64).collect();
    if text.split_once('/').is_some_and(|(address, _)| address.parse::<IpAddr>().is_ok()) {
        return Error::invalid_input(format!("{shown:?} is a range of addresses, not a host"))
            .with_hint("name each address, or each host, by itself");
    }
    let after_scheme = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = after_scheme.split('/').next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    Error::invalid_input(format!("{shown:?} is an address of a page, not a host")).with_hint(
        match host.parse::<HostRule>() {
            Ok(rule) => format!("write the host alone: {rule}"),
            Err(_) => "write the host alone, like api.example.com or api.example.com:8443".to_owned(),
        },
    )
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pattern.fmt(f)?;
        match self.ports {
            Ports::Web => Ok(()),
            Ports::One(port) => write!(f, ":{port}"),
            Ports::Any => f.write_str(":*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        for text in [
            "",
            "*",
            "a.com:0",
            "a.com:65536",
            "a.com:+80",
            "a.com:http",
            "a.com:",
            "*.",
            "*a.com",
            "a.*.com",
            "https://a.com",
        ] {
            assert!(text.parse::<HostRule>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn the_host_of_an_address_is_told() {
        for (text, host) in [
            ("https://Pypi.org/simple", "pypi.org"),
            ("http://user@[2001:db8::7]:8080/", "[2001:db8::7]:8080"),
            ("pypi.org/simple", "pypi.org"),
        ] {
            let error = text.parse::<HostRule>().unwrap_err();
            assert_eq!(error.hint().unwrap(), format!("write the host alone: {host}"), "{text}");
        }
        let error = "https:///".parse::<HostRule>().unwrap_err();
        assert!(error.hint().unwrap().contains("like api.example.com"), "{error:?}");
        let error = "10.0.0.0/8".parse::<HostRule>().unwrap_err();
        assert_eq!(error.message(), "\"10.0.0.0/8\" is a range of addresses, not a host");
    }

    #[test]
    fn one_rule_covers_another() {
        let rule = |text: &str| text.parse::<HostRule>().unwrap();
        for (outer, inner) in [
            ("*.example.com", "a.example.com"),
            ("*.example.com:*", "*.b.example.com:22"),
            ("example.com", "example.com:443"),
            ("example.com:*", "example.com"),
        ] {
            assert!(rule(outer).covers(&rule(inner)), "{outer} {inner}");
            assert!(!rule(inner).covers(&rule(outer)), "{inner} {outer}");
        }
        assert!(!rule("example.com:443").covers(&rule("example.com")));
    }
}
