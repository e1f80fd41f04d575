//! Networks on the command line, as far as nothing is connected to.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::json;
use support::{World, sandboxes_work};

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
        ("create", &["--network", "--secret", "--pass-through-env"], &["--max-network"]),
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
fn a_secret_without_a_network_is_of_no_use_and_an_unknown_one_is_named() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let done = world.run(&["run", "bash", "true", "--secret", "API_KEY"]);
    done.expect(125, "").says("cannot use the secret API_KEY").says("name the secret's host");
    world.run(&["mcp", "--secret", "API_KEY"]).expect(1, "").says("there is no secret API_KEY");
    world.run(&["run", "bash", "true", "--secrets-file", "absent"]).expect(125, "").says("there is no file");
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
