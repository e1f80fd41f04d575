//! `sandpen mcp` and the stream of messages: whatever comes in, each line that goes out is JSON-RPC and the server lives.

mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use support::client::{Client, modern};
use support::{World, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

#[track_caller]
fn expect_error(client: &mut Client, text: &str, id: Value, code: i64) {
    client.send_text(text);
    let answer = client.next();
    let shown: String = text.chars().take(80).collect();
    assert_eq!((&answer["id"], answer["error"]["code"].as_i64()), (&id, Some(code)), "{shown}: {answer}");
}

#[test]
fn what_makes_no_sense_is_answered_and_ends_nothing() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::start(&world, &[]);
    for text in ["garbage", "{", "\u{0}\u{1}", "{\"jsonrpc\":\"2.0\",", "]"] {
        expect_error(&mut client, text, Value::Null, -32700);
    }
    client.send_bytes(b"\xff\xfe\"\x80\"\n");
    assert_eq!(client.next()["error"]["code"], -32700);
    for text in ["1", "null", "[]", "{}", r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#] {
        expect_error(&mut client, text, Value::Null, -32600);
    }
    expect_error(&mut client, r#"{"jsonrpc":"1.0","id":"a","method":"ping"}"#, json!("a"), -32600);
    let deep = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}}"#, "[".repeat(200_000));
    expect_error(&mut client, &deep, Value::Null, -32700);
    client.is_alive();
    client.initialize("2025-11-25");
    expect_error(&mut client, "still garbage", Value::Null, -32700);
    client.is_alive();
}

#[test]
fn a_session_may_begin_with_anything() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::start(&world, &[]);
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 5 } }));
    client.send(&json!({ "jsonrpc": "2.0", "id": 77, "result": {} }));
    assert_eq!(client.refused("tools/list", json!({})), -32602);
    assert_eq!(client.refused("initialize", json!({ "nonsense": true })), -32602);
    client.is_alive();
    client.initialize("2025-06-18");
    assert!(!client.ask("tools/list", json!({}))["tools"].as_array().unwrap().is_empty());
}

#[test]
fn a_line_that_is_too_long_is_let_go() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let before = resident_kib(client.child.id());
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..200 {
        client.send_bytes(&chunk);
    }
    client.send_bytes(b"\n");
    let answer = client.next();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(-32600)));
    client.is_alive();
    let grown = resident_kib(client.child.id()).saturating_sub(before);
    assert!(grown < 64 << 10, "200 MiB in one line cost {grown} KiB");
}

#[test]
fn a_large_message_within_the_bound_is_taken() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let sandbox = client.call("create_sandbox", json!({}))["structuredContent"]["sandbox_id"].clone();
    let content = "x".repeat(8 << 20);
    let written = client.call("write_file", json!({ "sandbox_id": sandbox, "path": "large.txt", "content": content }));
    assert_eq!(written["isError"], false, "{written}");
}

#[test]
fn identifiers_come_back_as_they_were_or_are_refused() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    for id in [json!(0), json!(-7), json!(i64::MAX), json!(i64::MIN), json!(""), json!("7"), json!("ä\n\"")] {
        client.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "ping" }));
        assert_eq!(client.answer(&id)["result"], json!({}));
    }
    for id in ["1.5", "9223372036854775808", "123456789012345678901234567890", "1e300", "true", "[1]", "{}"] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
        expect_error(&mut client, &text, Value::Null, -32600);
    }
    let long = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(1 << 20));
    expect_error(&mut client, &long, Value::Null, -32600);
    client.is_alive();
}

#[test]
fn an_identifier_in_use_is_refused_and_free_again_afterwards() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let run = json!({ "name": "run_command", "arguments": { "command": "sleep 1; echo done" } });
    client.send(&json!({ "jsonrpc": "2.0", "id": "same", "method": "tools/call", "params": run }));
    client.send(&json!({ "jsonrpc": "2.0", "id": "same", "method": "ping" }));
    assert_eq!(client.answer(&json!("same"))["error"]["code"], -32600);
    assert_eq!(client.answer(&json!("same"))["result"]["structuredContent"]["stdout"], "done\n");
    client.send(&json!({ "jsonrpc": "2.0", "id": "same", "method": "ping" }));
    assert_eq!(client.answer(&json!("same"))["result"], json!({}));
}

#[test]
fn blank_lines_carriage_returns_and_pieces_are_no_obstacle() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    client.send_bytes(b"\n\r\n   \n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r\n");
    assert_eq!(client.answer(&json!(1))["result"], json!({}));
    for piece in "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\",\"params\":null}\n".as_bytes().chunks(7) {
        client.send_bytes(piece);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(client.answer(&json!(2))["result"], json!({}));
}

