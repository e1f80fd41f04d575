//! Languages as data: how code in each is started. Pure; the service does the starting.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use serde::Deserialize;

use crate::context::ContextName;
use crate::error::{Error, Result};
use crate::exec::{ExecRequest, TerminalSize};
use crate::nearest;
use crate::path::GuestPath;
use crate::spec::Environment;

mod head;
mod labelled;
mod live;
mod plan;
mod prelude;

use prelude::Interpreter;

pub use labelled::{ImageRunner, ImageRunners};
pub use plan::is_code_of_a_run;
pub use plan::{Attempt, Plan, Runs, Step};

/// Code to run, as the service takes it.
#[derive(Clone, Debug, PartialEq, Hash)]
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
    /// Run in the interpreter of this name that stays in the sandbox, instead of in one of its own.
    pub context: Option<ContextName>,
    /// Bring back what it displays, where the language can. In a context that is always so.
    pub displays: bool,
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
            context: None,
            displays: false,
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
    pub install: BTreeMap<String, String>,
    /// A published image that has it, for engines that can fetch one.
    pub image: Option<String>,
    pub environment: Environment,
    file: String,
    place: Place,
    build: Vec<Vec<String>>,
    run: Vec<Vec<String>>,
    check: BTreeMap<String, Vec<String>>,
    warm: Option<Warm>,
    prelude: Option<Interpreter>,
}

/// Of a language whose first command can be begun before the code is known. See [`Expected`].
///
/// [`Expected`]: crate::Expected
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Warm {
    /// Words in the first two lines of code that has to be read from a file.
    #[serde(default)]
    not_with: Vec<String>,
    /// What takes long to import, and is imported ahead when code imports it first thing.
    #[serde(default)]
    modules: Vec<String>,
    /// What code may import before that.
    #[serde(default)]
    after: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Place {
    Work,
    Scratch,
}

impl Runner {
    /// The probes as commands to run, in order.
    pub fn probe_requests(&self, timeout: Duration) -> Result<Vec<ExecRequest>> {
        self.probes.iter().map(|argv| ExecRequest::new(argv.clone(), timeout)).collect()
    }

    /// The command that must succeed before this program is taken, if it may be too old for the language.
    pub fn check(&self, program: &str) -> Option<&[String]> {
        self.check.get(program).map(Vec::as_slice)
    }

    /// What to do about a sandbox that lacks the language. Names no published image: no engine can fetch one yet.
    pub fn remedy(&self) -> Option<String> {
        let packages: Vec<_> = self.install.iter().map(|(manager, package)| format!("{manager}: {package}")).collect();
        (!packages.is_empty()).then(|| format!("install it on the host ({})", packages.join(", ")))
    }
}

/// All languages: those that are built in, overlaid by an operator's.
#[derive(Clone, Debug)]
pub struct Runners {
    /// `None`: the built-in ones, which are read when somebody asks for one. A command that names a language has other
    /// things to wait for meanwhile, and most name none.
    own: Option<Vec<Runner>>,
}

static BUILT_IN: LazyLock<Vec<Runner>> =
    LazyLock::new(|| parse(include_str!("../../../runners.toml")).expect("a test reads the embedded file"));

/// Far more than all of them together need.
const MAX_TEXT_BYTES: usize = 1 << 20;

impl Runners {
    /// Those of the embedded `runners.toml`.
    pub fn built_in() -> Self {
        Self { own: None }
    }

    fn all(&self) -> &[Runner] {
        self.own.as_deref().unwrap_or(&BUILT_IN)
    }

    /// Add or replace by name, from the text of a file of the same shape.
    pub fn overlaid_by(self, text: &str) -> Result<Self> {
        let mut runners = self.all().to_vec();
        for runner in parse(text)? {
            match runners.iter_mut().find(|known| known.name == runner.name) {
                Some(known) => *known = runner,
                None => runners.push(runner),
            }
        }
        Self { own: Some(runners) }.check()
    }

    fn check(self) -> Result<Self> {
        let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
        for runner in self.all() {
            for word in runner.aliases.iter().chain([&runner.name]) {
                if let Some(other) = seen.insert(word, &runner.name) {
                    return Err(Error::invalid_input(format!("{word:?} means both {other} and {}", runner.name)));
                }
            }
        }
        Ok(self)
    }

    /// By name or alias, in any case. Unknown ones fail with the nearest names as hint.
    pub fn find(&self, language: &str) -> Result<&Runner> {
        let wanted = language.to_lowercase();
        let known = self.iter().find(|runner| runner.name == wanted || runner.aliases.contains(&wanted));
        known.ok_or_else(|| {
            let shown: String = language.chars().take(40).collect();
            let names: Vec<&str> = self.iter().map(|runner| runner.name.as_str()).collect();
            let words = self.iter().flat_map(|runner| {
                runner.aliases.iter().chain([&runner.name]).map(|word| (word.as_str(), runner.name.as_str()))
            });
            let hint = match nearest::nearest(&wanted, words).as_slice() {
                [] => format!("the languages are {}", names.join(", ")),
                near => format!("did you mean {}? the languages are {}", near.join(" or "), names.join(", ")),
            };
            Error::not_found(format!("there is no language {shown:?}")).with_hint(hint)
        })
    }

    /// In the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Runner> {
        self.all().iter()
    }
}

