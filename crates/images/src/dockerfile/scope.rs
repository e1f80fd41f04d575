//! What variables mean at one point of a stage.

use std::collections::BTreeMap;

use super::expand::expand;
use super::words::split;
use super::{Assignment, Dockerfile, Instruction, Stage, Step, Transfer, wrong};
use crate::error::Result;
use crate::platform::Platform;

/// Goes along with the steps of one stage.
#[derive(Clone, Debug)]
pub struct Scope {
    escape: char,
    /// What the build was given, whether anything asks for it or not.
    given: BTreeMap<String, String>,
    /// Arguments from before the first stage.
    global: BTreeMap<String, String>,
    arguments: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
}

impl Scope {
    /// Before the first stage: what `FROM` lines see.
    pub fn new(dockerfile: &Dockerfile, given: BTreeMap<String, String>) -> Result<Self> {
        let escape = dockerfile.escape;
        let nothing = BTreeMap::new;
        let mut scope = Self { escape, given, global: platforms(), arguments: nothing(), environment: nothing() };
        for (line, argument) in &dockerfile.arguments {
            let value = scope.value_of(argument, |value| scope.expand_global(value, *line))?;
            scope.global.extend(value.map(|value| (argument.name.clone(), value)));
        }
        Ok(scope)
    }

    /// What a stage starts from, with variables filled in.
    pub fn from(&self, stage: &Stage) -> Result<String> {
        let from = self.expand_global(&stage.from, stage.line)?;
        if from.is_empty() {
            return Err(wrong(stage.line, format!("FROM {} means nothing", stage.from)));
        }
        Ok(from)
    }

    /// The machine that a stage asks for, with variables filled in.
    pub fn platform(&self, stage: &Stage) -> Result<Option<String>> {
        stage.platform.as_ref().map(|platform| self.expand_global(platform, stage.line)).transpose()
    }

    /// Inside a stage, whose base has this environment, `NAME=value` each.
    #[must_use]
    pub fn enter(&self, environment: &[String]) -> Self {
        let pairs = environment.iter().filter_map(|pair| pair.split_once('='));
        let environment = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { arguments: BTreeMap::new(), environment, ..self.clone() }
    }

    /// The instruction of a step with variables filled in; from here on they mean what it says.
    pub fn resolve(&mut self, step: &Step) -> Result<Instruction> {
        let line = step.line;
        Ok(match &step.instruction {
            Instruction::Arg(arguments) => {
                for argument in arguments {
                    let value = self.value_of(argument, |value| self.expand(value, line))?;
                    let value = value.or_else(|| self.global.get(&argument.name).cloned());
                    self.arguments.extend(value.map(|value| (argument.name.clone(), value)));
                }
                Instruction::Arg(arguments.clone())
            }
            Instruction::Env(pairs) => {
                // All values mean what the variables were before the line.
                let pairs = self.pairs(pairs, line)?;
                self.environment.extend(pairs.iter().cloned());
                Instruction::Env(pairs)
            }
            Instruction::Label(pairs) => Instruction::Label(self.pairs(pairs, line)?),
            Instruction::Workdir(path) => Instruction::Workdir(self.needed(path, "WORKDIR", line)?),
            Instruction::User(user) => Instruction::User(self.needed(user, "USER", line)?),
            Instruction::StopSignal(signal) => Instruction::StopSignal(self.needed(signal, "STOPSIGNAL", line)?),
            Instruction::Copy(transfer) => Instruction::Copy(self.transfer(transfer, line)?),
            Instruction::Add(transfer) => Instruction::Add(self.transfer(transfer, line)?),
            Instruction::Expose(ports) => {
                let ports = self.all(ports, line)?;
                Instruction::Expose(ports.iter().flat_map(|port| split(port, self.escape)).collect())
            }
            Instruction::Volume(paths) => Instruction::Volume(self.all(paths, line)?),
            // The shell knows variables itself, and a program's arguments are what they are.
            Instruction::Run(command) => Instruction::Run(command.clone()),
            Instruction::Entrypoint(command) => Instruction::Entrypoint(command.clone()),
            Instruction::Cmd(command) => Instruction::Cmd(command.clone()),
            Instruction::Shell(words) => Instruction::Shell(words.clone()),
            Instruction::Healthcheck(check) => Instruction::Healthcheck(check.clone()),
            Instruction::Maintainer(name) => Instruction::Maintainer(self.expand(name, line)?),
        })
    }

