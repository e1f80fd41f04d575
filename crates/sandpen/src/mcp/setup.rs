//! A server from settings, the same for every transport.

use std::sync::Arc;

use sandbox::Result;
use tools::{Catalog, Ceiling, Policy};

use super::adapter::{Adapter, Callers, Shared};
use crate::attach::Screen;
use crate::config::Config;
use crate::wiring;

/// Starts the engine and its service. Whoever gets the adapter shuts its service down.
pub async fn adapter(config: &Config, callers: Callers) -> Result<Adapter> {
    let policy = policy(config);
    // Before anything is started: a tool that is not there must not cost an engine.
    let catalog = Catalog::new(&policy, &config.server.selection)?;
    let service = wiring::server_service(config).await?;
    Ok(Adapter::new(Shared { service, catalog, policy: Arc::new(policy), host_files: None, callers }))
}

/// What the operator set is what a call gets that does not ask, and never less than what one may ask for.
fn policy(config: &Config) -> Policy {
    let sandbox = &config.sandbox;
    let mut policy = Policy {
        image: sandbox.image.clone(),
        limits: sandbox.limits,
        lifetime: sandbox.lifetime,
        environment: sandbox.environment.clone(),
        timeout: sandbox.timeout(Screen::Streams),
        ..Policy::default()
    };
    policy.longest_timeout = policy.longest_timeout.max(policy.timeout);
    let Ceiling { cpu_millis, memory, processes, disk } = policy.ceiling;
    policy.ceiling = Ceiling {
        cpu_millis: cpu_millis.max(policy.limits.cpu_millis),
        memory: memory.max(policy.limits.memory),
        processes: processes.max(policy.limits.processes),
        disk: disk.max(policy.limits.disk),
    };
    policy
}
