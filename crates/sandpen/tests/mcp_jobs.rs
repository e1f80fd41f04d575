//! Jobs of persistent sandboxes and the end of the server that runs them: whatever it is ended by, the next one knows them.

mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::client::Client;
use support::{World, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

fn hello(world: &World) -> Client {
    Client::hello(world, &[], "2025-11-25")
}

/// One that stays when the server goes.
fn sandbox(client: &mut Client) -> String {
    let made = client.call("create_sandbox", json!({ "persist": true }));
    made["structuredContent"]["sandbox_id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
}

/// Its id.
fn begin(client: &mut Client, tool: &str, mut arguments: Value) -> String {
    arguments["background"] = json!(true);
    let begun = client.call(tool, arguments);
    begun["structuredContent"]["job_id"].as_str().unwrap_or_else(|| panic!("{begun}")).to_owned()
}

fn look(client: &mut Client, job: &str, more: Value) -> Value {
    let mut arguments = json!({ "job_id": job });
    arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    client.call("get_job", arguments)
}

/// Until it has said this.
fn hear(client: &mut Client, job: &str, what: &str) {
    wait_until(what, || {
        let seen = look(client, job, json!({}));
        seen["structuredContent"]["stdout"].as_str().is_some_and(|stdout| stdout.contains(what))
    });
}

fn end(mut client: Client, signal: Signal) {
    client.signal(signal);
    client.wait();
}

#[test]
fn an_ended_job_is_known_to_the_next_server() {
    needs_sandboxes!();
    for signal in [Signal::TERM, Signal::KILL] {
        let world = World::new();
        let mut first = hello(&world);
        let id = sandbox(&mut first);
        let script = "seq 1 20000; echo needle in it; echo bad >&2; echo made > made.txt; exit 3";
        let job = begin(&mut first, "run_command", json!({ "sandbox_id": id, "command": script }));
        let before = look(&mut first, &job, json!({ "wait_s": 20 }));
        assert_eq!(before["structuredContent"]["exit_code"], 3, "{before}");
        end(first, signal);

        let mut second = hello(&world);
        let after = look(&mut second, &job, json!({}));
        assert_eq!(after["structuredContent"], before["structuredContent"], "{signal:?}");
        let found = look(&mut second, &job, json!({ "search": "needle" }));
        assert_eq!(found["structuredContent"]["page"]["lines"][0]["line"], 20001, "{found}");
        let page = look(&mut second, &job, json!({ "offset": 19_999, "limit": 1 }));
        assert!(page.to_string().contains("19999"), "{page}");
        second.call("stop_sandbox", json!({ "sandbox_id": id }));
    }
}

#[test]
fn a_run_in_a_context_is_interrupted_with_what_it_had_said() {
    needs_sandboxes!();
    for signal in [Signal::TERM, Signal::KILL] {
        let world = World::new();
        let mut first = hello(&world);
        let id = sandbox(&mut first);
        let code = "import time\nfor n in range(100000):\n    print('line', n, flush=True)\ntime.sleep(600)";
        let arguments = json!({ "sandbox_id": id, "language": "python", "context": "main", "code": code });
        let job = begin(&mut first, "run_code", arguments);
        hear(&mut first, &job, "line 99999");
        end(first, signal);

        let mut second = hello(&world);
        let after = look(&mut second, &job, json!({ "wait_s": 20 }));
        assert_eq!(after["structuredContent"]["status"], "interrupted", "{signal:?} {after}");
        let found = look(&mut second, &job, json!({ "search": "line 99999" }));
        assert_eq!(found["structuredContent"]["page"]["lines"][0]["line"], 100_000, "{found}");
        let said = second.call("stop_job", json!({ "job_id": job }));
        assert_eq!(said["structuredContent"]["status"], "interrupted", "{said}");
        second.call("stop_sandbox", json!({ "sandbox_id": id }));
    }
}

#[test]
fn a_job_of_a_sandbox_that_ends_with_its_server_is_not_written_down() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = hello(&world);
    let made = client.call("create_sandbox", json!({}));
    let id = made["structuredContent"]["sandbox_id"].clone();
    let job = begin(&mut client, "run_command", json!({ "sandbox_id": id, "command": "echo here; sleep 600" }));
    hear(&mut client, &job, "here");
    end(client, Signal::KILL);
    let mut second = hello(&world);
    let unknown = look(&mut second, &job, json!({}));
    assert_eq!(unknown["isError"], true, "{unknown}");
}
