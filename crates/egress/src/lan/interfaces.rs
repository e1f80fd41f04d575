//! The addresses of the interfaces, on systems without tables that anybody can read. Networks that a route alone makes
//! neighbours are not known by them.

use std::net::IpAddr;

use if_addrs::{IfAddr, get_if_addrs};

use super::Surroundings;

impl Surroundings {
    pub(super) fn now() -> Self {
        match get_if_addrs() {
            Ok(interfaces) => {
                let network = |address: &IfAddr| match address {
                    IfAddr::V4(found) => (IpAddr::V4(found.ip), found.prefixlen),
                    IfAddr::V6(found) => (IpAddr::V6(found.ip), found.prefixlen),
                };
                Self {
                    own: interfaces.iter().map(|interface| interface.ip()).collect(),
                    on_link: interfaces.iter().map(|interface| network(&interface.addr)).collect(),
                    ..Self::default()
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the host's own network is not known, so no address is taken for a public one");
                Self { unknown: true, ..Self::default() }
            }
        }
    }
}
