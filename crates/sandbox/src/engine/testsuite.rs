//! The behaviours that every engine must pass: the contract of [`crate::engine`], as programs.
//!
//! A case takes an engine, makes its own sandboxes and panics when something is not as promised. An engine's own test file
//! turns [`cases`] into tests of its harness, and shows those as ignored whose needs are not met. Commands are limited to what any POSIX system has.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::port::Connections;
use crate::tree::{Checkpoints, KeptTrees, Powers, Snapshots};

pub use network::Outside;

mod builders;
mod checkpoints;
mod execs;
mod expected;
mod files;
mod forks;
mod kernel;
mod life;
mod links;
mod network;
mod ports;
mod remembered;
mod roots;
mod saves;
mod subject;
mod tars;
mod terminals;
mod trees;

/// One behaviour.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// `group::behaviour`.
    pub name: &'static str,
    pub needs: Needs,
    run: fn(Arc<dyn Engine>, Given<'_>) -> CaseFuture,
}

/// What a case is given besides the engine.
#[derive(Clone, Copy)]
struct Given<'a> {
    outside: Option<&'a Outside>,
    powers: &'a Powers,
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
    /// Powers of the engine: see [`Case::lacks`] and [`Case::run_with_powers`].
    Snapshots,
    Checkpoints,
    Connections,
    /// Snapshots and kept trees.
    Trees,
    TreesAndCheckpoints,
    /// All of these, and sandboxes with [`Role::Builder`], which not everybody may make who may make others.
    ///
    /// [`Role::Builder`]: crate::Role::Builder
    Builder,
    /// Guests whose programs are root of their sandbox ([`Role::ImageUser`]), which not everybody can make either.
    ///
    /// [`Role::ImageUser`]: crate::Role::ImageUser
    Root,
    /// The same, with real processes and signals.
    RootOfProcesses,
    /// The same, with a root that may change files of the image, and all powers.
    RootOfTree,
}

impl Needs {
    /// Whether programs have to be root of their sandbox.
    pub fn root(self) -> bool {
        matches!(self, Self::Root | Self::RootOfProcesses | Self::RootOfTree)
    }
}

type CaseFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A case that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

impl Case {
    /// Panics when the engine does not keep the contract.
    pub async fn run(&self, engine: Arc<dyn Engine>) {
        self.run_with_powers(engine, &Powers::default()).await;
    }

    /// The same, for a case about networks.
    pub async fn run_with(&self, engine: Arc<dyn Engine>, outside: &Outside) {
        self.run_in_time((self.run)(engine, Given { outside: Some(outside), powers: &Powers::default() })).await;
    }

    /// The same, for a case about trees.
    pub async fn run_with_powers(&self, engine: Arc<dyn Engine>, powers: &Powers) {
        self.run_in_time((self.run)(engine, Given { outside: None, powers })).await;
    }

    /// Which power the case needs and the engine does not have.
    pub fn lacks(&self, powers: &Powers) -> Option<&'static str> {
        let Powers { snapshots, checkpoints, trees, connections } = powers;
        let needed: &[(bool, &'static str)] = match self.needs {
            Needs::Nothing
            | Needs::Kernel
            | Needs::Terminal
            | Needs::Network
            | Needs::Root
            | Needs::RootOfProcesses => &[],
            Needs::Snapshots => &[(snapshots.is_some(), "the engine cannot save and branch sandboxes")],
            Needs::Checkpoints => &[(checkpoints.is_some(), "the engine has no checkpoints")],
            Needs::Connections => &[(connections.is_some(), "the engine cannot connect to ports")],
            Needs::Trees => &[
                (snapshots.is_some(), "the engine cannot save and branch sandboxes"),
                (trees.is_some(), "the engine keeps no trees"),
            ],
            Needs::TreesAndCheckpoints | Needs::Builder | Needs::RootOfTree => &[
                (snapshots.is_some(), "the engine cannot save and branch sandboxes"),
                (checkpoints.is_some(), "the engine has no checkpoints"),
                (trees.is_some(), "the engine keeps no trees"),
            ],
        };
        needed.iter().find(|(has, _)| !has).map(|(_, lacking)| *lacking)
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
        expected::cases(),
        expected::kernel_cases(),
        files::cases(),
        links::cases(),
        tars::cases(),
        kernel::cases(),
        terminals::cases(),
        network::cases(),
        ports::cases(),
        saves::cases(),
        forks::cases(),
        checkpoints::cases(),
        trees::cases(),
        remembered::cases(),
        builders::cases(),
        roots::cases(),
        roots::kernel_cases(),
        roots::tree_cases(),
    ];
    groups.into_iter().flatten().collect()
}

/// An engine with its powers.
#[derive(Clone)]
struct Able {
    engine: Arc<dyn Engine>,
    powers: Powers,
}

impl Able {
    fn snapshots(&self) -> &dyn Snapshots {
        self.powers.snapshots.as_deref().expect("the case needs snapshots")
    }

    fn checkpoints(&self) -> &dyn Checkpoints {
        self.powers.checkpoints.as_deref().expect("the case needs checkpoints")
    }

    fn connections(&self) -> &dyn Connections {
        self.powers.connections.as_deref().expect("the case needs connections")
    }

    fn trees(&self) -> &dyn KeptTrees {
        self.powers.trees.as_deref().expect("the case needs kept trees")
    }
}

/// The cases of one file, under the name of its group.
macro_rules! suite {
    ($group:literal, $needs:ident: $($name:ident),+ $(,)?) => {
        $crate::engine::testsuite::suite! { cases, $group, $needs: $($name),+ }
    };
    ($cases:ident, $group:literal, $needs:ident: $($name:ident),+ $(,)?) => {
        pub(super) fn $cases() -> Vec<$crate::engine::testsuite::Case> {
            vec![$($crate::engine::testsuite::Case {
                name: concat!($group, "::", stringify!($name)),
                needs: $crate::engine::testsuite::Needs::$needs,
                run: |engine, _| Box::pin($name(engine)),
            }),+]
        }
    };
}
use suite;

/// The same for cases that use powers.
macro_rules! suite_of_powers {
    ($group:literal, $needs:ident: $($name:ident),+ $(,)?) => {
        $crate::engine::testsuite::suite_of_powers! { cases, $group, $needs: $($name),+ }
    };
    ($cases:ident, $group:literal, $needs:ident: $($name:ident),+ $(,)?) => {
        pub(super) fn $cases() -> Vec<$crate::engine::testsuite::Case> {
            vec![$($crate::engine::testsuite::Case {
                name: concat!($group, "::", stringify!($name)),
                needs: $crate::engine::testsuite::Needs::$needs,
                run: |engine, given| {
                    let powers = given.powers.clone();
                    Box::pin($name($crate::engine::testsuite::Able { engine, powers }))
                },
            }),+]
        }
    };
}
use suite_of_powers;
