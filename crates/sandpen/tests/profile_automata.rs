//! `sandpen mcp --profile automata` as its older server was started, stopped and started again.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::{Value, json};
use support::client::Client;
use support::server::{MCP, Server, request};
use support::{Done, World, sandboxes_work};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

const PROFILE: &[&str] = &["--profile", "automata", "--image", "host", "--no-update"];

fn client(world: &World, more: &[&str]) -> Client {
    Client::hello(world, &[PROFILE, more].concat(), "2024-11-05")
}

#[track_caller]
fn said(client: &mut Client, tool: &str, arguments: Value) -> String {
    let answer = client.call(tool, arguments);
    assert_ne!(answer["isError"], json!(true), "{answer}");
    answer["content"][0]["text"].as_str().unwrap().to_owned()
}

fn container(client: &mut Client) -> String {
    said(client, "sandbox_initialize", json!({})).strip_prefix("container_id: ").unwrap().to_owned()
}

fn end(mut client: Client) {
    client.close_stdin();
    assert_eq!(client.wait().0, Some(0));
}

#[test]
fn a_container_outlives_its_server_with_its_files_and_what_was_run_in_it() {
    needs_sandboxes!();
    let world = World::new();
    let mut first = client(&world, &[]);
    let id = container(&mut first);
    said(
        &mut first,
        "sandbox_exec",
        json!({ "container_id": id, "commands": ["echo kept > file; echo told", "exit 3"] }),
    );
    end(first);
    let mut second = client(&world, &[]);
    let found = said(&mut second, "sandbox_exec", json!({ "container_id": id, "commands": "cat file" }));
    assert_eq!(found, "$ cat file\nkept\n");
    let logs = second.ask("resources/read", json!({ "uri": format!("containers://{id}/logs") }));
    assert_eq!(
        logs["contents"][0]["text"],
        "$ echo kept > file; echo told\ntold\n\n$ exit 3\nCommand exited with code 3\n\n$ cat file\nkept\n"
    );
    let stopped = said(&mut second, "sandbox_stop", json!({ "container_id": id }));
    assert_eq!(stopped, format!("Successfully stopped and removed container: {id}"));
    assert_eq!(world.run(&["ps", "--json"]).json()["sandboxes"], json!([]));
    end(second);
}

/// Half an hour is the bound of callers; here nobody but the operator chose a time.
#[test]
fn commands_have_the_time_that_the_operator_or_the_older_server_gave_them() {
    needs_sandboxes!();
    let world = World::new();
    for more in [&["--timeout", "40m"][..], &[]] {
        let mut client = client(&world, &[&["--profile-option", "end-containers"], more].concat());
        let id = container(&mut client);
        let ran = said(&mut client, "sandbox_exec", json!({ "container_id": id, "commands": "echo ran" }));
        assert_eq!(ran, "$ echo ran\nran\n", "{more:?}");
        end(client);
    }
    world.run(&["run", "--timeout", "40m", "bash", "echo ran"]).expect(0, "ran\n");
}

#[test]
fn containers_end_with_the_server_where_that_was_chosen() {
    needs_sandboxes!();
    let world = World::new();
    let mut first = client(&world, &["--profile-option", "end-containers"]);
    let id = container(&mut first);
    end(first);
    let mut second = client(&world, &[]);
    let gone = said(&mut second, "sandbox_exec", json!({ "container_id": id, "commands": "true" }));
    assert_eq!(gone, format!("Error executing command: there is no container \"{id}\" of yours (not_found)"));
}

/// A link that lies below an opened directory is the only thing on the host that could lead out of it.
#[test]
fn no_link_of_the_host_is_followed() {
    needs_sandboxes!();
    let world = World::new();
    world.write("secret", "nobody's");
    fs::create_dir(world.work().join("open")).unwrap();
    symlink("../secret", world.work().join("open/link")).unwrap();
    symlink("..", world.work().join("open/up")).unwrap();
    let open = world.work().join("open").canonicalize().unwrap().display().to_string();
    let mut client = client(&world, &["--allow-path", &open, "--profile-option", "end-containers"]);
    let id = container(&mut client);
    let commands = "echo theirs > file; chmod 4711 file";
    said(&mut client, "sandbox_exec", json!({ "container_id": id, "commands": commands }));
    for source in ["link", "up/secret"] {
        let arguments = json!({ "container_id": id, "local_src_file": format!("{open}/{source}") });
        let answer = said(&mut client, "copy_file", arguments);
        assert!(answer.starts_with("Error accessing source file: "), "{answer}");
    }
    let mut copy = |to: &str| {
        let to = format!("{open}/{to}");
        let arguments = json!({ "container_id": id, "container_src_path": "file", "local_dest_path": to });
        said(&mut client, "copy_file_from_sandbox", arguments).starts_with("Successfully")
    };
    assert!(!copy("up/secret") && !copy("up/new/file") && !copy("link/file"));
    assert!(copy("link"), "a link in the place of a file is replaced");
    assert!(copy("new/deep/file"));
    assert_eq!(world.read("secret"), "nobody's");
    assert!(!world.work().join("new").exists());
    assert_eq!(world.read("open/link"), "theirs\n");
    let mode = fs::metadata(world.work().join("open/new/deep/file")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o711, "no set-id bit comes out");
}

