//! What the older server `mcp-code-runner` kept on its host: the files of its conversations, and the way to them.

pub mod downloads;
pub mod store;

pub use store::{Naming, Store};
