//! Sandboxes as containers of somebody's Docker or Podman daemon.
//!
//! ```text
//! server ──(API: create, start, remove)──▶ daemon ──▶ container
//!    │                                       │           └─ process 1: ours, mounted read-only
//!    └──(one stream: its own, or `exec … bridge`)────────────▶ bridge ─▶ execs, terminals, files, deadline
//! ```
//!
//! - `connect` decides, as data, where the daemon may be; `client` talks to it, each call with its time-out.
//! - `translate` decides, as data, what a container is made of. What it says is what the daemon is asked for.
//! - `record` is what a container says of itself in its labels: everything that a later process must know.
//! - `image` finds, fetches and describes images; `agent_volume` brings process 1 to the daemon.
//! - `create`, `engine` and `recovery` implement the `Engine` contract, `pool` keeps containers ahead of demand,
//!   `snapshots` makes images of sandboxes, `kept` volumes of their trees, `runners` finds images that bring a language along.
//! - `network` carries what programs connect to from process 1 to the gateway, which lets it out or does not.
//!
//! Nothing here depends on sharing a kernel or a file system with the daemon, so remote ones and those in virtual machines
//! work as local ones do. Knows nothing of MCP or HTTP.

use std::fmt;

use sandbox::Result;

mod agent_volume;
mod altered;
mod ancestry;
mod attach;
mod bounded;
mod built;
mod carrier;
mod catalogue;
mod checkpoints;
mod client;
mod committed;
mod compare;
pub mod connect;
mod create;
mod demand;
mod disk;
mod ending;
mod engine;
mod exhausted;
mod export;
mod files;
mod image;
mod inside;
mod isolation;
mod joint;
mod keepsakes;
mod kept;
mod layer;
mod live;
mod names;
mod network;
mod observed;
mod places;
mod plain_archive;
mod podman;
mod pool;
mod ports;
mod pull;
mod pulls;
mod random;
mod reach;
mod record;
mod recovery;
mod reference;
mod runners;
mod seen;
mod shelf;
mod snapshots;
mod stopped;
mod translate;
mod tree_archive;
mod volume_mounts;

pub use built::BuiltImage;
pub use catalogue::DaemonImage;
pub use client::{Daemon, DaemonFacts};
pub use connect::Wish;
pub use engine::{DockerConfig, DockerEngine, Reopen};
pub use export::{ExportBase, ExportSource};
pub use pull::{PullProgress, PullWatcher};

/// Which of the two daemons; they speak almost the same language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    Docker,
    Podman,
}

impl Flavour {
    /// The word of `--engine`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    /// As its makers write it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        }
    }
}

/// Which images are asked of their registries because a sandbox wants them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fetch {
    /// Those that the daemon does not have.
    #[default]
    Missing,
    Never,
}

/// Who the user is to a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    Password {
        user: String,
        secret: String,
    },
    /// Something to get tokens with, instead of a password.
    Identity(String),
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

/// Where logins are looked up, when a registry may want one. May take its time.
pub trait Logins: fmt::Debug + Send + Sync {
    /// For this registry and no other, as Docker's client keeps it.
    fn find(&self, registry: &str) -> Result<Option<Login>>;
}
