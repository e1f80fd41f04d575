//! `sandpen mcp` while something goes on: progress, cancellation, tasks, news of resources.

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::client::{Client, modern};
use support::{World, is_running, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

fn tasks() -> Value {
    json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } })
}

fn run(command: &str) -> Value {
    json!({ "name": "run_command", "arguments": { "command": command } })
}

/// How many of the processes below the server are of this program.
fn count_of(client: &Client, program: &str) -> usize {
    let is_it = |process: &u32| {
        let command_line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        is_running(*process) && String::from_utf8_lossy(&command_line).contains(program)
    };
    client.processes().iter().filter(|process| is_it(process)).count()
}

#[test]
fn progress_carries_the_output_and_ends_with_the_answer() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let mut params = run("for i in 1 2 3 4 5 6; do echo line $i; sleep 0.2; done");
    params["_meta"] = json!({ "progressToken": "watch" });
    let id = client.begin("tools/call", params);
    let answer = client.answer(&id);
    assert_eq!(answer["result"]["structuredContent"]["exit_code"], 0);
    let told = std::mem::take(&mut client.notifications);
    assert!(told.len() >= 2, "{told:?}");
    let mut last = 0.0;
    for notification in &told {
        assert_eq!(notification["method"], "notifications/progress");
        assert_eq!(notification["params"]["progressToken"], "watch");
        let progress = notification["params"]["progress"].as_f64().unwrap();
        assert!(progress > last, "{told:?}");
        last = progress;
    }
    assert!(told[0]["params"]["message"].as_str().unwrap().contains("line 1"), "{told:?}");
    assert_eq!(client.next_within(Duration::from_millis(500)), None, "something came after the answer");
}

#[test]
fn a_flood_is_told_at_a_pace_and_in_small_pieces() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let mut params = run("timeout 3 yes 0123456789012345678901234567890123456789");
    params["_meta"] = json!({ "progressToken": 7 });
    let started = Instant::now();
    let id = client.begin("tools/call", params);
    client.answer(&id);
    let most = 10 * (started.elapsed().as_secs() + 1) as usize;
    assert!(client.notifications.len() <= most, "{} notifications", client.notifications.len());
    assert!(!client.notifications.is_empty());
    assert!(client.notifications.iter().all(|told| told.to_string().len() < 8 << 10));
}

#[test]
fn nobody_is_told_who_did_not_ask() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    client.ask("tools/call", run("echo one; sleep 0.5; echo two"));
    assert_eq!(client.notifications, Vec::<Value>::new());
}

#[test]
fn what_is_given_up_is_killed_and_not_answered() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let mut params = run("sleep 3333 & echo begun; sleep 3333");
    params["_meta"] = json!({ "progressToken": 1 });
    let id = client.begin("tools/call", params.clone());
    assert_eq!(client.next()["method"], "notifications/progress");
    wait_until("the program runs", || count_of(&client, "3333") >= 2);
    let cancelled = json!({ "requestId": id, "reason": "no longer needed" });
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled }));
    wait_until("the program is killed", || count_of(&client, "3333") == 0);
    assert_eq!(client.next_within(Duration::from_secs(1)), None, "an answer came to what was given up");
    // The identifier is free again, and its new request gets its own answer.
    client.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "ping" }));
    assert_eq!(client.answer(&id)["result"], json!({}));
}

#[test]
fn a_cancellation_of_nothing_changes_nothing() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    for params in [json!({ "requestId": 999 }), json!({}), json!({ "requestId": "x", "reason": 5 }), json!(5)] {
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }));
    }
    client.is_alive();
}

#[test]
fn a_short_run_is_answered_and_a_long_one_becomes_a_task() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::start(&world, &[]);
    wait_until("a short run is answered with its result", || {
        let short = client.ask("tools/call", modern(run("echo quick"), tasks()));
        short["resultType"] == "complete" && short["structuredContent"]["stdout"] == "quick\n"
    });
    let mut params = modern(run("for i in 1 2 3 4; do echo $i; sleep 0.7; done"), tasks());
    params["_meta"]["progressToken"] = json!("p");
    let begun = client.ask("tools/call", params);
    assert_eq!((&begun["resultType"], &begun["status"]), (&json!("task"), &json!("working")), "{begun}");
    client.notifications.clear();
    let get = modern(json!({ "taskId": begun["taskId"] }), tasks());
    let mut seen = json!(null);
    wait_until("the task is completed", || {
        seen = client.ask("tasks/get", get.clone());
        seen["status"] == "completed"
    });
    assert_eq!(seen["result"]["structuredContent"]["stdout"], "1\n2\n3\n4\n", "{seen}");
    assert_eq!(client.notifications, Vec::<Value>::new(), "progress of a task is not told");
    assert_eq!(client.refused("tasks/get", modern(json!({ "taskId": "unknown" }), tasks())), -32602);
    assert_eq!(client.refused("tasks/get", modern(json!({ "taskId": begun["taskId"] }), json!({}))), -32021);
}

