//! What is written for a server: its name, and the command that starts it.

use std::fmt;
use std::str::FromStr;

use sandbox::Error;
use serde_json::Value;

use super::arguments::{Arguments, Given};
use super::older::Older;
use super::program::USUAL_NAME;
use super::{Action, Refusal};

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

    fn from_str(name: &str) -> Result<Self, Error> {
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
    /// Options to start it with besides.
    pub options: Vec<Given>,
    /// Whose entry of the same name it takes the place of.
    pub instead_of: Option<Older>,
}

impl Entry {
    /// Whether an entry is that of the older server that this one is instead of.
    pub fn succeeds(&self, present: &Value) -> bool {
        self.instead_of.is_some_and(|older| older.wrote(present))
    }

    /// What is done to an entry that is changed.
    pub fn renewal(&self, present: &Value) -> Action {
        if self.succeeds(present) { Action::Replace } else { Action::Update }
    }

    /// What the entry has to say, in the place of one that is there already. What a person wrote there besides is theirs.
    pub fn fields_instead_of(&self, is_typed: bool, present: &Value) -> Result<Vec<(String, Value)>, Refusal> {
        if self.succeeds(present) {
            return Ok(self.fields(is_typed));
        }
        let arguments = match arguments_of(present)? {
            Some(written) => Arguments::read(&written).ok_or(Refusal::Arguments)?,
            None => Arguments::default(),
        };
        let nested = nested_in_command(present)?;
        Ok(self.fields_with(is_typed, arguments).into_iter().chain(nested).collect())
    }

    pub fn fields(&self, is_typed: bool) -> Vec<(String, Value)> {
        self.fields_with(is_typed, Arguments::default())
    }

    fn fields_with(&self, is_typed: bool, mut arguments: Arguments) -> Vec<(String, Value)> {
        arguments.set_profile(self.profile);
        arguments.set(&self.options);
        let kind = is_typed.then(|| ("type", Value::from("stdio")));
        let own = [("command", Value::from(self.command.as_str())), ("args", arguments.words().into())];
        kind.into_iter().chain(own).map(|(field, value)| (field.to_owned(), value)).collect()
    }
}

fn arguments_of(entry: &Value) -> Result<Option<Vec<String>>, Refusal> {
    let arguments = match (entry.get("args"), entry.get("command").and_then(|command| command.get("args"))) {
        (None, None) => return Ok(None),
        (Some(arguments), None) | (None, Some(arguments)) => arguments.as_array(),
        (Some(_), Some(_)) => None,
    };
    let words = arguments.ok_or(Refusal::Arguments)?.iter().map(|argument| argument.as_str().map(str::to_owned));
    words.collect::<Option<Vec<_>>>().map(Some).ok_or(Refusal::Arguments)
}

/// Earlier versions of Zed had all about the command within it. What is there and not ours, such as variables, is to stay.
fn nested_in_command(entry: &Value) -> Result<Vec<(String, Value)>, Refusal> {
    let Some(command) = entry.get("command").and_then(Value::as_object) else { return Ok(Vec::new()) };
    let others = command.iter().filter(|(field, _)| !matches!(field.as_str(), "path" | "args"));
    let moved = others.map(|(field, value)| match entry.get(field) {
        // Nobody can tell which of the two is meant.
        Some(other) if other != value => Err(Refusal::Unusual),
        Some(_) | None => Ok((field.clone(), value.clone())),
    });
    moved.collect()
}

/// Whether an entry starts this program, wherever it lies and whatever it is called here. Earlier versions of Zed had the path
/// within the command.
pub fn is_ours(entry: &Value, program: &str) -> bool {
    let command = entry.get("command");
    let path = command.and_then(|command| command.get("path").unwrap_or(command).as_str());
    path.map(program_name).is_some_and(|name| name == USUAL_NAME || name == program_name(program))
}

