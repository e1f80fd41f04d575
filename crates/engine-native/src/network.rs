//! The network of a sandbox that was given one, from inside: every address is its own, and whoever connects to one is
//! caught by a listener that the server holds.
//!
//! No route leaves, so there is nothing to get around: what does not reach the sockets made here reaches nothing. Needs
//! the rights of the network's owner, which nobody has who lives in it.

mod netlink;
mod nftables;
mod routes;
mod sockets;

use std::io;

use egress::Sockets;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// The steps from a network without a way out to one with sockets, in order.
pub const STEPS: &[&str] = &["loopback-up", "routes", "packet-filter", "sockets"];

/// Catch everything in the network of the calling process.
pub fn open() -> Result<Sockets, (&'static str, io::Error)> {
    let sockets::Caught { streams, names } = sockets::open(Sockets::PROXY_PORT, true)?;
    Ok(Sockets { streams, names })
}

/// Whether this kernel has a packet filter at all. Whether it can do what is asked of it shows when it is.
pub fn is_possible() -> bool {
    let flags = SocketFlags::CLOEXEC;
    let protocol = Some(rustix::net::netlink::NETFILTER);
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).is_ok()
}

#[cfg(test)]
mod tests;
