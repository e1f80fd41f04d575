//! The arguments of an entry, taken apart as far as it takes to change some and to keep what a person wrote besides.

use clap::{Arg, Command, CommandFactory};

use crate::cli::Cli;

const COMMAND: &str = "mcp";

/// What starts a server over standard input and output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// Before the command: options that all commands have.
    before: Vec<Part>,
    after: Vec<Part>,
}

/// An option by its long name, without dashes, and what it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub name: String,
    pub value: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    /// Nothing, if it is no option that we know.
    given: Option<Given>,
    words: Vec<String>,
}

impl Arguments {
    /// `None`, if nobody can tell whether they are for this command.
    pub fn read(words: &[String]) -> Option<Self> {
        let program = Cli::command();
        let command = program.find_subcommand(COMMAND)?;
        let mut arguments = Self::default();
        let mut words = words.iter().cloned().peekable();
        if words.peek().is_none() {
            return Some(arguments);
        }
        loop {
            let part = Part::read(&[&program], &mut words)?;
            match (&part.given, &part.words[..]) {
                (None, [word]) if word == COMMAND => break,
                (None, _) => return None,
                (Some(_), _) => arguments.before.push(part),
            }
        }
        while let Some(part) = Part::read(&[command, &program], &mut words) {
            arguments.after.push(part);
        }
        Some(arguments)
    }

    pub fn words(&self) -> Vec<String> {
        let of = |parts: &[Part]| parts.iter().flat_map(|part| part.words.clone()).collect::<Vec<_>>();
        [of(&self.before), vec![COMMAND.to_owned()], of(&self.after)].concat()
    }

    /// The profile comes first, because it says what all others mean.
    pub fn set_profile(&mut self, profile: Option<&str>) {
        let wanted = profile.map(|profile| Given { name: "profile".to_owned(), value: Some(profile.to_owned()) });
        if self.replace("profile", wanted.as_slice()) {
            self.after.splice(0..0, wanted.into_iter().map(Part::from));
        }
    }

    /// These options in place of those of the same names.
    pub fn set(&mut self, options: &[Given]) {
        for (index, Given { name, .. }) in options.iter().enumerate() {
            let wanted: Vec<Given> = options.iter().filter(|given| given.name == *name).cloned().collect();
            let is_first = options[..index].iter().all(|given| given.name != *name);
            if is_first && self.replace(name, &wanted) {
                self.after.extend(wanted.into_iter().map(Part::from));
            }
        }
    }

    /// Takes out an option, unless it is there as it should be; whether it was taken out.
    fn replace(&mut self, name: &str, wanted: &[Given]) -> bool {
        let has_name = |part: &Part| part.given.as_ref().is_some_and(|given| given.name == name);
        let parts = self.before.iter().chain(&self.after);
        if parts.filter(|part| has_name(part)).filter_map(|part| part.given.as_ref()).eq(wanted) {
            return false;
        }
        self.before.retain(|part| !has_name(part));
        self.after.retain(|part| !has_name(part));
        true
    }
}

impl Part {
    fn read(known: &[&Command], words: &mut impl Iterator<Item = String>) -> Option<Self> {
        let word = words.next()?;
        let (option, written) = match word.strip_prefix("--") {
            Some(long) => {
                let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
                (find(known, |option| option.get_long() == Some(name)), value)
            }
            None => {
                let mut letters = word.strip_prefix('-').unwrap_or_default().chars();
                let letter = letters.next();
                let value = Some(letters.as_str()).filter(|rest| !rest.is_empty());
                (find(known, |option| letter.is_some() && option.get_short() == letter), value)
            }
        };
        let Some((name, takes_value)) = option else { return Some(Self { given: None, words: vec![word] }) };
        let written = written.map(str::to_owned);
        let next = if takes_value && written.is_none() { words.next() } else { None };
        let value = written.or_else(|| next.clone());
        Some(Self { given: Some(Given { name, value }), words: [word].into_iter().chain(next).collect() })
    }
}

