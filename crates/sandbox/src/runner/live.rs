//! The interpreter of a language, to be started on a driver instead of on somebody's code.

use super::Runner;
use crate::context::ContextLanguage;
use crate::error::{Error, Result};

/// Requests on 3, copies of stdout and stderr on 4 and 5, nothing to read on 0.
const WITH_DESCRIPTORS: [&str; 3] = ["/bin/sh", "-c", "exec \"$0\" \"$@\" 3<&0 4>&1 5>&2 </dev/null"];

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
        self.check.clear();
        if language.needs_descriptors() {
            // One is enough: which program it is, the check cannot tell by that of the shell.
            let interpreter = self.run.swap_remove(0).swap_remove(0);
            let [shell, ..] = WITH_DESCRIPTORS;
            if let Some(rest) = language.check() {
                let check = [interpreter.as_str()].into_iter().chain(rest).map(str::to_owned).collect();
                self.check.insert(shell.to_owned(), check);
            }
            let way = WITH_DESCRIPTORS.into_iter().chain([interpreter.as_str(), "{file}"]);
            self.run = vec![way.map(str::to_owned).collect()];
        }
        self.file = language.file().to_owned();
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::Runners;

    fn ways(language: ContextLanguage) -> Vec<String> {
        let runner = Runners::built_in().find(language.as_str()).unwrap().clone().live(language).unwrap();
        runner.run.iter().map(|way| way.join(" ")).collect()
    }

    #[test]
    fn a_driver_is_started_by_the_interpreter_that_it_is_written_for() {
        assert_eq!(ways(ContextLanguage::Python), ["python3 {file}", "python {file}"]);
        assert_eq!(ways(ContextLanguage::Bash), ["bash {file}"]);
        for language in [ContextLanguage::JavaScript, ContextLanguage::TypeScript] {
            let [way] = ways(language).try_into().unwrap();
            assert!(way.starts_with("/bin/sh -c") && way.ends_with("node {file}"), "{way}");
        }
    }
}
