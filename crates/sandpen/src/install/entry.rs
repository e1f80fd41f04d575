//! What is written for a server: its name, and the command that starts it.

use std::fmt;
use std::str::FromStr;

use sandbox::{Error, Result};
use serde_json::Value;

/// The name of a server among those of a client. Clients put it before the names of tools, which models bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    const MAX_LENGTH: usize = 32;

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The one that a server has unless somebody chooses another.
    pub fn usual(profile: Option<&str>) -> Self {
        Self(profile.map_or_else(|| "sandpen".to_owned(), |profile| format!("sandpen-{profile}")))
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let begins_well = name.starts_with(|first: char| first.is_ascii_alphabetic());
        let goes_on_well = name.chars().all(|one| one.is_ascii_alphanumeric() || matches!(one, '-' | '_'));
        if begins_well && goes_on_well && name.len() <= Self::MAX_LENGTH {
            return Ok(Self(name.to_owned()));
        }
        Err(Error::invalid_input(format!("{name:?} cannot be the name of a server")).with_hint(format!(
            "take a letter first, then letters, digits, - and _, at most {} together",
            Self::MAX_LENGTH
        )))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Name,
    /// The whole path: clients with windows do not have the PATH of a shell.
    pub command: String,
    pub profile: Option<&'static str>,
}

impl Entry {
    pub fn arguments(&self) -> Vec<String> {
        let profile = self.profile.into_iter().flat_map(|profile| ["--profile", profile]);
        ["mcp"].into_iter().chain(profile).map(str::to_owned).collect()
    }

    /// What the entry has to say, in the place of one that is there already.
    pub fn fields(&self, is_typed: bool, present: Option<&Value>) -> Vec<(&'static str, Value)> {
        let arguments = match present.and_then(arguments_of) {
            Some(written) => self.arguments_instead_of(&written),
            None => self.arguments(),
        };
        let kind = is_typed.then(|| ("type", Value::from("stdio")));
        kind.into_iter().chain([("command", Value::from(self.command.as_str())), ("args", arguments.into())]).collect()
    }

    /// Options that a person wrote behind `mcp` are theirs, and stay.
    fn arguments_instead_of(&self, written: &[String]) -> Vec<String> {
        let [first, options @ ..] = written else { return self.arguments() };
        if first != "mcp" {
            return self.arguments();
        }
        let (profile, others) = without_profile(options);
        if profile == self.profile {
            return written.to_vec();
        }
        self.arguments().into_iter().chain(others.into_iter().map(str::to_owned)).collect()
    }
}

fn without_profile(options: &[String]) -> (Option<&str>, Vec<&str>) {
    let (mut profile, mut others) = (None, Vec::new());
    let mut words = options.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word.strip_prefix("--profile") {
            Some("") => profile = words.next(),
            Some(value) if value.starts_with('=') => profile = Some(&value[1..]),
            Some(_) | None => others.push(word),
        }
    }
    (profile, others)
}

fn arguments_of(entry: &Value) -> Option<Vec<String>> {
    let arguments = entry.get("args").or_else(|| entry.get("command")?.get("args"))?.as_array()?;
    arguments.iter().map(|argument| argument.as_str().map(str::to_owned)).collect()
}

/// Whether an entry starts this program, wherever it lies. Earlier versions of Zed had the path within the command.
pub fn is_ours(entry: &Value) -> bool {
    let command = entry.get("command");
    let path = command.and_then(|command| command.get("path").unwrap_or(command).as_str());
    // By hand, because entries may have been written on another system.
    let file = path.and_then(|path| path.rsplit(['/', '\\']).next());
    file.is_some_and(|file| {
        let file = file.to_ascii_lowercase();
        file.strip_suffix(".exe").unwrap_or(&file) == "sandpen"
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tools::ProfileName;

    use super::*;

    fn entry(profile: Option<&'static str>) -> Entry {
        Entry { name: Name::usual(profile), command: "/bin/sandpen".to_owned(), profile }
    }

    #[test]
    fn names_that_a_client_could_trip_over_are_refused() {
        for name in ["sandpen", "sandpen-cloudflare", "My_box2"] {
            assert_eq!(name.parse::<Name>().unwrap().as_str(), name);
        }
        for name in ["", "-x", "2x", "__proto__", "a b", "a.b", "a\"b", "ä", &"x".repeat(33)] {
            assert!(name.parse::<Name>().is_err(), "{name:?} is accepted");
        }
        for profile in ProfileName::NAMES {
            Name::usual(Some(profile)).as_str().parse::<Name>().unwrap();
        }
    }

    #[test]
    fn an_entry_is_ours_by_its_program() {
        for command in ["sandpen", "/usr/local/bin/sandpen", r"C:\Tools\Sandpen.EXE"] {
            assert!(is_ours(&json!({ "command": command })), "{command}");
        }
        assert!(is_ours(&json!({ "command": { "path": "/bin/sandpen", "args": ["mcp"] } })));
        for foreign in [json!({ "command": "npx" }), json!({ "command": "sandpen-old" }), json!({ "url": "http://x" })]
        {
            assert!(!is_ours(&foreign), "{foreign}");
        }
        assert!(!is_ours(&json!("sandpen")) && !is_ours(&json!(null)));
    }

    #[test]
    fn options_that_a_person_added_stay() {
        let arguments = |profile, written: &[&str]| {
            let fields = entry(profile).fields(false, Some(&json!({ "args": written })));
            fields.into_iter().find(|(key, _)| *key == "args").unwrap().1
        };
        assert_eq!(arguments(None, &["mcp", "--memory", "2G"]), json!(["mcp", "--memory", "2G"]));
        let other = ["mcp", "--memory", "2G", "--profile=automata"];
        assert_eq!(arguments(Some("automata"), &other), json!(other));
        let wanted = json!(["mcp", "--profile", "cloudflare", "--memory", "2G"]);
        assert_eq!(arguments(Some("cloudflare"), &other), wanted);
        assert_eq!(arguments(None, &other), json!(["mcp", "--memory", "2G"]));
        assert_eq!(arguments(None, &["serve"]), json!(["mcp"]));
        assert_eq!(arguments(None, &[]), json!(["mcp"]));
    }
}
