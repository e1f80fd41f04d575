//! A network in which everything lands on our sockets, made from inside where a daemon made the network itself.

#[path = "../../src/network/netlink.rs"]
mod netlink;
#[path = "../../src/network/nftables.rs"]
mod nftables;
#[path = "../../src/network/routes.rs"]
mod routes;
#[path = "../../src/network/sockets.rs"]
mod sockets;

pub use sockets::{Caught, open};
