//! What a sandbox may reach, and what came of it.
//!
//! Names are compared in one canonical form, so that no spelling of a name or an address is a way around a rule. Which
//! addresses nobody may reach is the gateway's affair, because it depends on the host.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::nearest;

mod activity;
mod host;
mod rule;

pub use activity::{Denial, NetworkActivity, NetworkUsage, Refusal};
pub use host::{Host, HostName};
pub use rule::{HostPattern, HostRule, Ports};

/// What a sandbox may reach. An engine must refuse what it cannot enforce.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Network {
    /// A loopback interface of its own and nothing else.
    #[default]
    None,
    /// What is named, and nothing else. Never empty: see [`Network::hosts`].
    Hosts(Vec<HostRule>),
    /// Every public address, over TCP.
    Internet,
}

impl Network {
    pub const MOST_RULES: usize = 256;

    /// An empty list means nothing. What is covered by another rule is left out, so that equal grants are equal.
    pub fn hosts(rules: impl IntoIterator<Item = HostRule>) -> Result<Self> {
        let mut rules: Vec<HostRule> = rules.into_iter().collect();
        if rules.len() > Self::MOST_RULES {
            return Err(Error::limit_exceeded(format!("a network can name {} hosts at most", Self::MOST_RULES))
                .with_hint("name a domain with *.domain, or use internet"));
        }
        rules.sort();
        rules.dedup();
        let all = rules.clone();
        rules.retain(|rule| !all.iter().any(|other| other != rule && other.covers(rule)));
        Ok(if rules.is_empty() { Self::None } else { Self::Hosts(rules) })
    }

    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// What either of them allows.
    pub fn or(&self, other: &Network) -> Result<Network> {
        match (self, other) {
            (Self::Internet, _) | (_, Self::Internet) => Ok(Self::Internet),
            (Self::None, network) | (network, Self::None) => Ok(network.clone()),
            (Self::Hosts(rules), Self::Hosts(others)) => Self::hosts(rules.iter().chain(others).cloned()),
        }
    }

    /// Whether a connection may be tried, as far as its name and port tell.
    pub fn allows(&self, host: &Host, port: u16) -> std::result::Result<(), Denial> {
        match self {
            Self::None => Err(Denial::NoNetwork),
            Self::Internet => Ok(()),
            Self::Hosts(rules) => {
                let named: Vec<&HostRule> = rules.iter().filter(|rule| rule.pattern.matches(host)).collect();
                match named.iter().any(|rule| rule.ports.contain(port)) {
                    true => Ok(()),
                    false if named.is_empty() => Err(Denial::HostNotAllowed),
                    false => Err(Denial::PortNotAllowed),
                }
            }
        }
    }

    /// Whether any port of a name may be tried: what a resolver asks.
    pub fn names(&self, host: &Host) -> bool {
        match self {
            Self::None => false,
            Self::Internet => true,
            Self::Hosts(rules) => rules.iter().any(|rule| rule.pattern.matches(host)),
        }
    }

    /// Whether anything that a rule lets through is let through here: whether a secret for it is of any use.
    pub fn reaches(&self, other: &HostRule) -> bool {
        match self {
            Self::None => false,
            Self::Internet => true,
            Self::Hosts(rules) => rules.iter().any(|rule| rule.meets(other)),
        }
    }

    /// What was asked for, if it is no more than what `self` allows. Refuses rather than cuts: whoever asked for more must
    /// know that they did not get it.
    pub fn admit(&self, asked: Network) -> Result<Network> {
        let refused = |what: String| {
            let hint = match self {
                Self::None => "the operator can allow it, for example with --max-network internet".to_owned(),
                Self::Hosts(_) | Self::Internet => format!("this server allows {self}"),
            };
            Err(Error::denied(what).with_hint(hint))
        };
        match (self, &asked) {
            (_, Self::None) | (Self::Internet, _) => Ok(asked),
            (Self::None, _) => refused("this server gives sandboxes no network".to_owned()),
            (Self::Hosts(_), Self::Internet) => refused("this server does not give sandboxes the internet".to_owned()),
            (Self::Hosts(allowed), Self::Hosts(rules)) => {
                match rules.iter().find(|rule| !allowed.iter().any(|other| other.covers(rule))) {
                    Some(rule) => refused(format!("this server does not let sandboxes reach {rule}")),
                    None => Ok(asked),
                }
            }
        }
    }
}

impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        match text {
            none if none.eq_ignore_ascii_case("none") => Ok(Self::None),
            internet if internet.eq_ignore_ascii_case("internet") => Ok(Self::Internet),
            "" => Err(Error::invalid_input("no network is named")
                .with_hint("use none, internet, or hosts like api.example.com:443,*.example.org")),
            list => {
                let parts: Vec<&str> = list.split(',').map(str::trim).collect();
                // As the name of a host among others, either word would mean something that nobody meant.
                if let Some(word) =
                    parts.iter().find(|part| ["none", "internet"].iter().any(|word| part.eq_ignore_ascii_case(word)))
                {
                    return Err(Error::invalid_input(format!("{word} cannot stand beside other parts of a network"))
                        .with_hint("use none, internet, or hosts"));
                }
                if let Some((word, meant)) = parts.iter().find_map(|part| Some((part, meant(part)?))) {
                    return Err(Error::invalid_input(format!("{word:?} is neither none nor internet nor a host"))
                        .with_hint(format!("did you mean {meant}? a host of that name is written {word}:443")));
                }
                Self::hosts(parts.into_iter().map(str::parse).collect::<Result<Vec<_>>>()?)
            }
        }
    }
}

/// What somebody meant who wrote a word that other programs use for a network, or that is nearly one of ours. Taken as the name
/// of a host it would be a network that reaches nothing, and nobody would be told.
fn meant(word: &str) -> Option<&'static str> {
    match word.to_ascii_lowercase().as_str() {
        "no" | "off" | "false" | "deny" | "disabled" | "offline" => Some("none"),
        // A machine in a company is called so.
        "intranet" => None,
        "all" | "any" | "on" | "yes" | "true" | "public" | "full" | "enabled" | "online" | "bridge" | "host" => {
            Some("internet")
        }
        word => nearest::nearest(word, [("internet", "internet")].into_iter()).pop(),
    }
}

/// As it is written: it parses back to the same.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Internet => f.write_str("internet"),
            Self::Hosts(rules) => {
                for (index, rule) in rules.iter().enumerate() {
                    write!(f, "{}{rule}", if index == 0 { "" } else { "," })?;
                }
                Ok(())
            }
        }
    }
}

