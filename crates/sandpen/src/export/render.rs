//! Steps to a Dockerfile and the files that go with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use images::Store;
use sandbox::{GuestPath, History, KnownEnvironment, Result, RunCode, Runners, Runs};
use tokio_util::sync::CancellationToken;

use super::base::Base;
use super::context::{self, Placed, Source, inner};
use super::daemon::Side;
use super::dockerfile::Dockerfile;
use super::files_of;
use super::packages::{self, Installed};
use super::recipe::{Run, Step, Work};
use crate::commands::image::image_error;

/// Everything that a Dockerfile is made of.
#[derive(Clone)]
pub struct Draft {
    pub base: Arc<Base>,
    pub history: Arc<History>,
    pub steps: Vec<Step>,
    pub runners: Runners,
    /// Programs of runners that are there.
    pub programs: Arc<BTreeSet<String>>,
    pub packages: Vec<Installed>,
}

/// For whom a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// Whoever builds it anywhere.
    Others,
    /// The check here, which fetches no packages.
    Check,
}

pub struct Rendered {
    pub dockerfile: Dockerfile,
    /// The same with packages that are here already.
    pub check: Dockerfile,
    pub notes: Vec<String>,
}

/// Writes the files to the context and returns the rest. Blocks.
pub fn render(store: &Store, draft: &Draft, directory: &Path, cancel: &CancellationToken) -> Result<Rendered> {
    let Draft { base, steps, .. } = draft;
    let skeleton: BTreeSet<GuestPath> = skeleton(draft);
    let mut files = files_of(steps);
    for paths in files.values_mut() {
        paths.retain(|path| !skeleton.contains(path));
    }
    files.retain(|_, paths| !paths.is_empty());
    files.insert(0, skeleton);
    let source = Source { store, layers: base.own_layers(), tree: &base.tree, user: base.user };
    let placed = context::write(source, &files, directory, cancel).map_err(image_error)?;
    let mut kept = Vec::new();
    for (index, installed) in draft.packages.iter().enumerate() {
        kept.push(installed.write(store, directory, index + 1).map_err(image_error)?);
    }
    let check = text(draft, &placed, &kept, directory, Reader::Check)?.dockerfile;
    Ok(Rendered { check, ..text(draft, &placed, &kept, directory, Reader::Others)? })
}

fn text(
    draft: &Draft,
    placed: &BTreeMap<usize, Placed>,
    kept: &[Option<String>],
    directory: &Path,
    reader: Reader,
) -> Result<Rendered> {
    let base = &draft.base;
    let exact = base.daemon.as_ref().and_then(Side::checked_base);
    let file = Dockerfile::from(foundation(reader, &base.from, exact));
    let mut rendering = Rendering { draft, directory, reader, kept, file, notes: Vec::new() };
    if let Some(digest) = &base.digest {
        rendering.file.comment(&format!("{} was {digest}", base.from));
    }
    rendering.beginning(placed.get(&0));
    for (index, step) in draft.steps.iter().enumerate() {
        rendering.step(index + 1, step, placed)?;
    }
    rendering.file.work_directory(&draft.history.work_directory);
    let Rendering { file, notes, .. } = rendering;
    Ok(Rendered { check: file.clone(), dockerfile: file, notes })
}

/// What to build upon. Others know an image by its name alone; where it is known exactly, it is what is checked.
fn foundation<'a>(reader: Reader, name: &'a str, exact: Option<&'a str>) -> &'a str {
    match reader {
        Reader::Check => exact.unwrap_or(name),
        Reader::Others => name,
    }
}

/// The directories that every sandbox has, as this one has them.
fn skeleton(draft: &Draft) -> BTreeSet<GuestPath> {
    let mut wanted = BTreeSet::new();
    let given = [GuestPath::workspace(), draft.base.home(), GuestPath::scratch()];
    for path in given.into_iter().chain([draft.history.work_directory.clone()]) {
        let mut path = Some(path);
        while let Some(one) = path.filter(|path| !path.is_root()) {
            path = one.parent();
            if draft.base.tree.get(inner(&one)).is_some() {
                wanted.insert(one);
            }
        }
    }
    wanted
}

