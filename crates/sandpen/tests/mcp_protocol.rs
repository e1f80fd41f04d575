//! `sandpen mcp` in each revision of the protocol: what is declared, what is answered, what is refused.

mod support;

use serde_json::{Value, json};
use support::client::{Client, MODERN, modern};
use support::{Engine, World, sandboxes_work};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

const OLD: &[&str] = &["2024-11-05", "2025-03-26"];
const NEWER: &[&str] = &["2025-06-18", "2025-11-25"];

/// A run that leaves a picture and a file of another kind, and one that is read back.
const WORK: &str = "printf 'a,b\\n1,2\\n' > table.csv; echo made";

fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

fn types(result: &Value) -> Vec<&str> {
    result["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect()
}

#[test]
fn every_revision_with_a_handshake_is_agreed_upon() {
    needs_sandboxes!();
    let world = World::new();
    for version in OLD.iter().chain(NEWER) {
        let mut client = Client::start(&world, &[]);
        let hello = client.initialize(version);
        assert_eq!(hello["protocolVersion"], *version);
        assert_eq!(hello["serverInfo"]["name"], "sandpen");
        assert!(hello["instructions"].as_str().unwrap().contains("run_code"));
        let capabilities = hello["capabilities"].as_object().unwrap();
        for declared in ["tools", "resources", "prompts", "completions"] {
            assert!(capabilities.contains_key(declared), "{declared} is not declared in {version}");
        }
        assert!(!capabilities.contains_key("logging"));
        assert_eq!(client.refused("logging/setLevel", json!({ "level": "info" })), -32601);
        assert!(hello.get("resultType").is_none());
    }
    let mut client = Client::start(&world, &[]);
    assert_eq!(client.initialize("1999-01-01")["protocolVersion"], "2025-11-25");
}

#[test]
fn old_revisions_get_only_what_they_know() {
    needs_sandboxes!();
    let world = World::new();
    for version in OLD {
        let mut client = Client::hello(&world, &[], version);
        let tools = client.ask("tools/list", json!({}));
        assert!(tools["tools"].as_array().unwrap().iter().all(|tool| tool.get("outputSchema").is_none()));
        assert!(tools.get("ttlMs").is_none() && tools.get("_meta").is_none(), "{tools}");
        let result = client.call("run_command", json!({ "command": WORK }));
        assert!(result.get("structuredContent").is_none(), "{result}");
        assert!(types(&result).iter().all(|kind| *kind == "text"), "{result}");
        let text = result["content"].to_string();
        assert!(text.contains("table.csv") && text.contains("sandbox://"), "the link is lost: {result}");
    }
}

#[test]
fn newer_revisions_get_links_and_structure() {
    needs_sandboxes!();
    let world = World::new();
    for version in NEWER {
        let mut client = Client::hello(&world, &[], version);
        let tools = client.ask("tools/list", json!({}));
        assert!(tools["tools"].as_array().unwrap().iter().all(|tool| tool["outputSchema"]["type"] == "object"));
        let sandbox = client.call("create_sandbox", json!({}))["structuredContent"]["sandbox_id"].clone();
        let result = client.call("run_command", json!({ "sandbox_id": sandbox, "command": WORK }));
        assert_eq!(result["structuredContent"]["stdout"], "made\n");
        assert!(result.get("resultType").is_none() && result.get("_meta").is_none(), "{result}");
        let blocks = result["content"].as_array().unwrap();
        let link = blocks.iter().find(|block| block["type"] == "resource_link").unwrap();
        assert_eq!((&link["name"], &link["size"]), (&json!("table.csv"), &json!(8)));
        let read = client.ask("resources/read", json!({ "uri": link["uri"] }));
        assert_eq!(read["contents"][0]["text"], "a,b\n1,2\n");
        assert_eq!(read["contents"][0]["uri"], link["uri"]);
    }
}

#[test]
fn the_newest_revision_needs_no_handshake_and_gets_labels() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::start(&world, &[]);
    let ask = |params: Value| modern(params, json!({}));
    let found = client.ask("server/discover", ask(json!({})));
    assert!(found["supportedVersions"].as_array().unwrap().contains(&json!(MODERN)));
    // Images of a daemon bring languages at any moment, by their labels.
    let lasts = |method: &str, scope: &str| match Engine::of_test() {
        Engine::Embedded => scope == "public",
        Engine::OfDaemon { .. } => scope == "public" && method != "tools/list",
    };
    for (method, scope) in [
        ("tools/list", "public"),
        ("prompts/list", "public"),
        ("resources/templates/list", "public"),
        ("resources/list", "private"),
    ] {
        let list = client.ask(method, ask(json!({})));
        assert_eq!((&list["cacheScope"], &list["resultType"]), (&json!(scope), &json!("complete")), "{method}");
        assert_eq!(list["ttlMs"].as_u64().unwrap() > 0, lasts(method, scope), "{method}");
        assert_eq!(list["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "sandpen", "{method}");
    }
    let run = json!({ "name": "run_code", "arguments": { "language": "python", "code": "print(6 * 7)" } });
    let result = client.ask("tools/call", ask(run));
    assert_eq!(result["structuredContent"]["stdout"], "42\n");
    assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "sandpen");
}

#[test]
fn the_newest_revision_refuses_what_it_took_away() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::start(&world, &[]);
    for method in ["ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "nonsense"] {
        let params = modern(json!({ "uri": "sandbox://x/y", "level": "info" }), json!({}));
        assert_eq!(client.refused(method, params), -32601, "{method}");
    }
    let mut unknown = modern(json!({}), json!({}));
    unknown["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2099-01-01".into();
    assert_eq!(client.refused("tools/list", unknown), -32022);
    let only_version = json!({ "_meta": { "io.modelcontextprotocol/protocolVersion": MODERN } });
    assert_eq!(client.refused("tools/list", only_version), -32602);
    assert_eq!(client.refused("tools/list", json!({})), -32602);
}

#[test]
fn errors_have_the_codes_of_their_revision() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let nowhere = json!({ "uri": "sandbox://sb-aaaaaaaaaaaaaaaa/workspace/x" });
    assert_eq!(client.refused("resources/read", nowhere.clone()), -32002);
    assert_eq!(client.refused("resources/read", json!({ "uri": "file:///etc/passwd" })), -32002);
    assert_eq!(client.refused("resources/read", modern(nowhere, json!({}))), -32602);
    assert_eq!(client.refused("resources/read", json!({ "url": 1 })), -32602);
    assert_eq!(client.refused("tools/call", json!({ "name": "no_such_tool", "arguments": {} })), -32602);
    assert_eq!(client.refused("tools/call", json!({ "arguments": {} })), -32602);
    assert_eq!(client.refused("prompts/get", json!({ "name": "no_such_prompt" })), -32602);
    assert_eq!(client.refused("prompts/get", json!({ "name": "analyse_data" })), -32602);
    assert_eq!(client.refused("tools/list", json!({ "cursor": "somewhere" })), -32602);
    assert_eq!(client.refused("subscriptions/listen", json!({ "notifications": {} })), -32601);
    assert_eq!(client.refused("tasks/get", json!({ "taskId": "x" })), -32021);
}

