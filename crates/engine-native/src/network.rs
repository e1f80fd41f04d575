//! The network of a sandbox that was given one, from inside: every address is its own, and whoever connects to one is
//! caught by a listener that the server holds.
//!
//! No route leaves, so there is nothing to get around: what does not reach the sockets made here reaches nothing. Needs
//! the rights of the network's owner, which nobody has who lives in it.

mod netlink;
mod nftables;
mod routes;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

use egress::Sockets;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::{crash, syscall};

/// The steps from a network without a way out to one with sockets, in order.
pub const STEPS: &[&str] = &["loopback-up", "routes", "packet-filter", "sockets"];

const NAMES_PORT: u16 = 53;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;

/// Catch everything in the network of the calling process. May be done again, by another process too: then what comes goes
/// to whoever was first, as long as it lives. Shared between them it could not be served, because only the process that
/// gave a name an address knows the name.
pub fn open() -> Result<Sockets, (&'static str, io::Error)> {
    let at = |step: &'static str| {
        crash::here(step);
        move |error: io::Error| (step, error)
    };
    let failed = at("loopback-up");
    let names = socket(AddressFamily::INET, SocketType::DGRAM).map_err(&failed)?;
    syscall::raise_loopback(names.as_fd()).map_err(&failed)?;

    let failed = at("routes");
    routes::catch_all().map_err(failed)?;

    let failed = at("packet-filter");
    nftables::install(Sockets::PROXY_PORT).map_err(failed)?;

    let failed = at("sockets");
    let streams = listener().map_err(&failed)?;
    bind_names(&names).map_err(&failed)?;
    Ok(Sockets { streams, names })
}

/// Whether this kernel has a packet filter at all. Whether it can do what is asked of it shows when it is.
pub fn is_possible() -> bool {
    let flags = SocketFlags::CLOEXEC;
    let protocol = Some(rustix::net::netlink::NETFILTER);
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).is_ok()
}

fn socket(family: AddressFamily, kind: SocketType) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    // For the next process that finds a persistent sandbox while this one still serves it.
    sockopt::set_socket_reuseport(&socket, true)?;
    Ok(socket)
}

fn bind_names(socket: &OwnedFd) -> io::Result<()> {
    rustix::net::bind(socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, NAMES_PORT))?;
    syscall::first_takes_all(socket.as_fd())
}

/// For both families where there are two.
fn listener() -> io::Result<OwnedFd> {
    let listener = match socket(AddressFamily::INET6, SocketType::STREAM) {
        Ok(listener) => {
            sockopt::set_ipv6_v6only(&listener, false)?;
            syscall::set_transparent(listener.as_fd())?;
            let anywhere = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, Sockets::PROXY_PORT, 0, 0);
            rustix::net::bind(&listener, &anywhere)?;
            listener
        }
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            let listener = socket(AddressFamily::INET, SocketType::STREAM)?;
            syscall::set_transparent(listener.as_fd())?;
            rustix::net::bind(&listener, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, Sockets::PROXY_PORT))?;
            listener
        }
        Err(error) => return Err(error),
    };
    rustix::net::listen(&listener, BACKLOG)?;
    syscall::first_takes_all(listener.as_fd())?;
    Ok(listener)
}

#[cfg(test)]
mod tests;