impl From<IpAddr> for Host {
    /// An IPv4 address in IPv6 clothes is that IPv4 address.
    fn from(address: IpAddr) -> Self {
        Self::Address(address.to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    fn allows(network: &Network, host: &str, port: u16) -> std::result::Result<(), Denial> {
        network.allows(&host.parse().unwrap(), port)
    }

    #[test]
    fn words_that_are_almost_a_network_are_no_hosts() {
        for (word, meant) in [("intrnet", "internet"), ("interent", "internet"), ("all", "internet"), ("off", "none")] {
            let error = word.parse::<Network>().unwrap_err();
            assert!(error.hint().unwrap().starts_with(&format!("did you mean {meant}?")), "{word}: {error:?}");
        }
        assert_eq!((network("Internet"), network("NONE")), (Network::Internet, Network::None));
        for host in ["intranet", "all.example", "all:443", "none.example", "node"] {
            assert!(matches!(host.parse::<Network>(), Ok(Network::Hosts(_))), "{host}");
        }
    }

    #[test]
    fn a_list_lets_through_what_it_names() {
        let list = network("Example.com.,*.example.org:8443,db.example.net:*,192.0.2.7:22");
        for (host, port) in [
            ("example.com", 443),
            ("EXAMPLE.com", 80),
            ("a.b.example.org", 8443),
            ("db.example.net", 5432),
            ("192.0.2.7", 22),
            ("::ffff:192.0.2.7", 22),
        ] {
            assert_eq!(allows(&list, host, port), Ok(()), "{host}:{port}");
        }
        for (host, port, denial) in [
            ("example.com", 22, Denial::PortNotAllowed),
            ("sub.example.com", 443, Denial::HostNotAllowed),
            ("example.org", 8443, Denial::HostNotAllowed),
            ("notexample.org", 8443, Denial::HostNotAllowed),
            ("a.example.org", 443, Denial::PortNotAllowed),
            ("example.com.evil.net", 443, Denial::HostNotAllowed),
            ("192.0.2.8", 22, Denial::HostNotAllowed),
        ] {
            assert_eq!(allows(&list, host, port), Err(denial), "{host}:{port}");
        }
        assert_eq!(allows(&Network::None, "example.com", 443), Err(Denial::NoNetwork));
        assert_eq!(allows(&Network::Internet, "example.com", 1), Ok(()));
    }

    #[test]
    fn what_is_written_reads_back() {
        for text in ["none", "internet", "*.example.org:8443,a.example.com,db.example.net:*", "[2001:db8::1]:443"] {
            assert_eq!(network(text).to_string(), text);
        }
    }

    #[test]
    fn an_empty_list_means_nothing() {
        assert_eq!(Network::hosts([]).unwrap(), Network::None);
        assert!("".parse::<Network>().is_err());
        for text in ["example.com,", "none,example.com", "example.com, internet", "none,none"] {
            assert!(text.parse::<Network>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn a_rule_inside_another_is_one_rule() {
        assert_eq!(network("a.example.com:443,a.example.com,*.example.com:*").to_string(), "*.example.com:*");
    }

    #[test]
    fn either_of_two_networks() {
        for (one, other, both) in [
            ("none", "none", "none"),
            ("none", "a.example", "a.example"),
            ("b.example", "a.example", "a.example,b.example"),
            ("a.example", "internet", "internet"),
        ] {
            assert_eq!(network(one).or(&network(other)).unwrap(), network(both));
            assert_eq!(network(other).or(&network(one)).unwrap(), network(both));
        }
    }

    #[test]
    fn a_rule_is_reached_where_it_meets_one_of_the_network() {
        let rule = |text: &str| text.parse::<HostRule>().unwrap();
        let list = network("*.example.com:8443,api.example.net");
        for reached in ["*.example.com:*", "a.example.com:8443", "*.com:*", "api.example.net:80", "*.example.net"] {
            assert!(list.reaches(&rule(reached)), "{reached}");
        }
        for beyond in ["a.example.com", "example.com:8443", "example.net", "api.example.net:22", "*.api.example.net"] {
            assert!(!list.reaches(&rule(beyond)), "{beyond}");
        }
        assert!(Network::Internet.reaches(&rule("a.example")) && !Network::None.reaches(&rule("a.example")));
    }

    #[test]
    fn a_request_can_only_tighten() {
        let ceiling = network("*.example.com,api.example.net:8443");
        for asked in ["none", "a.example.com", "a.example.com:443", "*.b.example.com", "api.example.net:8443"] {
            assert_eq!(ceiling.admit(network(asked)).unwrap(), network(asked), "{asked}");
        }
        for asked in ["internet", "example.com", "a.example.com:22", "a.example.com:*", "api.example.net", "*.net"] {
            let error = ceiling.admit(network(asked)).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Denied, "{asked}");
            assert!(error.hint().unwrap().contains("*.example.com"), "{error:?}");
        }
        assert!(Network::None.admit(network("a.example.com")).is_err());
        assert!(Network::Internet.admit(network("a.example.com:1")).is_ok());
    }
}
