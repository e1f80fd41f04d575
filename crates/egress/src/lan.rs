//! Where this host stands: its own addresses, and the networks that it reaches without a router.
//!
//! It changes while we run (a laptop moves, a bridge is made), so what is older than a moment is read again before it
//! decides anything.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::address::contains;

#[cfg_attr(not(target_os = "linux"), path = "lan/interfaces.rs")]
mod tables;

const FRESH: Duration = Duration::from_secs(2);

/// What is known of the host's place in its network.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Surroundings {
    own: Vec<IpAddr>,
    /// Networks of which every address is one of this host's: a route can say so without any interface having them.
    own_networks: Vec<(IpAddr, u8)>,
    on_link: Vec<(IpAddr, u8)>,
    /// The system did not tell.
    unknown: bool,
}

impl Surroundings {
    pub fn is_own(&self, address: IpAddr) -> bool {
        let within = |(network, length): &(IpAddr, u8)| contains(*network, *length, address);
        address.is_loopback() || self.own.contains(&address) || self.own_networks.iter().any(within)
    }

    pub fn is_near(&self, address: IpAddr) -> bool {
        // Who does not know where they stand takes everybody for a neighbour.
        self.unknown
            || self.is_own(address)
            || self.on_link.iter().any(|(network, length)| contains(*network, *length, address))
    }
}

/// Surroundings that are never older than a moment.
#[derive(Debug, Default)]
pub(crate) struct Lan {
    seen: Mutex<Option<(Instant, Arc<Surroundings>)>>,
}

impl Lan {
    pub fn surroundings(&self) -> Arc<Surroundings> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match &*seen {
            Some((when, surroundings)) if when.elapsed() < FRESH => Arc::clone(surroundings),
            Some(_) | None => {
                let surroundings = Arc::new(Surroundings::now());
                *seen = Some((Instant::now(), Arc::clone(&surroundings)));
                surroundings
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const ROUTE: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
docker0\t000011CB\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0
tun0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0
eth0\t0007A8C6\t010200C0\t0003\t0\t0\t0\t00FFFFFF\t0\t0\t0
";

    const FIB_TRIE: &str = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 192.0.2.0/24 2 0 2
        +-- 192.0.2.0/28 2 0 2
           |-- 192.0.2.0
              /24 link UNICAST
           |-- 192.0.2.7
              /32 host LOCAL
        |-- 192.0.2.255
           /32 link BROADCAST
Local:
     |-- 127.0.0.0
        /8 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 192.0.2.7
        /32 host LOCAL
     |-- 198.51.100.0
        /25 host LOCAL
Id 52:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 link UNICAST
     |-- 203.99.0.0
        /16 link UNICAST
";

    const IPV6_ROUTE: &str = "\
20010db8000000010000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 20010db8000000010000000000000001 00000400 00000002 00000000 00000003     eth0
20010db8000000010000000000000007 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000003 00000000 80200001     eth0
20010db8000000050000000000000000 40 00000000000000000000000000000000 00 20010db8000000010000000000000001 00000400 00000002 00000000 00000003     eth0
20010db8000000090000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 80000001       lo
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
";

    const IF_INET6: &str = "\
00000000000000000000000000000001 01 80 10 80       lo
20010db8000000010000000000000007 02 40 00 80     eth0
";

    impl Surroundings {
        /// A host at 192.0.2.7/24 and 2001:db8:0:1::7/64.
        pub(crate) fn sample() -> Self {
            Self::parse(ROUTE, FIB_TRIE, IPV6_ROUTE, IF_INET6)
        }
    }

    #[test]
    fn own_addresses_and_neighbours_are_told_from_the_rest() {
        let here = Surroundings::sample();
        for (address, own, near) in [
            ("192.0.2.7", true, true),
            ("127.0.0.1", true, true),
            ("127.9.9.9", true, true),
            ("::1", true, true),
            ("2001:db8:0:1::7", true, true),
            ("198.51.100.77", true, true),
            ("2001:db8:0:9::5", true, true),
            ("203.99.4.5", false, true),
            ("192.0.2.1", false, true),
            ("192.0.2.200", false, true),
            ("203.17.4.5", false, true),
            ("2001:db8:0:1::9", false, true),
            ("192.0.3.1", false, false),
            ("198.168.7.1", false, false),
            ("198.51.100.200", false, false),
            ("8.8.8.8", false, false),
            ("2001:db8:0:5::1", false, false),
            ("2606:4700::1", false, false),
        ] {
            let parsed = address.parse().unwrap();
            assert_eq!((here.is_own(parsed), here.is_near(parsed)), (own, near), "{address}");
        }
    }

    #[test]
    fn tables_that_make_no_sense_say_nothing() {
        for text in ["", "\n\n", "a b c d e f g h i j", "eth0\tzz\tzz", "|-- x\n/32 host LOCAL", "é é é é é é é é é é"]
        {
            assert_eq!(Surroundings::parse(text, text, text, text), Surroundings::default(), "{text:?}");
        }
    }

    #[test]
    fn a_host_that_is_not_known_has_only_neighbours() {
        let nowhere = tempfile::tempdir().unwrap();
        let here = Surroundings::read(nowhere.path());
        assert!(here.is_near("8.8.8.8".parse().unwrap()) && here.is_near("2606:4700::1".parse().unwrap()));
        // A kernel without IPv6 has no tables of it, and says all there is to say.
        std::fs::write(nowhere.path().join("route"), ROUTE).unwrap();
        std::fs::write(nowhere.path().join("fib_trie"), FIB_TRIE).unwrap();
        let here = Surroundings::read(nowhere.path());
        assert!(!here.is_near("8.8.8.8".parse().unwrap()) && here.is_near("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn this_machine_has_a_loopback_address() {
        assert!(Lan::default().surroundings().own.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }
}
