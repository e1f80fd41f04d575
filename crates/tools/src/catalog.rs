//! Our tools, in the order in which they are shown.

use sandbox::Result;

use crate::policy::Policy;
use crate::select::Selection;
use crate::tool::Tool;

mod create_sandbox;
mod delete_file;
mod list_files;
mod list_sandboxes;
mod read_file;
mod stop_sandbox;
mod target;
mod write_file;

/// The tools that this server has.
#[derive(Debug)]
pub struct Catalog {
    tools: Vec<Tool>,
}

impl Catalog {
    pub fn new(policy: &Policy, selection: &Selection) -> Result<Self> {
        let mut tools = all(policy);
        selection.check(&tools)?;
        tools.retain(|tool| selection.has(tool));
        Ok(Self { tools })
    }

    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    pub fn find(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}

fn all(policy: &Policy) -> Vec<Tool> {
    vec![
        create_sandbox::tool(policy),
        list_sandboxes::tool(),
        stop_sandbox::tool(),
        read_file::tool(),
        write_file::tool(),
        list_files::tool(),
        delete_file::tool(),
    ]
}