struct Rendering<'a> {
    draft: &'a Draft,
    directory: &'a Path,
    reader: Reader,
    /// Archives of packages, in their order.
    kept: &'a [Option<String>],
    file: Dockerfile,
    notes: Vec<String>,
}

impl Rendering<'_> {
    fn beginning(&mut self, skeleton: Option<&Placed>) {
        let Draft { base, history, .. } = self.draft;
        self.file.blank();
        self.file.comment("The directories of the sandbox, and who works in it.");
        if let Some(placed) = skeleton {
            self.put(placed);
        }
        let has = |name: &str| base.environment.iter().any(|pair| pair.split('=').next() == Some(name));
        // At a daemon everybody is at home there.
        if base.is_sandbox_user() || base.daemon.is_some() {
            self.file.environment("HOME", &base.home().to_string_lossy());
            self.file.environment("USER", "sandbox");
        }
        if !has("LANG") && history.environment.values.get("LANG").is_none() {
            self.file.environment("LANG", "C.UTF-8");
        }
        self.environment(&history.environment);
        if !self.file.work_directory(&history.work_directory) {
            self.notes.push("the work directory has a name that no Dockerfile can hold".to_owned());
        }
        self.packages();
        self.file.user(base.user.0, base.user.1);
    }

    fn packages(&mut self) {
        let nothing = KnownEnvironment::default();
        if !self.draft.packages.is_empty() {
            self.file.user(0, 0);
        }
        let is_at_daemon = self.draft.base.daemon.is_some();
        for (installed, kept) in self.draft.packages.iter().zip(self.kept) {
            match (self.reader, kept) {
                (Reader::Check, None) if is_at_daemon => {}
                (Reader::Check, Some(archive)) => self.file.add_to(archive, &installed.at.to_string_lossy()),
                (Reader::Check, None) | (Reader::Others, _) => self.file.run(&installed.command(), &nothing, false),
            }
        }
        if self.kept.iter().any(|kept| kept.is_some() || is_at_daemon) {
            self.notes.push("packages were not fetched again for the comparison, and were not compared".to_owned());
        }
    }

    fn environment(&mut self, environment: &KnownEnvironment) {
        for (name, value) in environment.values.iter() {
            if name == "PATH"
                && let Some(added) = packages::added(&self.draft.packages, value)
            {
                self.file.search_path(&added);
            } else if !self.file.environment(name, value) {
                self.notes.push(format!("the value of {name} has several lines, which no Dockerfile can hold"));
            }
        }
        self.withheld(environment);
    }

    fn withheld(&mut self, environment: &KnownEnvironment) {
        if !environment.withheld.is_empty() {
            let names: Vec<&str> = environment.withheld.iter().map(String::as_str).collect();
            self.notes.push(format!("values of this machine's own environment are not told: {}", names.join(", ")));
        }
    }

    fn step(&mut self, number: usize, step: &Step, placed: &BTreeMap<usize, Placed>) -> Result<()> {
        match step {
            Step::Files(_) => {
                if let Some(placed) = placed.get(&number) {
                    self.file.blank();
                    self.put(placed);
                }
                Ok(())
            }
            Step::Remove(paths) => {
                self.file.blank();
                for path in self.file.remove(paths) {
                    self.notes.push(format!("{path} cannot be removed by a Dockerfile: its name is no text"));
                }
                Ok(())
            }
            Step::Run(run) => self.run(number, run),
        }
    }

    fn put(&mut self, placed: &Placed) {
        let (user, group) = self.draft.base.user;
        for (from, to) in &placed.copies {
            self.file.copy(from, to, user, group);
        }
        if let Some(archive) = &placed.archive {
            match self.draft.base.daemon {
                Some(_) => self.file.add_as(archive, user, group),
                None => self.file.add(archive),
            }
        }
    }

    fn run(&mut self, number: usize, run: &Run) -> Result<()> {
        self.file.blank();
        self.withheld(&run.environment);
        if !self.file.work_directory(&run.work_directory) {
            let path = &run.work_directory;
            self.notes.push(format!("a command is not done again: it ran in {path}, which no Dockerfile can name"));
            return Ok(());
        }
        match &run.what {
            Work::Command(argv) => {
                self.file.run(argv, &run.environment, run.may_fail);
                Ok(())
            }
            Work::Code { language, code, arguments } => self.code(number, run, language, code, arguments),
        }
    }

    /// The code as a file, where its runner would have put it, and the commands that its runner starts.
    fn code(&mut self, number: usize, run: &Run, language: &str, code: &[u8], arguments: &[String]) -> Result<()> {
        let Draft { base, history, runners, .. } = self.draft;
        let runner = runners.find(language)?;
        let mut asked = RunCode::new(language, code, Duration::from_secs(1));
        asked.arguments = arguments.to_vec();
        asked.environment = run.environment.values.clone();
        let plan = runner.plan(&asked, &base.code_directory(&history.work_directory), Runs::Many)?;
        // A name that is the same whenever this is written.
        let chance = token(&plan.leftover);
        let fixed = |text: &str| match &chance {
            Some(chance) => text.replace(chance, &format!(".run-{number}")),
            None => text.to_owned(),
        };
        let target = fixed(&plan.file.to_string_lossy());
        let name = format!("{number}{}", ending(&target));
        if self.reader == Reader::Others {
            context::write_code(self.directory, &name, code).map_err(image_error)?;
        }
        let (user, group) = self.draft.base.user;
        let nothing = KnownEnvironment::default();
        let leftover = fixed(&plan.leftover.to_string_lossy());
        if plan.makes_directory {
            self.file.run(&["mkdir".to_owned(), "-p".to_owned(), leftover.clone()], &nothing, false);
        }
        self.file.copy(&format!("code/{name}"), &target, user, group);
        for step in plan.build.iter().chain([&plan.run]) {
            let attempts = step.attempts(Duration::from_secs(1))?;
            let is_there = |program: &str| self.draft.programs.contains(program);
            let chosen = attempts.iter().find(|attempt| is_there(&attempt.request.argv()[0])).or(attempts.first());
            let Some(chosen) = chosen else { continue };
            let argv: Vec<String> = chosen.request.argv().iter().map(|word| fixed(word)).collect();
            let values = chosen.request.environment.clone();
            self.file.run(&argv, &KnownEnvironment { values, ..KnownEnvironment::default() }, run.may_fail);
        }
        self.file.run(&["rm".to_owned(), "-rf".to_owned(), leftover], &nothing, false);
        Ok(())
    }
}

