//! SE-05: secrets that pass a server are in nothing that it tells: not in its log, its answers, its numbers, its audit trail, its
//! traces. Every way to be refused is gone with a canary in each place where one could be.

mod support;

use std::io::{Read, Write};

use serde_json::json;
use support::caller::Caller;
use support::server::{MCP, Server, request};
use support::{World, sandboxes_work};

/// What must be nowhere.
const WRONG: &str = "canary-wrong-token-5521";
const QUERY: &str = "canary-query-7733";
const COOKIE: &str = "canary-cookie-9914";
const HEADER: &str = "canary-header-1180";
const ARGUMENT: &str = "canary-argument-3326";
const ENVIRONMENT: &str = "canary-environment-4408";
const COLLECTOR: &str = "canary-collector-6172";

#[test]
fn what_passes_a_server_is_in_nothing_that_it_tells() {
    if !sandboxes_work() {
        return;
    }
    let world = World::new();
    let admin = Caller::new(&world, &["--scope", "admin"]);
    let reader = Caller::new(&world, &["--scope", "read"]);
    let trail = world.state_dir().join("audit.jsonl");
    let headers = format!("authorization=Bearer%20{COLLECTOR}");
    let variables = [
        ("DATABASE_PASSWORD", ENVIRONMENT),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
        ("OTEL_EXPORTER_OTLP_HEADERS", headers.as_str()),
    ];
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--log", "debug", "--log-format", "json", "--audit-log"];
    let mut server = Server::by(&world, &[&arguments[..], &[trail.to_str().unwrap()]].concat(), &variables);
    let mut answers = String::new();

    let query = format!("?token={QUERY}&sessionId={QUERY}");
    let paths = ["/mcp", "/sse", "/sse/message", "/metrics", "/healthz", "/nothing", "/profiles/code-runner/mcp"];
    let wrong = format!("Bearer {WRONG}");
    for path in paths {
        for (method, body) in [("GET", &b""[..]), ("POST", b"{"), ("DELETE", b""), ("OPTIONS", b""), ("BREW", b"")] {
            for authorization in [admin.shown(), ("authorization", wrong.as_str()), ("x-api-key", WRONG)] {
                let more = [authorization, ("cookie", COOKIE), ("x-more", HEADER), ("traceparent", HEADER)];
                // A stream that goes on says nothing more to somebody who asks nothing.
                let answer = server.open(method, &format!("{path}{query}"), &[MCP, &more].concat(), body);
                let is_stream = answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
                let answer = if is_stream { answer } else { answer.whole() };
                answers += &format!("{answer:?}\n");
            }
        }
    }
    // Requests that are wrong in other ways, by name, by shape, by rights, by page.
    let strange = request(7, ARGUMENT, json!({ "_meta": { "traceparent": HEADER } }));
    for body in [&strange[..], b"[]", b"[{}]", b"\"", &[0xff, 0xfe], b""] {
        answers += &format!("{:?}\n", server.post(&[admin.shown(), ("mcp-session-id", HEADER)], body).whole());
    }
    for origin in [format!("https://{HEADER}.example"), HEADER.to_owned()] {
        answers += &format!("{:?}\n", server.ask("GET", "/mcp", &[("origin", &origin), admin.shown()]));
    }
    for caller in [&admin, &reader] {
        for (tool, arguments) in [
            ("run_command", json!({ "command": format!("echo {ARGUMENT} >/dev/null; exit 9") })),
            ("run_code", json!({ "language": "bash", "code": format!("# {ARGUMENT}\nexit 4") })),
            ("run_command", json!({ "command": "true", "env": { "TOKEN": ARGUMENT } })),
            ("create_sandbox", json!({ "env": { "TOKEN": ARGUMENT }, "image": "dir:/nowhere" })),
            ("no_such_tool", json!({ "x": ARGUMENT })),
        ] {
            answers += &format!("{:?}\n", caller.send(&server, tool, arguments));
        }
    }
    // A head that no library would write.
    for head in [
        format!("GET /mcp?{QUERY} HTTP/9.9\r\n\r\n"),
        format!("{HEADER}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\n{COOKIE}\r\n\r\n"),
    ] {
        let mut stream = server.connect();
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answers += &String::from_utf8_lossy(&answer);
    }
    let numbers = server.ask("GET", "/metrics", &[admin.shown()]).body;
    server.signal(rustix::process::Signal::TERM);
    assert!(server.wait().0.success());
    let log = server.log();
    let trail = std::fs::read_to_string(trail).unwrap();

    let state = world.state_dir();
    let everywhere =
        [WRONG, QUERY, COOKIE, HEADER, ENVIRONMENT, COLLECTOR, &admin.token, &reader.token].map(str::to_owned);
    let told = [("the log", &log), ("the answers", &answers), ("the numbers", &numbers), ("the audit trail", &trail)];
    for (place, text) in told {
        assert!(!text.is_empty());
        for canary in &everywhere {
            assert!(!text.contains(canary.as_str()), "{canary} is in {place}");
        }
    }
    // What a caller sent may be repeated to that caller alone, and paths of this machine to nobody.
    for (place, text) in [("the log", &log), ("the numbers", &numbers), ("the audit trail", &trail)] {
        assert!(!text.contains(ARGUMENT), "{ARGUMENT} is in {place}");
    }
    assert!(!answers.contains(state.to_str().unwrap()), "a path of this machine is in the answers");

    // Each line is an object, with the same few names, but for what is said to people before.
    let lines = log.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 10, "{log}");
    for line in lines {
        assert!(line["timestamp"].is_string() && line["level"].is_string() && line["target"].is_string(), "{line}");
    }
    // The instrument: a canary that was said would be seen.
    assert!(log.contains("a request was not let in") && answers.contains("denied"));
}
