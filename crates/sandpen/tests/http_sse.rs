//! HTTP+SSE of `sandpen serve`: a session is its stream.

mod support;

use serde_json::{Value, json};
use support::caller::Caller;
use support::server::{Answer, MCP, Server, request};
use support::{World, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

/// An open stream and where to post.
fn open(server: &Server) -> (Answer, String) {
    let mut stream = server.open("GET", "/sse", &[("accept", "text/event-stream")], b"");
    assert_eq!((stream.status, stream.header("content-type")), (200, Some("text/event-stream")));
    stream.until("\n\n");
    assert!(stream.body.starts_with("event: endpoint\ndata: /sse/message?sessionId="), "{}", stream.body);
    let path = stream.body.lines().nth(1).unwrap().strip_prefix("data: ").unwrap().to_owned();
    (stream, path)
}

fn say(server: &Server, path: &str, message: &[u8]) -> u16 {
    server.open("POST", path, MCP, message).status
}

fn hello(version: &str) -> Vec<u8> {
    let client = json!({ "name": "test", "version": "1" });
    request(1, "initialize", json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": client }))
}

#[test]
fn a_whole_conversation() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let (mut stream, path) = open(&server);
    // Some clients are early.
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string();
    assert_eq!(say(&server, &path, initialized.as_bytes()), 202);
    assert_eq!(say(&server, &path, &hello("2024-11-05")), 202);
    stream.until("\"protocolVersion\":\"2024-11-05\"");
    assert_eq!(say(&server, &path, initialized.as_bytes()), 202);
    let run = json!({ "name": "run_command", "arguments": { "command": "echo $((6 * 7))" } });
    assert_eq!(say(&server, &path, &request(2, "tools/call", run)), 202);
    stream.until("\"id\":2");
    let answer = stream.messages().into_iter().find(|message| message["id"] == 2).unwrap();
    assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains("42"), "{answer}");
    assert!(stream.body.contains("event: message\ndata: "));

    assert_eq!(say(&server, &path, b"{\"jsonrpc\""), 400);
    assert_eq!(say(&server, &path, b"[{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"ping\"}]"), 202);
    stream.until("batches");
    assert_eq!(say(&server, &path, &request(4, "ping", json!({}))), 202);
    stream.until("\"id\":4");
}

#[test]
fn a_batch_of_its_revision_is_answered() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let (mut stream, path) = open(&server);
    assert_eq!(say(&server, &path, &hello("2025-03-26")), 202);
    stream.until("\"protocolVersion\":\"2025-03-26\"");
    let batch = json!([
        { "jsonrpc": "2.0", "id": 5, "method": "ping" },
        { "jsonrpc": "2.0", "id": 6, "method": "ping" },
    ]);
    assert_eq!(say(&server, &path, batch.to_string().as_bytes()), 202);
    stream.until("\"id\":6");
    let answered: Vec<Value> = stream.messages().pop().unwrap().as_array().cloned().unwrap();
    assert_eq!(answered.len(), 2);
}

#[test]
fn what_belongs_to_no_session_is_refused() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let (_first, path) = open(&server);
    let (_second, other) = open(&server);
    assert_ne!(path, other);
    assert_eq!(path.rsplit('=').next().unwrap().len(), 64);
    let ping = request(1, "ping", json!({}));
    assert_eq!(say(&server, "/sse/message", &ping), 400);
    assert_eq!(say(&server, "/sse/message?sessionId=", &ping), 404);
    assert_eq!(say(&server, &path[..path.len() - 1], &ping), 404);
    assert_eq!(server.open("POST", &path, &[("content-type", "text/plain")], &ping).status, 415);
    assert_eq!(server.ask("POST", "/sse", MCP).status, 405);
    assert_eq!(server.ask("GET", &path, &[]).status, 405);
}

#[test]
fn the_end_of_the_stream_is_the_end_of_the_session_and_of_its_runs() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let (mut stream, path) = open(&server);
    assert_eq!(say(&server, &path, &hello("2024-11-05")), 202);
    stream.until("\"id\":1");
    let run = json!({ "name": "run_command", "arguments": { "command": "sleep 4747 & sleep 4747" } });
    assert_eq!(say(&server, &path, &request(2, "tools/call", run)), 202);
    wait_until("the program runs", || server.running("4747") >= 2);
    drop(stream);
    wait_until("the program is killed", || server.running("4747") == 0);
    wait_until("the session is gone", || say(&server, &path, &request(3, "ping", json!({}))) == 404);
}

#[test]
fn sessions_are_bounded_and_make_room_when_they_end() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let mut streams: Vec<_> = (0..256).map(|_| open(&server)).collect();
    let refused = server.ask("GET", "/sse", &[]);
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    streams.clear();
    wait_until("there is room again", || server.open("GET", "/sse", &[], b"").status == 200);
}

#[test]
fn one_owner_cannot_have_the_sessions_of_all() {
    needs_sandboxes!();
    let world = World::new();
    let (alice, bob) = (Caller::new(&world, &["--owner", "alice"]), Caller::new(&world, &["--owner", "bob"]));
    let server = Server::guarded(&world, &[]);
    let listen = |caller: &Caller| server.open("GET", "/sse", &[caller.shown()], b"");
    let mut streams: Vec<_> = (0..64).map(|_| listen(&alice)).collect();
    assert!(streams.iter().all(|stream| stream.status == 200));
    let refused = listen(&alice);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{refused:?}");
    let refused = refused.whole();
    assert!(refused.body.contains("as many sessions as one user may"), "{}", refused.body);
    let his = listen(&bob);
    assert_eq!(his.status, 200, "somebody else is not kept out");
    streams.clear();
    wait_until("she has room again", || listen(&alice).status == 200);
}
