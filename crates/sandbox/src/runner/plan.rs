//! From a language and code to a file and commands.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Place, RunCode, Runner, head};
use crate::error::{Error, Result};
use crate::exec::{ExecRequest, Prelude, Script, TerminalSize};
use crate::id::SandboxId;
use crate::image::Image;
use crate::path::GuestPath;
use crate::spec::{Environment, Expected};

const CODE_PREFIX: &str = ".run-";

/// Whether a file of this name is the code of some run, put there by a plan.
pub fn is_code_of_a_run(name: &[u8]) -> bool {
    name.starts_with(CODE_PREFIX.as_bytes())
}

/// Everything that must be done to run one piece of code.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub file: GuestPath,
    pub code: Vec<u8>,
    pub build: Option<Step>,
    pub run: Step,
    /// What is left in the sandbox for nobody's use afterwards.
    pub leftover: GuestPath,
    /// Whether the file's directory is the plan's own and must be made.
    pub makes_directory: bool,
    /// Where the run leaves what it displays, if that is asked for and can be.
    pub displays: Option<GuestPath>,
}

/// One command, in several ways; the first whose program exists is taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    ways: Vec<Vec<String>>,
    check: BTreeMap<String, Vec<String>>,
    environment: Environment,
    work_directory: Option<GuestPath>,
    terminal: Option<TerminalSize>,
    prelude: Option<Prelude>,
    title: String,
    remedy: Option<String>,
}

/// One way to do a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    pub request: ExecRequest,
    /// Must succeed first, once per image.
    pub check: Option<ExecRequest>,
}

/// What else is run in the sandbox of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// Others too, perhaps at the same time: they must not write to the same file.
    Many,
    /// Nothing. The file is called the same each time, so that it can be known before.
    One,
}

const ONLY_TOKEN: &str = "only";
/// Modules that are imported ahead, for one kind of run.
const MOST_MODULES: usize = 8;

impl Runner {
    /// `directory` is the sandbox's own work directory.
    pub fn plan(&self, run: &RunCode, directory: &GuestPath, runs: Runs) -> Result<Plan> {
        match runs {
            Runs::Many => {
                let random = SandboxId::random()?;
                self.plan_named(run, directory, &random.as_str()["sb-".len()..][..8])
            }
            Runs::One => self.plan_named(run, directory, ONLY_TOKEN),
        }
    }

    /// What the only run of a sandbox will start, when that can be begun before the code is known, and no word of its
    /// caller is in it.
    pub fn expected(&self, run: &RunCode) -> Option<Expected> {
        let RunCode {
            language: _,
            code,
            arguments,
            environment,
            work_directory,
            terminal,
            timeout: _,
            context,
            displays: _,
        } = run;
        let as_usual = context.is_none()
            && arguments.is_empty()
            && *environment == Environment::default()
            && work_directory.is_none()
            && terminal.is_none()
            && code.len() <= Script::MAX_BYTES;
        let warm = self.warm.as_ref().filter(|_| as_usual)?;
        let first_lines = code.splitn(3, |byte| *byte == b'\n').take(2);
        let has = |line: &[u8], word: &String| line.windows(word.len()).any(|window| window == word.as_bytes());
        if first_lines.into_iter().any(|line| warm.not_with.iter().any(|word| has(line, word))) {
            return None;
        }
        let (_, argv) = self.run.first()?.split_last()?;
        let script = self.file_name(ONLY_TOKEN);
        let prelude = self.prelude(run, ONLY_TOKEN).ok()?;
        Some(Expected { argv: argv.to_vec(), script, environment: self.environment.clone(), prelude })
    }

    /// A directory that nobody else uses, for the run of this token.
    fn scratch(token: &str) -> Result<GuestPath> {
        format!("/tmp/{CODE_PREFIX}{token}").parse()
    }

    fn prelude(&self, run: &RunCode, token: &str) -> Result<Option<Prelude>> {
        let Some(interpreter) = self.prelude.filter(|_| run.terminal.is_none()) else { return Ok(None) };
        let modules = match &self.warm {
            Some(warm) if token == ONLY_TOKEN => head::modules(&run.code, &warm.modules, &warm.after, MOST_MODULES),
            Some(_) | None => Vec::new(),
        };
        Ok(interpreter.prelude(&Self::scratch(token)?, &modules, run.displays))
    }

    fn file_name(&self, token: &str) -> String {
        let ending = self.file.rsplit_once('.').map_or(String::new(), |(_, ending)| format!(".{ending}"));
        format!("{CODE_PREFIX}{token}{ending}")
    }

