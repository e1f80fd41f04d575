//! A context: an interpreter that stays, with its variables, between the runs in it.
//!
//! It is an exec like any other, of a small driver of ours in the language itself, so that every engine has it and nothing in
//! it has more rights than the code that it runs. See `service/context.rs` for how it is driven.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::exec::ExecStatus;
use crate::id::SandboxName;

pub(crate) mod marks;
pub(crate) mod results;

pub use results::{Display, Results, Shown};

/// What a context is called, in its sandbox.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextName(String);

impl ContextName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ContextName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // By the same rule as names of sandboxes, so that there is one to learn.
        text.parse::<SandboxName>().map(|name| Self(name.as_str().to_owned())).map_err(|_| {
            let shown: String = text.chars().take(40).collect();
            Error::invalid_input(format!("{shown:?} cannot be the name of a context"))
                .with_hint("use up to 63 lower-case letters, digits and inner hyphens, for example main")
        })
    }
}

impl fmt::Display for ContextName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Languages whose interpreters can stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContextLanguage {
    Python,
    JavaScript,
    TypeScript,
    Bash,
}

impl ContextLanguage {
    pub const ALL: [Self; 4] = [Self::Python, Self::JavaScript, Self::TypeScript, Self::Bash];

    /// By the name of a runner.
    pub fn of_runner(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|language| language.as_str() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|language| language.as_str()).collect();
            Error::unsupported(format!("code in {name} cannot be run in a context"))
                .with_hint(format!("contexts run {}; leave context out to run this", names.join(", ")))
        })
    }

    /// Its runner's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::Bash => "bash",
        }
    }

    /// How the programs are called that can run the driver.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript | Self::TypeScript => "node",
            Self::Bash => "bash",
        }
    }

    pub(crate) fn driver(self) -> &'static str {
        match self {
            Self::Python => {
                concat!(
                    include_str!("context/drivers/display.py"),
                    include_str!("context/drivers/branch.py"),
                    include_str!("context/drivers/python.py")
                )
            }
            Self::JavaScript | Self::TypeScript => include_str!("context/drivers/node.js"),
            Self::Bash => include_str!("context/drivers/bash.sh"),
        }
    }

    /// What the driver's file is called; only its ending matters.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Python => "driver.py",
            // Whatever the directory says of files without this ending.
            Self::JavaScript | Self::TypeScript => "driver.cjs",
            Self::Bash => "driver.sh",
        }
    }

    /// Started by a shell that gives it descriptors of its own, because it cannot make any.
    pub(crate) fn needs_descriptors(self) -> bool {
        match self {
            Self::JavaScript | Self::TypeScript => true,
            Self::Python | Self::Bash => false,
        }
    }

    /// Must succeed before an interpreter is taken: the rest of a command that begins with it.
    pub(crate) fn check(self) -> Option<[&'static str; 2]> {
        match self {
            Self::TypeScript => {
                Some(["-e", "process.exit(typeof require('node:module').stripTypeScriptTypes === 'function' ? 0 : 1)"])
            }
            // Behind a shell nobody else would see that it is missing.
            Self::JavaScript => Some(["-e", "0"]),
            Self::Python | Self::Bash => None,
        }
    }
}

impl fmt::Display for ContextLanguage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What bounds contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextSettings {
    /// Those that live in one sandbox.
    pub per_sandbox: usize,
    /// Runs that may wait for one context, the one that runs not counted.
    pub queue: usize,
}

impl Default for ContextSettings {
    fn default() -> Self {
        Self { per_sandbox: 32, queue: 16 }
    }
}

/// A context as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextInfo {
    pub name: ContextName,
    pub language: ContextLanguage,
    pub state: ContextState,
    /// Runs since it was started, the one that goes on among them.
    pub runs: u32,
    pub started_at: SystemTime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContextState {
    Idle,
    Running,
    /// Its variables are lost. The next run in it begins with none.
    Ended(ContextEnd),
}

/// Why a context is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextEnd {
    /// Its interpreter came to an end, by itself or killed.
    Ended(ExecStatus),
    /// A run did not stop when it was interrupted.
    NotInterrupted,
    /// What came from its driver was none of a driver's.
    Broken,
    /// Its sandbox was not used for its idle time, but something else ran there.
    Idle,
    Closed,
}

impl fmt::Display for ContextEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(ExecStatus::Exited(code)) => write!(f, "its interpreter exited with code {code}"),
            Self::Ended(ExecStatus::Signalled(signal)) => write!(f, "its interpreter was ended by signal {signal}"),
            Self::Ended(ExecStatus::OutOfMemory) => f.write_str("memory ran out and its interpreter was killed"),
            Self::Ended(ExecStatus::TimedOut | ExecStatus::Cancelled) => f.write_str("its interpreter was killed"),
            Self::Ended(ExecStatus::Killed) => f.write_str("its sandbox was stopped"),
            Self::NotInterrupted => f.write_str("its run did not stop when it was interrupted, and was killed"),
            Self::Broken => f.write_str("its code broke the way in which its interpreter is driven"),
            Self::Idle => f.write_str("it was not used for too long"),
            Self::Closed => f.write_str("it was closed"),
        }
    }
}

/// What a run in a context says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextReport {
    pub name: ContextName,
    /// Which run it was, since the context was started.
    pub run: u32,
    /// Why there is none of that name any more.
    pub ended: Option<ContextEnd>,
    /// Why the one before was lost, for the first run after that.
    pub lost: Option<ContextEnd>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_words() {
        assert!("main".parse::<ContextName>().is_ok() && "branch-2".parse::<ContextName>().is_ok());
        for text in ["", "A", "a b", "../x", "-", &"x".repeat(64)] {
            assert!(text.parse::<ContextName>().is_err(), "{text:?} was taken");
        }
        assert!("x".repeat(10_000).parse::<ContextName>().unwrap_err().message().len() < 200);
    }

    #[test]
    fn languages_are_those_of_runners() {
        let runners = crate::Runners::built_in();
        for language in ContextLanguage::ALL {
            assert_eq!(runners.find(language.as_str()).unwrap().name, language.as_str());
            assert!(runners.find(language.as_str()).unwrap().clone().live(language).is_ok());
        }
        assert!(ContextLanguage::of_runner("c").is_err());
    }
}
