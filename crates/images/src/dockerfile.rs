//! Dockerfiles as data. Nothing is run here: stages with their instructions come out, or an error that names the line.
//!
//! Variables are filled in later, by a `Scope` that goes along with the instructions, because what one of them means
//! depends on those before it.

use std::fmt;

use serde_json::Value;

pub use self::ignore::Ignore;
pub use self::pattern::Pattern;
pub use self::scope::Scope;
use crate::error::{Error, Result};

mod expand;
mod health;
mod ignore;
mod instruction;
mod lines;
mod pattern;
mod scope;
mod words;

/// Longer than anything that people write.
const MAX_BYTES: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dockerfile {
    /// Those before the first stage, with their lines: only `FROM` sees their values, unless a stage asks for them by name.
    pub arguments: Vec<(usize, Assignment)>,
    /// In their order; each may use those before it.
    pub stages: Vec<Stage>,
    escape: char,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    pub line: usize,
    /// An image, an earlier stage, or `scratch`; variables are not filled in.
    pub from: String,
    pub platform: Option<String>,
    pub name: Option<String>,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub line: usize,
    /// As it was written, on one line.
    pub text: String,
    pub instruction: Instruction,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    Arg(Vec<Assignment>),
    Env(Vec<(String, String)>),
    Workdir(String),
    Copy(Transfer),
    Add(Transfer),
    Run(Command),
    User(String),
    Label(Vec<(String, String)>),
    Entrypoint(Command),
    Cmd(Command),
    Expose(Vec<String>),
    Volume(Vec<String>),
    Shell(Vec<String>),
    StopSignal(String),
    /// As the configuration has it.
    Healthcheck(Value),
    Maintainer(String),
}

/// A name, and the value it has unless the build is given another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub name: String,
    pub value: Option<String>,
}

/// Of `COPY` and `ADD`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// A stage, by name or number, or an image. `None` is the build context.
    pub from: Option<String>,
    pub chown: Option<String>,
    pub chmod: Option<String>,
    pub sources: Vec<String>,
    pub destination: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A line for the shell that is set at this point.
    Shell(String),
    /// A program and its arguments, as they are.
    Exec(Vec<String>),
}

impl Dockerfile {
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > MAX_BYTES {
            return Err(Error::LimitExceeded("a Dockerfile has more than a mebibyte".to_owned()));
        }
        let (escape, lines) = lines::read(text)?;
        let mut parsed = Self { arguments: Vec::new(), stages: Vec::new(), escape };
        for line in lines {
            match instruction::parse(&line, escape)? {
                instruction::Parsed::From { from, platform, name } => {
                    if name
                        .as_ref()
                        .is_some_and(|name| parsed.stages.iter().any(|stage| stage.name.as_ref() == Some(name)))
                    {
                        return Err(wrong(line.number, "a second stage has the same name"));
                    }
                    parsed.stages.push(Stage { line: line.number, from, platform, name, steps: Vec::new() });
                }
                instruction::Parsed::Step(instruction) => match (parsed.stages.last_mut(), instruction) {
                    (Some(stage), instruction) => {
                        stage.steps.push(Step { line: line.number, text: line.text, instruction });
                    }
                    (None, Instruction::Arg(arguments)) => {
                        parsed.arguments.extend(arguments.into_iter().map(|argument| (line.number, argument)));
                    }
                    (None, _) => return Err(wrong(line.number, "the first instruction is FROM, or ARG before it")),
                },
            }
        }
        if parsed.stages.is_empty() {
            return Err(Error::Invalid("the Dockerfile has no FROM".to_owned()));
        }
        Ok(parsed)
    }

    /// The number of a stage, by its name or number; the last one if none is asked for.
    pub fn stage(&self, target: Option<&str>) -> Result<usize> {
        let Some(target) = target else { return Ok(self.stages.len() - 1) };
        self.earlier_stage(target, self.stages.len())
            .ok_or_else(|| Error::NotFound(format!("the Dockerfile has no stage {target:?}")))
    }

    /// A stage among the first `before`, as `COPY --from` and `FROM` name it.
    pub fn earlier_stage(&self, name: &str, before: usize) -> Option<usize> {
        let by_name = |stage: &Stage| stage.name.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(name));
        let found = self.stages[..before].iter().position(by_name);
        found.or_else(|| name.parse().ok().filter(|number| *number < before))
    }
}

/// An error that names the line.
fn wrong(line: usize, why: impl fmt::Display) -> Error {
    Error::Invalid(format!("line {line} of the Dockerfile: {why}"))
}

#[cfg(test)]
#[path = "dockerfile_tests.rs"]
mod tests;
