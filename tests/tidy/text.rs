//! What may stand in a source file.

use crate::tree::{Rule, Tree, root};

const MAX_LINES: usize = 700;

/// The one file with `unsafe` in it.
const UNSAFE_FILE: &str = "crates/engine-native/src/syscall.rs";

/// Files of the domain crate that read or write something on disk, and so need shapes for it.
const WIRE_FILES: &[&str] = &["journal/record", "ledger", "packages/record", "packages/said", "runner", "wire"];

/// Where older servers are spoken for, whose clients read of containers.
const OLDER_SERVERS: &[&str] = &[
    "crates/sandpen/src/config/profiles.rs",
    "crates/sandpen/tests/profile_automata.rs",
    "crates/sandpen/tests/profile_cloudflare.rs",
    "crates/sandpen/tests/profiles.rs",
    "crates/tools/src/profile",
    "crates/tools/tests/tools/automata.rs",
    "crates/tools/tests/tools/cloudflare.rs",
    "crates/tools/tests/tools/profiles.rs",
    "crates/tools/tests/tools/sandbox_server.rs",
];

pub const RULES: &[Rule] = &[
    Rule {
        name: "only the MCP edge names rmcp",
        check: |tree| {
            tree.sources()
                .filter(|(path, _)| !path.starts_with("crates/sandpen/src/mcp"))
                .flat_map(|(path, text)| lines_with_word(path, text, &["rmcp"]))
                .collect()
        },
        broken_by: &[
            ("crates/tools/src/lib.rs", "use rmcp::model::Tool;\n"),
            ("crates/sandpen/src/http.rs", "fn serve(_: rmcp::Service) {}\n"),
        ],
        kept_by: &[("crates/sandpen/src/mcp/adapter.rs", "use rmcp::model::Tool;\n")],
    },
    Rule {
        name: "only one file has unsafe code",
        check: |tree| {
            tree.sources()
                .filter(|(path, _)| *path != UNSAFE_FILE)
                .flat_map(|(path, text)| lines_where(path, text, has_unsafe_code))
                .collect()
        },
        broken_by: &[
            ("crates/engine-native/src/jail.rs", "fn f() { unsafe { g() } }\n"),
            ("crates/sandbox/src/lib.rs", "unsafe impl Send for X {}\n"),
            ("crates/sandbox/src/lib.rs", "#[expect(unsafe_code)]\nmod x;\n"),
        ],
        kept_by: &[
            (UNSAFE_FILE, "#![expect(unsafe_code)]\nfn f() { unsafe { g() } }\n"),
            ("crates/sandbox/src/lib.rs", "//! Has no unsafe code.\n"),
        ],
    },
    Rule {
        name: "domain types have no wire shape",
        check: |tree| {
            tree.sources()
                .filter(|(path, _)| path.starts_with("crates/sandbox/src/"))
                .filter(|(path, _)| !WIRE_FILES.iter().any(|part| path.contains(part)))
                .flat_map(|(path, text)| lines_with_word(path, text, &["Serialize", "Deserialize"]))
                .collect()
        },
        broken_by: &[("crates/sandbox/src/spec.rs", "#[derive(Clone, serde::Serialize)]\npub struct Limits;\n")],
        kept_by: &[("crates/sandbox/src/service/ledger.rs", "#[derive(Deserialize)]\nstruct Row;\n")],
    },
    Rule {
        name: "the domain knows no protocol, daemon or command line",
        check: |tree| {
            tree.sources()
                .filter(|(path, _)| {
                    path.starts_with("crates/sandbox/src/") || path.starts_with("crates/engine-native/")
                })
                .flat_map(|(path, text)| {
                    lines_with_word(path, text, &["clap", "axum", "hyper", "bollard", "kube", "mcp"])
                })
                .collect()
        },
        broken_by: &[("crates/sandbox/src/service.rs", "use clap::Parser;\n")],
        kept_by: &[("crates/sandbox/src/lib.rs", "//! Knows nothing of MCP, HTTP, command lines or Docker.\n")],
    },
    Rule {
        name: "a sandbox is not called a container",
        check: |tree| {
            tree.sources()
                .filter(|(path, _)| path.starts_with("crates/") && !path.starts_with("crates/engine-docker/"))
                .filter(|(path, _)| !OLDER_SERVERS.iter().any(|older| path.starts_with(older)))
                .flat_map(|(path, text)| lines_with_word(path, text, &["container", "containers", "Container"]))
                // One of the media types that registries know is called so, an option of profiles, and one of ours.
                .filter(|line| !line.contains("vnd.docker.container.image") && !line.contains("end-containers"))
                .filter(|line| !line.contains("container-user"))
                .collect()
        },
        broken_by: &[
            ("crates/sandbox/src/lib.rs", "/// Stops the container.\nfn stop() {}\n"),
            ("crates/tools/src/catalog/stop.rs", "/// Stops the container.\nfn stop() {}\n"),
        ],
        kept_by: &[
            ("crates/engine-docker/src/lib.rs", "/// Stops the container.\nfn stop() {}\n"),
            ("crates/tools/src/profile/older.rs", "const GONE: &str = \"Container not found\";\n"),
        ],
    },
    Rule {
        name: "nothing is left half done",
        check: |tree| {
            let marks = ["todo!", "unimplemented!", "FIXME", "TODO", "XXX", "#[ignore", "dbg!("];
            tree.sources()
                .flat_map(|(path, text)| lines_where(path, text, |line| marks.iter().any(|mark| line.contains(mark))))
                .collect()
        },
        broken_by: &[
            ("crates/sandbox/src/lib.rs", "fn f() { todo!() }\n"),
            ("tests/support/lib.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}\n"),
            ("xtask/src/main.rs", "// FIXME later\n"),
        ],
        kept_by: &[("crates/sandbox/src/lib.rs", "fn f() {}\n")],
    },
    Rule {
        name: "no path of somebody's machine",
        check: machine_paths,
        broken_by: &[
            ("crates/sandbox/src/lib.rs", concat!("const STATE: &str = \"/root", "/.local/state\";\n")),
            ("README.md", "cd /home/carol/src && cargo build\n"),
            ("docs/start.md", "Look in /home/alice/sandpen.\n"),
        ],
        kept_by: &[
            ("README.md", "Code runs in /workspace; /home/user is an example.\n"),
            ("tests/escape/probe/files.c", concat!("open(\"/proc/1/root", "/..\");\n")),
        ],
    },
    Rule {
        name: "a file is short enough to be read",
        check: |tree| {
            let too_long =
                |text: &str| text.lines().take_while(|line| line.trim() != "#[cfg(test)]").count() > MAX_LINES;
            let is_code = |path: &str| [".rs", ".c", ".h"].iter().any(|ending| path.ends_with(ending));
            tree.files()
                .filter(|(path, text)| is_code(path) && too_long(text))
                .map(|(path, _)| format!("{path}: more than {MAX_LINES} lines before its tests"))
                .collect()
        },
        broken_by: &[("crates/sandbox/src/lib.rs", LONG)],
        kept_by: &[("crates/sandbox/src/lib.rs", "fn f() {}\n")],
    },
    Rule {
        name: "every seccomp rule has its reason",
        check: seccomp_reasons,
        broken_by: &[
            ("crates/engine-native/seccomp/base.json", "{\"rules\": [{\"names\": [\"read\"]}]}"),
            ("crates/engine-native/seccomp/base.json", "{\"rules\": [{\"names\": [\"read\"], \"reason\": \" \"}]}"),
            ("crates/engine-native/seccomp/base.json", "{\"rules\": ["),
            ("crates/engine-native/seccomp/base.json", "{}"),
        ],
        kept_by: &[(
            "crates/engine-native/seccomp/base.json",
            "{\"rules\": [{\"names\": [\"read\"], \"reason\": \"reads files\"}]}",
        )],
    },
];

