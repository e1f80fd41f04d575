//! Routes by which every address is one of this network's own: nothing sent to any of them leaves it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::netlink::{ACKNOWLEDGE, CREATE, EXCLUSIVE, Messages};

/// The loopback interface is the first of every network.
const LOOPBACK: u32 = 1;

/// Addresses of the sandbox's own that are not loopback addresses: a resolver that is asked for addresses of a family "as
/// configured" finds none in a family that has only those. From the ranges of which the gateway makes up others.
const OWN: [(i32, IpAddr); 2] = [
    (libc::AF_INET, IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1))),
    (libc::AF_INET6, IpAddr::V6(Ipv6Addr::new(0xfd73, 0x616e, 0x6470, 0x656e, 0, 0, 0, 1))),
];

/// Make every address local. What is there already is what would be made.
pub fn catch_all() -> io::Result<()> {
    let mut messages = Messages::default();
    let mut families = Vec::new();
    for (family, address) in OWN {
        messages.add(libc::RTM_NEWROUTE, ACKNOWLEDGE | CREATE | EXCLUSIVE, &route(family), |route| {
            route.bytes(libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
        });
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let fixed = host_address(family, octets.len());
        messages.add(libc::RTM_NEWADDR, ACKNOWLEDGE | CREATE | EXCLUSIVE, &fixed, |attributes| {
            attributes.bytes(libc::IFA_LOCAL, &octets);
            attributes.bytes(libc::IFA_ADDRESS, &octets);
        });
        families.extend([family, family]);
    }
    for (family, answer) in families.into_iter().zip(messages.exchange(None)?) {
        let code = answer.as_ref().and_then(io::Error::raw_os_error);
        match (family, code) {
            (_, None | Some(libc::EEXIST)) => {}
            // A host without IPv6, or with a loopback interface without it: there is nothing to catch.
            (libc::AF_INET6, Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EACCES | libc::ENETDOWN)) => {}
            (_, Some(code)) => return Err(io::Error::from_raw_os_error(code)),
        }
    }
    Ok(())
}

/// `struct rtmsg` for all addresses of a family.
fn route(family: i32) -> [u8; 12] {
    let (any_length, no_source, no_service) = (0, 0, 0);
    let mut route = [0; 12];
    route[..8].copy_from_slice(&[
        family as u8,
        any_length,
        no_source,
        no_service,
        libc::RT_TABLE_LOCAL,
        libc::RTPROT_STATIC,
        libc::RT_SCOPE_HOST,
        libc::RTN_LOCAL,
    ]);
    route
}

/// `struct ifaddrmsg` for one address of so many bytes.
fn host_address(family: i32, bytes: usize) -> [u8; 8] {
    let mut message = [0; 8];
    message[..4].copy_from_slice(&[family as u8, bytes as u8 * 8, libc::IFA_F_NODAD as u8, libc::RT_SCOPE_UNIVERSE]);
    message[4..].copy_from_slice(&LOOPBACK.to_ne_bytes());
    message
}
