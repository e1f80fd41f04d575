//! What profiles have in common: who they say they are, what they say they have, and where they are found.

mod support;

use serde_json::json;
use support::client::{Client, modern};
use support::server::{MCP, Server, request};
use support::{Engine, World, is_embedded, sandboxes_work};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

fn hello() -> Vec<u8> {
    let client = json!({ "name": "test", "version": "1" });
    request(1, "initialize", json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client }))
}

#[test]
fn no_more_is_offered_than_the_older_server_had_and_we_serve() {
    needs_sandboxes!();
    let all = json!({ "prompts": {}, "resources": {}, "tools": {} });
    let base = ("PUBLIC_BASE_URL", "https://files.example");
    for (profile, variables, offered) in [
        ("cloudflare", &[][..], json!({ "tools": {} })),
        ("sandbox-server", &[], all.clone()),
        ("code-runner", &[], json!({ "resources": {}, "tools": {} })),
        ("code-runner", &[base], json!({ "tools": {} })),
        ("automata", &[], all.clone()),
        ("philschmid", &[], all),
    ] {
        let world = World::new();
        let mut command = world.command(&["mcp", "--profile", profile, "--image", "host"]);
        command.envs(variables.iter().copied());
        let mut client = Client::by(command);
        let told = client.initialize("2024-11-05");
        assert_eq!((&told["capabilities"], &told["protocolVersion"]), (&offered, &json!("2024-11-05")), "{profile}");
        for (capability, method) in [("resources", "resources/list"), ("prompts", "prompts/list")] {
            if offered.get(capability).is_some() {
                client.ask(method, json!({}));
            }
        }
    }
}

#[test]
fn results_of_the_newest_revision_are_those_of_the_one_who_is_spoken_for() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::start(&world, &["--profile", "automata", "--image", "host"]);
    let unknown = json!({ "container_id": "0123456789ab" });
    for (method, params) in [
        ("tools/list", json!({})),
        ("resources/templates/list", json!({})),
        ("tools/call", json!({ "name": "sandbox_stop", "arguments": unknown })),
    ] {
        let result = client.ask(method, modern(params, json!({})));
        let server = &result["_meta"]["io.modelcontextprotocol/serverInfo"];
        assert_eq!((&server["name"], &server["version"]), (&json!("code-sandbox-mcp"), &json!("v1.0.0")), "{method}");
    }
}

#[test]
fn clients_of_older_servers_are_told_of_no_changes() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::start(&world, &["--profile", "automata", "--image", "host"]);
    let watched = json!({ "resourceSubscriptions": ["sandbox://jobs"] });
    assert_eq!(client.refused("subscriptions/listen", modern(json!({ "notifications": watched }), json!({}))), -32601);
}

#[test]
fn one_older_server_takes_messages_at_sse_too() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    for (path, status) in [
        ("/profiles/cloudflare/sse", 200),
        ("/profiles/cloudflare/mcp", 200),
        ("/profiles/automata/sse", 405),
        ("/sse", 405),
    ] {
        assert_eq!(server.open("POST", path, MCP, &hello()).status, status, "{path}");
    }
    let mut stream = server.open("GET", "/profiles/cloudflare/sse", &[("accept", "text/event-stream")], b"");
    assert_eq!(stream.status, 200);
    stream.until("data: /profiles/cloudflare/sse/message?sessionId=");
}

#[test]
fn what_is_too_large_is_refused_as_the_older_server_did() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &["--max-body", "1M"]);
    let padded = request(1, "ping", json!({ "_meta": { "padding": "x".repeat(1 << 20) } }));
    let refused = |path: &str| {
        let answer = server.open("POST", path, MCP, &padded).whole();
        assert_eq!(answer.status, 413, "{path}");
        let mut answer = answer.json();
        answer["error"].as_object_mut().unwrap().remove("message");
        answer
    };
    for path in ["/profiles/cloudflare/mcp", "/profiles/cloudflare/sse"] {
        assert_eq!(refused(path), json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32000 } }), "{path}");
    }
    assert_eq!(refused("/profiles/automata/mcp"), json!({ "jsonrpc": "2.0", "error": { "code": -32600 } }));
}

#[test]
fn variables_of_an_older_server_are_understood() {
    needs_sandboxes!();
    let (world, engine) = (World::new(), Engine::of_test());
    let mut client = Client::hello_with(&world, &["--profile", "philschmid"], "2025-06-18", |command| {
        command.envs([("PASSTHROUGH_ENV", "REGION,"), ("REGION", "north"), ("OTHER", "hidden")]);
        // On a daemon a language without an image of its own runs on the one that is published for it.
        command.envs([("CONTAINER_IMAGE", engine.image()), ("CONTAINER_LANGUAGE", "Bash")]);
        // The world of a daemon names an image, and a setting of our own wins.
        command.env_remove("SANDPEN_IMAGE");
    });
    for tool in ["run_python_code", "run_js_code"] {
        let ran = client.call(tool, json!({ "code": "echo $REGION ${OTHER:-none} $BASH_VERSINFO | cut -c 1-10" }));
        assert_eq!(ran["content"][0]["text"], "north none", "{tool}: {ran}");
    }
}

/// Whether somebody asked to keep them or not.
#[test]
fn containers_may_be_unused_for_as_long_as_the_operator_says() {
    needs_sandboxes!();
    let world = World::new();
    for (profile, tool, arguments) in [
        ("automata", "sandbox_initialize", json!({})),
        ("sandbox-server", "create_container_environment", json!({ "image": "host", "persist": true })),
        ("sandbox-server", "create_container_environment", json!({ "image": "host", "persist": false })),
        ("cloudflare", "container_initialize", json!({})),
    ] {
        let started = ["--profile", profile, "--image", "host", "--idle", "400d"];
        let mut client = Client::hello(&world, &started, "2024-11-05");
        let made = client.call(tool, arguments);
        let listed = world.run(&["ps", "--json"]).json();
        let sandbox = &listed["sandboxes"][0];
        let year = |moment: &str| sandbox[moment].as_str().and_then(|text| text.get(..4)?.parse::<u32>().ok());
        assert!(year("expires_at") > year("created_at") && year("created_at").is_some(), "{profile}: {made} {listed}");
        world.run(&["stop", sandbox["sandbox_id"].as_str().unwrap()]);
    }
}

/// Each in place of the engine that would be used without it.
#[test]
fn the_backend_of_an_older_server_is_the_engine() {
    if !is_embedded("a daemon that the variables of an older server name and that is not there") || !sandboxes_work() {
        return;
    }
    let world = World::new();
    for (backend, told) in [
        ("docker", "Docker"),
        ("podman", "Podman"),
        ("kubernetes", "the kubernetes engine is not in this version"),
        ("Kubernetes", "leave it out where it was chosen, by --engine or BACKEND"),
        ("micromamba", "it is no sandbox"),
        ("vmware", "BACKEND is"),
    ] {
        let mut command = world.command(&["mcp", "--profile", "philschmid", "--image", "host"]);
        command.env_remove("SANDPEN_ENGINE").env("BACKEND", backend);
        command.env("DOCKER_HOST", "unix:///nowhere/socket").env("CONTAINER_HOST", "unix:///nowhere/socket");
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && said.contains(told), "{backend}: {said}");
    }
}
