//! Settings of the way out of sandboxes.

use std::path::PathBuf;

use egress::{Allowance, GatewaySettings};
use sandbox::{ByteSize, Error, HostRule, Result};

use super::number;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayConfig {
    /// Hosts that may be reached although their addresses are private.
    pub private_hosts: Vec<HostRule>,
    /// `None`: the one that `sandpen secret` keeps.
    pub secrets_file: Option<PathBuf>,
    pub of_sandbox: Allowance,
    pub of_owner: Allowance,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        let GatewaySettings { private_hosts, of_sandbox, of_owner, .. } = GatewaySettings::default();
        Self { private_hosts, secrets_file: None, of_sandbox, of_owner }
    }
}

pub fn connections(text: &str) -> Result<usize> {
    match number(text)? {
        0 => Err(Error::invalid_input("with 0 connections there is no network").with_hint("use --network none")),
        count => Ok(count),
    }
}

pub fn bytes(text: &str) -> Result<u64> {
    match text.parse::<ByteSize>()?.bytes() {
        0 => Err(Error::invalid_input("with 0 bytes there is no network").with_hint("use --network none")),
        count => Ok(count),
    }
}
