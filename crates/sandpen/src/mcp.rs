//! MCP: the protocol around the tools, and its transports.
//!
//! The only place that names the MCP library. What leaves it, towards the tools and the service, is ours.

pub mod adapter;
pub mod setup;
pub mod stdio;

mod answer;
mod era;
mod errors;
