//! `/metrics`: what is counted, who may see it, and what is never in it.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
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

/// Numbers by name and labels, read as strictly as the format is described.
#[track_caller]
fn read(answer: &Answer) -> BTreeMap<String, f64> {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
    let mut helped = BTreeSet::new();
    let mut numbers = BTreeMap::new();
    for line in answer.body.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            assert!(helped.insert(help.split_once(' ').unwrap().0), "twice: {line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(helped.contains(name) && kinds.insert(name, kind).is_none(), "{line}");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let family = family.filter(|family| kinds.get(family) == Some(&"histogram")).unwrap_or(name);
            assert!(kinds.contains_key(family), "nothing says what {name} is");
            assert!(numbers.insert(series.to_owned(), value.parse().unwrap()).is_none(), "twice: {series}");
        }
    }
    assert!(answer.body.ends_with('\n'));
    for (series, whole) in numbers.iter().filter(|(series, _)| series.contains("le=\"+Inf\"")) {
        let count = series.replace("_bucket", "_count").replace(",le=\"+Inf\"", "").replace("{le=\"+Inf\"}", "");
        assert_eq!(numbers.get(&count), Some(whole), "{series} and {count}");
    }
    numbers
}

fn scrape(server: &Server, admin: &Caller) -> BTreeMap<String, f64> {
    read(&server.ask("GET", "/metrics", &[admin.shown()]))
}

#[test]
fn numbers_move_with_what_is_done() {
    needs_sandboxes!();
    let world = World::new();
    let admin = Caller::new(&world, &["--owner", "boss", "--scope", "admin"]);
    let alice = Caller::new(&world, &["--owner", "alice-the-canary"]);
    let server = Server::guarded(&world, &[]);
    let before = scrape(&server, &admin);
    assert_eq!(before["sandpen_audit_lines_lost_total"], 0.0);
    let made = alice.call(&server, "create_sandbox", json!({}));
    let id = made["structuredContent"]["sandbox_id"].as_str().unwrap();
    alice.call(&server, "run_command", json!({ "sandbox_id": id, "command": "exit 3" }));
    alice.call(&server, "run_command", json!({ "sandbox_id": "sb-7k2m9x4bqhtw3ecd", "command": "true" }));
    assert_eq!(server.post(&[("authorization", "Bearer wrong")], b"{}").status, 401);
    let engine = before.keys().find(|series| series.starts_with("sandpen_sandboxes{")).unwrap().clone();
    let grows = [
        ("sandpen_tool_calls_total{tool=\"create_sandbox\",outcome=\"done\"}", 1.0),
        ("sandpen_tool_calls_total{tool=\"run_command\",outcome=\"done\"}", 1.0),
        ("sandpen_tool_calls_total{tool=\"run_command\",outcome=\"failed\"}", 1.0),
        ("sandpen_tool_call_duration_seconds_count{tool=\"run_command\"}", 2.0),
        ("sandpen_creates_total{outcome=\"created\"}", 1.0),
        ("sandpen_create_duration_seconds_count", 1.0),
        ("sandpen_runs_total{status=\"exited\"}", 1.0),
        ("sandpen_run_duration_seconds_count", 1.0),
        ("sandpen_http_requests_total{route=\"/mcp\",method=\"POST\",status=\"200\"}", 3.0),
        ("sandpen_http_requests_total{route=\"/mcp\",method=\"POST\",status=\"401\"}", 1.0),
        ("sandpen_http_turned_away_total{why=\"wrong_token\"}", 1.0),
        (engine.as_str(), 1.0),
    ];
    // What the service tells is counted a moment later.
    wait_until("the numbers to move", || {
        let after = scrape(&server, &admin);
        grows
            .iter()
            .all(|(series, by)| after.get(*series).copied().unwrap_or(0.0) - before.get(*series).unwrap_or(&0.0) == *by)
    });
    let after = scrape(&server, &admin);
    for name in ["process_resident_memory_bytes", "process_open_fds", "process_max_fds", "process_cpu_seconds_total"] {
        assert!(after[name] > 0.0, "{name}");
    }
    let page = server.ask("GET", "/metrics", &[admin.shown()]).body;
    for private in [id, "alice-the-canary", &alice.token, "wrong"] {
        // The word for wrong tokens is ours.
        assert!(!page.replace("wrong_token", "").contains(private), "{private} is in the numbers");
    }
    alice.call(&server, "stop_sandbox", json!({ "sandbox_id": id }));
    wait_until("the sandbox to be gone", || scrape(&server, &admin)[&engine] == before[&engine]);
}

#[test]
fn whatever_clients_send_there_are_no_more_numbers() {
    needs_sandboxes!();
    let world = World::new();
    let admin = Caller::new(&world, &["--scope", "admin"]);
    let server = Server::guarded(&world, &[]);
    let strange = |number: usize| {
        server.ask("GET", &format!("/nothing/{number}"), &[]);
        server.ask(&format!("METHOD{number}"), "/mcp", &[admin.shown()]);
        admin.send(&server, &format!("tool-{number}"), json!({}));
        server.post(&[("authorization", &format!("Bearer {number}"))], b"{}");
    };
    strange(0);
    scrape(&server, &admin);
    let before = scrape(&server, &admin).len();
    (1..40).for_each(strange);
    assert_eq!(scrape(&server, &admin).len(), before);
}

#[test]
fn numbers_are_for_administrators_or_for_this_machine() {
    needs_sandboxes!();
    let world = World::new();
    let (runner, admin) = (Caller::new(&world, &[]), Caller::new(&world, &["--scope", "admin"]));
    let mut child = world
        .command(&["--json", "serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"])
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
    let told: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = |name: &str| {
        let url = told[name].as_str().unwrap();
        url.split("://").nth(1).and_then(|rest| rest.split('/').next()).unwrap().parse().unwrap()
    };
    let server = Server::at(child, address("url"));
    assert_eq!(server.ask("GET", "/metrics", &[]).status, 401);
    let refused = server.ask("GET", "/metrics", &[runner.shown()]);
    assert_eq!(refused.status, 403);
    assert!(refused.header("www-authenticate").unwrap().contains("sandpen:admin\""), "{refused:?}");
    read(&server.ask("GET", "/metrics", &[admin.shown()]));
    let numbers = Server::known_at(address("metrics_url"));
    read(&numbers.ask("GET", "/metrics", &[]));
    // Nothing else is there, and pages of other sites see nothing of it.
    assert_eq!(numbers.open("POST", "/mcp", MCP, &request(1, "ping", json!({}))).status, 404);
    assert_eq!(numbers.ask("GET", "/metrics", &[("origin", "https://evil.example")]).status, 403);
    assert_eq!(numbers.ask("GET", "/metrics", &[("host", "evil.example")]).status, 403);
    for address in ["0.0.0.0:0", "192.0.2.1:9"] {
        world.run(&["serve", "--metrics-listen", address]).expect(1, "").says("can be reached by other machines");
    }
}
