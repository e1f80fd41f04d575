//! Networks on the command line, as far as nothing is connected to.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::{Value, json};
use support::server::Server;
use support::{Engine, World, sandboxes_work};

#[test]
fn what_is_no_network_is_refused_with_its_place_and_a_hint() {
    let world = World::new();
    for (arguments, says) in [
        (
            &["run", "python", "1", "--network", "https://a.example"][..],
            "--network: \"https://a.example\" is an address of a page",
        ),
        (&["run", "python", "1", "--network", ""], "--network: no network is named"),
        (&["run", "python", "1", "--network", "*"], "to reach every public host, use internet"),
        (&["run", "python", "1", "--network", "a.example:x"], "\"x\" is not a port"),
        (&["run", "python", "1", "--network-bytes", "much"], "--network-bytes: \"much\" is not a size"),
        (&["run", "python", "1", "--allow-private-host", "a b"], "--allow-private-host: \"a b\" is not a host"),
        (&["run", "python", "1", "--secret", "a-b"], "--secret: \"a-b\" cannot be the name of a secret"),
    ] {
        world.run(arguments).expect(125, "").says(says).says("hint: ");
    }
    world.write("sandpen.toml", "max_network = 'a.example,none'\n");
    world.run(&["--config", "sandpen.toml", "tools"]).expect(1, "").says("max_network in ");
}

#[test]
fn a_variable_that_is_passed_on_must_be_set() {
    let world = World::new();
    for command in [&["run", "bash", "true"][..], &["create"], &["exec", "lab", "true"], &["mcp"], &["tools"]] {
        let done = world.command(command).env("SANDPEN_PASS_THROUGH_ENV", "SURELY_NOT_SET").output().unwrap();
        support::Done::from(done).says("SURELY_NOT_SET is to be passed on, and is not set");
    }
    world.run(&["ps", "-q"]).expect(0, "");
}

#[test]
fn a_variable_that_is_passed_on_is_named() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let run = |json: bool| {
        let arguments = ["run", "bash", "echo $REGION", "--pass-through-env", "REGION", "--json"];
        let arguments = &arguments[..if json { 6 } else { 5 }];
        support::Done::from(world.command(arguments).env("REGION", "north").output().unwrap())
    };
    run(false).expect(0, "north\n").says("code in the sandbox can read REGION of your environment");
    let object = run(true).json();
    assert_eq!((&object["stdout"], &object["passed_through_env"]), (&json!("north\n"), &json!(["REGION"])));
}

#[test]
fn help_names_the_network_where_it_can_be_given() {
    let world = World::new();
    for (command, has, has_not) in [
        ("run", &["--network", "--secret", "--allow-private-host", "--network-rate"][..], &["--max-network"][..]),
        ("create", &["--network", "--secret", "--secrets-file"], &["--max-network", "--allow-private-host", "-rate"]),
        ("exec", &["--allow-private-host", "--secrets-file", "--pass-through-env"], &["--network <", "--secret <"]),
        ("mcp", &["--network", "--max-network", "--secret", "--owner-network-bytes"], &["--listen"]),
        ("serve", &["--network", "--max-network", "--secret", "--owner-network-bytes", "--listen"], &[]),
    ] {
        let help = world.run(&[command, "--help"]).stdout;
        for flag in has {
            assert!(help.contains(flag), "{command} lacks {flag}");
        }
        for flag in has_not {
            assert!(!help.contains(flag), "{command} has {flag}");
        }
    }
}

#[test]
fn a_sandbox_that_is_there_gets_no_other_network() {
    let world = World::new();
    for arguments in
        [&["exec", "--network", "internet", "lab", "true"][..], &["exec", "lab", "--network=none", "--", "true"]]
    {
        let done = world.run(arguments).expect(125, "");
        done.says("a sandbox keeps the network that it was made with").says("sandpen create --network");
    }
}

#[test]
fn a_program_that_misses_a_network_is_told_how_to_get_one() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let script = "echo 'curl: (6) Could not resolve host: a.example' >&2; exit 6";
    let done = world.run(&["run", "bash", script]).expect(6, "");
    done.says("this sandbox has no network").says("hint: give it one: --network HOST");
    world.run(&["create", "--name", "lab"]);
    let done = world.run(&["exec", "lab", "--", "sh", "-c", script]).expect(6, "");
    done.says("sandpen create --network HOST");
    world.run(&["exec", "lab", "--netwrok", "none", "true"]).expect(127, "").says("sandpen exec --help shows");
    let server = Server::start(&world, &["--max-network", "a.example"]);
    let (_, text) = call(&server, json!({ "command": script }));
    assert!(text.contains("call again with network, for at most a.example]"), "{text}");
}

#[test]
fn a_secret_without_a_network_is_of_no_use_and_an_unknown_one_is_named() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let done = world.run(&["run", "bash", "true", "--secret", "API_KEY"]);
    done.expect(125, "").says("cannot use the secret API_KEY").says("name the secret's host");
    world.run(&["mcp", "--secret", "API_KEY"]).expect(1, "").says("there is no secret API_KEY");
    let asked =
        ["run", "bash", "true", "--secret", "API_KEY", "--network", "api.example.com", "--secrets-file", "absent"];
    world.run(&asked).expect(125, "").says("there is no file");
    let unasked = ["run", "bash", "true", "--secrets-file", "absent"];
    world.run(&unasked).expect(0, "");
}