/// What a language can be called.
fn is_word(word: &str) -> bool {
    !word.is_empty() && !word.contains(char::is_whitespace) && *word == word.to_lowercase()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFile {
    #[serde(default)]
    runner: Vec<Written>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    title: String,
    #[serde(default)]
    aliases: Vec<String>,
    file: String,
    place: Place,
    #[serde(default)]
    build: Vec<Vec<String>>,
    run: Vec<Vec<String>>,
    #[serde(default)]
    check: BTreeMap<String, Vec<String>>,
    warm: Option<Warm>,
    prelude: Option<Interpreter>,
    #[serde(default)]
    probe: Vec<Vec<String>>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    install: BTreeMap<String, String>,
    image: Option<String>,
}

fn parse(text: &str) -> Result<Vec<Runner>> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(Error::invalid_input("the list of runners is too large"));
    }
    let file: WrittenFile = toml::from_str(text).map_err(|cause| {
        Error::invalid_input(format!("the list of runners cannot be read: {}", cause.message()))
            .with_cause(cause.clone())
    })?;
    file.runner.into_iter().map(Written::into_runner).collect()
}

impl Written {
    fn into_runner(self) -> Result<Runner> {
        let wrong = |what: &str| Error::invalid_input(format!("the runner {:?} {what}", self.name));
        if !is_word(&self.name) || !self.aliases.iter().all(|alias| is_word(alias)) {
            return Err(wrong("has a name or an alias that is not a lower-case word"));
        }
        if self.file.is_empty() || self.file.contains(['/', '\0']) || self.file.starts_with('.') {
            return Err(wrong("has a file name that is not one"));
        }
        if self.run.is_empty() {
            return Err(wrong("has no run command"));
        }
        let commands = self.build.iter().chain(&self.run).chain(&self.probe).chain(self.check.values());
        if commands.into_iter().any(|argv| argv.first().is_none_or(String::is_empty)) {
            return Err(wrong("has an empty command"));
        }
        if !self.build.is_empty() && self.place == Place::Work {
            return Err(wrong("has a build step, so its place must be scratch"));
        }
        if self.warm.is_some() && (self.place != Place::Work || self.run[0].last().is_none_or(|word| word != "{file}"))
        {
            return Err(wrong("is warm, so its place must be work and its first command must end with {file}"));
        }
        let mut environment = Environment::default();
        for (name, value) in self.environment {
            environment.insert(name, value)?;
        }
        Ok(Runner {
            name: self.name,
            title: self.title,
            aliases: self.aliases,
            probes: self.probe,
            install: self.install,
            image: self.image,
            environment,
            file: self.file,
            place: self.place,
            build: self.build,
            run: self.run,
            check: self.check,
            warm: self.warm,
            prelude: self.prelude,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn the_embedded_file_has_the_promised_languages() {
        let runners = Runners::built_in().check().unwrap();
        for language in [
            "Python",
            "JavaScript",
            "TypeScript",
            "Bash",
            "Ruby",
            "Perl",
            "PHP",
            "Lua",
            "R",
            "Go",
            "Rust",
            "C",
            "C++",
            "Java",
        ] {
            let runner = runners.find(language).unwrap();
            assert!(!runner.probes.is_empty() && runner.install.len() == 4, "{language}");
            let (remedy, image) = (runner.remedy().unwrap(), runner.image.as_deref());
            assert!(image.is_none_or(|image| !remedy.contains(image)), "{remedy}");
        }
    }

    #[test]
    fn an_unknown_language_names_its_neighbours() {
        let runners = Runners::built_in();
        for (wrong, right) in
            [("pyton", "python"), ("javscript", "javascript"), ("typescipt", "typescript"), ("rbu", "ruby")]
        {
            let error = runners.find(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.hint().unwrap().starts_with(&format!("did you mean {right}")), "{wrong}: {:?}", error.hint());
        }
        let error = runners.find(&"x".repeat(100_000)).unwrap_err();
        assert!(error.message().len() < 100);
        assert!(error.hint().unwrap().starts_with("the languages are python"));
    }

    #[test]
    fn an_operator_adds_and_replaces() {
        let text = r#"
            [[runner]]
            name = "awk"
            title = "AWK"
            file = "main.awk"
            place = "work"
            run = [["awk", "-f", "{file}"]]

            [[runner]]
            name = "python"
            title = "Our Python"
            file = "main.py"
            place = "work"
            run = [["/opt/python/bin/python3", "{file}"]]
        "#;
        let runners = Runners::built_in().overlaid_by(text).unwrap();
        assert_eq!(runners.find("awk").unwrap().title, "AWK");
        assert_eq!(runners.find("python").unwrap().title, "Our Python");
        assert_eq!(runners.iter().count(), Runners::built_in().iter().count() + 1);
    }

    #[test]
    fn a_wrong_list_is_refused_with_the_runner_named() {
        let runner = |lines: &str| format!("[[runner]]\nname = \"x\"\ntitle = \"X\"\n{lines}");
        let good = "file = \"a\"\nplace = \"work\"\nrun = [[\"x\"]]";
        assert!(parse(&runner(good)).is_ok());
        for wrong in [
            "".to_owned(),
            good.replace("\"a\"", "\"../a\""),
            good.replace("[[\"x\"]]", "[]"),
            good.replace("[[\"x\"]]", "[[]]"),
            format!("{good}\nbuild = [[\"y\"]]"),
            format!("{good}\nwarm = {{}}"),
            format!("{good}\ncolour = \"blue\""),
            format!("{good}\nenvironment = {{ \"A=B\" = \"c\" }}"),
        ] {
            assert!(parse(&runner(&wrong)).is_err(), "{wrong} was taken");
        }
        let clash = runner(good).replace("\"X\"", "\"X\"\naliases = [\"py\"]");
        assert!(Runners::built_in().overlaid_by(&clash).is_err());
    }
}
