//! Documents that must keep up with the tree, and the tables in them that are made from the code.

use std::fmt::Write;

use sandbox::{ErrorKind, Layer};

use crate::tree::{Rule, Tree, root};

pub const RULES: &[Rule] = &[
    Rule {
        name: "CONTRIBUTING says of every directory what may live there",
        check: directories_are_described,
        broken_by: &[("crates/sandbox/src/lib.rs", ""), ("CONTRIBUTING.md", "no table")],
        kept_by: &[],
    },
    Rule {
        name: "a generated table ends where it says",
        check: |tree| {
            tree.files()
                .filter(|(path, _)| path.ends_with(".md"))
                .filter(|(_, text)| text.matches(BEGIN).count() != text.matches(END).count())
                .map(|(path, _)| format!("{path}: a generated table has no end"))
                .collect()
        },
        broken_by: &[("README.md", "<!-- generated: layers -->\n| x |\n")],
        kept_by: &[("README.md", "<!-- generated: layers -->\n| x |\n<!-- end of generated -->\n")],
    },
    Rule {
        name: "a generated table has a generator",
        check: |tree| {
            tree.files()
                .filter(|(path, _)| path.ends_with(".md"))
                .flat_map(|(path, text)| {
                    tables_in(text)
                        .into_iter()
                        .filter(|name| table(name).is_none())
                        .map(move |name| format!("{path}: nothing generates {name:?}"))
                })
                .collect()
        },
        broken_by: &[("README.md", "<!-- generated: nonsense -->\n<!-- end of generated -->\n")],
        kept_by: &[("README.md", "<!-- generated: layers -->\n<!-- end of generated -->\n")],
    },
];

const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!-- end of generated -->";

/// Each line of the table begins with the directory in backquotes, ending in a slash.
fn directories_are_described(tree: &Tree) -> Vec<String> {
    let Some(contributing) = tree.get("CONTRIBUTING.md") else {
        return vec!["there is no CONTRIBUTING.md".to_owned()];
    };
    let listed: Vec<&str> = contributing
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("/`"))
        .map(|(directory, _)| directory)
        .collect();
    let wanted = |directory: &&String| {
        let depth = directory.split('/').count();
        depth == 1 || (depth == 2 && ["crates/", "tests/"].iter().any(|parent| directory.starts_with(parent)))
    };
    let present = tree.directories(2);
    let missing = present
        .iter()
        .filter(wanted)
        .filter(|directory| !listed.contains(&directory.as_str()))
        .map(|directory| format!("CONTRIBUTING.md: no line for {directory}/"));
    let gone = listed
        .iter()
        .filter(|directory| !tree.directories(4).iter().any(|present| present == *directory))
        .map(|directory| format!("CONTRIBUTING.md: there is no {directory}/"));
    let empty = listed.is_empty().then(|| "CONTRIBUTING.md: no table of directories".to_owned());
    missing.chain(gone).chain(empty).collect()
}

fn tables_in(text: &str) -> Vec<&str> {
    text.split(BEGIN).skip(1).filter_map(|rest| Some(rest.split_once(" -->")?.0)).collect()
}

/// What becomes of a table that does not match the code.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stale {
    IsReported,
    IsRewritten,
}

impl Stale {
    pub fn from_environment() -> Self {
        if std::env::var_os("SANDPEN_TEST_BLESS").is_some() { Self::IsRewritten } else { Self::IsReported }
    }
}

/// The documents whose tables differ from what the code says.
pub fn stale_tables(stale: Stale) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in Tree::of_the_repository().files().filter(|(path, _)| path.ends_with(".md")) {
        let fresh = with_fresh_tables(text);
        if fresh != text {
            match stale {
                Stale::IsReported => found.push(path.to_owned()),
                Stale::IsRewritten => std::fs::write(root().join(path), fresh).expect("the document can be written"),
            }
        }
    }
    found
}

fn with_fresh_tables(text: &str) -> String {
    let mut fresh = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let Some((name, body)) = after.split_once(" -->") else { break };
        let (Some(table), Some((_, tail))) = (table(name), body.split_once(END)) else { break };
        write!(fresh, "{before}{BEGIN}{name} -->\n\n{table}\n{END}").expect("a string takes all");
        rest = tail;
    }
    fresh + rest
}

