//! Streamable HTTP of `sandpen serve`: sessions, requests that stand alone, batches, and everything that is wrong.

mod support;

use serde_json::{Value, json};
use support::server::{MCP, Server, request};
use support::{World, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

#[test]
fn a_session_begins_serves_and_ends() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let id = server.hello("2025-11-25");
    let session = [("mcp-session-id", id.as_str()), ("mcp-protocol-version", "2025-11-25")];
    let answer = server.post(&session, &request(2, "tools/list", json!({}))).whole();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-accel-buffering"), Some("no"));
    assert!(answer.messages().iter().any(|message| message["result"]["tools"].is_array()), "{}", answer.body);

    assert_eq!(server.ask("DELETE", "/mcp", &session).status, 204);
    assert_eq!(server.ask("DELETE", "/mcp", &session).status, 404);
    let late = server.post(&session, &request(3, "ping", json!({}))).whole();
    assert_eq!((late.status, late.json()["error"]["code"].clone()), (404, json!(-32001)));
    assert_eq!(server.post(&[], &request(4, "ping", json!({}))).status, 400);
}

#[test]
fn what_cannot_be_read_is_answered_and_the_server_lives() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let id = server.hello("2025-11-25");
    let session = [("mcp-session-id", id.as_str())];
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep_argument = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{deep}}}"#);
    let cases: &[(&[u8], i64)] = &[
        (b"{\"jsonrpc\"", -32700),
        (b"", -32700),
        (b"\xff\xfe", -32700),
        (deep_argument.as_bytes(), -32700),
        (b"7", -32600),
        (b"{\"id\":1,\"method\":\"ping\"}", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"ping\"}", -32600),
        (b"[]", -32600),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", -32600),
    ];
    for (body, code) in cases {
        let answer = server.post(&session, body).whole();
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!(answer.status, 400, "{shown}");
        assert_eq!(answer.json()["error"]["code"], *code, "{shown}");
    }
    let with_id = server.post(&session, b"{\"id\":\"mine\",\"method\":\"ping\"}").whole();
    assert_eq!(with_id.json()["id"], "mine");

    let ping = request(1, "ping", json!({}));
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx"] {
        let headers = [("content-type", content_type), MCP[1], session[0]];
        assert_eq!(server.open("POST", "/mcp", &headers, &ping).status, 415, "{content_type}");
    }
    let only_json = [MCP[0], ("accept", "application/json"), session[0]];
    assert_eq!(server.open("POST", "/mcp", &only_json, &ping).status, 406);
    assert_eq!(server.post(&session, &ping).whole().messages()[0]["result"], json!({}));
}

#[test]
fn a_body_is_as_large_as_allowed_and_no_larger() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &["--max-body", "2M"]);
    let id = server.hello("2025-11-25");
    let session = [("mcp-session-id", id.as_str())];
    let padded = |bytes: usize| request(1, "ping", json!({ "_meta": { "padding": "x".repeat(bytes) } }));
    let fits = server.post(&session, &padded((2 << 20) - 200)).whole();
    assert_eq!((fits.status, fits.messages()[0]["result"].clone()), (200, json!({})));
    let too_large = server.post(&session, &padded(2 << 20)).whole();
    assert_eq!((too_large.status, too_large.json()["error"]["code"].clone()), (413, json!(-32600)));
    let far_too_large = server.post(&session, &padded(20 << 20)).whole();
    assert_eq!(far_too_large.status, 413);
    assert_eq!(server.ask("GET", "/healthz", &[]).status, 200);
}

#[test]
fn a_batch_of_its_revision_is_answered_on_one_stream() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let id = server.hello("2025-03-26");
    let session = [("mcp-session-id", id.as_str())];
    let batch = json!([
        { "jsonrpc": "2.0", "id": 10, "method": "ping" },
        { "jsonrpc": "2.0", "method": "notifications/roots/list_changed" },
        { "jsonrpc": "2.0", "id": "eleven", "method": "tools/list" },
        { "jsonrpc": "2.0", "id": 10, "method": "ping" },
        { "jsonrpc": "2.0", "id": 12, "method": "initialize", "params": {
            "protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": { "name": "c", "version": "1" } } },
        5,
    ]);
    let answer = server.post(&session, batch.to_string().as_bytes()).whole();
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")));
    let messages = answer.messages();
    let with = |id: Value, part: &str| {
        messages.iter().filter(|message| message["id"] == id && message.get(part).is_some()).count()
    };
    assert_eq!(messages.len(), 5, "{messages:?}");
    assert_eq!(with(json!(10), "result"), 1);
    assert_eq!(with(json!(10), "error"), 1);
    assert_eq!(with(json!("eleven"), "result"), 1);
    assert_eq!(with(json!(12), "error"), 1);
    assert_eq!(with(Value::Null, "error"), 1);

    let notifications = json!([{ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" }]);
    assert_eq!(server.post(&session, notifications.to_string().as_bytes()).status, 202);
    let alone = json!([{ "jsonrpc": "2.0", "id": 1, "method": "ping" }]);
    assert_eq!(server.post(&[], alone.to_string().as_bytes()).status, 400);
    assert_eq!(server.post(&[("mcp-session-id", "unknown")], alone.to_string().as_bytes()).status, 404);
}

#[test]
fn a_request_of_2026_stands_alone_and_ends_with_its_stream() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let done = server.call_modern("run_command", json!({ "command": "echo $((6 * 7))" })).whole();
    let result = done.messages().pop().unwrap();
    assert_eq!(result["result"]["structuredContent"]["stdout"], "42\n", "{}", done.body);
    assert_eq!(done.header("mcp-session-id"), None);

    let mut going = server.call_modern("run_command", json!({ "command": "sleep 4444 & echo begun; sleep 4444" }));
    going.until("begun");
    wait_until("the program runs", || server.running("4444") >= 2);
    drop(going);
    wait_until("the program is killed", || server.running("4444") == 0);
}

#[test]
fn a_client_that_goes_away_before_the_first_word_cancels_too() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let address = server.address;
    let body = request(
        1,
        "tools/call",
        json!({
            "name": "run_command", "arguments": { "command": "sleep 4545" },
            "_meta": { "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                       "io.modelcontextprotocol/clientCapabilities": {} },
        }),
    );
    let mut stream = server.connect();
    use std::io::Write;
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\n\
         mcp-name: run_command\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    wait_until("the program runs", || server.running("4545") >= 1);
    drop(stream);
    wait_until("the program is killed", || server.running("4545") == 0);
}

#[test]
fn before_2026_a_lost_connection_is_no_cancellation() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let id = server.hello("2025-11-25");
    let session = [("mcp-session-id", id.as_str())];
    let params = json!({
        "name": "run_command", "arguments": { "command": "echo begun; sleep 4646" }, "_meta": { "progressToken": 1 },
    });
    let mut going = server.post(&session, &request(5, "tools/call", params));
    going.until("begun");
    drop(going);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(server.running("4646") >= 1, "the run ended with its connection");
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 5 } });
    assert_eq!(server.post(&session, cancel.to_string().as_bytes()).status, 202);
    wait_until("the program is killed", || server.running("4646") == 0);
}
