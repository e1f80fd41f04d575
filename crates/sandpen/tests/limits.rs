//! The most that one owner may have and do, as the operator of a server sets it.

mod support;

use serde_json::{Value, json};
use support::caller::Caller;
use support::server::Server;
use support::{World, sandboxes_work};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

#[track_caller]
fn is_refused(result: &Value, part: &str) {
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    assert!(result["isError"] == true && text.contains("(limit_exceeded)") && text.contains(part), "{result}");
}

#[test]
fn runs_over_the_rate_are_answered_by_the_tool_in_both_eras() {
    needs_sandboxes!();
    let world = World::new();
    let (alice, bob) = (Caller::new(&world, &["--owner", "alice"]), Caller::new(&world, &["--owner", "bob"]));
    let server = Server::guarded(&world, &["--owner-runs", "2", "--owner-limit", "bob:runs=100"]);
    let run = json!({ "command": "echo here" });
    for _ in 0..2 {
        assert_eq!(alice.call(&server, "run_command", run.clone())["structuredContent"]["stdout"], "here\n");
    }
    is_refused(&alice.call(&server, "run_command", run.clone()), "try again in ");
    let session = alice.session(&server);
    is_refused(&session.call("run_code", json!({ "language": "bash", "code": "true" })), "try again in ");
    assert_ne!(session.call("list_sandboxes", json!({}))["isError"], true, "only runs are counted");
    for _ in 0..3 {
        assert_eq!(bob.call(&server, "run_command", run.clone())["structuredContent"]["stdout"], "here\n");
    }
}

#[test]
fn requests_over_the_rate_are_refused_with_the_time_to_come_back() {
    needs_sandboxes!();
    let world = World::new();
    let (alice, bob) = (Caller::new(&world, &["--owner", "alice"]), Caller::new(&world, &["--owner", "bob"]));
    let server = Server::guarded(&world, &["--owner-requests", "3"]);
    let list = |caller: &Caller| caller.send(&server, "list_sandboxes", json!({}));
    assert!((0..3).all(|_| list(&alice).status == 200));
    let refused = list(&alice);
    assert_eq!((refused.status, &refused.json()["error"]["kind"]), (429, &json!("limit_exceeded")));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=20).contains(&wait), "{wait}");
    // However it is asked, and whatever older server is asked for.
    assert_eq!(server.ask("GET", "/sse", &[("accept", "text/event-stream"), alice.shown()]).status, 429);
    assert_eq!(server.open("POST", "/profiles/automata/mcp", &[alice.shown()], b"{}").status, 429);
    assert_eq!(list(&bob).status, 200);
    assert_eq!(server.ask("GET", "/healthz", &[]).status, 200);
}

#[test]
fn what_an_owner_holds_is_bounded_by_what_the_operator_set() {
    needs_sandboxes!();
    let world = World::new();
    let owners = ["sandboxes", "cpus", "memory", "disk"];
    let callers = owners.map(|owner| Caller::new(&world, &["--owner", owner]));
    world.write(
        "limits.toml",
        "owner_limit = ['sandboxes:sandboxes=2', 'cpus:cpus=1.5', 'memory:memory=768M', 'disk:disk=1200M']\n",
    );
    let server = Server::guarded(&world, &["--config", "limits.toml"]);
    let says = ["2 sandboxes, which is all", "more processors", "more memory", "more disk"];
    for ((caller, owner), says) in callers.iter().zip(owners).zip(says) {
        let asked = match owner {
            "sandboxes" => json!({ "memory_mb": 64 }),
            _ => json!({}),
        };
        let made = caller.call(&server, "create_sandbox", asked.clone());
        assert_ne!(made["isError"], true, "{made}");
        if owner == "sandboxes" {
            assert_ne!(caller.call(&server, "create_sandbox", asked.clone())["isError"], true);
        }
        is_refused(&caller.call(&server, "create_sandbox", asked.clone()), says);
        // A run without a sandbox needs one too.
        is_refused(&caller.call(&server, "run_command", json!({ "command": "true" })), says);
        let id = made["structuredContent"]["sandbox_id"].clone();
        caller.call(&server, "stop_sandbox", json!({ "sandbox_id": id }));
        assert_ne!(caller.call(&server, "create_sandbox", asked)["isError"], true, "{owner}: it is given back");
    }
}

#[test]
fn a_limit_that_makes_no_sense_is_refused() {
    let world = World::new();
    world.run(&["serve", "--owner-limit", "alice:sandboxs=5"]).expect(1, "").says("did you mean sandboxes?");
    world.run(&["serve", "--owner-runs", "0"]).expect(1, "").says("--owner-runs");
}
