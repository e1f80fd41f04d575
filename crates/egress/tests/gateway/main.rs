//! The gateway on loopback, driven by real clients: sockets are made here as an engine would make them, and the only host
//! to reach is `localhost`, which the settings name as a private host.

mod caps;
mod crowd;
mod flows;
mod hostile;
mod plain;
mod rules;
mod secrets;
mod support;
mod vhost;

/// How connections come to the gateway; another program has them come the other way.
const WAY: support::Way = support::Way::Sockets;
