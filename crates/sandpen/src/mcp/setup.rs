//! A server from settings, the same for every transport.

use std::sync::Arc;

use sandbox::Result;
use tools::{Catalog, HostFiles};

use super::adapter::{Adapter, Callers, Parts};
use crate::config::Config;
use crate::transfer::roots::Roots;
use crate::wiring;

/// Starts the engine and its service. Whoever gets the adapter shuts it down.
pub async fn adapter(config: &Config, callers: Callers) -> Result<Adapter> {
    let policy = wiring::policy(config)?;
    // Before anything is started: a tool that is not there must not cost an engine.
    let catalog = Catalog::new(&policy, &config.server.selection)?;
    let host_files: Option<Arc<dyn HostFiles>> = match config.server.opened.as_slice() {
        [] => None,
        opened => Some(Arc::new(Roots::open(opened)?)),
    };
    let service = wiring::server_service(config).await?;
    Ok(Adapter::new(Parts { service, catalog, policy: Arc::new(policy), host_files, callers }))
}
