//! Saving, branching, undo and export as a client of the server has them.

mod support;

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use support::client::Client;
use support::image::Root;
use support::{Engine, World, is_embedded, sandboxes_work};

fn value(client: &mut Client, tool: &str, arguments: Value) -> Value {
    let answer = client.call(tool, arguments);
    assert_ne!(answer["isError"], json!(true), "{tool}: {answer}");
    answer["structuredContent"].clone()
}

fn shell(client: &mut Client, sandbox: &Value, command: &str) -> Value {
    value(client, "run_command", json!({ "sandbox_id": sandbox, "command": command, "checkpoint": true }))
}

#[test]
fn a_model_saves_branches_takes_back_and_exports() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let lab = value(&mut client, "create_sandbox", json!({}))["sandbox_id"].clone();
    shell(&mut client, &lab, "echo one > note");
    let run = shell(&mut client, &lab, "rm note; echo two > other");
    let (checkpoint, since) = (run["checkpoint"].clone(), run["checkpoint"].clone());
    let changes = value(&mut client, "diff_sandbox", json!({ "sandbox_id": lab, "since": since }))["changes"].clone();
    let told: Vec<(&str, &str)> = changes
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["path"].as_str().unwrap(), one["change"].as_str().unwrap()))
        .collect();
    assert_eq!(told, [("/workspace/note", "removed"), ("/workspace/other", "added")]);
    value(&mut client, "restore_sandbox", json!({ "sandbox_id": lab, "checkpoint": checkpoint }));
    assert_eq!(shell(&mut client, &lab, "cat note; ls")["stdout"], "one\nnote\n");

    let forked = value(&mut client, "fork_sandbox", json!({ "sandbox_id": lab, "count": 2 }));
    for branch in forked["sandbox_ids"].as_array().unwrap() {
        assert_eq!(shell(&mut client, branch, "cat note; echo mine > note")["stdout"], "one\n");
    }
    assert_eq!(shell(&mut client, &lab, "cat note")["stdout"], "one\n");

    let saved = value(&mut client, "save_sandbox", json!({ "sandbox_id": lab, "name": "ready" }));
    let run = value(&mut client, "run_command", json!({ "image": saved["image"], "command": "cat note" }));
    assert_eq!(run["stdout"], "one\n");
    let is_embedded = is_embedded("image ls of what was saved, and sandboxes of this machine's own programs");
    if is_embedded {
        world.run(&["image", "ls", "-q"]).expect(0, "saved:ready\n");
    }
    value(&mut client, "delete_image", json!({ "image": "saved:ready" }));
    if is_embedded {
        world.run(&["image", "ls", "-q"]).expect(0, "");
    }
    let gone = client.call("run_command", json!({ "image": saved["image"], "command": "cat note" }));
    assert_eq!(gone["isError"], true, "{gone}");

    let answer = client.call("export_dockerfile", json!({ "sandbox_id": lab, "base": "debian:12" }));
    let report = &answer["structuredContent"];
    // A server fetches nothing that sandboxes may not start from.
    assert_eq!(report["result"], "not_checked", "{answer}");
    assert!(answer["content"][0]["text"].as_str().unwrap().starts_with("FROM debian:12\n"), "{answer}");
    let context = client.ask("resources/read", json!({ "uri": report["context_uri"] }));
    assert!(context["contents"][0]["blob"].as_str().is_some_and(|blob| blob.len() > 1000), "{context}");
    if !is_embedded {
        return;
    }
    let refused = client.call("export_dockerfile", json!({ "sandbox_id": lab }));
    assert!(refused["content"][0]["text"].as_str().unwrap().contains("as base, for example"), "{refused}");
}

/// What the operator has in store and did not open is not told, and neither is what others saved.
#[test]
fn a_base_that_is_not_open_is_not_looked_up() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let tool = Root::new(&world).with_programs(&["sh", "cat", "sleep"]).import("tool:1");
    for (arguments, is_told) in [(&[][..], false), (&["--allow-image", &tool], true)] {
        let mut client = Client::hello(&world, arguments, "2025-11-25");
        let lab = value(&mut client, "create_sandbox", json!({}))["sandbox_id"].clone();
        // What was imported into a daemon has no digest; there a base that is known is built upon.
        let is_built = matches!(Engine::of_test(), Engine::OfDaemon { .. });
        let arguments = json!({ "sandbox_id": lab, "base": tool, "verify": is_built });
        let report = value(&mut client, "export_dockerfile", arguments);
        let told = if is_built { report["builds"] != 0 } else { report["base_digest"].is_string() };
        assert_eq!(told, is_told, "{report}");
        let arguments = json!({ "sandbox_id": lab, "base": "saved.sandpen.invalid/1f/lab:latest", "verify": false });
        let refused = client.call("export_dockerfile", arguments);
        assert_eq!(refused["isError"], true, "{refused}");
        assert!(refused["content"][0]["text"].as_str().unwrap().contains("on a host that cannot be"), "{refused}");
    }
}

/// Commands of a build are root of their sandbox, with more than a client's own sandboxes ever have.
#[test]
fn the_sandbox_of_a_build_is_nobodys_who_asks() {
    if !is_embedded("sandboxes that build; a daemon builds by itself")
        || !sandboxes_work()
        || !engine_native::can_build()
    {
        return;
    }
    let world = World::new();
    Root::new(&world).with_programs(&["sh", "cat", "sleep"]).import("tool:1");
    let mut client = Client::hello(&world, &["--allow-image", "tool:1"], "2025-11-25");
    let lab = value(&mut client, "create_sandbox", json!({ "image": "tool:1" }))["sandbox_id"].clone();
    let command = "echo one > note; sleep 3";
    value(&mut client, "run_command", json!({ "sandbox_id": lab, "command": command }));
    let arguments = json!({ "name": "export_dockerfile", "arguments": { "sandbox_id": lab } });
    let export = client.begin("tools/call", arguments);
    let mut seen = 0;
    let answer = loop {
        client.begin("tools/call", json!({ "name": "list_sandboxes", "arguments": {} }));
        let message = client.next();
        if message["id"] == export {
            break message["result"]["structuredContent"].clone();
        }
        let sandboxes = message["result"]["structuredContent"]["sandboxes"].as_array().unwrap().clone();
        let ids: Vec<&Value> = sandboxes.iter().map(|one| &one["sandbox_id"]).collect();
        assert_eq!(ids, [&lab], "{message}");
        seen += 1;
        thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(answer["result"], "reproduced", "{answer}");
    assert!(seen > 10, "the build was not looked for");
}
