//! The interpreter of a language, to be started on a driver instead of on somebody's code.

use super::Runner;
use crate::context::ContextLanguage;
use crate::error::{Error, Result};

impl Runner {
    /// This runner with the ways alone that start the interpreter which the driver is written for.
    pub(crate) fn live(mut self, language: ContextLanguage) -> Result<Self> {
        let program = language.program();
        let is_it = |way: &Vec<String>| {
            way[0].rsplit('/').next().is_some_and(|name| name.starts_with(program))
                && way.iter().any(|argument| argument == "{file}")
        };
        self.run.retain(is_it);
        if self.run.is_empty() {
            return Err(Error::unsupported(format!("contexts of {} are run by {program} alone", self.title))
                .with_hint("leave context out: files stay between runs in one sandbox"));
        }
        self.file = language.file().to_owned();
        Ok(self)
    }
}
