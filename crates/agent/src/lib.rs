//! Process 1 of every sandbox as a program to carry along, and the way to it over one stream of bytes.
//!
//! ```text
//! server ══(frames over any stream of bytes)══▶ bridge ──(messages, descriptors)──▶ process 1 ─ supervisors, file workers
//!        └─ may be far away ─┘                  └────────────── inside of the sandbox ──────────────┘
//! ```
//!
//! The embedded engine talks to process 1 directly. Engines that have their sandboxes made by somebody else's daemon start
//! a bridge inside, which is the same program ([`Hosted`]), and open a [`Connection`] over whatever the daemon gives them. So an exec
//! costs a message, nothing depends on a kernel or a file system in common, and several servers can each have a
//! connection to the same sandbox.
//!
//! - `messages` is what is said to process 1; `execs` and `filework` translate it to and from the domain, for every engine.
//! - `frame` is how it travels; `mux` and `lane` keep the conversations apart and hold each to its window, `carry` moves the bytes.
//!
//! No system call is made in here: this is to be built wherever a server runs.

mod carry;
mod channel;
mod connection;
pub mod dial;
mod entrance;
mod errno;
pub mod execs;
mod files;
pub mod filework;
pub mod frame;
mod hosted;
mod lane;
pub mod messages;
mod mux;
#[cfg(test)]
mod mux_tests;
mod process;
pub mod stream;

pub use connection::{Connection, Frozen, Measured, Watcher};
pub use dial::Dialled;
pub use entrance::{Arrival, Question};
pub use files::AgentFiles;
pub use hosted::{Hosted, HostedNetwork, HostedRest, HostedRole, HostedStreams};
pub use messages::{KEPT_DIRECTORY, KeptExit, PROGRAM_DIRECTORY};

/// Process 1: a static program for Linux, which an image needs nothing for.
pub static PROGRAM: &[u8] = include_bytes!(env!("SANDPEN_INIT"));

/// One for each build of [`PROGRAM`], so that two versions can use one directory.
pub const PROGRAM_HASH: &str = env!("SANDPEN_INIT_HASH");