/// A file that is too long by a few lines.
const LONG: &str = {
    const BYTES: [u8; MAX_LINES * 2] = [b'\n'; MAX_LINES * 2];
    match std::str::from_utf8(&BYTES) {
        Ok(text) => text,
        Err(_) => panic!("newlines are text"),
    }
};

fn lines_where(path: &str, text: &str, is_wrong: impl Fn(&str) -> bool) -> Vec<String> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| is_wrong(line))
        .map(|(index, line)| format!("{path}:{}: {}", index + 1, line.trim()))
        .collect()
}

fn lines_with_word(path: &str, text: &str, words: &[&str]) -> Vec<String> {
    lines_where(path, text, |line| words_of(line).any(|word| words.contains(&word)))
}

fn words_of(line: &str) -> impl Iterator<Item = &str> {
    line.split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
}

/// Comments may speak of it.
fn has_unsafe_code(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    words_of(code).any(|word| word == "unsafe" || word == "unsafe_code")
}

/// Where people build. A sandbox's own `/workspace` is not such a place, its user's home neither, and some names are
/// the usual examples.
fn machine_paths(tree: &Tree) -> Vec<String> {
    let here = root().to_string_lossy().into_owned();
    let is_machine_path = |line: &str| {
        let starts_with = |prefix: &str, is_person: fn(&str) -> bool| {
            line.match_indices(prefix).any(|(at, _)| {
                let inside_a_path = line[..at]
                    .ends_with(|character: char| character.is_ascii_alphanumeric() || "._-*~/}".contains(character));
                !inside_a_path && is_person(&line[at + prefix.len()..])
            })
        };
        starts_with(concat!("/root", "/"), |_| true)
            || starts_with("/home/", |rest| {
                let examples = ["user", "sandbox", "ada", "bob", "linuxbrew"];
                rest.starts_with(|character: char| character.is_ascii_alphanumeric())
                    && !examples.iter().any(|example| rest.starts_with(example))
            })
            || (here.len() > 4 && line.contains(&format!("{here}/")))
    };
    tree.files()
        .filter(|(path, _)| !path.starts_with("tests/tidy/"))
        .flat_map(|(path, text)| lines_where(path, text, is_machine_path))
        .collect()
}

fn seccomp_reasons(tree: &Tree) -> Vec<String> {
    let mut breaches = Vec::new();
    for (path, text) in tree.files() {
        if !path.starts_with("crates/engine-native/seccomp/") || !path.ends_with(".json") {
            continue;
        }
        let policy: serde_json::Value = match serde_json::from_str(text) {
            Ok(policy) => policy,
            Err(error) => {
                breaches.push(format!("{path}: {error}"));
                continue;
            }
        };
        let mut rules = 0;
        for rule in
            policy.as_object().into_iter().flat_map(|object| object.values()).filter_map(|value| value.as_array())
        {
            for rule in rule.iter().filter(|rule| rule.is_object()) {
                rules += 1;
                if rule["reason"].as_str().is_none_or(|reason| reason.trim().is_empty()) {
                    breaches.push(format!("{path}: no reason for {rule}"));
                }
            }
        }
        if rules == 0 {
            breaches.push(format!("{path}: no rules found"));
        }
    }
    breaches
}