    fn plan_named(&self, run: &RunCode, directory: &GuestPath, token: &str) -> Result<Plan> {
        let (home, file, leftover) = match self.place {
            Place::Work => {
                let file = directory.join(self.file_name(token).as_bytes())?;
                (directory.clone(), file.clone(), file)
            }
            Place::Scratch => {
                let home = Self::scratch(token)?;
                (home.clone(), home.join(self.file.as_bytes())?, home)
            }
        };
        let binary = home.join(b"program")?;
        let fill = |ways: &[Vec<String>], arguments: &[String]| -> Vec<Vec<String>> {
            let fill_in = |argument: &String| {
                argument
                    .replace("{file}", &file.to_string_lossy())
                    .replace("{directory}", &home.to_string_lossy())
                    .replace("{binary}", &binary.to_string_lossy())
            };
            ways.iter().map(|way| way.iter().map(fill_in).chain(arguments.iter().cloned()).collect()).collect()
        };
        let prelude = self.prelude(run, token)?;
        let displays = prelude.as_ref().filter(|_| run.displays).map(|prelude| prelude.directory.clone());
        let step = |ways, terminal, prelude| Step {
            ways,
            check: self.check.clone(),
            environment: self.environment.clone().overlaid_by(&run.environment),
            work_directory: run.work_directory.clone(),
            terminal,
            prelude,
            title: self.title.clone(),
            remedy: self.remedy(),
        };
        Ok(Plan {
            code: run.code.clone(),
            build: (!self.build.is_empty()).then(|| step(fill(&self.build, &[]), None, None)),
            run: step(fill(&self.run, &run.arguments), run.terminal, prelude),
            displays,
            makes_directory: self.place == Place::Scratch,
            file,
            leftover,
        })
    }
}

impl Step {
    pub fn attempts(&self, timeout: Duration) -> Result<Vec<Attempt>> {
        let attempt = |way: &Vec<String>| {
            let mut request = ExecRequest::new(way.clone(), timeout)?;
            request.environment = self.environment.clone();
            request.work_directory = self.work_directory.clone();
            request.terminal = self.terminal;
            request.prelude.clone_from(&self.prelude);
            let check = self.check.get(&way[0]).map(|argv| ExecRequest::new(argv.clone(), timeout)).transpose()?;
            Ok(Attempt { request, check })
        };
        self.ways.iter().map(attempt).collect()
    }

