//! The way out of a sandbox.
//!
//! A sandbox's network has no route that leaves it. Whatever a program in it connects to lands on sockets that the engine
//! made inside that network and handed to us; we resolve, decide, dial the very address that was checked, and copy bytes.
//! So the walls are the kernel's, and the rules are here, in one place for every engine.
//!
//! Knows nothing of how a sandbox is built, and nothing of MCP.

mod activity;
mod address;
mod caps;
mod dial;
mod dns;
mod door;
mod explicit;
mod far;
mod forward;
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
mod grant;
mod hello;
mod inspect;
mod lan;
mod meter;
mod names;
#[cfg_attr(not(target_os = "linux"), path = "no_pipe.rs")]
mod pipe;
mod reach;
mod record;
mod relay;
mod request_line;
mod resolve;
mod responder;
mod rule;
mod screen;
mod secrets;
mod vhost;
mod worker;

pub use activity::Mark;
pub use address::is_public;
pub use far::{Arrival, Arrivals, Asked, Far};
pub use gateway::{Account, Door, Gateway, GatewaySettings, Sockets};
pub use grant::{Allowance, Grant, GuestFile, Pass};
#[cfg(feature = "weaken")]
pub use rule::Rule;
pub use secrets::{HeaderTemplate, Secret, SecretSource, SecretValue, SecretsFile, Vault};
