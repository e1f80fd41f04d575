//! SE-05: secrets that pass a server are in nothing that it tells: not in its log, its answers, its numbers, its audit trail, its
//! traces. Every way to be refused is gone with a canary in each place where one could be.

mod support;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, Method, Uri};
use serde_json::json;
use support::caller::Caller;
use support::plain::plain;
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

/// All that a server tells, and in which of it a canary must not be.
struct Told {
    log: String,
    answers: String,
    numbers: String,
    trail: String,
}

impl Told {
    /// Which canaries are where.
    fn leaks(&self, canaries: &[&str]) -> Vec<(String, &'static str)> {
        let places = [
            ("the log", &self.log),
            ("the answers", &self.answers),
            ("the numbers", &self.numbers),
            ("the audit trail", &self.trail),
        ];
        let mut leaks = Vec::new();
        for (place, text) in places {
            // What a caller sent as an argument may be repeated to that caller alone.
            let is_secret = |canary: &&&str| !(place == "the answers" && **canary == ARGUMENT);
            let found = canaries.iter().filter(is_secret).filter(|canary| text.contains(**canary));
            leaks.extend(found.map(|canary| ((*canary).to_owned(), place)));
        }
        leaks
    }
}

/// Goes every way to be refused, with a canary in each place where one could be, and keeps the answers.
fn drive(server: &Server, admin: &Caller, reader: &Caller) -> String {
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
            answers += &format!("{:?}\n", caller.send(server, tool, arguments));
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
    answers
}

#[test]
fn se_05_what_passes_a_server_is_in_nothing_that_it_tells() {
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
    let answers = drive(&server, &admin, &reader);
    let numbers = server.ask("GET", "/metrics", &[admin.shown()]).body;
    server.signal(rustix::process::Signal::TERM);
    assert!(server.wait().0.success());
    let told = Told { log: server.log(), answers, numbers, trail: std::fs::read_to_string(trail).unwrap() };
    assert!([&told.log, &told.answers, &told.numbers, &told.trail].iter().all(|text| !text.is_empty()));

    let sent = [WRONG, QUERY, COOKIE, HEADER, ARGUMENT, &admin.token, &reader.token];
    let canaries = [&sent[..], &[ENVIRONMENT, COLLECTOR]].concat();
    assert_eq!(told.leaks(&canaries), []);
    assert!(!told.answers.contains(world.state_dir().to_str().unwrap()), "a path of this machine is in the answers");

    // Each line is an object, with the same few names, but for what is said to people before.
    let lines = told.log.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 10, "{}", told.log);
    for line in lines {
        assert!(line["timestamp"].is_string() && line["level"].is_string() && line["target"].is_string(), "{line}");
    }
    assert!(
        told.log.contains("a request was not let in") && told.answers.contains("denied"),
        "they came to be refused"
    );

    // The same of a server that tells what it is sent, in its answers, its log, its numbers and its trail.
    let heard = Arc::new(Mutex::new(String::new()));
    let keeps = heard.clone();
    let talkative =
        plain(Router::new().fallback(move |method: Method, address: Uri, headers: HeaderMap, body: Bytes| {
            let told = format!("{method} {address} {headers:?} {}\n", String::from_utf8_lossy(&body));
            keeps.lock().unwrap().push_str(&told);
            async move { told }
        }));
    let answers = drive(&talkative, &admin, &reader);
    let log = heard.lock().unwrap().clone();
    let told = Told { answers, numbers: log.clone(), trail: log.clone(), log };
    let seen = told.leaks(&canaries);
    for canary in sent {
        let places = seen.iter().filter(|(found, _)| found == canary).count();
        let expected = if canary == ARGUMENT { 3 } else { 4 };
        assert_eq!(places, expected, "{canary} is not seen where it is told: {seen:?}");
    }
}

/// How a process of this test is told to come upon a fault, after the server's own start or without it.
const FAULT: &str = "TEST_FAULT";
const FAULT_TEST: &str = "se_05_a_fault_says_where_it_is_and_nothing_of_what_it_was_at";

#[test]
fn se_05_a_fault_says_where_it_is_and_nothing_of_what_it_was_at() {
    if let Ok(kind) = std::env::var(FAULT) {
        return come_upon_faults(&kind);
    }
    let world = World::new();
    let said = |kind: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([FAULT_TEST, "--exact", "--nocapture"])
            .env(FAULT, kind)
            .env("SANDPEN_STATE_DIR", world.state_dir());
        let done = command.env_remove("RUST_BACKTRACE").output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    let (served, plain) = (said("served"), said("plain"));
    assert!(!served.contains(ARGUMENT), "{served}");
    assert_eq!(served.matches("a fault of its own").count(), 3, "each is told: {served}");
    assert!(served.contains("canaries.rs:") && served.contains("words of the program"), "{served}");
    assert_eq!(plain.matches(ARGUMENT).count(), 2, "without the server's start the canary is seen: {plain}");
}

fn come_upon_faults(kind: &str) {
    if kind == "served" {
        // An address that is taken ends the command after its start and before its engine.
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let words = ["sandpen", "serve", "--no-auth", "--log-format", "json", "--listen", &address].map(OsString::from);
        let exit = sandpen::main(&words);
        assert!(exit != sandpen::exit::Exit::SUCCESS);
    }
    let faults: [fn(); 3] = [
        || panic!("a token {}", std::hint::black_box(ARGUMENT)),
        || std::hint::black_box(Err::<(), _>(std::io::Error::other(ARGUMENT))).unwrap(),
        || panic!("words of the program"),
    ];
    for fault in faults {
        assert!(std::thread::spawn(fault).join().is_err());
    }
}
