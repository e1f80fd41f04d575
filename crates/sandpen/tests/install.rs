//! `sandpen install` on the real binary: entries come and go, and everything else stays.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::{Done, World};

/// A home with nothing of the caller's.
struct Home {
    world: World,
}

impl Home {
    fn new() -> Self {
        Self { world: World::new() }
    }

    fn install(&self, arguments: &[&str]) -> Done {
        self.install_with(arguments, &[])
    }

    fn install_with(&self, arguments: &[&str], variables: &[(&str, &Path)]) -> Done {
        let mut command = self.world.command(&[&["install"], arguments].concat());
        for moved in ["XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "SUDO_USER"] {
            command.env_remove(moved);
        }
        command.env("HOME", self.world.work()).envs(variables.iter().copied());
        Done::from(command.output().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.world.work().join(name)
    }

    /// All files below it, and what they say.
    fn files(&self) -> Vec<(PathBuf, String)> {
        fn walk(directory: &Path, found: &mut Vec<(PathBuf, String)>) {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, found);
                } else {
                    found.push((path.clone(), fs::read_to_string(&path).unwrap()));
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.world.work(), &mut found);
        found.sort();
        found
    }
}

fn own() -> &'static str {
    env!("CARGO_BIN_EXE_sandpen")
}

#[cfg(target_os = "linux")]
const PLACES: [(&str, &str, &str); 8] = [
    ("claude-desktop", ".config/Claude/claude_desktop_config.json", "mcpServers"),
    ("claude-code", ".claude.json", "mcpServers"),
    ("cursor", ".cursor/mcp.json", "mcpServers"),
    ("vscode", ".config/Code/User/mcp.json", "servers"),
    ("windsurf", ".codeium/windsurf/mcp_config.json", "mcpServers"),
    ("gemini", ".gemini/settings.json", "mcpServers"),
    ("codex", ".codex/config.toml", "mcp_servers"),
    ("zed", ".config/zed/settings.json", "context_servers"),
];

#[cfg(target_os = "linux")]
#[test]
fn every_client_gets_an_entry_that_starts_this_program() {
    for (client, place, key) in PLACES {
        let home = Home::new();
        let path = home.path(place);
        let done = home.install(&[client, "--profile", "automata"]);
        done.expect(0, &format!("added sandpen-automata to {}\n", path.display()))
            .says("does not seem to be installed here");
        let text = fs::read_to_string(&path).unwrap();
        let whole: Value = if client == "codex" {
            serde_json::to_value(toml::from_str::<toml::Table>(&text).unwrap()).unwrap()
        } else {
            serde_json::from_str(&text).unwrap()
        };
        let mut entry = json!({ "command": own(), "args": ["mcp", "--profile", "automata"] });
        if matches!(client, "claude-code" | "vscode") {
            entry["type"] = "stdio".into();
        }
        assert_eq!(whole, json!({ key: { "sandpen-automata": entry } }));
        home.install(&["--print", client, "--profile", "automata"]).expect(0, &text);
        home.install(&[client, "--remove", "--profile", "automata"]).succeeds();
        assert!(!fs::read_to_string(&path).unwrap().contains("automata"));
    }
}

#[test]
fn an_entry_is_added_renewed_and_taken_back() {
    let home = Home::new();
    let (path, before) =
        (home.path(".cursor/mcp.json"), "{\n\t// mine\n\t\"mcpServers\": {\"a\": {\"url\": \"x\"}},\n}\n");
    home.world.write(".cursor/mcp.json", before);
    let added = home.install(&["cursor"]).expect(0, &format!("added sandpen to {}\n", path.display()));
    assert!(!added.stderr.contains("installed"), "{}", added.stderr);
    added.says("is kept in").says("sandpen-backup").says("restart Cursor");
    let after = home.world.read(".cursor/mcp.json");
    let entry =
        format!("{{\"a\": {{\"url\": \"x\"}}, \"sandpen\": {{\"command\": {:?}, \"args\": [\"mcp\"]}}}}", own());
    assert_eq!(after, before.replace("{\"a\": {\"url\": \"x\"}}", &entry));
    assert_eq!(home.world.read(".cursor/mcp.json.sandpen-backup"), before);

    let files = home.files();
    home.install(&["cursor"]).expect(0, "").says("already; nothing was changed");
    assert_eq!(home.files(), files);

    home.world.write(".cursor/mcp.json", &after.replace(own(), "/old/place/sandpen"));
    home.install(&["cursor"]).expect(0, &format!("updated sandpen in {}\n", path.display()));
    assert_eq!(home.world.read(".cursor/mcp.json"), after);

    home.install(&["cursor", "--remove"]).expect(0, &format!("removed sandpen from {}\n", path.display()));
    assert_eq!(home.world.read(".cursor/mcp.json"), before);
    home.install(&["cursor", "--remove"]).expect(0, "").says("is not in").says("nothing was changed");
}

