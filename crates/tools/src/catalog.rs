//! Our tools, in the order in which they are shown.

use std::sync::Arc;

use sandbox::{Error, Result};
use serde_json::{Map, Value};

use crate::policy::Policy;
use crate::profile::Profile;
use crate::select::Selection;
use crate::tool::Tool;

mod copy_files;
pub(crate) mod create_sandbox;
mod delete_file;
mod delete_image;
mod describe_environment;
mod diff_sandbox;
pub(crate) mod export_dockerfile;
mod expose_port;
mod fork_context;
mod fork_sandbox;
pub(crate) mod get_job;
mod list_files;
mod list_sandboxes;
mod manage_contexts;
mod news;
mod read_file;
mod restore_sandbox;
pub(crate) mod run;
pub(crate) mod run_code;
mod run_command;
mod save_sandbox;
mod stop_job;
mod stop_sandbox;
mod target;
mod write_file;

/// The tools that this server has.
#[derive(Debug)]
pub struct Catalog {
    tools: Vec<Tool>,
    /// None: they are ours.
    profile: Option<Arc<dyn Profile>>,
}

impl Catalog {
    pub fn new(policy: &Policy, selection: &Selection) -> Result<Self> {
        Self::chosen(all(policy), &[copy_files::NAME], selection, None)
    }

    /// The tools of an older server.
    pub fn of_profile(profile: Arc<dyn Profile>, policy: &Policy, selection: &Selection) -> Result<Self> {
        Self::chosen(Arc::clone(&profile).tools(policy), &[], selection, Some(profile))
    }

    /// `absent`: names of tools that are not there for another reason.
    fn chosen(
        mut tools: Vec<Tool>,
        absent: &[&str],
        selection: &Selection,
        profile: Option<Arc<dyn Profile>>,
    ) -> Result<Self> {
        let names: Vec<_> = tools.iter().map(|tool| tool.name).chain(absent.iter().copied()).collect();
        selection.check(&names)?;
        tools.retain(|tool| selection.has(tool));
        if tools.is_empty() {
            return Err(Error::invalid_input("with these settings no tool is left")
                .with_hint("name fewer of --toolsets, --tools, --exclude-tools and --read-only"));
        }
        Ok(Self { tools, profile })
    }

    /// Whose tools they are, when not ours.
    pub fn profile(&self) -> Option<&dyn Profile> {
        self.profile.as_deref()
    }

    /// The tool whose input schema names languages, with that schema where code can be in others now than at the start.
    pub fn with_languages(&self, languages: Vec<String>) -> Option<(&'static str, Map<String, Value>)> {
        let tool = self.find(run_code::NAME)?;
        let said = &tool.input_schema["properties"][run_code::LANGUAGE]["enum"];
        if said.as_array().is_some_and(|said| said.iter().eq(&languages)) {
            return None;
        }
        Some((tool.name, tool.schema_with(run_code::LANGUAGE, "enum", languages)))
    }

    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    pub fn find(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}

/// Without a place of the host that is open there is nothing to copy, and no tool for it.
fn all(policy: &Policy) -> Vec<Tool> {
    let copy_files = (!policy.roots.is_empty()).then(|| copy_files::tool(policy));
    let mut tools = vec![
        run_code::tool(policy),
        run_command::tool(policy),
        manage_contexts::tool(),
        fork_context::tool(),
        create_sandbox::tool(policy),
        list_sandboxes::tool(),
        stop_sandbox::tool(),
        read_file::tool(),
        write_file::tool(),
        list_files::tool(),
        delete_file::tool(),
    ];
    tools.extend(copy_files);
    tools.extend([
        get_job::tool(),
        stop_job::tool(),
        expose_port::tool(),
        save_sandbox::tool(),
        delete_image::tool(),
        fork_sandbox::tool(),
        diff_sandbox::tool(),
        restore_sandbox::tool(),
        export_dockerfile::tool(),
        describe_environment::tool(),
    ]);
    tools
}
