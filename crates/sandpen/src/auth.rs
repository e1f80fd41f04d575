//! Who asks over HTTP, and what they may: from a header to a principal.
//!
//! Lower layers know the owner alone. What a principal may do is decided here and at the edge of the tools; nothing below
//! asks again.

pub mod account;
pub mod doorkeeper;
pub mod keyring;
pub mod oauth;
pub mod scope;
pub mod server;
pub mod setup;
pub mod strangers;
pub mod token;

mod challenge;
mod followed;
mod guard;
mod watched;

use sandbox::Owner;

pub use self::challenge::{Insufficient, Unknown, challenge, insufficient_scope};
pub use self::guard::{Authentication, guard};
use self::scope::Scopes;

/// Whoever asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    pub owner: Owner,
    pub scopes: Scopes,
}

impl Principal {
    /// The person at the keyboard, who may do everything that this process may.
    pub fn local() -> Self {
        Self { owner: Owner::local(), scopes: Scopes::all() }
    }
}
