//! Routes by which every address is one of this network's own: nothing sent to any of them leaves it.

use std::io;

use super::netlink::{ACKNOWLEDGE, CREATE, EXCLUSIVE, Messages};

/// The loopback interface is the first of every network.
const LOOPBACK: u32 = 1;

/// Make every address local. Routes that are there are those that would be made.
pub fn catch_all() -> io::Result<()> {
    let families = [libc::AF_INET, libc::AF_INET6];
    let mut messages = Messages::default();
    for family in families {
        messages.add(libc::RTM_NEWROUTE, ACKNOWLEDGE | CREATE | EXCLUSIVE, &route(family), |route| {
            route.bytes(libc::RTA_OIF, &LOOPBACK.to_ne_bytes());
        });
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
