//! Documents that must keep up with the tree. The tables that are made from the code are made where all of the code is
//! in reach, in the tests of the command line.

use crate::tree::{Rule, Tree};

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
        name: "what a document names or links to is there",
        check: |tree| {
            tree.files()
                .filter(|(path, _)| path.ends_with(".md"))
                .flat_map(|(path, text)| {
                    let links = links_in(text).map(|target| beside(path, target));
                    let wanted: Vec<String> = links.chain(paths_in(text)).filter(|wanted| !tree.has(wanted)).collect();
                    wanted.into_iter().map(move |wanted| format!("{path}: there is no {wanted}"))
                })
                .collect()
        },
        broken_by: &[
            ("README.md", "See [this](docs/missing.md).\n"),
            ("docs/a.md", "See [this](../missing.md#part).\n"),
            ("README.md", "The plan is `crates/engine-native/src/moved.rs`.\n"),
        ],
        kept_by: &[
            ("docs/a.md", "See [this](a.md#part), [that](#part), [it](https://example.org/) and `docs/a.md`.\n"),
            ("docs/a.md", "A directory: `docs/`. A pattern: `crates/*/src`. A command: `docs/x y`.\n"),
        ],
    },
];

const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!-- end of generated -->";

/// Targets in this repository, without the part behind `#`.
fn links_in(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://"))
}

/// What a link means in a document at `path`.
fn beside(path: &str, target: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => _ = parts.pop(),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Paths from the root of the repository that stand in backquotes.
fn paths_in(text: &str) -> impl Iterator<Item = String> {
    let roots = ["crates/", "docs/", "fuzz/", "tests/", "xtask/"];
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(move |quoted| roots.iter().any(|root| quoted.starts_with(root)))
        .filter(|quoted| !quoted.contains([' ', '*', '{', '…']))
        .map(str::to_owned)
}

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