/// The part of a name that is different each time.
fn token(leftover: &GuestPath) -> Option<String> {
    let name = std::str::from_utf8(leftover.file_name()?).ok()?;
    let chance = name.strip_prefix(".run-")?.split('.').next()?;
    Some(format!(".run-{chance}"))
}

/// The end of a file's name that says what is in it.
fn ending(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or_default();
    name.rfind('.').filter(|dot| *dot > 0).map_or("", |dot| &name[dot..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_checked_does_not_move_with_a_name() {
        assert_eq!(foundation(Reader::Check, "tool:1", Some("0123abcd")), "0123abcd");
        assert_eq!(foundation(Reader::Check, "tool:1", None), "tool:1");
        assert_eq!(foundation(Reader::Others, "tool:1", Some("0123abcd")), "tool:1");
    }

    #[test]
    fn names_of_code_are_the_same_each_time() {
        assert_eq!(token(&"/workspace/.run-7k2m9x4b.py".parse().unwrap()).as_deref(), Some(".run-7k2m9x4b"));
        assert_eq!(token(&"/tmp/.run-7k2m9x4b".parse().unwrap()).as_deref(), Some(".run-7k2m9x4b"));
        assert_eq!(token(&"/workspace/main.py".parse().unwrap()), None);
        assert_eq!(
            (ending("/workspace/.run-1.py"), ending("/tmp/.run-1"), ending("/tmp/.run-1/main.rs")),
            (".py", "", ".rs")
        );
    }
}