#[test]
fn a_dry_run_shows_the_change_and_makes_none() {
    let home = Home::new();
    home.world.write(".gemini/settings.json", "{\n  \"a\": 1\n}\n");
    let files = home.files();
    let done = home.install(&["gemini", "--dry-run"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    for line in ["@@ -1,3 +1,11 @@\n {\n-  \"a\": 1\n+  \"a\": 1,\n", "+    \"sandpen\": {\n", "+  }\n }\n"] {
        assert!(done.stdout.contains(line), "{}", done.stdout);
    }
    assert!(!done.stdout.contains('\u{1b}'));
    done.says("this was a dry run; nothing was changed");
    assert!(home.install(&["gemini", "--dry-run", "--color", "always"]).stdout.contains("\u{1b}["));
    let report = home.install(&["gemini", "--dry-run", "--json"]).json();
    assert_eq!((&report["action"], &report["dry_run"]), (&json!("added"), &json!(true)));
    assert!(report["difference"].as_str().unwrap().contains("+    \"sandpen\""));
    home.install(&["gemini", "--dry-run", "--remove"]).expect(0, "").says("is not in");
    assert_eq!(home.files(), files);
}

#[test]
fn programs_get_one_object() {
    let home = Home::new();
    let path = home.path(".codex/config.toml");
    home.world.write(".codex/config.toml", "model = \"x\"\n");
    let added = home.install(&["codex", "--json"]);
    assert_eq!(added.stderr, "");
    assert_eq!(
        added.json(),
        json!({
            "client": "codex",
            "name": "sandpen",
            "path": path,
            "action": "added",
            "dry_run": false,
            "client_found": true,
            "backup": home.path(".codex/config.toml.sandpen-backup"),
            "restart": "start Codex again; /mcp lists its servers",
        })
    );
    let again = home.install(&["codex", "--json"]).json();
    assert_eq!(
        (&again["action"], &again["backup"], &again["restart"]),
        (&json!("unchanged"), &json!(null), &json!(null))
    );
    assert_eq!(home.install(&["codex", "--remove", "--json"]).json()["action"], "removed");
    assert_eq!(home.install(&["codex", "--remove", "--json"]).json()["action"], "absent");
    let printed = home.install(&["--print", "codex", "--json"]).json();
    assert!(printed["snippet"].as_str().unwrap().starts_with("[mcp_servers.sandpen]\n"), "{printed}");
}

#[test]
fn broken_files_and_servers_of_others_are_left_alone() {
    let home = Home::new();
    home.world.write(".claude.json", "{\n  \"a\": 1,\n}\n");
    home.world.write(".cursor/mcp.json", "{\"mcpServers\": {\"sandpen\": {\"command\": \"npx\"}}}");
    home.world.write(".codex/config.toml", "a = 1\na = 2\n");
    home.world.write(".gemini/settings.json", "{\"mcpServers\": []}");
    let files = home.files();
    let broken = home.install(&["claude-code"]).expect(1, "");
    broken.says("is broken at line 2, column 9: trailing commas are not allowed").says("nothing was changed");
    home.install(&["codex"]).expect(1, "").says("is broken at line 2, column 1: duplicate key");
    home.install(&["gemini"]).expect(1, "").says("\"mcpServers\" should be an object");
    home.install(&["cursor"]).expect(1, "").says("a server called sandpen that is not sandpen").says("--name");
    home.install(&["cursor", "--remove"]).expect(1, "").says("is not sandpen");
    assert_eq!(home.install(&["cursor", "--json"]).json()["error"]["kind"], "already_exists");
    assert_eq!(home.files(), files);
    home.install(&["cursor", "--name", "sandbox"]).succeeds();
    assert!(home.world.read(".cursor/mcp.json").contains("\"npx\""));
}

#[test]
fn variables_and_a_flag_say_where_the_file_is() {
    let home = Home::new();
    let moved = home.path("moved");
    home.install_with(&["codex"], &[("CODEX_HOME", &moved)]).succeeds();
    home.install_with(&["claude-code"], &[("CLAUDE_CONFIG_DIR", &moved)]).succeeds();
    let in_project = home.install(&["vscode", "--file", "project/mcp.json"]);
    assert!(in_project.code == Some(0) && !in_project.stderr.contains("installed"), "{}", in_project.stderr);
    let names: Vec<PathBuf> = home.files().into_iter().map(|(path, _)| path).collect();
    let wanted = ["moved/.claude.json", "moved/config.toml", "project/mcp.json"].map(|name| home.path(name));
    assert_eq!(names, wanted);
    home.install_with(&["cursor"], &[("HOME", Path::new(""))]).expect(1, "").says("HOME is not set").says("--file");
}

#[test]
fn wrong_words_are_refused_with_those_that_there_are() {
    let home = Home::new();
    home.install(&[]).expect(2, "").says("CLIENT");
    home.install(&["cursr"]).expect(2, "").says("cursor");
    home.install(&["cursor", "--profile", "clodflare"]).expect(2, "").says("cloudflare");
    home.install(&["cursor", "--print", "--remove"]).expect(2, "").says("--remove");
    home.install(&["cursor", "--name", "a b"]).expect(1, "").says("\"a b\" cannot be the name of a server");
    assert_eq!(home.files(), []);
}

#[cfg(target_os = "linux")]
#[test]
fn whoever_is_root_through_sudo_is_told_whose_file_it_is() {
    let home = Home::new();
    let done = home.install_with(&["cursor"], &[("SUDO_USER", Path::new("ada"))]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let is_told = done.stderr.contains("to set up the client of ada, leave sudo out");
    assert_eq!(is_told, sandbox::system::is_root(), "{}", done.stderr);
}

#[test]
fn options_of_the_command_line_are_in_the_entry() {
    let home = Home::new();
    home.world.write("own.toml", "");
    let flags = ["--engine", "docker", "--state-dir", "kept", "--config", "own.toml", "--color", "never"];
    home.install(&[&["cursor"], &flags[..]].concat()).succeeds();
    let arguments = || {
        let whole: Value = serde_json::from_str(&home.world.read(".cursor/mcp.json")).unwrap();
        whole["mcpServers"]["sandpen"]["args"].clone()
    };
    let (config, kept) = (home.path("own.toml"), home.path("kept"));
    let wanted = json!(["mcp", "--config", config, "--engine", "docker", "--state-dir", kept]);
    assert_eq!(arguments(), wanted);
    home.install(&["cursor"]).expect(0, "").says("nothing was changed");
    home.install(&["cursor", "--engine", "podman"]).succeeds();
    assert_eq!(arguments(), json!(["mcp", "--config", config, "--state-dir", kept, "--engine", "podman"]));

    let older = |arguments: &[&str]| {
        let mut command = home.world.command(&[&["mcp", "--profile", "automata", "--install"], arguments].concat());
        Done::from(command.env_remove("XDG_CONFIG_HOME").env("HOME", home.world.work()).output().unwrap())
    };
    older(&["--port", "9"]).expect(1, "").says("speaks over stdio");
    older(&["--transport", "sse"]).expect(1, "").says("speaks over stdio");
    if cfg!(target_os = "linux") {
        older(&["--memory", "1G", "--read-only", "-e", "A=-b"]).succeeds();
        let text = home.world.read(".config/Claude/claude_desktop_config.json");
        let whole: Value = serde_json::from_str(&text).unwrap();
        let wanted = json!(["mcp", "--profile", "automata", "--read-only", "--memory", "1G", "--env", "A=-b"]);
        assert_eq!(whole["mcpServers"]["code-sandbox-mcp"]["args"], wanted);
    }
}

#[test]
fn arguments_that_are_not_understood_are_left_alone() {
    let home = Home::new();
    home.world.write(
        ".cursor/mcp.json",
        "{\"mcpServers\": {\"sandpen\": {\"command\": \"sandpen\", \"args\": [\"serve\"]}}}",
    );
    let files = home.files();
    home.install(&["cursor"]).expect(1, "").says("with arguments that are not understood").says("--name");
    assert_eq!(home.files(), files);
    home.install(&["cursor", "--remove"]).succeeds();
}

#[cfg(target_os = "linux")]
#[test]
fn a_program_that_is_called_otherwise_renews_and_removes_its_entry() {
    let home = Home::new();
    let program = home.path("sandpen-next");
    fs::copy(own(), &program).unwrap();
    let install = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&program);
        let command = command.args(["install", "cursor"]).args(arguments).env("HOME", home.world.work());
        Done::from(command.env_remove("XDG_CONFIG_HOME").output().unwrap())
    };
    install(&[]).succeeds();
    install(&[]).expect(0, "").says("nothing was changed");
    install(&["--profile", "automata", "--name", "sandpen"]).succeeds();
    install(&["--remove"]).succeeds();
    assert!(!home.world.read(".cursor/mcp.json").contains("sandpen-next"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_path_that_is_no_text_can_be_told_to_programs() {
    use std::os::unix::ffi::OsStrExt;
    let home = Home::new();
    let mut command = home.world.command(&["install", "cursor", "--json", "--file"]);
    let done = Done::from(command.arg(std::ffi::OsStr::from_bytes(b"odd-\xff.json")).output().unwrap());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.json()["path"].as_str().unwrap().ends_with("odd-\u{fffd}.json"), "{}", done.stdout);
}