    /// None of the ways exists in the sandbox.
    pub fn missing(&self, image: &Image) -> Error {
        let error = Error::unsupported(format!("{} is not in this sandbox's image", self.title));
        match (image, &self.remedy) {
            (Image::Host, Some(remedy)) => error.with_hint(remedy),
            (Image::Host, None) => error,
            // What is installed on the host is not in there.
            (Image::Directory(_) | Image::Archive(_) | Image::Named(_) | Image::Saved(_), _) => {
                error.with_hint("use an image that has it")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::runner::Runners;

    fn plan(language: &str, arguments: &[&str]) -> Plan {
        let mut run = RunCode::new(language, "code", Duration::from_secs(1));
        run.arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let runners = Runners::built_in();
        runners.find(language).unwrap().plan_named(&run, &GuestPath::workspace(), "abc").unwrap()
    }

    fn shown(step: &Step) -> Vec<String> {
        step.ways.iter().map(|way| way.join(" ")).collect()
    }

    #[test]
    fn interpreted_code_lies_beside_the_users_files() {
        let plan = plan("py", &["a b", "{file}"]);
        assert_eq!(plan.file.to_string(), "/workspace/.run-abc.py");
        assert_eq!(plan.leftover, plan.file);
        assert!(plan.build.is_none());
        assert_eq!(shown(&plan.run)[0], "python3 /workspace/.run-abc.py a b {file}");
        let request = &plan.run.attempts(Duration::from_secs(1)).unwrap()[0].request;
        assert_eq!(request.environment.get("PYTHONUNBUFFERED"), Some("1"));
    }

    #[test]
    fn built_code_has_a_directory_of_its_own() {
        let plan = plan("c", &["x"]);
        assert_eq!(plan.file.to_string(), "/tmp/.run-abc/main.c");
        assert_eq!(plan.leftover.to_string(), "/tmp/.run-abc");
        let build = plan.build.unwrap();
        assert_eq!(shown(&build)[0], "cc -O1 -o /tmp/.run-abc/program /tmp/.run-abc/main.c -lm");
        assert_eq!(shown(&plan.run), ["/tmp/.run-abc/program x"]);
    }

    #[test]
    fn a_caller_may_overrule_the_runners_environment() {
        let mut run = RunCode::new("python", "", Duration::from_secs(1));
        run.environment.insert("PYTHONUNBUFFERED", "").unwrap();
        let runners = Runners::built_in();
        let plan = runners.find("python").unwrap().plan(&run, &GuestPath::workspace(), Runs::Many).unwrap();
        assert_eq!(plan.run.environment.get("PYTHONUNBUFFERED"), Some(""));
    }

    #[test]
    fn the_only_run_of_a_sandbox_starts_what_was_expected() {
        let runners = Runners::built_in();
        for (language, code, displays) in [
            ("python", "print(1)", false),
            ("python", "print(1)", true),
            ("python", "import numpy", true),
            ("javascript", "console.log(1)", true),
        ] {
            let runner = runners.find(language).unwrap();
            let run = RunCode { displays, ..RunCode::new(language, code, Duration::from_secs(1)) };
            let expected = runner.expected(&run).unwrap();
            let plan = runner.plan(&run, &GuestPath::workspace(), Runs::One).unwrap();
            let request = &plan.run.attempts(Duration::from_secs(1)).unwrap()[0].request;
            let script = format!("/workspace/{}", expected.script);
            assert_eq!(plan.file.to_string(), script);
            let argv: Vec<String> = expected.argv.iter().cloned().chain([script]).collect();
            assert_eq!(request.argv(), argv);
            assert_eq!(request.environment, expected.environment);
            assert_eq!(request.prelude, expected.prelude);
        }
    }

    #[test]
    fn what_only_a_caller_can_know_is_not_expected() {
        let runners = Runners::built_in();
        let python = |change: &dyn Fn(&mut RunCode)| {
            let mut run = RunCode::new("python", "print(1)", Duration::from_secs(1));
            change(&mut run);
            runners.find("python").unwrap().expected(&run)
        };
        assert!(python(&|_| {}).is_some());
        assert!(python(&|run| run.arguments.push("a".into())).is_none());
        assert!(python(&|run| drop(run.environment.insert("A", "b"))).is_none());
        assert!(python(&|run| run.work_directory = Some(GuestPath::scratch())).is_none());
        assert!(python(&|run| run.terminal = Some(TerminalSize { rows: 24, columns: 80 })).is_none());
        assert!(python(&|run| run.code = vec![b'#'; Script::MAX_BYTES + 1]).is_none());
        for (code, is_expected) in [
            ("# -*- coding: latin-1 -*-\n", false),
            ("#!/usr/bin/python3\n# vim: set fileencoding=cp1252 :\n", false),
            ("\n\n# coding: latin-1 comes too late to mean anything\n", true),
        ] {
            assert_eq!(python(&|run| run.code = code.into()).is_some(), is_expected, "{code:?}");
        }
        let bash = runners.find("bash").unwrap();
        assert!(bash.expected(&RunCode::new("bash", "", Duration::from_secs(1))).is_none());
    }

    #[test]
    fn only_names_of_the_list_are_expected_of_code() {
        let runners = Runners::built_in();
        let expected = |code: &str| {
            let run = RunCode::new("python", code, Duration::from_secs(1));
            runners.find("python").unwrap().expected(&run).unwrap()
        };
        let same = expected("import numpy as np, pandas as pd\nprint(np.pi)");
        assert_eq!(same, expected("import os\nfrom numpy import mine\nimport pandas.of_mine\nsecret = 1"));
        assert_ne!(same, expected("import pandas, numpy"));
        assert_eq!(expected("print(1)").prelude, None);
        assert_eq!(expected("import json").prelude, None);
        assert!(same.prelude.unwrap().contents.contains("\"numpy pandas\""));
    }

    #[test]
    fn a_program_that_may_be_too_old_is_checked() {
        let attempts = plan("ts", &[]).run.attempts(Duration::from_secs(1)).unwrap();
        let checked: Vec<_> =
            attempts.iter().map(|attempt| (attempt.request.argv()[0].as_str(), attempt.check.is_some())).collect();
        assert_eq!(checked, [("bun", false), ("deno", false), ("tsx", false), ("node", true)]);
    }

    #[test]
    fn a_missing_language_says_what_to_install() {
        let error = plan("ruby", &[]).run.missing(&Image::Host);
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let hint = error.hint().unwrap();
        assert!(hint.starts_with("install it on the host (") && hint.contains("apt: ruby"), "{hint}");
        assert!(!hint.contains("image"), "the host is what it lacks: {hint}");
        let image = Image::Archive("/root.tar".into());
        assert_eq!(plan("ruby", &[]).run.missing(&image).hint(), Some("use an image that has it"));
    }
}
