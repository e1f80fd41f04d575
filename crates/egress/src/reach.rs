//! Whether one address may be dialled: the rules of addresses, of this host's surroundings and of its operator together.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use sandbox::{Denial, Host, HostRule, Ports};

use crate::address;
use crate::lan::{Lan, Surroundings};
use crate::rule::{Rule, Rules};

#[derive(Debug)]
pub(crate) struct Reach {
    private_hosts: Vec<HostRule>,
    /// Where this process listens.
    listeners: Mutex<Vec<SocketAddr>>,
    lan: Lan,
    pub rules: Rules,
}

impl Reach {
    pub fn new(private_hosts: Vec<HostRule>, rules: Rules) -> Self {
        Self { private_hosts, listeners: Mutex::default(), lan: Lan::default(), rules }
    }

    pub fn protect(&self, listener: SocketAddr) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    /// Whether this address may be dialled for this host, by a sandbox with these private hosts of its own. To be asked
    /// right before each dial, with the very address.
    pub fn check(&self, own: &[HostRule], host: &Host, address: SocketAddr) -> Result<(), Denial> {
        self.check_within(&self.lan.surroundings(), own, host, address)
    }

    /// Whether this address may be dialled for this host on some port.
    pub fn check_any_port(&self, own: &[HostRule], host: &Host, ip: IpAddr) -> Result<(), Denial> {
        let named = self.private_hosts.iter().chain(own).filter(|rule| rule.pattern.matches(host));
        // No service has port 0, so what is refused there is refused for its address alone.
        let ports = named.map(|rule| match rule.ports {
            Ports::Web => 443,
            Ports::One(port) => port,
            Ports::Any => 0,
        });
        let mut checks = ports.chain([0]).map(|port| self.check(own, host, SocketAddr::new(ip, port)));
        checks.find(Result::is_ok).unwrap_or_else(|| self.check(own, host, SocketAddr::new(ip, 0)))
    }

    fn check_within(
        &self,
        here: &Surroundings,
        own: &[HostRule],
        host: &Host,
        address: SocketAddr,
    ) -> Result<(), Denial> {
        let ip = address.ip().to_canonical();
        if self.rules.stands(Rule::ServerItself) && self.is_listener(here, ip, address.port()) {
            return Err(Denial::ServerItself);
        }
        if !self.rules.stands(Rule::Addresses) {
            return Ok(());
        }
        let near = |ip| here.is_near(ip);
        let denial = match address::denial(ip) {
            None if near(ip) || address::carried(ip).is_some_and(|inner| near(IpAddr::V4(inner))) => {
                Some(Denial::PrivateAddress)
            }
            other => other,
        };
        match denial {
            None => Ok(()),
            Some(Denial::PrivateAddress) if self.is_private_host(own, host, address.port()) => Ok(()),
            Some(denial) => Err(denial),
        }
    }

    fn is_listener(&self, here: &Surroundings, ip: IpAddr, port: u16) -> bool {
        // To Linux, a connection to the unspecified address is one to the machine itself.
        let own = ip.is_unspecified() || here.is_own(ip);
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().any(|listener| {
            let bound = listener.ip().to_canonical();
            listener.port() == port
                && (bound == ip || (bound.is_unspecified() && own) || (ip.is_unspecified() && here.is_own(bound)))
        })
    }

