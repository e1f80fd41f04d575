//! The embedded Linux engine.
//!
//! ```text
//! server ──(messages, descriptors)──▶ launcher      this program, re-executed: the only process that clones
//!    │                                   │
//!    └──(one channel per sandbox)──▶ init, process 1 ─ supervisors of execs, file workers
//! ```
//!
//! - `plan` decides, as data and without side effects, everything that will be done to build a sandbox.
//! - `launcher` carries out the host's half: ids, groups, the clone.
//! - `jail` carries out the child's half, a list of steps that ends in process 1.
//! - `init/` is process 1, a static program of its own. Exec is a message to it, kill is its death.
//! - `network` makes the sockets by which a sandbox gets out, from inside its own network; `door` hands them to the gateway.
//! - `pool` keeps sandboxes ahead of demand; `engine`, `create`, `process` and `files` are the server's side and implement the `Engine` contract.
//!
//! Only `syscall` has unsafe code. Nothing here knows of MCP or HTTP.

mod ahead;
mod base;
mod cgroup;
mod changed;
mod changes;
mod channel;
mod checkpoint;
mod client;
mod collect;
mod crash;
mod create;
mod door;
mod engine;
mod files;
mod fork;
mod hands;
mod history;
pub mod host;
mod ids;
mod image;
mod jail;
mod kept;
mod launcher;
mod layout;
mod live;
mod network;
mod pack;
mod places;
mod plan;
mod pool;
mod ports;
mod process;
mod record;
mod restart;
mod rights;
mod role;
mod running;
mod saved;
pub mod seccomp;
mod silence;
mod skeleton;
mod syscall;
mod terminal;
mod wire;

use agent::messages;

pub use engine::{NativeConfig, NativeEngine, Reopen};
pub use ids::FEWEST_SUBORDINATE as FEWEST_IDS_TO_BUILD;
pub use launcher::start_ahead as start_launcher_ahead;

/// Must be the first call of any program that uses this engine: in a launcher, and in hands that work on the store of
/// images with other ids, it never returns.
pub fn launcher_main_if_asked() {
    hands::main_if_asked();
    launcher::main_if_asked();
    hands::lend();
}

/// Whether images can be built here: sandboxes have ids for the owners of their files.
pub fn can_build() -> bool {
    let host = host::Host::detect();
    host.pool == Some(ids::Pool::System) || host.image_ids().is_some()
}

/// The named steps of making and ending a sandbox, in order.
pub fn steps() -> Vec<&'static str> {
    launcher::steps().chain(jail::steps()).chain(["clear-groups", "report-end"]).collect()
}

/// Those of the server when it puts another process 1 into a sandbox.
pub fn restart_steps() -> &'static [&'static str] {
    restart::STEPS
}

/// The inside, for fuzz targets.
#[cfg(feature = "weaken")]
pub mod inside {
    pub use crate::cgroup::{Controller, Leaf, Place, Setting, Version};
    pub use crate::image::{Bind, User, WorkDirectory};
    pub use crate::plan::{
        Directory, DirectoryOwner, Identity, Init, Landlock, Mount, Plan, Request, Resource, Rights, Rlimit, Root, plan,
    };
    pub use crate::skeleton::RootLayout;
    pub use crate::wire::{
        Exec, ExecEnd, FileFailure, FileOperation, FromExec, FromFile, FromInit, Kind, Stat, Terminal, ToExec, ToFile,
        ToInit,
    };
}
