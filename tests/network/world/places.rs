//! The outside as data: what lives at which address, and what its name answers.
//!
//! Public addresses are those that are kept for documents; no packet of a test leaves the machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One machine of the outside. Its name is `NAME.example.com`.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub name: &'static str,
    pub kind: Kind,
    pub addresses: &'static [IpAddr],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anybody's, behind the gateway.
    Public,
    /// Of somebody's own network, behind the gateway.
    Private,
    /// Beside the host, on its own network.
    Neighbour,
    /// The host itself, on an address that its neighbours see.
    Host,
}

pub const DOMAIN: &str = "example.com";

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6(parts: [u16; 8]) -> IpAddr {
    let [a, b, c, d, e, f, g, h] = parts;
    IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h))
}

const fn public(last: u16) -> IpAddr {
    v6([0x2001, 0xdb8, 0x10, 0, 0, 0, 0, last])
}

const fn on_link(last: u16) -> IpAddr {
    v6([0x2001, 0xdb8, 0xaaaa, 0, 0, 0, 0, last])
}

pub const GATEWAY: [IpAddr; 2] = [v4(192, 0, 2, 1), on_link(1)];
pub const HOST: [IpAddr; 2] = [v4(192, 0, 2, 2), on_link(2)];
pub const RESOLVER: IpAddr = v4(203, 0, 113, 53);

pub const PLACES: &[Place] = &[
    Place { name: "public", kind: Kind::Public, addresses: &[v4(203, 0, 113, 10), public(0x10)] },
    Place { name: "other", kind: Kind::Public, addresses: &[v4(203, 0, 113, 11), public(0x11)] },
    Place { name: "old", kind: Kind::Public, addresses: &[v4(203, 0, 113, 12)] },
    Place { name: "new", kind: Kind::Public, addresses: &[public(0x13)] },
    Place { name: "api", kind: Kind::Public, addresses: &[v4(203, 0, 113, 20), public(0x20)] },
    Place { name: "wrong", kind: Kind::Public, addresses: &[v4(203, 0, 113, 21)] },
    Place { name: "ten", kind: Kind::Private, addresses: &[v4(10, 20, 0, 5)] },
    Place { name: "intranet", kind: Kind::Private, addresses: &[v4(10, 20, 0, 8)] },
    Place { name: "twelve", kind: Kind::Private, addresses: &[v4(172, 16, 5, 5)] },
    Place { name: "sixteen", kind: Kind::Private, addresses: &[v4(192, 168, 7, 7)] },
    Place { name: "carrier", kind: Kind::Private, addresses: &[v4(100, 64, 0, 9)] },
    Place { name: "benchmark", kind: Kind::Private, addresses: &[v4(198, 18, 7, 7)] },
    Place { name: "metadata", kind: Kind::Private, addresses: &[v4(169, 254, 169, 254)] },
    Place { name: "metadata-new", kind: Kind::Private, addresses: &[v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254])] },
    Place { name: "unique-local", kind: Kind::Private, addresses: &[v6([0xfd12, 0x3456, 0, 0, 0, 0, 0, 5])] },
    // The private IPv4 address 10.20.0.5 in the clothes of two transition mechanisms.
    Place { name: "translated", kind: Kind::Private, addresses: &[v6([0x64, 0xff9b, 0, 0, 0, 0, 0x0a14, 0x0005])] },
    Place { name: "six-to-four", kind: Kind::Private, addresses: &[v6([0x2002, 0x0a14, 0x0005, 0, 0, 0, 0, 1])] },
    Place { name: "neighbour", kind: Kind::Neighbour, addresses: &[v4(192, 0, 2, 9), on_link(9)] },
    Place { name: "gateway", kind: Kind::Neighbour, addresses: &GATEWAY },
    Place { name: "host", kind: Kind::Host, addresses: &HOST },
];

/// The place that has this address, or the loopback of the host.
pub fn at(address: IpAddr) -> &'static str {
    let address = address.to_canonical();
    match PLACES.iter().find(|place| place.addresses.contains(&address)) {
        Some(place) => place.name,
        None if address.is_loopback() => "loopback",
        None => "nowhere",
    }
}

pub fn place(name: &str) -> Option<&'static Place> {
    PLACES.iter().find(|place| place.name == name)
}

/// What a name answers: addresses, perhaps by way of another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub alias: Option<String>,
    pub addresses: Vec<IpAddr>,
}

/// `asked` is how often this very name was asked for an address before.
pub fn answer(name: &str, asked: usize) -> Option<Answer> {
    let host = name.trim_end_matches('.').to_ascii_lowercase();
    let label = host.strip_suffix(DOMAIN)?.strip_suffix('.')?;
    let of = |names: &[&str]| -> Vec<IpAddr> {
        names.iter().filter_map(|name| place(name)).flat_map(|place| place.addresses).copied().collect()
    };
    let plain = |names: &[&str]| Some(Answer { alias: None, addresses: of(names) });
    match label {
        "mixed" => plain(&["ten", "public"]),
        "loopback" => Some(Answer { alias: None, addresses: vec![v4(127, 0, 0, 1), IpAddr::V6(Ipv6Addr::LOCALHOST)] }),
        "mapped" => {
            let IpAddr::V4(private) = v4(10, 20, 0, 5) else { return None };
            Some(Answer { alias: None, addresses: vec![IpAddr::V6(private.to_ipv6_mapped())] })
        }
        "alias" => Some(Answer { alias: Some(format!("ten.{DOMAIN}")), addresses: of(&["ten"]) }),
        // Public to whoever checks, private to whoever connects.
        rebinding if rebinding.starts_with("rebind-") => plain(if asked == 0 { &["old"] } else { &["ten"] }),
        name if place(name).is_some() => plain(&[name]),
        _ => None,
    }
}
