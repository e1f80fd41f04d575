//! `sandpen tools`: what a client of this server would see.

use clap::Args;
use sandbox::{Error, Result};
use serde::Serialize;
use serde_json::{Map, Value};
use tools::{Catalog, Tool};

use crate::cli::examples;
use crate::config::flags::ServerFlags;
use crate::config::{Config, Written};
use crate::exit::Exit;
use crate::mcp::setup;
use crate::output::{self, ADVICE, DIM};
use crate::table::{Align, Cell, Table};
use crate::wiring;

/// Show the tools that an MCP client would see
///
/// With the same settings as sandpen mcp and sandpen serve. --json prints names, descriptions, hints and both schemas.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("sandpen tools", "all of them"),
    ("sandpen tools run_code", "one of them, with its arguments"),
    ("sandpen tools --read-only", "what is left when nothing may be changed"),
    ("sandpen tools --json", "the schemas, for programs"),
]))]
pub struct Arguments {
    /// Show this tool alone, with its arguments
    tool: Option<String>,

    #[command(flatten)]
    server: ServerFlags,
}

impl Arguments {
    pub fn write_to(&self, written: &mut Written) {
        self.server.write_to(written);
    }
}

/// A tool in full, for programs.
#[derive(Debug, Serialize)]
struct ToolObject<'a> {
    name: &'a str,
    title: &'a str,
    description: &'a str,
    toolset: &'static str,
    read_only: bool,
    destructive: bool,
    idempotent: bool,
    open_world: bool,
    input_schema: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a Map<String, Value>>,
}

impl<'a> From<&'a Tool> for ToolObject<'a> {
    fn from(tool: &'a Tool) -> Self {
        Self {
            name: tool.name,
            title: tool.title,
            description: &tool.description,
            toolset: tool.toolset.as_str(),
            read_only: tool.hints.read_only,
            destructive: tool.hints.destructive,
            idempotent: tool.hints.idempotent,
            open_world: tool.hints.open_world,
            input_schema: &tool.input_schema,
            output_schema: tool.output_schema.as_ref(),
        }
    }
}

#[derive(Debug, Serialize)]
struct ToolList<'a> {
    tools: Vec<ToolObject<'a>>,
}

pub fn run(arguments: Arguments, config: Config) -> Result<Exit> {
    let config = config.serving()?;
    let catalog = setup::catalog(&config, &wiring::policy(&config)?)?;
    let shown: Vec<&Tool> = match &arguments.tool {
        None => catalog.tools().iter().collect(),
        Some(name) => vec![catalog.find(name).ok_or_else(|| unknown(&catalog, name))?],
    };
    if config.json {
        output::object(&ToolList { tools: shown.into_iter().map(ToolObject::from).collect() });
    } else if let (Some(_), [tool]) = (&arguments.tool, shown.as_slice()) {
        output::text(&in_full(tool));
    } else {
        let mut table = Table::new(&[("TOOL", Align::Left), ("SET", Align::Left), ("DOES", Align::Left)]);
        for tool in shown {
            let does =
                if tool.hints.read_only { format!("{} (changes nothing)", tool.title) } else { tool.title.to_owned() };
            table.push([Cell::styled(tool.name, ADVICE), Cell::styled(tool.toolset.as_str(), DIM), does.into()]);
        }
        output::text(&table.render());
    }
    Ok(Exit::SUCCESS)
}

fn unknown(catalog: &Catalog, name: &str) -> Error {
    let names: Vec<_> = catalog.tools().iter().map(|tool| tool.name).collect();
    let error = Error::not_found(format!("there is no tool {name:?} among those that would be offered"));
    match crate::suggest::nearest(name, names.iter().copied()) {
        Some(nearest) => error.with_hint(format!("did you mean {nearest}?")),
        None => error.with_hint(format!("there are {}", names.join(", "))),
    }
}

fn in_full(tool: &Tool) -> String {
    let mut text = format!("{ADVICE}{}{ADVICE:#}  {}\n\n{}\n\n", tool.name, tool.title, tool.description);
    let mut table = Table::new(&[("ARGUMENT", Align::Left), ("TYPE", Align::Left), ("MEANS", Align::Left)]);
    for argument in tool.arguments() {
        let name = if argument.required { format!("{} (needed)", argument.name) } else { argument.name.to_owned() };
        table.push([Cell::styled(name, ADVICE), Cell::styled(argument.kind, DIM), argument.description.into()]);
    }
    text += &table.render();
    text
}
