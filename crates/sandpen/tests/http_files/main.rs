//! Files of sandboxes over HTTP: `/api/sandboxes/{id}/files`, `/uploads`, `/links`, and `/files/` for whoever has a link.
//!
//! The rows FU of the threat model are probes that judge whatever they are pointed at: this server, of which nothing may be
//! found, and a careless one, of which something must be. FU-11 has no probe: nothing is fetched from addresses.

#[path = "../support/mod.rs"]
mod support;

mod archives;
mod careless;
mod client;
mod content;
mod large;
mod links;
mod names;
mod plain;
mod quota;
mod scene;
mod tus;
mod whole;
