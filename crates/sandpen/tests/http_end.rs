//! How long `sandpen serve` waits for others, and how it ends.

mod support;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use support::server::{Server, request};
use support::{World, is_running, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

#[test]
fn whoever_does_not_finish_its_request_is_let_go_and_others_are_served() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let started = Instant::now();
    let mut silent: Vec<_> = (0..100).map(|_| server.connect()).collect();
    let mut halves: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-slow: ").unwrap();
            stream
        })
        .collect();
    assert_eq!(server.ask("GET", "/healthz", &[]).status, 200);
    for stream in silent.iter_mut().chain(&mut halves) {
        // A byte now and then does not help.
        let _ = stream.write_all(b"x");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    assert!(started.elapsed() < Duration::from_secs(30), "it took {:?}", started.elapsed());
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    needs_sandboxes!();
    let world = World::new();
    let server = Server::start(&world, &[]);
    let huge = "x".repeat(80 << 10);
    let many: Vec<_> = (0..80).map(|number| (format!("x-header-{number}"), "x")).collect();
    let many: Vec<_> = many.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(server.ask("GET", "/healthz", &[("x-huge", &huge)]).status, 431);
    assert_eq!(server.ask("GET", "/healthz", &many).status, 431);
    assert_eq!(server.ask("GET", "/healthz", &[]).status, 200);
}

#[test]
fn a_signal_lets_what_goes_on_finish_and_takes_nothing_new() {
    needs_sandboxes!();
    let world = World::new();
    let mut server = Server::start(&world, &[]);
    let id = server.hello("2025-11-25");
    let session = [("mcp-session-id", id.as_str())];
    let listening = server.open("GET", "/mcp", &[("accept", "text/event-stream"), session[0]], b"");
    assert_eq!(listening.status, 200);
    let sse = server.open("GET", "/sse", &[], b"");
    let params = json!({
        "name": "run_command", "arguments": { "command": "echo begun; sleep 2; echo finished" },
        "_meta": { "progressToken": 1 },
    });
    let mut going = server.post(&session, &request(2, "tools/call", params));
    going.until("begun");
    server.signal(Signal::TERM);
    wait_until("nothing new is taken", || std::net::TcpStream::connect(server.address).is_err());
    let going = going.whole();
    let answer = going.messages().pop().unwrap();
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "begun\nfinished\n", "{}", going.body);
    let (status, took) = server.wait();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(6), "those who only listen were waited for: {took:?}");
    listening.whole();
    sse.whole();
}

#[test]
fn a_listener_of_the_newest_revision_is_not_waited_for() {
    needs_sandboxes!();
    let world = World::new();
    let mut server = Server::start(&world, &[]);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({ "notifications": { "resourceSubscriptions": [] }, "_meta": meta });
    let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "subscriptions/listen")];
    let mut listening = server.post(&headers, &request(7, "subscriptions/listen", params));
    listening.until("notifications/subscriptions/acknowledged");
    server.signal(Signal::TERM);
    let listening = listening.whole();
    assert_eq!(listening.messages().pop().unwrap()["id"], 7, "{}", listening.body);
    let (status, took) = server.wait();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(6), "it was waited for: {took:?}");
}

#[test]
fn a_second_signal_ends_at_once_and_nothing_is_left() {
    needs_sandboxes!();
    let world = World::new();
    let mut server = Server::start(&world, &[]);
    let mut going =
        server.call_modern("run_command", json!({ "command": "trap '' TERM INT; echo begun; sleep 4848; sleep 4848" }));
    going.until("begun");
    let processes = server.processes();
    assert!(processes.len() > 2, "{processes:?}");
    server.signal(Signal::INT);
    wait_until("nothing new is taken", || std::net::TcpStream::connect(server.address).is_err());
    server.signal(Signal::INT);
    let (status, took) = server.wait();
    assert_eq!(status.code(), Some(130));
    assert!(took < Duration::from_secs(5), "it took {took:?}");
    wait_until("no process is left", || !processes.iter().any(|process| is_running(*process)));
}

#[test]
fn what_does_not_finish_is_not_waited_for_without_end() {
    needs_sandboxes!();
    let world = World::new();
    let mut server = Server::start(&world, &[]);
    let mut going = server.call_modern("run_command", json!({ "command": "echo begun; sleep 4949" }));
    going.until("begun");
    let processes = server.processes();
    server.signal(Signal::TERM);
    let (status, took) = server.wait();
    assert_eq!(status.code(), Some(0));
    assert!(took > Duration::from_secs(8), "it was given up after {took:?}");
    assert!(took < Duration::from_secs(25), "it took {took:?}");
    wait_until("no process is left", || !processes.iter().any(|process| is_running(*process)));
}
