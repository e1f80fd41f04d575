//! A server that is told to look at its settings again, or to end.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex};

use sandbox::{Bounds, Signal};
use tokio::time::timeout;

use crate::auth::server::oidc::Provider;
use crate::config::{Config, Key, Reread};
use crate::http::drain::{Drain, GRACE};
use crate::limits::Turnstile;
use crate::mcp::setup::Server;
use crate::mcp::stdio::Ending;
use crate::service_manager::{self, Condition};
use crate::signals::{Heard, Signals};
use crate::wiring::Outlet;

/// All that follows the file of settings.
pub struct Reload<'a> {
    /// As they are in force.
    pub config: Mutex<Config>,
    pub server: &'a Server,
    pub outlet: &'a Outlet,
    pub turnstile: Turnstile,
    pub provider: Option<Arc<Provider>>,
}

impl Reload<'_> {
    /// All that can change at once, or nothing.
    fn reload(&self) {
        let mut current = self.config.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let reread = current.reread().and_then(|reread| self.server.reload(&reread.config).map(|()| reread));
        let Reread { config, later } = match reread {
            Ok(reread) => reread,
            Err(error) => {
                tracing::error!(?error, "the settings were not read again, and those before stay in force");
                return;
            }
        };
        let usual = config.usual_limits();
        let owners = config.limits_of_owners();
        let quotas = owners.iter().map(|(owner, limits)| (owner.clone(), limits.quota)).collect();
        self.server.service().set_bounds(Bounds { usual: usual.quota, of: quotas });
        let networks = owners.into_iter().map(|(owner, limits)| (owner, limits.network)).collect();
        self.outlet.gateway.set_allowances(usual.network, networks);
        self.turnstile.set(&config);
        if let Some(provider) = &self.provider {
            provider.follow(&config.oauth);
        }
        *current = config;
        if !later.is_empty() {
            let keys = later.into_iter().map(Key::name).collect::<Vec<_>>().join(", ");
            tracing::warn!(keys, "these settings have changed and need a restart");
        }
        tracing::info!("the settings were read again");
    }

    /// From the first signal on: finish what goes on, unless it takes too long or somebody insists.
    pub async fn end(&self, signals: &mut Signals, drain: &Drain) -> Ending {
        self.told_to_end(signals).await;
        service_manager::tell(Condition::Stopping);
        drain.begin();
        let ending = tokio::select! {
            _ = timeout(GRACE, drain.idle()) => Ending::Orderly,
            signal = self.told_to_end(signals) => Ending::Forced(signal),
        };
        drain.finish();
        ending
    }

    async fn told_to_end(&self, signals: &mut Signals) -> Signal {
        // A terminal that goes away says so by the signal that tells others to look at their settings.
        let has_terminal = std::io::stdin().is_terminal() || std::io::stderr().is_terminal();
        loop {
            match signals.next().await {
                Heard::End(Signal::HangUp) if cfg!(unix) && !has_terminal => self.reload(),
                Heard::End(signal) => return signal,
                Heard::Resized => {}
            }
        }
    }
}