#[test]
fn without_the_extension_nothing_becomes_a_task() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::start(&world, &[]);
    let result = client.ask("tools/call", modern(run("sleep 2; echo waited"), json!({})));
    assert_eq!(result["structuredContent"]["stdout"], "waited\n");
}

#[test]
fn a_cancelled_task_is_killed() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::start(&world, &[]);
    let begun = client.ask("tools/call", modern(run("sleep 4444"), tasks()));
    wait_until("the program runs", || count_of(&client, "4444") > 0);
    let named = || modern(json!({ "taskId": begun["taskId"] }), tasks());
    client.ask("tasks/cancel", named());
    wait_until("the program is killed", || count_of(&client, "4444") == 0);
    wait_until("the task is cancelled", || client.ask("tasks/get", named())["status"] == "cancelled");
}

#[test]
fn a_subscriber_hears_of_a_file_that_is_written() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let sandbox = client.call("create_sandbox", json!({}))["structuredContent"]["sandbox_id"].clone();
    let uri = format!("sandbox://{}/workspace/log.txt", sandbox.as_str().unwrap());
    let write = json!({ "sandbox_id": sandbox, "path": "log.txt", "content": "x" });
    client.ask("resources/subscribe", json!({ "uri": uri }));
    client.call("write_file", write.clone());
    while client.notifications.is_empty() {
        let told = client.next();
        client.notifications.push(told);
    }
    let told = json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": { "uri": uri } });
    assert_eq!(client.notifications, [told]);
    client.ask("resources/unsubscribe", json!({ "uri": uri }));
    client.call("write_file", write);
    assert_eq!(client.next_within(Duration::from_secs(1)), None);
    assert_eq!(client.refused("resources/subscribe", json!({ "uri": "sandbox://sb-aaaaaaaaaaaaaaaa/x" })), -32002);
}

#[test]
fn a_listener_hears_of_output_that_grows() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::start(&world, &[]);
    let command = "sleep 1; for i in 1 2 3; do echo $i; sleep 0.5; done; sleep 60";
    let arguments = json!({ "command": command, "background": true });
    let begun = client.ask("tools/call", modern(json!({ "name": "run_command", "arguments": arguments }), json!({})));
    let job = begun["structuredContent"]["job_id"].as_str().unwrap().to_owned();
    let resources = client.ask("resources/list", modern(json!({}), json!({})));
    let is_output = |uri: &&str| uri.contains(&job) && uri.ends_with("stdout");
    let listed = resources["resources"].as_array().unwrap().iter().filter_map(|resource| resource["uri"].as_str());
    let uri = listed.into_iter().find(is_output).unwrap_or_else(|| panic!("{resources}")).to_owned();
    let wanted = json!({ "notifications": { "resourceSubscriptions": [uri], "toolsListChanged": true } });
    let wanted = modern(wanted, json!({}));
    client.send(&json!({ "jsonrpc": "2.0", "id": "ears", "method": "subscriptions/listen", "params": wanted }));
    let acknowledged = client.next();
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged", "{acknowledged}");
    assert_eq!(acknowledged["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "ears");
    let told = client.next();
    assert_eq!((&told["method"], &told["params"]["uri"]), (&json!("notifications/resources/updated"), &json!(uri)));
    assert_eq!(told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "ears");
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": "ears" } }));
    client.notifications.clear();
    client.ask("tools/list", modern(json!({}), json!({})));
    client.notifications.clear();
    assert_eq!(client.next_within(Duration::from_secs(1)), None, "something came after the end");
}

#[test]
fn a_listener_is_told_when_the_server_ends() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::start(&world, &[]);
    let wanted = modern(json!({ "notifications": { "resourceSubscriptions": ["sandbox://x/y"] } }), json!({}));
    client.send(&json!({ "jsonrpc": "2.0", "id": 5, "method": "subscriptions/listen", "params": wanted }));
    client.next();
    client.signal(rustix::process::Signal::TERM);
    let last = client.answer(&json!(5));
    assert_eq!(last["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 5, "{last}");
    let (code, took) = client.wait();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(8), "a listener held the server up for {took:?}");
}

/// The best of five, because a machine may be busy; a kill that waits for something is late each time.
#[test]
fn what_is_given_up_is_gone_within_a_second() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let id = client.begin("tools/call", run("sleep 5555 & sleep 5555"));
        wait_until("the program runs", || count_of(&client, "5555") >= 2);
        let started = Instant::now();
        let cancelled = json!({ "requestId": id });
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled }));
        wait_until("the program is killed", || count_of(&client, "5555") == 0);
        fastest = fastest.min(started.elapsed());
    }
    assert!(fastest < Duration::from_secs(1), "{fastest:?} at best");
}