/// By hand, because entries may have been written on another system.
pub fn program_name(path: &str) -> String {
    let file = path.rsplit(['/', '\\']).next().unwrap_or(path).to_ascii_lowercase();
    file.strip_suffix(".exe").map(str::to_owned).unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tools::ProfileName;

    use super::*;

    fn entry(profile: Option<&'static str>) -> Entry {
        Entry {
            name: Name::usual(profile),
            command: "/bin/sandpen".to_owned(),
            profile,
            options: Vec::new(),
            instead_of: None,
        }
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
            assert!(is_ours(&json!({ "command": command }), "/bin/sandpen"), "{command}");
        }
        assert!(is_ours(&json!({ "command": { "path": "/bin/sandpen", "args": ["mcp"] } }), "/bin/sandpen"));
        for foreign in [json!({ "command": "npx" }), json!({ "command": "sandpen-old" }), json!({ "url": "http://x" })]
        {
            assert!(!is_ours(&foreign, "/bin/sandpen"), "{foreign}");
        }
        assert!(!is_ours(&json!("sandpen"), "sandpen") && !is_ours(&json!(null), "sandpen"));
    }

    #[test]
    fn a_program_that_is_called_otherwise_knows_its_own_entry() {
        for command in ["/opt/sandpen-1.2", "/elsewhere/sandpen-1.2", "/usr/bin/sandpen"] {
            assert!(is_ours(&json!({ "command": command }), "/opt/sandpen-1.2"), "{command}");
        }
        assert!(!is_ours(&json!({ "command": "/opt/sandpen-1.1" }), "/opt/sandpen-1.2"));
    }

    #[test]
    fn options_that_a_person_added_stay() {
        let arguments = |profile, written: &[&str]| {
            let fields = entry(profile).fields_instead_of(false, &json!({ "args": written }));
            fields.unwrap().into_iter().find(|(key, _)| *key == "args").unwrap().1
        };
        assert_eq!(arguments(None, &["mcp", "--memory", "2G"]), json!(["mcp", "--memory", "2G"]));
        let other = ["mcp", "--memory", "2G", "--profile=automata"];
        assert_eq!(arguments(Some("automata"), &other), json!(other));
        let wanted = json!(["mcp", "--profile", "cloudflare", "--memory", "2G"]);
        assert_eq!(arguments(Some("cloudflare"), &other), wanted);
        assert_eq!(arguments(None, &other), json!(["mcp", "--memory", "2G"]));
        assert_eq!(arguments(None, &[]), json!(["mcp"]));
        let global = ["--config", "/c", "mcp"];
        assert_eq!(arguments(None, &global), json!(global));
    }

    #[test]
    fn arguments_that_are_not_understood_are_not_replaced() {
        for args in [json!(["serve"]), json!("mcp"), json!(["mcp", 2]), json!(null)] {
            let fields = entry(None).fields_instead_of(false, &json!({ "command": "sandpen", "args": args }));
            assert_eq!(fields.unwrap_err(), Refusal::Arguments, "{args}");
        }
        let twice = json!({ "command": { "path": "sandpen", "args": ["mcp"] }, "args": ["mcp"] });
        assert_eq!(entry(None).fields_instead_of(false, &twice).unwrap_err(), Refusal::Arguments);
    }

    #[test]
    fn what_zed_had_within_the_command_moves_beside_it() {
        let old = json!({ "command": { "path": "sandpen", "args": ["mcp"], "env": { "A": "1" }, "x": 2 }, "x": 2 });
        let fields = entry(None).fields_instead_of(false, &old).unwrap();
        let pair = |field: &str, value: Value| (field.to_owned(), value);
        let moved = [pair("env", json!({ "A": "1" })), pair("x", json!(2))];
        assert_eq!(fields[2..], moved);
        let unclear = json!({ "command": { "path": "sandpen", "env": { "A": "1" } }, "env": { "A": "2" } });
        assert_eq!(entry(None).fields_instead_of(false, &unclear).unwrap_err(), Refusal::Unusual);
    }
}
