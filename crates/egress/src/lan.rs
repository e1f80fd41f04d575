//! Where this host stands: its own addresses, and the networks that it reaches without a router.
//!
//! Read from the kernel's tables as text. They change while we run (a laptop moves, a bridge is made), so what is older
//! than a moment is read again before it decides anything.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::address::contains;

const FRESH: Duration = Duration::from_secs(2);

/// What is known of the host's place in its network.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Surroundings {
    own: Vec<IpAddr>,
    /// Networks of which every address is one of this host's: a route can say so without any interface having them.
    own_networks: Vec<(IpAddr, u8)>,
    on_link: Vec<(IpAddr, u8)>,
    /// The kernel's tables could not be read.
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

    /// From the contents of files in `/proc/net`, an absent one being empty: a kernel may lack a family.
    fn parse(route: &str, fib_trie: &str, ipv6_route: &str, if_inet6: &str) -> Self {
        let own: BTreeSet<IpAddr> = own_v6(if_inet6).map(IpAddr::V6).collect();
        let v4 = |(network, length)| (IpAddr::V4(network), length);
        let v6 = |(network, length)| (IpAddr::V6(network), length);
        let (local_v4, link_v4) = (leaves(fib_trie, "host LOCAL"), leaves(fib_trie, "link UNICAST"));
        let (single, wide): (BTreeSet<_>, BTreeSet<_>) = local_v4
            .map(v4)
            .chain(local_v6(ipv6_route).map(v6))
            .partition(|(address, length)| is_single(*address, *length));
        // One table has the gateways of routes, the other has those of every routing table and not of the main one alone.
        let near_v4 = on_link_v4(route).chain(link_v4.filter(|(_, length)| *length >= SHORTEST_V4));
        let near: BTreeSet<_> = near_v4.map(v4).chain(on_link_v6(ipv6_route).map(v6)).collect();
        Self {
            own: own.into_iter().chain(single.into_iter().map(|(address, _)| address)).collect(),
            own_networks: wide.into_iter().collect(),
            on_link: near.into_iter().collect(),
            unknown: false,
        }
    }

    fn read(directory: &Path) -> Self {
        let file = |name: &str| std::fs::read_to_string(directory.join(name));
        let of_v6 = |name: &str| match file(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            read => read,
        };
        let tables = || Ok((file("route")?, file("fib_trie")?, of_v6("ipv6_route")?, of_v6("if_inet6")?));
        match tables() {
            Ok((route, fib_trie, ipv6_route, if_inet6)) => Self::parse(&route, &fib_trie, &ipv6_route, &if_inet6),
            Err::<_, io::Error>(error) => {
                tracing::warn!(%error, "the host's own network is not known, so no address is taken for a public one");
                Self { unknown: true, ..Self::default() }
            }
        }
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
                let surroundings = Arc::new(Surroundings::read(Path::new("/proc/thread-self/net")));
                *seen = Some((Instant::now(), Arc::clone(&surroundings)));
                surroundings
            }
        }
    }
}

/// Rows of `/proc/net/route` without a gateway: interface, destination, gateway, flags, …, mask at index 7. Numbers are
/// those of the machine's memory, so on a little-endian one the first octet comes last.
fn on_link_v4(route: &str) -> impl Iterator<Item = (Ipv4Addr, u8)> {
    let hex = |text: &str| u32::from_str_radix(text, 16).ok().map(|number| Ipv4Addr::from(number.to_ne_bytes()));
    route.lines().skip(1).filter_map(move |line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (destination, gateway) = (hex(columns.get(1)?)?, hex(columns.get(2)?)?);
        let flags = u32::from_str_radix(columns.get(3)?, 16).ok()?;
        let length = u8::try_from(hex(columns.get(7)?)?.to_bits().leading_ones()).ok()?;
        let direct = flags & (ROUTE_GATEWAY | ROUTE_REJECT) == 0 && gateway.is_unspecified();
        (direct && length >= SHORTEST_V4).then_some((destination, length))
    })
}

/// A tunnel or a modem has routes without a gateway for everything, or for each half of everything. They do not make the
/// whole world a neighbour.
const SHORTEST_V4: u8 = 8;
const SHORTEST_V6: u8 = 16;

const ROUTE_GATEWAY: u32 = 0x2;
const ROUTE_REJECT: u32 = 0x200;
/// Of an address of this host itself, not of its neighbours.
const ROUTE_LOCAL: u32 = 0x8000_0000;

/// Rows of `/proc/net/ipv6_route`: destination, its length, source, its length, next hop, metric, use, use, flags,
/// interface.
fn on_link_v6(ipv6_route: &str) -> impl Iterator<Item = (Ipv6Addr, u8)> {
    ipv6_route.lines().filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (destination, next_hop) = (bare_v6(columns.first()?)?, bare_v6(columns.get(4)?)?);
        let length = u8::from_str_radix(columns.get(1)?, 16).ok()?;
        let flags = u32::from_str_radix(columns.get(8)?, 16).ok()?;
        let direct = flags & (ROUTE_GATEWAY | ROUTE_REJECT | ROUTE_LOCAL) == 0 && next_hop.is_unspecified();
        (direct && length >= SHORTEST_V6).then_some((destination, length))
    })
}

/// Addresses above lines like `/32 host LOCAL`, with the number in them, of all routing tables.
fn leaves<'a>(fib_trie: &'a str, kind: &'a str) -> impl Iterator<Item = (Ipv4Addr, u8)> + 'a {
    let mut last = None;
    fib_trie.lines().filter_map(move |line| {
        let line = line.trim();
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        }
        let (length, found) = line.strip_prefix('/')?.split_once(' ')?;
        let length = length.parse().ok().filter(|length| *length <= 32)?;
        if found == kind { last.map(|address| (address, length)) } else { None }
    })
}

fn is_single(address: IpAddr, length: u8) -> bool {
    length == if address.is_ipv4() { 32 } else { 128 }
}

/// Rows of `/proc/net/ipv6_route` for addresses of this host itself.
fn local_v6(ipv6_route: &str) -> impl Iterator<Item = (Ipv6Addr, u8)> {
    ipv6_route.lines().filter_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let length = u8::from_str_radix(columns.get(1)?, 16).ok().filter(|length| *length <= 128)?;
        let flags = u32::from_str_radix(columns.get(8)?, 16).ok()?;
        if flags & ROUTE_LOCAL == 0 { None } else { Some((bare_v6(columns.first()?)?, length)) }
    })
}

/// The first column of `/proc/net/if_inet6`.
fn own_v6(if_inet6: &str) -> impl Iterator<Item = Ipv6Addr> {
    if_inet6.lines().filter_map(|line| bare_v6(line.split_whitespace().next()?))
}

fn bare_v6(text: &str) -> Option<Ipv6Addr> {
    (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(Ipv6Addr::from_bits)).flatten()
}

#[cfg(test)]
mod tests {
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
