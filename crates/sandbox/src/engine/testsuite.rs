//! The behaviours that every engine must pass: the contract of [`crate::engine`], as programs.
//!
//! A case takes an engine, makes its own sandboxes and panics when something is not as promised. An engine's own test file
//! turns [`cases`] into tests of its harness. Commands are limited to what any POSIX system has.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;

pub use network::Outside;

mod execs;
mod files;
mod kernel;
mod life;
mod links;
mod network;
mod subject;
mod tars;
mod terminals;

/// One behaviour.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// `group::behaviour`.
    pub name: &'static str,
    pub needs: Needs,
    run: fn(Arc<dyn Engine>, Option<&Outside>) -> CaseFuture,
}

/// What a case asks of an engine beyond the contract. One that lacks it skips the case by name, and says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// Real processes, memory and signals.
    Kernel,
    Terminal,
    /// A network that is held to what was given, and something outside: see [`Case::run_with`].
    Network,
}

type CaseFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A case that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

impl Case {
    /// Panics when the engine does not keep the contract.
    pub async fn run(&self, engine: Arc<dyn Engine>) {
        self.run_in_time((self.run)(engine, None)).await;
    }

    /// The same, for a case about networks.
    pub async fn run_with(&self, engine: Arc<dyn Engine>, outside: &Outside) {
        self.run_in_time((self.run)(engine, Some(outside))).await;
    }

    async fn run_in_time(&self, case: CaseFuture) {
        if tokio::time::timeout(PATIENCE, case).await.is_err() {
            panic!("{} did not end within {PATIENCE:?}", self.name);
        }
    }
}

pub fn cases() -> Vec<Case> {
    let groups = [
        life::cases(),
        execs::cases(),
        files::cases(),
        links::cases(),
        tars::cases(),
        kernel::cases(),
        terminals::cases(),
        network::cases(),
    ];
    groups.into_iter().flatten().collect()
}

/// The cases of one file, under the name of its group.
macro_rules! suite {
    ($group:literal, $needs:ident: $($name:ident),+ $(,)?) => {
        pub(super) fn cases() -> Vec<$crate::engine::testsuite::Case> {
            vec![$($crate::engine::testsuite::Case {
                name: concat!($group, "::", stringify!($name)),
                needs: $crate::engine::testsuite::Needs::$needs,
                run: |engine, _| Box::pin($name(engine)),
            }),+]
        }
    };
}
use suite;
