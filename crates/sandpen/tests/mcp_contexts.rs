//! `run_code` with `context` over MCP: interpreters that stay, what is kept in them, and what code can do to them.

mod support;

#[path = "mcp_contexts/branches.rs"]
mod branches;
#[path = "mcp_contexts/hostile.rs"]
mod hostile;
#[path = "mcp_contexts/lab.rs"]
mod lab;
#[path = "mcp_contexts/languages.rs"]
mod languages;
#[path = "mcp_contexts/life.rs"]
mod life;
#[path = "mcp_contexts/results.rs"]
mod results;
#[path = "mcp_contexts/single.rs"]
mod single;

macro_rules! needs_sandboxes {
    () => {
        if !crate::support::sandboxes_work() {
            return;
        }
    };
}
pub(crate) use needs_sandboxes;