#[test]
fn a_server_offers_what_its_operator_allows() {
    let world = World::new();
    let described = |arguments: &[&str]| {
        let tools = world.run(arguments).json();
        let tool = tools["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "run_code").unwrap().clone();
        (tool["description"].as_str().unwrap().to_owned(), tool["open_world"] == true)
    };
    let (words, open) = described(&["--json", "tools"]);
    assert!(words.contains("There is no network.") && !open, "{words}");
    let (words, open) = described(&["--json", "tools", "--max-network", "pypi.org"]);
    assert!(words.contains("for some or all of pypi.org") && open, "{words}");
}

#[test]
fn the_audit_is_in_the_log_of_a_server_and_nowhere_else() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let lines = stderr_of_a_run(&world, "info");
    for event in ["created", "exec_started", "exec_ended", "stopped"] {
        assert!(lines.contains(&format!("event=\"{event}\"")), "{event} is not in {lines}");
    }
    assert!(!stderr_of_a_run(&world, "warn").contains("event="));
}

/// What a server writes that runs one command for one client.
fn stderr_of_a_run(world: &World, level: &str) -> String {
    let mut child = world.command(&["mcp", "--log", level]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let client = json!({ "name": "test", "version": "1" });
    let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
    let run = json!({ "name": "run_command", "arguments": { "command": "true" } });
    for message in [
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello }),
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": run }),
    ] {
        writeln!(stdin, "{message}").unwrap();
    }
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(answers.any(|line| line.contains("\"id\":2")), "the server does not answer");
    drop(stdin);
    String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap()
}

/// A Bash script that asks the proxy inside for a connection, and prints what it is told.
fn ask_for(destination: &str) -> String {
    format!(
        "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT {destination} HTTP/1.1\\r\\nHost: {destination}\\r\\n\\r\\n' >&3; \
         read -r line <&3; echo \"${{line:9:3}}\""
    )
}

/// A test that needs a network and cannot have one says so. Daemons that somebody has started for it can give one.
fn networks_work(world: &World) -> bool {
    if !sandboxes_work() {
        return false;
    }
    let done = world.run(&["run", "bash", "true", "--network", "a.example"]);
    let may_lack = matches!(Engine::of_test(), Engine::Embedded);
    if may_lack && done.stderr.contains("cannot give a sandbox a network") {
        crate::support::skip(&done.stderr);
        return false;
    }
    done.expect(0, "");
    true
}

#[test]
fn a_refusal_is_noted_with_the_flag_that_would_allow_it() {
    let world = World::new();
    if !networks_work(&world) {
        return;
    }
    let script = ask_for("b.example:443");
    let done = world.run(&["run", "bash", &script, "--network", "a.example"]).expect(0, "403\n");
    let done = done.says("the network refused b.example:443 (host_not_allowed: ");
    done.says("hint: allow it with --network a.example,b.example\n");
    let object = world.run(&["run", "bash", &script, "--network", "a.example", "--json"]).json();
    assert_eq!(object["network"]["refused"][0]["rule"], "host_not_allowed", "{object}");

    world.run(&["create", "--name", "lab", "--network", "a.example"]);
    let done = world.run(&["exec", "lab", "--", "bash", "-c", &script]).expect(0, "403\n");
    done.says("hint: make a sandbox that may: sandpen create --network a.example,b.example\n");
    assert_eq!(world.run(&["ps", "--json"]).json()["sandboxes"][0]["network"], "a.example");
    let detached = world.run(&["exec", "--detach", "lab", "--", "true"]).expect(0, "");
    detached.says("is up only while a sandpen process uses the sandbox").says("sandpen serve");
}

#[test]
fn a_model_asks_is_refused_and_asks_for_what_it_was_told() {
    let world = World::new();
    if !networks_work(&world) {
        return;
    }
    let server = Server::start(&world, &["--max-network", "*.example", "--network", "a.example"]);
    let (value, text) = call(&server, json!({ "command": shell(&ask_for("b.example:443")) }));
    assert_eq!((&value["stdout"], &value["network"]["refused"][0]["host"]), (&json!("403\n"), &json!("b.example")));
    assert!(text.contains("call again with network \"a.example,b.example\""), "{text}");
    let (value, text) = call(&server, json!({ "command": "true", "network": "a.example,b.example" }));
    assert_eq!(value["status"], "exited", "{text}");
    let (value, text) = call(&server, json!({ "command": "true", "network": "a.test" }));
    assert!(value.is_null() && text.contains("(denied): this server allows *.example"), "{text}");
}

#[test]
fn a_server_is_out_of_reach_of_its_sandboxes_whatever_is_allowed() {
    let world = World::new();
    if !networks_work(&world) {
        return;
    }
    let server = Server::start(&world, &["--network", "127.0.0.1:*", "--allow-private-host", "127.0.0.1:*"]);
    let command = shell(&ask_for(&server.address.to_string()));
    let (value, text) = call(&server, json!({ "command": command }));
    assert_eq!(value["network"]["refused"][0]["rule"], "server_itself", "{text}");
}

fn shell(script: &str) -> String {
    format!("bash -c '{}'", script.replace('\'', "'\\''"))
}

/// The structured part and the text of a run's answer.
fn call(server: &Server, arguments: Value) -> (Value, String) {
    let answer = server.call_modern("run_command", arguments).whole();
    let message = answer.messages().into_iter().find(|message| message.get("id") == Some(&json!(7)));
    let message = message.unwrap_or_else(|| serde_json::from_str(&answer.body).unwrap_or_default());
    let result = &message["result"];
    (result["structuredContent"].clone(), result["content"][0]["text"].as_str().unwrap_or(&answer.body).to_owned())
}
