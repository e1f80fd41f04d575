//! Languages as data: how code in each is started. Pure; the service does the starting.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::exec::TerminalSize;
use crate::path::GuestPath;
use crate::spec::Environment;

/// Code to run, as the service takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunCode {
    /// A runner's name or alias.
    pub language: String,
    pub code: Vec<u8>,
    pub arguments: Vec<String>,
    /// Overlays the sandbox's and the runner's.
    pub environment: Environment,
    /// The sandbox's work directory when not given.
    pub work_directory: Option<GuestPath>,
    pub terminal: Option<TerminalSize>,
    /// For the build step and the program together.
    pub timeout: Duration,
}

impl RunCode {
    pub fn new(language: impl Into<String>, code: impl Into<Vec<u8>>, timeout: Duration) -> Self {
        Self {
            language: language.into(),
            code: code.into(),
            arguments: Vec::new(),
            environment: Environment::default(),
            work_directory: None,
            terminal: None,
            timeout,
        }
    }
}

/// One language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runner {
    pub name: String,
    pub title: String,
    pub aliases: Vec<String>,
    /// Each a command that prints the version of one way to run the language; the first that exists counts.
    pub probes: Vec<Vec<String>>,
    /// The package that has it, per package manager: `apt`, `dnf`, `apk`, `brew`.
    pub install: Vec<(String, String)>,
    /// A published image that has it.
    pub image: Option<String>,
}

/// All languages: those that are built in, overlaid by an operator's.
#[derive(Clone, Debug)]
pub struct Runners {
    runners: Vec<Runner>,
}

impl Runners {
    /// Those of the embedded `runners.toml`.
    pub fn built_in() -> Self {
        Self { runners: Vec::new() }
    }

    /// Add or replace by name, from the text of a file of the same shape.
    pub fn overlaid_by(self, _text: &str) -> Result<Self> {
        Ok(self)
    }

    /// By name or alias, in any case. Unknown ones fail with the nearest names as hint.
    pub fn find(&self, language: &str) -> Result<&Runner> {
        self.iter()
            .find(|runner| runner.name == language)
            .ok_or_else(|| Error::not_found(format!("there is no language {language:?}")))
    }

    /// In the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Runner> {
        self.runners.iter()
    }
}
