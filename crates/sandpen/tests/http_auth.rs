//! `sandpen token`, and `sandpen serve` that asks for tokens: who gets in, to what, and what strangers learn.

mod support;

use serde_json::{Value, json};
use support::server::{Answer, MCP, Server, request};
use support::{World, sandboxes_work};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

/// A token, its id, and the header that shows it.
struct Token {
    id: String,
    text: String,
    header: String,
}

fn token(world: &World, arguments: &[&str]) -> Token {
    let made = world.run(&[&["--json", "token", "create"], arguments].concat());
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    let word = |name: &str| made[name].as_str().unwrap().to_owned();
    Token { id: word("id"), text: word("token"), header: format!("Bearer {}", word("token")) }
}

impl Token {
    fn shown(&self) -> (&str, &str) {
        ("authorization", &self.header)
    }
}

const META: &str = "io.modelcontextprotocol/protocolVersion";

/// A call of 2026-07-28, which needs no session.
fn call(server: &Server, token: &Token, tool: &str, arguments: Value) -> Answer {
    let meta = json!({ META: "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {} });
    let body = request(7, "tools/call", json!({ "name": tool, "arguments": arguments, "_meta": meta }));
    let headers =
        [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", tool), token.shown()];
    server.post(&headers, &body).whole()
}

#[track_caller]
fn result(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    let message = answer.messages().into_iter().find(|message| message["id"] == 7).unwrap_or_else(|| answer.json());
    message["result"].clone()
}

#[test]
fn a_server_without_a_token_does_not_start_unless_it_is_told_to() {
    let world = World::new();
    let refused = world.run(&["serve", "--listen", "127.0.0.1:0"]);
    refused.expect(1, "").says("there is none that it knows").says("--no-auth");
}

#[test]
fn strangers_are_asked_for_a_token_everywhere() {
    needs_sandboxes!();
    let world = World::new();
    let known = token(&world, &[]);
    let server = Server::guarded(&world, &[]);
    let wrong = format!("{}x", known.header);
    let basic = format!("Basic {}", known.text);
    let credentials: &[&[(&str, &str)]] = &[
        &[],
        &[("authorization", "")],
        &[("authorization", "Bearer")],
        &[("authorization", "Bearer ")],
        &[("authorization", &wrong)],
        &[("authorization", &basic)],
        &[("authorization", &known.text)],
        &[("authorization", &known.header), ("authorization", &known.header)],
        &[("cookie", &known.header), ("x-api-key", &known.text)],
    ];
    let query = format!("/mcp?token={0}&access_token={0}", known.text);
    let profile = "/profiles/cloudflare/mcp";
    let routes =
        [("POST", "/mcp"), ("GET", "/mcp"), ("DELETE", "/mcp"), ("GET", "/sse"), ("POST", "/sse/message?sessionId=0")];
    for (method, path) in routes.into_iter().chain([("POST", query.as_str()), ("POST", profile), ("GET", profile)]) {
        for shown in credentials {
            // What is sent makes no sense: nobody looks at it.
            let answer = server.open(method, path, &[MCP, shown].concat(), b"{").whole();
            assert_eq!(answer.status, 401, "{method} {path} {shown:?}");
            assert!(answer.header("www-authenticate").unwrap().starts_with("Bearer realm="), "{answer:?}");
            assert!(!answer.body.contains(&known.id) && !answer.body.contains("jsonrpc"), "{}", answer.body);
        }
    }
    assert_eq!(server.ask("GET", "/healthz", &[]).json(), json!({ "status": "ok" }));
    assert_eq!(server.post(&[known.shown()], &request(1, "ping", json!({}))).whole().status, 400, "it lacks a session");
}

#[test]
fn what_belongs_to_somebody_is_not_there_for_others() {
    needs_sandboxes!();
    let world = World::new();
    let (alice, bob) = (token(&world, &["--owner", "alice"]), token(&world, &["--owner", "bob"]));
    let server = Server::guarded(&world, &[]);
    let made = result(&call(&server, &alice, "create_sandbox", json!({})));
    let id = made["structuredContent"]["sandbox_id"].as_str().unwrap().to_owned();
    let missing = "sb-7k2m9x4bqhtw3ecd";
    let ways = [
        ("run_command", json!({ "command": "true" })),
        ("run_code", json!({ "language": "bash", "code": "true" })),
        ("read_file", json!({ "path": "a" })),
        ("write_file", json!({ "path": "a", "content": "b" })),
        ("list_files", json!({})),
        ("stop_sandbox", json!({})),
    ];
    for (tool, arguments) in ways {
        let with = |id: &str| {
            let mut arguments = arguments.clone();
            arguments["sandbox_id"] = json!(id);
            result(&call(&server, &bob, tool, arguments)).to_string()
        };
        let (foreign, unknown) = (with(&id), with(missing));
        assert!(foreign.contains("there is no sandbox"), "{tool}: {foreign}");
        assert_eq!(foreign.replace(&id, missing), unknown, "{tool}");
    }
    let listed = |token: &Token| result(&call(&server, token, "list_sandboxes", json!({}))).to_string();
    assert!(listed(&alice).contains(&id) && !listed(&bob).contains(&id));
    let ran = result(&call(&server, &alice, "run_command", json!({ "command": "echo here", "sandbox_id": id })));
    assert_eq!(ran["structuredContent"]["stdout"], "here\n");
}

#[test]
fn a_session_is_its_owners() {
    needs_sandboxes!();
    let world = World::new();
    let (alice, bob) = (token(&world, &["--owner", "alice"]), token(&world, &["--owner", "bob"]));
    let server = Server::guarded(&world, &[]);
    let params =
        json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let begun = server.post(&[alice.shown()], &request(1, "initialize", params)).whole();
    let session = begun.header("mcp-session-id").unwrap().to_owned();
    let speak = |token: &Token, session: &str| {
        let headers = [("mcp-session-id", session), ("mcp-protocol-version", "2025-11-25"), token.shown()];
        let answer = server.post(&headers, &request(2, "tools/list", json!({}))).whole();
        (answer.status, answer.body)
    };
    assert_eq!(speak(&alice, &session).0, 200);
    let unknown = speak(&bob, "0b4c6b2e-0000-4000-8000-000000000000");
    assert_eq!(unknown.0, 404);
    assert_eq!(speak(&bob, &session), unknown);
    for method in ["GET", "DELETE"] {
        let headers = [("mcp-session-id", session.as_str()), ("accept", "text/event-stream"), bob.shown()];
        assert_eq!(server.ask(method, "/mcp", &headers).status, 404, "{method}");
    }
    assert_eq!(speak(&alice, &session).0, 200, "it goes on");

    let mut stream = server.open("GET", "/sse", &[("accept", "text/event-stream"), alice.shown()], b"");
    stream.until("sessionId=");
    stream.until("\n\n");
    let inbox = stream.body.lines().find_map(|line| line.strip_prefix("data: ")).unwrap().to_owned();
    let ping = request(3, "ping", json!({}));
    assert_eq!(server.open("POST", &inbox, &[MCP, &[bob.shown()]].concat(), &ping).status, 404);
    assert_eq!(server.open("POST", &inbox, &[MCP, &[alice.shown()]].concat(), &ping).status, 202);
    stream.until("\"id\":3");
}

#[test]
fn a_token_to_look_changes_nothing() {
    needs_sandboxes!();
    let world = World::new();
    let (reader, runner) = (token(&world, &["--scope", "read"]), token(&world, &[]));
    let server = Server::guarded(&world, &[]);
    let made = result(&call(&server, &runner, "create_sandbox", json!({})));
    let id = made["structuredContent"]["sandbox_id"].clone();
    result(&call(&server, &runner, "write_file", json!({ "sandbox_id": id, "path": "a", "content": "kept" })));
    for (tool, arguments) in [
        ("run_command", json!({ "command": "rm a", "sandbox_id": id })),
        ("write_file", json!({ "sandbox_id": id, "path": "a", "content": "changed" })),
        ("delete_file", json!({ "sandbox_id": id, "path": "a" })),
        ("stop_sandbox", json!({ "sandbox_id": id })),
        ("create_sandbox", json!({})),
        ("no_such_tool", json!({})),
    ] {
        let answer = call(&server, &reader, tool, arguments);
        assert_eq!(answer.status, 403, "{tool}: {}", answer.body);
        let challenge = answer.header("www-authenticate").unwrap();
        assert!(
            challenge.contains("error=\"insufficient_scope\"")
                && challenge.contains("scope=\"sandpen:read sandpen:run\""),
            "{challenge}"
        );
    }
    let read = result(&call(&server, &reader, "read_file", json!({ "sandbox_id": id, "path": "a" })));
    assert!(read.to_string().contains("kept"), "{read}");

    // On a transport whose answers come elsewhere, the tool itself is what refuses.
    let mut stream = server.open("GET", "/sse", &[("accept", "text/event-stream"), runner.shown()], b"");
    stream.until("\n\n");
    let inbox = stream.body.lines().find_map(|line| line.strip_prefix("data: ")).unwrap().to_owned();
    let run = request(4, "tools/call", json!({ "name": "run_command", "arguments": { "command": "true" } }));
    assert_eq!(server.open("POST", &inbox, &[MCP, &[reader.shown()]].concat(), &run).status, 403);
}

#[test]
fn tokens_come_and_go_while_a_server_runs() {
    needs_sandboxes!();
    let world = World::new();
    let first = token(&world, &["--name", "first"]);
    let server = Server::guarded(&world, &[]);
    let status = |token: &Token| call(&server, token, "list_sandboxes", json!({})).status;
    let second = token(&world, &["--name", "second", "--owner", "bob", "--expires", "1d"]);
    assert_eq!((status(&first), status(&second)), (200, 200));
    world.run(&["token", "revoke", &first.id]).expect(0, &format!("{}\n", first.id));
    assert_eq!((status(&first), status(&second)), (401, 200));
    let listed = world.run(&["token", "ls"]).stdout;
    assert!(listed.contains("second") && listed.contains("bob") && !listed.contains("first"), "{listed}");
    assert!(!listed.contains(&second.text));
    world.run(&["token", "revoke", &second.text]).expect(1, "").says("this is a token itself");
    world.run(&["token", "revoke", &first.id]).expect(1, "").says("there is no token");
    world.run(&["token", "create", "--scope", "walk"]).expect(2, "");
    world.run(&["token", "create", "--owner", ""]).expect(1, "").says("an owner is");
    world.run(&["token", "create", "--expires", "soon"]).expect(1, "").says("is not a span of time");
}

/// What has begun with a token ends with it too.
#[test]
fn streams_end_when_their_token_is_revoked() {
    needs_sandboxes!();
    let world = World::new();
    let (gone, stays) = (token(&world, &[]), token(&world, &[]));
    let server = Server::guarded(&world, &[]);
    let listen = |token: &Token| {
        let mut stream = server.open("GET", "/sse", &[("accept", "text/event-stream"), token.shown()], b"");
        stream.until("\n\n");
        stream
    };
    let (ending, mut lasting) = (listen(&gone), listen(&stays));
    world.run(&["token", "revoke", &gone.id]).expect(0, &format!("{}\n", gone.id));
    // It would wait for ever, and fail by the patience of the connection.
    ending.whole();
    let inbox = lasting.body.lines().find_map(|line| line.strip_prefix("data: ")).unwrap().to_owned();
    let ping = request(5, "ping", json!({}));
    assert_eq!(server.open("POST", &inbox, &[MCP, &[stays.shown()]].concat(), &ping).status, 202);
    lasting.until("\"id\":5");
}

#[test]
fn a_flood_of_wrong_tokens_is_slowed_down_and_keeps_nobody_out() {
    needs_sandboxes!();
    let world = World::new();
    let known = token(&world, &[]);
    let server = Server::guarded(&world, &[]);
    let statuses: Vec<u16> =
        (0..80).map(|number| server.post(&[("authorization", &format!("Bearer {number}"))], b"{}").status).collect();
    assert!(statuses[..60].iter().all(|status| *status == 401), "{statuses:?}");
    assert!(statuses[60..].iter().all(|status| *status == 429), "{statuses:?}");
    assert_eq!(call(&server, &known, "list_sandboxes", json!({})).status, 200);
}

#[test]
fn no_token_is_in_the_log() {
    needs_sandboxes!();
    let world = World::new();
    let known = token(&world, &[]);
    let mut child = world.command(&["--json", "serve", "--listen", "127.0.0.1:0", "--log", "trace"]).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap().to_owned();
    for header in [known.header.clone(), format!("{}x", known.header)] {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        let head = format!(
            "POST /mcp HTTP/1.0\r\nhost: {address}\r\nauthorization: {header}\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
        std::io::Read::read_to_end(&mut stream, &mut Vec::new()).unwrap();
    }
    support::server::end(&mut child);
    let mut log = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut log).unwrap();
    assert!(log.contains("a request was not let in"), "{log}");
    assert!(!log.contains(&known.text), "a token is in the log");
}
