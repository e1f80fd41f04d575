//! OAuth: callers whom an authorization server vouches for, and what clients are told of such servers.
//!
//! The authorization server of our own is in `server.rs`; what is here works with anybody's.

pub mod address;
pub mod fetch;
pub mod issuer;
pub mod jwt;
pub mod metadata;
pub mod site;
pub mod subject;

mod jose;
