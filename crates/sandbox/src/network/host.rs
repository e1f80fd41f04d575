//! Names and addresses of hosts, in one spelling.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::error::{Error, Result};

/// Where a connection goes, as its maker named it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    Name(HostName),
    /// Never an IPv4 address in IPv6 clothes.
    Address(IpAddr),
}

impl FromStr for Host {
    type Err = Error;

    /// A name, an IPv4 address with four decimal parts, or an IPv6 address with or without brackets.
    fn from_str(text: &str) -> Result<Self> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(address) = bare {
            let address: Ipv6Addr = address.parse().map_err(|_| not_a_host(text))?;
            return Ok(IpAddr::V6(address).into());
        }
        match text.parse::<IpAddr>() {
            Ok(address) => Ok(address.into()),
            Err(_) => text.parse().map(Self::Name),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// The name of a host: lower case, without a dot at the end, and nothing that some program reads as an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

impl HostName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it has `suffix` as its end, with at least one label before it.
    pub fn is_below(&self, suffix: &HostName) -> bool {
        self.0.strip_suffix(suffix.as_str()).is_some_and(|rest| rest.ends_with('.') && rest.len() > 1)
    }
}

impl FromStr for HostName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let label_is_sound = |label: &str| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let sound = name.len() <= 253 && name.split('.').all(label_is_sound);
        // `127.1`, `0x7f000001` and `2130706433` are addresses to many programs.
        let numeric = name.rsplit('.').next().is_some_and(|last| {
            last.bytes().all(|byte| byte.is_ascii_digit())
                || last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
        });
        if !sound || numeric {
            return Err(not_a_host(text));
        }
        Ok(Self(name))
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn not_a_host(text: &str) -> Error {
    let shown: String = text.chars().take(64).collect();
    Error::invalid_input(format!("{shown:?} is not a host")).with_hint(
        "write a name like api.example.com (in its xn-- form if it is not ASCII), 192.0.2.7 or [2001:db8::7]",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling_for_each_host() {
        for (text, shown) in [
            ("Example.COM.", "example.com"),
            ("localhost", "localhost"),
            ("_srv.example.com", "_srv.example.com"),
            ("192.0.2.7", "192.0.2.7"),
            ("[2001:DB8:0::7]", "[2001:db8::7]"),
            ("2001:db8::7", "[2001:db8::7]"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("[::ffff:a00:1]", "10.0.0.1"),
        ] {
            assert_eq!(text.parse::<Host>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn addresses_in_disguise_are_no_names() {
        for text in [
            "",
            ".",
            "a..b",
            "-a.com",
            "a-.com",
            "a b",
            "ex\u{e4}mple.com",
            "127.1",
            "0x7f.1",
            "0x7f000001",
            "2130706433",
            "0177.0.0.1",
            "127.0.0.1.",
            "256.1.1.1",
            "[127.0.0.1]",
            "[::1",
            "a.com\0",
            "\u{ff11}27.0.0.1",
            "user@a.com",
            "a/b",
        ] {
            assert!(text.parse::<Host>().is_err(), "{text:?} was taken");
        }
        assert!("a".repeat(64).parse::<Host>().is_err());
        assert!(["a"; 128].join(".").parse::<Host>().is_err());
    }

    #[test]
    fn below_means_one_more_label() {
        let name = |text: &str| text.parse::<HostName>().unwrap();
        assert!(name("a.example.com").is_below(&name("example.com")));
        assert!(!name("example.com").is_below(&name("example.com")));
        assert!(!name("badexample.com").is_below(&name("example.com")));
    }
}
