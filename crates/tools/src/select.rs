//! Which tools are there: chosen once by the operator, the same for every client and every moment.

use std::str::FromStr;

use sandbox::{Error, Result};

use crate::tool::Tool;

/// Tools that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toolset {
    Run,
    Sandboxes,
    Files,
    Jobs,
    Snapshots,
    Environment,
}

impl Toolset {
    pub const ALL: [Self; 6] =
        [Self::Run, Self::Sandboxes, Self::Files, Self::Jobs, Self::Snapshots, Self::Environment];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Sandboxes => "sandboxes",
            Self::Files => "files",
            Self::Jobs => "jobs",
            Self::Snapshots => "snapshots",
            Self::Environment => "environment",
        }
    }
}

impl FromStr for Toolset {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|toolset| toolset.as_str() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|toolset| toolset.as_str()).collect();
            Error::invalid_input(format!("there is no toolset {text:?}"))
                .with_hint(format!("the toolsets are {} and all", names.join(", ")))
        })
    }
}

/// What the operator wants listed. Empty lists mean no opinion; each later one narrows what the earlier let through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub toolsets: Vec<Toolset>,
    /// In addition to the toolsets, or alone when there are none.
    pub tools: Vec<String>,
    pub exclude: Vec<String>,
    /// Wins over everything: only tools that change nothing.
    pub read_only: bool,
}

impl Selection {
    pub fn has(&self, tool: &Tool) -> bool {
        let named = |names: &[String]| names.iter().any(|name| name == tool.name);
        let everything = self.toolsets.is_empty() && self.tools.is_empty();
        (everything || self.toolsets.contains(&tool.toolset) || named(&self.tools))
            && !named(&self.exclude)
            && (tool.hints.read_only || !self.read_only)
    }

    /// A name that means no tool is a mistake that would otherwise stay unseen.
    pub fn check(&self, names: &[&str]) -> Result<()> {
        match self.tools.iter().chain(&self.exclude).find(|name| !names.contains(&name.as_str())) {
            None => Ok(()),
            Some(unknown) => Err(Error::invalid_input(format!("there is no tool {unknown:?}"))
                .with_hint(format!("the tools are {}", names.join(", ")))),
        }
    }
}
