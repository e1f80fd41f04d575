//! MCP: the protocol around the tools, and its transports.
//!
//! The only place that names the MCP library. What leaves it, towards the tools and the service, is ours.

pub mod adapter;
pub mod customer;
pub mod http;
pub mod setup;
pub mod sse;
pub mod stdio;

mod answer;
mod connection;
mod era;
mod errors;
mod events;
mod guard;
mod ledger;
mod lines;
mod outbox;
mod progress;
mod refusal;
mod sessions;
mod subscriptions;
mod tasks;
mod wire;

/// What a transport serves in each of its sessions.
pub fn sessions(adapter: adapter::Adapter) -> impl Fn() -> adapter::Adapter + Clone {
    move || adapter.for_session()
}