#[test]
fn what_a_tool_cannot_do_is_an_answer_that_helps() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    for (tool, arguments, part) in [
        ("read_file", json!({ "sandbox_id": "sb-aaaaaaaaaaaaaaaa", "path": "x" }), "create_sandbox"),
        ("run_code", json!({ "language": "python" }), "code"),
        ("run_code", json!({ "language": "python", "code": "1", "timeout_s": 1e9 }), "timeout_s"),
        ("create_sandbox", json!({ "memory_mb": 100_000_000 }), "memory_mb"),
        ("list_sandboxes", json!({ "unknown": 1 }), "unknown"),
    ] {
        let result = client.call(tool, arguments);
        assert_eq!(result["isError"], true, "{tool}: {result}");
        assert!(result["content"][0]["text"].as_str().unwrap().contains(part), "{tool}: {result}");
        assert!(result.get("structuredContent").is_none(), "{tool}: {result}");
    }
    let failed = client.call("run_code", json!({ "language": "python", "code": "raise SystemExit(3)" }));
    assert_eq!((&failed["isError"], &failed["structuredContent"]["exit_code"]), (&json!(false), &json!(3)));
}

#[test]
fn pictures_come_back_as_pictures() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let code = "import base64\n\
        pixel = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='\n\
        open('dot.png', 'wb').write(base64.b64decode(pixel))";
    let result = client.call("run_code", json!({ "language": "python", "code": code }));
    let image = result["content"].as_array().unwrap().iter().find(|block| block["type"] == "image").unwrap();
    assert_eq!(image["mimeType"], "image/png");
    assert!(image["data"].as_str().unwrap().starts_with("iVBORw0KGgo"), "{image}");
}

