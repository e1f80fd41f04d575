//! From a language and code to a file and commands.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Place, RunCode, Runner};
use crate::error::{Error, Result};
use crate::exec::{ExecRequest, TerminalSize};
use crate::id::SandboxId;
use crate::image::Image;
use crate::path::GuestPath;
use crate::spec::Environment;

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
}

/// One command, in several ways; the first whose program exists is taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    ways: Vec<Vec<String>>,
    check: BTreeMap<String, Vec<String>>,
    environment: Environment,
    work_directory: Option<GuestPath>,
    terminal: Option<TerminalSize>,
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

impl Runner {
    /// `directory` is the sandbox's own work directory.
    pub fn plan(&self, run: &RunCode, directory: &GuestPath) -> Result<Plan> {
        // Two runs in one sandbox at the same time must not write to the same file.
        let random = SandboxId::random()?;
        let token = &random.as_str()["sb-".len()..][..8];
        self.plan_named(run, directory, token)
    }

    fn plan_named(&self, run: &RunCode, directory: &GuestPath, token: &str) -> Result<Plan> {
        let ending = self.file.rsplit_once('.').map_or(String::new(), |(_, ending)| format!(".{ending}"));
        let (home, file, leftover) = match self.place {
            Place::Work => {
                let file = directory.join(format!("{CODE_PREFIX}{token}{ending}").as_bytes())?;
                (directory.clone(), file.clone(), file)
            }
            Place::Scratch => {
                let home: GuestPath = format!("/tmp/{CODE_PREFIX}{token}").parse()?;
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
        let step = |ways, terminal| Step {
            ways,
            check: self.check.clone(),
            environment: self.environment.clone().overlaid_by(&run.environment),
            work_directory: run.work_directory.clone(),
            terminal,
            title: self.title.clone(),
            remedy: self.remedy(),
        };
        Ok(Plan {
            code: run.code.clone(),
            build: (!self.build.is_empty()).then(|| step(fill(&self.build, &[]), None)),
            run: step(fill(&self.run, &run.arguments), run.terminal),
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
        let plan = runners.find("python").unwrap().plan(&run, &GuestPath::workspace()).unwrap();
        assert_eq!(plan.run.environment.get("PYTHONUNBUFFERED"), Some(""));
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
