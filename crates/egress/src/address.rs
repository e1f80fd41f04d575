//! Addresses that nobody may reach, wherever the host stands in its network.
//!
//! Pure. What depends on the host is in `lan.rs`, what depends on the operator in `reach.rs`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sandbox::Denial;

/// Why this address is not one of a single public host; `None` when it is.
///
/// An address that carries another one is judged by what it carries, because a gateway on the way takes it out again.
pub(crate) fn denial(address: IpAddr) -> Option<Denial> {
    match address {
        IpAddr::V4(address) => denial_v4(address),
        IpAddr::V6(address) => denial_v6(address),
    }
}

/// Whether it is one of a single public host, so that asking there shows nobody what stands in a network of our own.
pub fn is_public(address: IpAddr) -> bool {
    denial(address).is_none()
}

/// The IPv4 address that an IPv6 address carries, where something takes it out again: the kernel itself, or a gateway.
pub(crate) fn carried(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else { return None };
    let octets = address.octets();
    let within = |(network, length): (Ipv6Addr, u8)| contains(IpAddr::V6(network), length, IpAddr::V6(address));
    if within(MAPPED) || within(NAT64) {
        return Some(Ipv4Addr::new(octets[12], octets[13], octets[14], octets[15]));
    }
    within(SIX_TO_FOUR).then(|| Ipv4Addr::new(octets[2], octets[3], octets[4], octets[5]))
}

type Row4 = (Ipv4Addr, u8, Denial);
type Row6 = (Ipv6Addr, u8, Denial);

/// The first row that contains an address decides.
const V4: &[Row4] = &[
    // Services that give credentials to whoever asks from the machine: of Alibaba, Oracle and Azure. The last one is a
    // public address.
    (Ipv4Addr::new(100, 100, 100, 200), 32, Denial::MetadataAddress),
    (Ipv4Addr::new(192, 0, 0, 192), 32, Denial::MetadataAddress),
    (Ipv4Addr::new(168, 63, 129, 16), 32, Denial::MetadataAddress),
    // Link-local, where the other clouds have theirs (169.254.169.254).
    (Ipv4Addr::new(169, 254, 0, 0), 16, Denial::MetadataAddress),
    (Ipv4Addr::new(127, 0, 0, 0), 8, Denial::PrivateAddress),
    (Ipv4Addr::new(10, 0, 0, 0), 8, Denial::PrivateAddress),
    (Ipv4Addr::new(172, 16, 0, 0), 12, Denial::PrivateAddress),
    (Ipv4Addr::new(192, 168, 0, 0), 16, Denial::PrivateAddress),
    (Ipv4Addr::new(100, 64, 0, 0), 10, Denial::PrivateAddress),
    // "This network": to Linux, 0.0.0.0 is the machine itself.
    (Ipv4Addr::new(0, 0, 0, 0), 8, Denial::SpecialAddress),
    (Ipv4Addr::new(192, 0, 0, 0), 24, Denial::SpecialAddress),
    // The way into 6to4, which nobody runs any more.
    (Ipv4Addr::new(192, 88, 99, 0), 24, Denial::SpecialAddress),
    // For measurements of network devices, so free for the addresses that our resolver makes up.
    (Ipv4Addr::new(198, 18, 0, 0), 15, Denial::SpecialAddress),
    (Ipv4Addr::new(224, 0, 0, 0), 4, Denial::SpecialAddress),
    (Ipv4Addr::new(240, 0, 0, 0), 4, Denial::SpecialAddress),
];

const V6: &[Row6] = &[
    // Services that give credentials: of AWS, Google, Oracle and Scaleway.
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 128, Denial::MetadataAddress),
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128, Denial::MetadataAddress),
    (Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe), 128, Denial::MetadataAddress),
    (Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42), 128, Denial::MetadataAddress),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, Denial::MetadataAddress),
    (Ipv6Addr::LOCALHOST, 128, Denial::PrivateAddress),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, Denial::PrivateAddress),
    // Site-local, the predecessor of the row above.
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, Denial::PrivateAddress),
    // Protocol assignments, of which Teredo is the first.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, Denial::SpecialAddress),
    // Where all public addresses are. Of the rest (`::`, IPv4-compatible, discard, NAT64 for local use, multicast, and
    // whatever is assigned next) nothing is.
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 3, Denial::SpecialAddress),
    (Ipv6Addr::new(0x4000, 0, 0, 0, 0, 0, 0, 0), 2, Denial::SpecialAddress),
    (Ipv6Addr::new(0x8000, 0, 0, 0, 0, 0, 0, 0), 1, Denial::SpecialAddress),
];

const MAPPED: (Ipv6Addr, u8) = (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96);
const NAT64: (Ipv6Addr, u8) = (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);
const SIX_TO_FOUR: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16);

fn denial_v4(address: Ipv4Addr) -> Option<Denial> {
    let row = V4.iter().find(|(network, length, _)| contains(IpAddr::V4(*network), *length, IpAddr::V4(address)));
    row.map(|(_, _, denial)| *denial)
}