impl From<Given> for Part {
    fn from(given: Given) -> Self {
        let flag = format!("--{}", given.name);
        let words = match &given.value {
            None => vec![flag],
            // By itself it would look like an option.
            Some(value) if value.starts_with('-') => vec![format!("{flag}={value}")],
            Some(value) => vec![flag, value.clone()],
        };
        Self { given: Some(given), words }
    }
}

/// The long name of an option, and whether it takes a value.
fn find(known: &[&Command], is_it: impl Fn(&Arg) -> bool) -> Option<(String, bool)> {
    let option = known.iter().flat_map(|command| command.get_arguments()).find(|option| is_it(option))?;
    Some((option.get_long()?.to_owned(), option.get_action().takes_values()))
}

/// Whether an option of the command takes a value.
pub fn takes_value(name: &str) -> bool {
    let program = Cli::command();
    let known: Vec<&Command> = program.find_subcommand(COMMAND).into_iter().chain([&program]).collect();
    find(&known, |option| option.get_long() == Some(name)).is_some_and(|(_, takes_value)| takes_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(words: &[&str], change: impl FnOnce(&mut Arguments)) -> Option<Vec<String>> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let mut arguments = Arguments::read(&words)?;
        change(&mut arguments);
        Some(arguments.words())
    }

    fn given(name: &str, value: Option<&str>) -> Given {
        Given { name: name.to_owned(), value: value.map(str::to_owned) }
    }

    #[test]
    fn what_is_not_changed_stays_wherever_it_stands() {
        for words in [
            &["mcp"][..],
            &["--config", "mcp", "-v", "--engine=docker", "mcp", "-m", "2G", "-e", "A=--profile", "--new", "x"],
            &["--state-dir", "/x", "mcp", "-m2G", "--profile=automata", "--"],
        ] {
            assert_eq!(changed(words, |_| {}).unwrap(), words);
        }
        assert_eq!(changed(&[], |_| {}).unwrap(), ["mcp"]);
    }

    #[test]
    fn what_is_for_something_else_is_not_understood() {
        for words in [&["serve"][..], &["--new", "mcp"], &["--config", "mcp"], &["-y", "sandpen", "mcp"]] {
            assert_eq!(changed(words, |_| {}), None, "{words:?}");
        }
    }

    #[test]
    fn a_profile_is_put_in_place_of_another() {
        let words = ["--config", "/c", "mcp", "-e", "--profile", "--memory", "2G", "--profile=automata"];
        let with = |profile| changed(&words, |arguments| arguments.set_profile(profile)).unwrap();
        assert_eq!(with(Some("automata")), words);
        let others = ["-e", "--profile", "--memory", "2G"];
        assert_eq!(with(None), [&["--config", "/c", "mcp"], &others[..]].concat());
        assert_eq!(
            with(Some("cloudflare")),
            [&["--config", "/c", "mcp", "--profile", "cloudflare"], &others[..]].concat()
        );
    }

    #[test]
    fn options_are_put_in_place_of_those_of_their_names() {
        let words = ["--engine", "docker", "mcp", "--allow-missing", "landlock", "--memory", "2G"];
        let with = |options: &[Given]| changed(&words, |arguments| arguments.set(options)).unwrap();
        assert_eq!(with(&[given("engine", Some("docker")), given("memory", Some("2G"))]), words);
        let podman = [given("engine", Some("podman")), given("verbose", None)];
        let wanted = ["mcp", "--allow-missing", "landlock", "--memory", "2G", "--engine", "podman", "--verbose"];
        assert_eq!(with(&podman), wanted);
        let layers = [given("allow-missing", Some("landlock")), given("allow-missing", Some("-x"))];
        let wanted =
            ["--engine", "docker", "mcp", "--memory", "2G", "--allow-missing", "landlock", "--allow-missing=-x"];
        assert_eq!(with(&layers), wanted);
    }
}