#[test]
fn the_older_transport_has_its_older_addresses() {
    needs_sandboxes!();
    let world = World::new();
    let arguments = [&["mcp", "--transport", "sse", "--port", "0"], PROFILE].concat();
    let server = Server::by(&world, &arguments, &[]);
    let mut stream = server.open("GET", "/sse", &[("accept", "text/event-stream")], b"");
    stream.until("\n\n");
    assert!(stream.body.starts_with("event: endpoint\ndata: /message?sessionId="), "{}", stream.body);
    let path = stream.body.lines().nth(1).unwrap().strip_prefix("data: ").unwrap().to_owned();
    let about = json!({ "name": "test", "version": "1" });
    let hello = json!({ "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": about });
    assert_eq!(server.open("POST", &path, MCP, &request(1, "initialize", hello)).status, 202);
    stream.until("\"code-sandbox-mcp\"");
    let stop = json!({ "name": "sandbox_stop", "arguments": {} });
    assert_eq!(server.open("POST", &path, MCP, &request(2, "tools/call", stop)).status, 202);
    stream.until("Error: container_id is required");
    assert!(!server.hello("2025-06-18").is_empty(), "newer clients are served besides");
}

#[test]
fn it_sets_up_claude_desktop_and_leaves_what_is_there() {
    let world = World::new();
    let home = world.work();
    let install = || {
        let mut command = world.command(&["mcp", "--profile", "automata", "--install"]);
        Done::from(command.env_remove("XDG_CONFIG_HOME").env("HOME", &home).output().unwrap())
    };
    let path = ".config/Claude/claude_desktop_config.json";
    fs::create_dir_all(home.join(".config/Claude")).unwrap();
    world.write(path, r#"{ "theme": "dark", "mcpServers": { "other": { "command": "x" } } }"#);
    assert_eq!(install().code, Some(0));
    let written: Value = serde_json::from_str(&world.read(path)).unwrap();
    assert_eq!(written["mcpServers"]["code-sandbox-mcp"]["args"], json!(["mcp", "--profile", "automata"]));
    assert_eq!((&written["theme"], &written["mcpServers"]["other"]["command"]), (&json!("dark"), &json!("x")));
    let foreign = r#"{ "mcpServers": { "code-sandbox-mcp": { "command": "npx", "args": ["code-sandbox-mcp"] } } }"#;
    world.write(path, foreign);
    install().expect(1, "").says("is not sandpen").says("mcp --profile automata");
    assert_eq!(world.read(path), foreign);
}

/// Everybody who comes from it has that one.
#[test]
fn it_takes_the_place_of_the_older_servers_own_entry() {
    let world = World::new();
    let home = world.work();
    let path = ".config/Claude/claude_desktop_config.json";
    fs::create_dir_all(home.join(".config/Claude")).unwrap();
    let program = home.join(".local/share/code-sandbox-mcp/code-sandbox-mcp");
    let entry = json!({ "command": program, "args": [], "env": { "DOCKER_HOST": "unix:///x" } });
    let older = json!({ "mcpServers": { "code-sandbox-mcp": entry, "other": { "command": "x" } } }).to_string();
    world.write(path, &older);
    let mut command = world.command(&["mcp", "--profile", "automata", "--install"]);
    let done = Done::from(command.env_remove("XDG_CONFIG_HOME").env("HOME", &home).output().unwrap());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stdout.starts_with("replaced the older server code-sandbox-mcp in "), "{}", done.stdout);
    done.says("is kept in");
    assert_eq!(world.read(&format!("{path}.sandpen-backup")), older);
    let written: Value = serde_json::from_str(&world.read(path)).unwrap();
    let entry = json!({
        "command": env!("CARGO_BIN_EXE_sandpen"),
        "args": ["mcp", "--profile", "automata"],
        "env": { "DOCKER_HOST": "unix:///x" },
    });
    assert_eq!(written, json!({ "mcpServers": { "code-sandbox-mcp": entry, "other": { "command": "x" } } }));
}
