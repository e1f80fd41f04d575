//! A server from settings, the same for every transport.

use std::sync::Arc;

use sandbox::Result;
use tools::{Catalog, Exporter, HostFiles, ImageSource, Policy};

use super::adapter::{Adapter, Callers, Parts};
use crate::config::{Config, EngineChoice, Pull};
use crate::export::{Exports, Fetching, KnownBases, Terms};
use crate::pulls::Pulls;
use crate::transfer::roots::Roots;
use crate::wiring::{self, Outlet};

/// Starts the engine and its service. Whoever gets the adapter shuts it down.
pub async fn adapter(config: &Config, outlet: &Outlet, callers: Callers) -> Result<Adapter> {
    let policy = Policy { secrets: outlet.secrets(config)?, ..wiring::policy(config)? };
    for secret in policy.secrets.iter().filter(|secret| !secret.is_within(&policy.ceiling.network)) {
        tracing::warn!(secret = %secret.name, "no sandbox can use this secret: its hosts are beyond max_network");
    }
    // Before anything is started: a tool that is not there must not cost an engine.
    let catalog = Catalog::new(&policy, &config.server.selection)?;
    let host_files: Option<Arc<dyn HostFiles>> = match config.server.opened.as_slice() {
        [] => None,
        opened => Some(Arc::new(Roots::open(opened)?)),
    };
    let images: Option<Arc<dyn ImageSource>> = match (config.engine, config.registries.pull) {
        (EngineChoice::Native, Pull::Missing) => Some(Arc::new(Pulls::new(config)?)),
        (EngineChoice::Docker | EngineChoice::Podman | EngineChoice::Kubernetes, _) | (_, Pull::Never) => None,
    };
    let policy = Arc::new(policy);
    let service = wiring::server_service(config, outlet).await?;
    let exporter: Option<Arc<dyn Exporter>> = match config.engine {
        EngineChoice::Native => {
            // A base that is missing was fetched before, as images of sandboxes are.
            let (fetching, timeout) = (Fetching::Nothing, policy.longest_timeout);
            let terms = Terms { fetching, timeout, bases: KnownBases::OfPolicy(Arc::clone(&policy)) };
            Some(Arc::new(Exports::new(&service, config, terms)?))
        }
        EngineChoice::Docker | EngineChoice::Podman | EngineChoice::Kubernetes => None,
    };
    Ok(Adapter::new(Parts { service, catalog, policy, host_files, images, exporter, callers }))
}
