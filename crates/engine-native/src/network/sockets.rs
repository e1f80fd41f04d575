//! From a network without a way out to one whose every connection lands on a socket. Shared with process 1, which does it
//! for itself where a daemon made the network.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::{nftables, routes};
use crate::{crash, syscall};

/// Where everything lands.
#[derive(Debug)]
pub struct Caught {
    /// Listens on the port of every address. The local address of a connection is where its maker wanted to go.
    pub streams: OwnedFd,
    /// Bound to port 53 of 127.0.0.1.
    pub names: OwnedFd,
}

const NAMES_PORT: u16 = 53;

/// Connections that wait to be accepted.
pub const BACKLOG: i32 = 4096;

/// Catch everything in the network of the calling process.
///
/// It may be done `again` by another process: then what comes goes to whoever was first, as long as it lives. Shared between
/// them it could not be served, because only the process that gave a name an address knows the name.
pub fn open(port: u16, again: bool) -> Result<Caught, (&'static str, io::Error)> {
    let at = |step: &'static str| {
        crash::here(step);
        move |error: io::Error| (step, error)
    };
    let failed = at("loopback-up");
    let names = socket(AddressFamily::INET, SocketType::DGRAM, again).map_err(&failed)?;
    syscall::raise_loopback(names.as_fd()).map_err(&failed)?;

    let failed = at("routes");
    routes::catch_all().map_err(failed)?;

    let failed = at("packet-filter");
    nftables::install(port).map_err(failed)?;

    let failed = at("sockets");
    let streams = listener(port, again).map_err(&failed)?;
    bind_names(&names, again).map_err(&failed)?;
    Ok(Caught { streams, names })
}

fn socket(family: AddressFamily, kind: SocketType, again: bool) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if again {
        // For the next process that finds a persistent sandbox while this one still serves it.
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    Ok(socket)
}

fn bind_names(socket: &OwnedFd, again: bool) -> io::Result<()> {
    rustix::net::bind(socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, NAMES_PORT))?;
    in_order(socket, again)
}

fn in_order(socket: &OwnedFd, again: bool) -> io::Result<()> {
    if again { syscall::first_takes_all(socket.as_fd()) } else { Ok(()) }
}

/// For both families where there are two.
fn listener(port: u16, again: bool) -> io::Result<OwnedFd> {
    let listener = match socket(AddressFamily::INET6, SocketType::STREAM, again) {
        Ok(listener) => {
            sockopt::set_ipv6_v6only(&listener, false)?;
            syscall::set_transparent(listener.as_fd())?;
            let anywhere = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
            rustix::net::bind(&listener, &anywhere)?;
            listener
        }
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            let listener = socket(AddressFamily::INET, SocketType::STREAM, again)?;
            syscall::set_transparent(listener.as_fd())?;
            rustix::net::bind(&listener, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
            listener
        }
        Err(error) => return Err(error),
    };
    rustix::net::listen(&listener, BACKLOG)?;
    in_order(&listener, again)?;
    Ok(listener)
}
