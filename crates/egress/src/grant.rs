//! What one sandbox is given, and what must be inside it for that to work.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandbox::{Environment, Error, GuestPath, HostRule, Network, Owner, Result, SandboxId, SandboxSpec, SecretName};

use crate::inspect::Inspect;

/// What the gateway must know of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub id: SandboxId,
    pub owner: Owner,
    /// Never `None`: a sandbox without a network has no gateway.
    pub network: Network,
    /// Of this sandbox alone, besides those of the gateway.
    pub private_hosts: Vec<HostRule>,
    pub secrets: BTreeSet<SecretName>,
}

impl Grant {
    /// What a sandbox asks for. `None`: it has no network.
    pub fn asked_by(id: &SandboxId, spec: &SandboxSpec) -> Result<Option<Self>> {
        if spec.network.is_none() {
            return match spec.secrets.first() {
                None => Ok(None),
                Some(secret) => Err(Error::invalid_input(format!("the secret {secret} needs a network"))
                    .with_hint("ask for a network that reaches the secret's host")),
            };
        }
        Ok(Some(Self {
            id: id.clone(),
            owner: spec.owner.clone(),
            network: spec.network.clone(),
            private_hosts: spec.private_hosts.clone(),
            secrets: spec.secrets.clone(),
        }))
    }
}

/// A grant that was checked, with what a sandbox needs to use it.
#[derive(Clone, Debug)]
pub struct Pass {
    pub grant: Grant,
    /// Proxy settings, where certificates are, and a placeholder for each secret. The sandbox's own variables win.
    pub environment: Environment,
    /// To be written into the sandbox before anything runs in it.
    pub files: Vec<GuestFile>,
    /// For a persistent sandbox: what the next process needs to make the same pass. Holds no secret's value, and must be
    /// kept where only the server's user reads.
    pub keepsake: Option<String>,
    /// Looks into connections on the way, when there is something to put in.
    pub(crate) inspector: Option<Arc<dyn Inspect>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFile {
    pub path: GuestPath,
    pub contents: Vec<u8>,
}

/// Bounds on the traffic of one sandbox, or of all sandboxes of one owner together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Open at the same time.
    pub connections: usize,
    /// In both directions, over its whole life. `None`: no bound.
    pub bytes: Option<u64>,
    /// Bytes per second, in both directions together. `None`: no bound.
    pub rate: Option<u64>,
}