    /// What a `RUN` starts with, arguments included, which the image does not keep.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let mut all = self.arguments.clone();
        all.extend(self.environment.clone());
        all
    }

    /// What was given and nobody asked for, which is often a mistake in a name.
    pub fn unknown<'a>(&'a self, dockerfile: &'a Dockerfile) -> impl Iterator<Item = &'a str> {
        let in_stages =
            dockerfile.stages.iter().flat_map(|stage| &stage.steps).filter_map(|step| match &step.instruction {
                Instruction::Arg(arguments) => Some(arguments),
                _ => None,
            });
        let global = dockerfile.arguments.iter().map(|(_, argument)| argument);
        let known: Vec<&str> = in_stages.flatten().chain(global).map(|argument| argument.name.as_str()).collect();
        self.given.keys().map(String::as_str).filter(move |name| !known.contains(name))
    }

    fn value_of(&self, argument: &Assignment, expand: impl Fn(&str) -> Result<String>) -> Result<Option<String>> {
        if let Some(given) = self.given.get(&argument.name) {
            return Ok(Some(given.clone()));
        }
        argument.value.as_deref().map(expand).transpose()
    }

    fn transfer(&self, transfer: &Transfer, line: usize) -> Result<Transfer> {
        let optional = |value: &Option<String>| value.as_ref().map(|value| self.expand(value, line)).transpose();
        Ok(Transfer {
            // Docker fills in nothing here: which stages there are must be known beforehand.
            from: transfer.from.clone(),
            chown: optional(&transfer.chown)?,
            chmod: optional(&transfer.chmod)?,
            sources: self.all(&transfer.sources, line)?,
            destination: self.needed(&transfer.destination, "the place to copy to", line)?,
        })
    }

    fn pairs(&self, pairs: &[(String, String)], line: usize) -> Result<Vec<(String, String)>> {
        let expanded = |(name, value): &(String, String)| Ok((self.expand(name, line)?, self.expand(value, line)?));
        pairs.iter().map(expanded).collect()
    }

    fn all(&self, words: &[String], line: usize) -> Result<Vec<String>> {
        words.iter().map(|word| self.expand(word, line)).collect()
    }

    fn needed(&self, word: &str, what: &str, line: usize) -> Result<String> {
        let value = self.expand(word, line)?;
        if value.is_empty() { Err(wrong(line, format!("{what} is empty"))) } else { Ok(value) }
    }

    fn expand(&self, word: &str, line: usize) -> Result<String> {
        let look_up = |name: &str| self.environment.get(name).or_else(|| self.arguments.get(name)).cloned();
        expand(word, self.escape, &look_up).map_err(|why| wrong(line, why))
    }

    fn expand_global(&self, word: &str, line: usize) -> Result<String> {
        expand(word, self.escape, &|name| self.global.get(name).cloned()).map_err(|why| wrong(line, why))
    }
}

/// Arguments that are there unasked, before the first stage: a build is for the machine that it runs on.
fn platforms() -> BTreeMap<String, String> {
    let machine = Platform::host();
    let variant = machine.variant.clone().unwrap_or_default();
    let parts =
        [("PLATFORM", machine.to_string()), ("OS", machine.os), ("ARCH", machine.architecture), ("VARIANT", variant)];
    let both =
        |(part, value): &(&str, String)| ["BUILD", "TARGET"].map(|side| (format!("{side}{part}"), value.clone()));
    parts.iter().flat_map(both).collect()
}
