//! MCP: the protocol around the tools, and its transports.
//!
//! The only place that names the MCP library. What leaves it, towards the tools and the service, is ours.

pub mod adapter;
pub mod customer;
pub mod http;
pub mod plain;
pub mod rights;
pub mod setup;
pub mod sse;
pub mod stdio;

mod answer;
mod connection;
#[cfg_attr(windows, path = "mcp/descriptors/windows.rs")]
mod descriptors;
mod era;
mod errors;
mod events;
#[cfg(feature = "conformance")]
mod fixtures;
mod guard;
mod ledger;
mod lines;
mod outbox;
mod progress;
mod refusal;
mod requests;
mod sessions;
mod subscriptions;
mod tasks;
mod wire;

/// What a transport serves in each of its sessions.
#[cfg(not(feature = "conformance"))]
pub fn sessions(adapter: adapter::Adapter) -> impl Fn() -> adapter::Adapter + Clone {
    move || adapter.for_session()
}

/// What a transport serves in each of its sessions, with what the conformance suite needs besides.
#[cfg(feature = "conformance")]
pub fn sessions(adapter: adapter::Adapter) -> impl Fn() -> fixtures::Fixtures + Clone {
    let fixtures = fixtures::Fixtures::new(adapter);
    move || fixtures.for_session()
}

/// As the library calls itself in the log.
pub const LIBRARY: &str = "rmcp";
