//! The gateway of one process: makes passes, opens doors.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use sandbox::{EventBus, HostRule, NetworkActivity, NetworkUsage, Result};

use crate::activity::Mark;
use crate::grant::{Allowance, Grant, Pass};
use crate::secrets::Vault;

/// Decided once, when the process starts.
#[derive(Clone, Debug)]
pub struct GatewaySettings {
    /// Hosts by name that may be reached although their addresses are private. Only an operator may name one.
    pub private_hosts: Vec<HostRule>,
    pub vault: Vault,
    pub of_sandbox: Allowance,
    pub of_owner: Allowance,
    pub events: EventBus,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            private_hosts: Vec::new(),
            vault: Vault::default(),
            of_sandbox: Allowance { connections: 1024, bytes: None, rate: None },
            of_owner: Allowance { connections: 4096, bytes: None, rate: None },
            events: EventBus::default(),
        }
    }
}

/// Sockets that were made inside the network of a sandbox.
#[derive(Debug)]
pub struct Sockets {
    /// Listens on port [`Sockets::PROXY_PORT`] of every address. Connections to that port of a loopback address speak to
    /// the proxy; the local address of any other is where its maker wanted to go.
    pub streams: OwnedFd,
    /// Bound to port 53 of 127.0.0.1.
    pub names: OwnedFd,
}

impl Sockets {
    pub const PROXY_PORT: u16 = 3128;
}

/// One for each process. Runs on a thread of its own, which starts with the first door.
#[derive(Debug)]
pub struct Gateway {
    settings: GatewaySettings,
    own_addresses: Mutex<Vec<SocketAddr>>,
}

impl Gateway {
    pub fn new(settings: GatewaySettings) -> Self {
        Self { settings, own_addresses: Mutex::default() }
    }

    /// This process listens here: no sandbox may connect to it, whatever its network and whatever the operator allowed.
    pub fn protect(&self, address: SocketAddr) {
        self.own_addresses.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(address);
    }

    /// Check a grant and make what the sandbox needs. With a keepsake, the same as before.
    ///
    /// Fails when a secret is unknown, or its host is out of the network's reach.
    pub fn prepare(&self, grant: Grant, keepsake: Option<&str>) -> Result<Pass> {
        let _ = (&self.settings, keepsake);
        Ok(Pass {
            grant,
            environment: sandbox::Environment::default(),
            files: Vec::new(),
            keepsake: None,
            inspector: None,
        })
    }

    /// Let a sandbox out, as far as its pass says, until the door is dropped.
    pub fn open(self: &Arc<Self>, pass: &Pass, sockets: Sockets) -> Result<Door> {
        let _ = pass;
        Ok(Door { _sockets: sockets })
    }
}

/// A sandbox's way out. Dropping it closes the sockets and ends every connection.
#[derive(Debug)]
pub struct Door {
    _sockets: Sockets,
}

impl Door {
    pub fn mark(&self) -> Mark {
        Mark::default()
    }

    /// What happened from then to now.
    pub fn since(&self, _mark: Mark) -> NetworkActivity {
        NetworkActivity::default()
    }

    pub fn usage(&self) -> NetworkUsage {
        NetworkUsage::default()
    }
}