    fn is_private_host(&self, own: &[HostRule], host: &Host, port: u16) -> bool {
        self.private_hosts.iter().chain(own).any(|rule| rule.pattern.matches(host) && rule.ports.contain(port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reach: &Reach, host: &str, address: &str) -> Result<(), Denial> {
        reach.check_within(&Surroundings::sample(), &[], &host.parse().unwrap(), address.parse().unwrap())
    }

    fn reach(private_hosts: &[&str]) -> Reach {
        Reach::new(private_hosts.iter().map(|rule| rule.parse().unwrap()).collect(), Rules::default())
    }

    #[test]
    fn neighbours_and_the_host_itself_are_private_though_their_addresses_look_public() {
        let reach = reach(&[]);
        for address in [
            "192.0.2.7:80",
            "192.0.2.1:80",
            "[2001:db8:0:1::7]:80",
            "[2001:db8:0:1::99]:80",
            "[64:ff9b::192.0.2.1]:80",
            "[2002:c000:201::1]:80",
            "[::ffff:192.0.2.1]:80",
            "10.0.0.1:80",
        ] {
            assert_eq!(check(&reach, "a.example", address), Err(Denial::PrivateAddress), "{address}");
        }
        for address in ["198.51.100.129:80", "[2001:db8:0:2::7]:80", "1.1.1.1:80"] {
            assert_eq!(check(&reach, "a.example", address), Ok(()), "{address}");
        }
    }

    #[test]
    fn a_private_host_is_reached_where_the_operator_said_and_nowhere_else() {
        let reach = reach(&["db.example:5432"]);
        for address in ["10.0.0.1:5432", "127.0.0.1:5432", "192.0.2.1:5432", "[fd00::1]:5432", "100.64.0.1:5432"] {
            assert_eq!(check(&reach, "db.example", address), Ok(()), "{address}");
            assert_eq!(check(&reach, "other.example", address), Err(Denial::PrivateAddress), "{address}");
        }
        assert_eq!(check(&reach, "db.example", "10.0.0.1:22"), Err(Denial::PrivateAddress));
        for (address, denial) in [
            ("169.254.169.254:5432", Denial::MetadataAddress),
            ("100.100.100.200:5432", Denial::MetadataAddress),
            ("[fe80::1]:5432", Denial::MetadataAddress),
            ("[fd00:ec2::254]:5432", Denial::MetadataAddress),
            ("224.0.0.1:5432", Denial::SpecialAddress),
            ("0.0.0.0:5432", Denial::SpecialAddress),
            ("[::]:5432", Denial::SpecialAddress),
            ("198.18.0.5:5432", Denial::SpecialAddress),
        ] {
            assert_eq!(check(&reach, "db.example", address), Err(denial), "{address}");
        }
    }

    #[test]
    fn a_private_host_of_one_sandbox_is_nobody_elses() {
        let (reach, own) = (reach(&["db.example:5432"]), ["127.0.0.1:3141".parse().unwrap()]);
        let check = |own: &[HostRule], address: &str| {
            let address: SocketAddr = address.parse().unwrap();
            reach.check_within(&Surroundings::sample(), own, &address.ip().into(), address)
        };
        assert_eq!(check(&own, "127.0.0.1:3141"), Ok(()));
        assert_eq!(check(&own, "127.0.0.1:3142"), Err(Denial::PrivateAddress));
        assert_eq!(check(&own, "127.0.0.2:3141"), Err(Denial::PrivateAddress));
        assert_eq!(check(&[], "127.0.0.1:3141"), Err(Denial::PrivateAddress));
        reach.protect("127.0.0.1:3141".parse().unwrap());
        assert_eq!(check(&own, "127.0.0.1:3141"), Err(Denial::ServerItself));
    }

    #[test]
    fn the_server_is_out_of_reach_even_for_a_private_host() {
        let reach = reach(&["here.example:*"]);
        for listener in ["127.0.0.1:7000", "0.0.0.0:7001", "[::]:7002", "192.0.2.7:7003"] {
            reach.protect(listener.parse().unwrap());
        }
        for address in [
            "127.0.0.1:7000",
            "[::ffff:127.0.0.1]:7000",
            "0.0.0.0:7000",
            "[::]:7000",
            "127.0.0.1:7001",
            "127.8.8.8:7001",
            "192.0.2.7:7001",
            "[::1]:7001",
            "127.0.0.1:7002",
            "[2001:db8:0:1::7]:7002",
            "192.0.2.7:7003",
        ] {
            assert_eq!(check(&reach, "here.example", address), Err(Denial::ServerItself), "{address}");
        }
        for address in ["127.0.0.1:7004", "127.0.0.1:7003", "192.0.2.1:7001"] {
            assert_eq!(check(&reach, "here.example", address), Ok(()), "{address}");
        }
    }
}