fn denial_v6(address: Ipv6Addr) -> Option<Denial> {
    if let Some(carried) = carried(IpAddr::V6(address)) {
        return denial_v4(carried);
    }
    let row = V6.iter().find(|(network, length, _)| contains(IpAddr::V6(*network), *length, IpAddr::V6(address)));
    row.map(|(_, _, denial)| *denial)
}

/// Whether the first `length` bits are those of `network`. Addresses of two families share no network.
pub(crate) fn contains(network: IpAddr, length: u8, address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            (network.to_bits() ^ address.to_bits()).leading_zeros() >= u32::from(length)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            (network.to_bits() ^ address.to_bits()).leading_zeros() >= u32::from(length)
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expected: Option<Denial>, addresses: &[&str]) {
        for text in addresses {
            assert_eq!(denial(text.parse().unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn public_addresses_are_let_through() {
        check(
            None,
            &[
                "1.1.1.1",
                "8.8.8.8",
                "9.255.255.255",
                "11.0.0.0",
                "100.63.255.255",
                "100.128.0.0",
                "126.255.255.255",
                "128.0.0.0",
                "169.253.255.255",
                "169.255.0.0",
                "172.15.255.255",
                "172.32.0.0",
                "192.0.1.0",
                "192.167.255.255",
                "192.169.0.0",
                "198.17.255.255",
                "198.20.0.0",
                "223.255.255.255",
                // Documentation: nobody's, so as public as any.
                "192.0.2.1",
                "198.51.100.1",
                "203.0.113.80",
                "2001:db8::1",
                "2606:4700:4700::1111",
                "2001:4860:4860::8888",
                "2001:200::1",
                "3fff::1",
                "::ffff:8.8.8.8",
                "64:ff9b::8.8.8.8",
                "2002:808:808::1",
            ],
        );
    }

    #[test]
    fn addresses_of_this_machine_and_of_private_networks_are_private() {
        check(
            Some(Denial::PrivateAddress),
            &[
                "127.0.0.1",
                "127.0.0.0",
                "127.255.255.255",
                "10.0.0.0",
                "10.255.255.255",
                "172.16.0.0",
                "172.31.255.255",
                "192.168.0.0",
                "192.168.255.255",
                "100.64.0.0",
                "100.127.255.255",
                "::1",
                "fc00::1",
                "fdff:ffff::1",
                "fec0::1",
                "feff::1",
                "::ffff:127.0.0.1",
                "::ffff:10.0.0.1",
                "::ffff:7f00:1",
                "64:ff9b::10.0.0.1",
                "64:ff9b::7f00:1",
                "64:ff9b::100.64.0.1",
                "2002:7f00:1::",
                "2002:a00:1::1",
                "2002:c0a8:101:5::9",
            ],
        );
    }

    #[test]
    fn what_gives_credentials_to_machines_is_metadata() {
        check(
            Some(Denial::MetadataAddress),
            &[
                "169.254.169.254",
                "169.254.170.2",
                "169.254.0.0",
                "169.254.255.255",
                "100.100.100.200",
                "192.0.0.192",
                "168.63.129.16",
                "fd00:ec2::254",
                "fd20:ce::254",
                "fd00:c1::a9fe:a9fe",
                "fd00:42::42",
                "fe80::1",
                "fe80::a9fe:a9fe",
                "febf:ffff::1",
                "::ffff:169.254.169.254",
                "::ffff:a9fe:a9fe",
                "64:ff9b::169.254.169.254",
                "64:ff9b::a9fe:a9fe",
                "2002:a9fe:a9fe::1",
                "64:ff9b::100.100.100.200",
            ],
        );
    }

    #[test]
    fn what_is_no_single_public_host_is_special() {
        check(
            Some(Denial::SpecialAddress),
            &[
                "0.0.0.0",
                "0.1.2.3",
                "192.0.0.1",
                "192.0.0.255",
                "192.88.99.1",
                "198.18.0.0",
                "198.19.255.255",
                "224.0.0.1",
                "239.255.255.255",
                "240.0.0.1",
                "255.255.255.255",
                "::",
                // IPv4-compatible, which some systems still take for IPv4.
                "::2",
                "::127.0.0.1",
                "::8.8.8.8",
                "100::1",
                "64:ff9b:1::1",
                "64:ff9b:1:ffff::7f00:1",
                // The same prefix with something between it and the address it carries.
                "64:ff9b:0:1::7f00:1",
                "2001::1",
                "2001:0:4136:e378:8000:63bf:3fff:fdd2",
                "2001:2::1",
                "2001:10::1",
                "2001:1ff:ffff::1",
                "4000::1",
                "5f00::1",
                "8000::1",
                "fe00::1",
                "ff00::1",
                "ff02::1",
                "ff0e::1",
                "::ffff:0.0.0.0",
                "::ffff:224.0.0.1",
                "64:ff9b::0.0.0.0",
                "64:ff9b::255.255.255.255",
                "2002:e000:1::1",
                "2002::1",
            ],
        );
    }
}