#[test]
fn prompts_and_completions_are_there() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let prompts = client.ask("prompts/list", json!({}));
    assert!(names(&prompts["prompts"]).contains(&"make_chart"));
    let chart = client.ask("prompts/get", json!({ "name": "make_chart", "arguments": { "data": "1, 2, 3" } }));
    assert!(chart["messages"][0]["content"]["text"].as_str().unwrap().contains("1, 2, 3"));
    let kinds = json!({
        "ref": { "type": "ref/prompt", "name": "make_chart" },
        "argument": { "name": "kind", "value": "h" }
    });
    assert_eq!(client.ask("completion/complete", kinds)["completion"]["values"], json!(["heat map", "histogram"]));
    let sandbox = client.call("create_sandbox", json!({}))["structuredContent"]["sandbox_id"].clone();
    client.call("write_file", json!({ "sandbox_id": sandbox, "path": "notes.txt", "content": "x" }));
    let template = "sandbox://{sandbox_id}/{path}";
    let paths = json!({
        "ref": { "type": "ref/resource", "uri": template },
        "argument": { "name": "path", "value": "workspace/no" },
        "context": { "arguments": { "sandbox_id": sandbox } }
    });
    assert_eq!(client.ask("completion/complete", paths)["completion"]["values"], json!(["workspace/notes.txt"]));
    let templates = client.ask("resources/templates/list", json!({}));
    assert_eq!(templates["resourceTemplates"][0]["uriTemplate"], template);
    let resources = client.ask("resources/list", json!({}));
    assert!(names(&resources["resources"]).contains(&"notes.txt"), "{resources}");
}

#[test]
fn the_operator_says_which_tools_there_are() {
    needs_sandboxes!();
    let world = World::new();
    let listed = |arguments: &[&str]| {
        let mut client = Client::hello(&world, arguments, "2025-11-25");
        let tools = client.ask("tools/list", json!({}));
        names(&tools["tools"]).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(listed(&["--tools", "run_code,read_file"]), ["run_code", "read_file"]);
    let without_commands = listed(&["--toolsets", "run", "--exclude-tools", "run_command"]);
    assert_eq!(without_commands, ["run_code", "manage_contexts", "fork_context"]);
    let read_only = listed(&["--read-only", "--tools", "run_code,read_file"]);
    assert_eq!(read_only, ["read_file"]);
    let mut client = Client::hello(&world, &["--read-only"], "2025-11-25");
    let run = json!({ "name": "run_code", "arguments": { "language": "python", "code": "1" } });
    assert_eq!(client.refused("tools/call", run), -32602);
    world.run(&["mcp", "--tools", "run_cod"]).expect(1, "").says("there is no tool \"run_cod\"");
}