#[test]
fn everything_may_come_at_once_and_without_a_last_line_break() {
    needs_sandboxes!();
    let world = World::new();
    let mut child = world.command(&["mcp"]).stdin(Stdio::piped()).spawn().unwrap();
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } } });
    let list = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" });
    write!(child.stdin.take().unwrap(), "{hello}\n{list}").unwrap();
    let output = child.wait_with_output().unwrap();
    let lines: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!((&lines[0]["id"], &lines[1]["id"]), (&json!(1), &json!(2)));
    assert!(lines[1]["result"]["tools"].is_array());
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_thousand_requests_may_be_under_way() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let slow = json!({ "name": "run_command", "arguments": { "command": "sleep 2; echo slow" } });
    client.send(&json!({ "jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": slow }));
    for id in 1..=1000 {
        client.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list" }));
    }
    let answered: BTreeSet<i64> = (0..=1000)
        .map(|_| {
            let answer = client.next();
            assert!(answer.get("result").is_some(), "{answer}");
            answer["id"].as_i64().unwrap()
        })
        .collect();
    assert_eq!(answered.len(), 1001);
}

#[test]
fn a_client_that_does_not_read_is_not_read_until_it_does() {
    needs_sandboxes!();
    let world = World::new();
    let mut child = world.command(&["mcp"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = sent.clone();
    std::thread::spawn(move || {
        for id in 0.. {
            let list = modern(json!({}), json!({}));
            let message = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list", "params": list });
            if writeln!(stdin, "{message}").is_err() {
                return;
            }
            counter.store(id, Ordering::Relaxed);
        }
    });
    let mut before = usize::MAX;
    wait_until("the server stops reading", || {
        std::thread::sleep(Duration::from_secs(1));
        let now = sent.load(Ordering::Relaxed);
        now > 0 && std::mem::replace(&mut before, now) == now
    });
    let held = resident_kib(child.id());
    assert!(held < 200 << 10, "{held} KiB are held for a client that does not read");
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..before {
        answers.next().unwrap().unwrap();
    }
    wait_until("the server reads again", || sent.load(Ordering::Relaxed) > before);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_batch_is_answered_as_one_where_the_revision_has_batches() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-03-26");
    let ping = |id: Value| json!({ "jsonrpc": "2.0", "id": id, "method": "ping" });
    let run = json!({ "name": "run_command", "arguments": { "command": "sleep 0.3; echo slow" } });
    let slow = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": run });
    let told = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let hello = json!({ "jsonrpc": "2.0", "id": 3, "method": "initialize", "params": {} });
    client.send(&json!([ping(json!(1)), slow, told, 5, hello, ping(json!("x"))]));
    let answers = client.next();
    let mut ids: Vec<String> = answers.as_array().unwrap().iter().map(|answer| answer["id"].to_string()).collect();
    ids.sort();
    assert_eq!(ids, ["\"x\"", "1", "2", "3", "null"], "{answers}");
    client.send(&json!([told]));
    client.send(&json!([ping(json!(9))]));
    assert_eq!(client.next(), json!([{ "jsonrpc": "2.0", "id": 9, "result": {} }]));
    let many: Vec<Value> = (0..1001).map(|id| ping(json!(id))).collect();
    client.send(&Value::from(many));
    assert_eq!(client.next()["error"]["code"], -32600);
}

#[test]
fn a_request_that_is_given_up_is_missing_from_the_answer_of_its_batch() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-03-26");
    let run = json!({ "name": "run_command", "arguments": { "command": "sleep 60" } });
    let long = json!({ "jsonrpc": "2.0", "id": "long", "method": "tools/call", "params": run });
    client.send(&json!([long, { "jsonrpc": "2.0", "id": 1, "method": "ping" }]));
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": "long" } }));
    assert_eq!(client.next(), json!([{ "jsonrpc": "2.0", "id": 1, "result": {} }]));
}

#[test]
fn a_batch_is_refused_where_the_revision_has_none() {
    needs_sandboxes!();
    let world = World::new();
    for version in ["2024-11-05", "2025-06-18", "2025-11-25"] {
        let mut client = Client::hello(&world, &[], version);
        client.send(&json!([{ "jsonrpc": "2.0", "id": 1, "method": "ping" }]));
        let answer = client.next();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(-32600)), "{version}");
        client.is_alive();
    }
}

#[test]
fn the_log_goes_elsewhere_however_much_it_says() {
    needs_sandboxes!();
    let world = World::new();
    let mut command = world.command(&["mcp", "--log", "trace"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for text in [
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": modern(json!({}), json!({})) }),
        json!({ "jsonrpc": "2.0", "id": 2, "method": "nonsense", "params": modern(json!({}), json!({})) }),
    ] {
        writeln!(stdin, "{text}").unwrap();
    }
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(stdout.lines().count(), 2, "{stdout}");
    assert!(stdout.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{stdout}");
    assert!(!output.stderr.is_empty());
}

fn resident_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
