//! The kernel's tables of Linux, as text.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use super::Surroundings;

impl Surroundings {
    pub(super) fn now() -> Self {
        Self::read(Path::new("/proc/thread-self/net"))
    }

    /// From the contents of files in `/proc/net`, an absent one being empty: a kernel may lack a family.
    pub(super) fn parse(route: &str, fib_trie: &str, ipv6_route: &str, if_inet6: &str) -> Self {
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

    pub(super) fn read(directory: &Path) -> Self {
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