fn table(name: &str) -> Option<String> {
    match name {
        "layers" => Some(layers()),
        "errors" => Some(errors()),
        "languages" => Some(languages()),
        "checks" => Some(checks()),
        _ => None,
    }
}

fn layers() -> String {
    let rows = Layer::ALL.iter().map(|layer| [format!("`{layer}`"), layer.description().to_owned()]);
    markdown(["Layer", "What it gives"], rows)
}

fn errors() -> String {
    use ErrorKind::{
        AlreadyExists, Denied, Internal, InvalidInput, LimitExceeded, NotFound, TimedOut, Unavailable, Unsupported,
        WrongState,
    };
    let kinds = [
        (InvalidInput, "the request itself is wrong"),
        (NotFound, "no such thing, or not yours"),
        (AlreadyExists, "the name or id is taken"),
        (WrongState, "it exists but cannot do this now"),
        (LimitExceeded, "a limit is used up"),
        (Denied, "policy or permission says no"),
        (Unsupported, "this engine or host cannot do it at all"),
        (TimedOut, "it took longer than allowed"),
        (Unavailable, "something that is needed does not answer now"),
        (Internal, "a fault of ours"),
    ];
    markdown(["Kind", "Meaning"], kinds.map(|(kind, meaning)| [format!("`{}`", kind.as_str()), meaning.to_owned()]))
}

/// From `runners.toml`, which needs no Rust to be changed.
fn languages() -> String {
    let Ok(text) = std::fs::read_to_string(root().join("runners.toml")) else { return String::new() };
    let table: toml::Table = text.parse().expect("runners.toml is TOML");
    let mut rows: Vec<[String; 2]> = Vec::new();
    for (name, runner) in &table {
        let title = runner.get("title").and_then(toml::Value::as_str).unwrap_or(name);
        let command = runner.get("command").map(|command| match command {
            toml::Value::Array(words) => words.iter().filter_map(toml::Value::as_str).collect::<Vec<_>>().join(" "),
            other => other.as_str().unwrap_or_default().to_owned(),
        });
        rows.push([title.to_owned(), format!("`{}`", command.unwrap_or_default())]);
    }
    markdown(["Language", "Command"], rows)
}

/// From the `About` of every check under `tests/escape`.
fn checks() -> String {
    let mut rows = Vec::new();
    for (path, text) in Tree::of_the_repository().sources().filter(|(path, _)| path.starts_with("tests/escape/")) {
        let field = |block: &str, name: &str| {
            let after = block.split_once(&format!("{name}: \""))?.1;
            Some(after.split_once("\",")?.0.replace("\\\n", "").split_whitespace().collect::<Vec<_>>().join(" "))
        };
        for block in text.split("About {").skip(1) {
            let block = block.split_once('}').map_or(block, |(inside, _)| inside);
            if let (Some(id), Some(tries), Some(stopped_by)) =
                (field(block, "id"), field(block, "tries"), field(block, "stopped_by"))
            {
                let file = path.rsplit('/').next().unwrap_or(path);
                rows.push([format!("{id} ([{file}]({file}))"), tries, stopped_by]);
            }
        }
    }
    rows.sort();
    markdown(["Check", "What it tries", "What must stop it"], rows)
}

fn markdown<const COLUMNS: usize>(head: [&str; COLUMNS], rows: impl IntoIterator<Item = [String; COLUMNS]>) -> String {
    let mut table = format!("| {} |\n|{}\n", head.join(" | "), " --- |".repeat(COLUMNS));
    for row in rows {
        let cells = row.map(|cell| cell.replace('|', "\\|"));
        writeln!(table, "| {} |", cells.join(" | ")).expect("a string takes all");
    }
    table
}

#[test]
fn a_stale_table_is_seen_and_made_fresh() {
    let text = "before\n<!-- generated: layers -->\nold\n<!-- end of generated -->\nafter\n";
    let fresh = with_fresh_tables(text);
    assert_ne!(fresh, text);
    assert!(fresh.starts_with("before\n") && fresh.ends_with("after\n") && fresh.contains("`seccomp`"));
    assert_eq!(with_fresh_tables(&fresh), fresh);
}
