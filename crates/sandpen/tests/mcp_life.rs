//! How `sandpen mcp` ends: by itself when its client is gone, in order when it is asked, at once when it is asked twice;
//! and nothing of it is left.

mod support;

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::client::{Client, modern};
use support::{World, groups_named, is_running, sandboxes_work, wait_until};

macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

/// What may be promised on a busy machine: "within 5 s" and the time to notice it.
const SOON: Duration = Duration::from_secs(6);

fn run(command: &str) -> Value {
    json!({ "name": "run_command", "arguments": { "command": command } })
}

/// A server with a sandbox of its own and a run that does not want to end, and everything that belongs to them.
struct Busy {
    client: Client,
    sandbox: String,
    processes: Vec<u32>,
}

impl Busy {
    fn start(world: &World) -> Self {
        let mut client = Client::hello(world, &[], "2025-11-25");
        let sandbox = client.call("create_sandbox", json!({}))["structuredContent"]["sandbox_id"].clone();
        let sandbox = sandbox.as_str().unwrap().to_owned();
        let mut stubborn = run("trap '' TERM INT HUP; (setsid sleep 5555 &); echo begun; sleep 5555; sleep 5555");
        stubborn["arguments"]["sandbox_id"] = json!(sandbox);
        stubborn["_meta"] = json!({ "progressToken": 1 });
        client.begin("tools/call", stubborn);
        assert_eq!(client.next()["method"], "notifications/progress");
        let mut processes = Vec::new();
        wait_until("they are seen", || {
            processes = client.processes();
            processes.len() > 3
        });
        Self { client, sandbox, processes }
    }

    #[track_caller]
    fn leaves_nothing(self) {
        wait_until("no process is left", || !self.processes.iter().any(|process| is_running(*process)));
        wait_until("no group is left", || groups_named(&self.sandbox).is_empty());
    }
}

#[test]
fn the_end_of_input_ends_everything() {
    needs_sandboxes!();
    let world = World::new();
    let mut busy = Busy::start(&world);
    busy.client.close_stdin();
    let (code, took) = busy.client.wait();
    assert_eq!(code, Some(0));
    assert!(took < SOON, "it took {took:?}");
    busy.leaves_nothing();
}

#[test]
fn a_client_that_reads_no_answers_any_more_is_gone() {
    needs_sandboxes!();
    let world = World::new();
    let mut child = world.command(&["mcp"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    writeln!(stdin, "{ping}").unwrap();
    stdout.read_line(&mut String::new()).unwrap();
    // Nothing is to be said, and nothing more is asked; it is seen all the same.
    drop(stdout);
    wait_until("the server ends", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_end_of_input_is_seen_when_answers_are_not_read() {
    needs_sandboxes!();
    let world = World::new();
    let mut child = world.command(&["mcp"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // The refusal repeats the name, so that more waits to be read than the server wants to hold.
    let call = |id: u64| {
        let params = modern(json!({ "name": "x".repeat(1 << 20), "arguments": {} }), json!({}));
        format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }))
    };
    let calls: String = (0..64).map(call).collect();
    rustix::fs::fcntl_setfl(&stdin, rustix::fs::OFlags::NONBLOCK).unwrap();
    let (mut rest, mut taken) = (calls.as_bytes(), Instant::now());
    while !rest.is_empty() && taken.elapsed() < Duration::from_secs(5) {
        match stdin.write(rest) {
            Ok(length) => (rest, taken) = (&rest[length..], Instant::now()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!rest.is_empty(), "the server reads without end");
    let closed = Instant::now();
    drop(stdin);
    wait_until("the server ends", || child.try_wait().unwrap().is_some());
    assert!(closed.elapsed() < SOON, "it took {:?}", closed.elapsed());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_signal_lets_work_finish_and_takes_no_more() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let mut params = run("echo begun; sleep 2; echo finished");
    params["_meta"] = json!({ "progressToken": 1 });
    let id = client.begin("tools/call", params);
    assert_eq!(client.next()["method"], "notifications/progress");
    client.signal(Signal::TERM);
    // The signal and the next message come by different ways.
    std::thread::sleep(Duration::from_millis(300));
    let late = client.begin("tools/list", json!({}));
    assert_eq!(client.answer(&late)["error"]["code"], -32000);
    assert_eq!(client.answer(&id)["result"]["structuredContent"]["stdout"], "begun\nfinished\n");
    let (code, took) = client.wait();
    assert_eq!(code, Some(0));
    assert!(took < SOON, "it took {took:?}");
}

#[test]
fn an_idle_server_ends_at_the_first_signal() {
    needs_sandboxes!();
    let world = World::new();
    for signal in [Signal::TERM, Signal::INT] {
        let mut client = Client::hello(&world, &[], "2025-11-25");
        client.signal(signal);
        let (code, took) = client.wait();
        assert_eq!(code, Some(0));
        assert!(took < SOON, "it took {took:?}");
    }
}

#[test]
fn a_second_signal_ends_it_at_once_and_still_leaves_nothing() {
    needs_sandboxes!();
    let world = World::new();
    for (signal, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut busy = Busy::start(&world);
        busy.client.signal(signal);
        std::thread::sleep(Duration::from_millis(500));
        assert!(busy.client.child.try_wait().unwrap().is_none(), "it did not wait for its work");
        busy.client.signal(signal);
        let (code, took) = busy.client.wait();
        assert_eq!(code, Some(expected));
        assert!(took < Duration::from_secs(3), "it took {took:?}");
        busy.leaves_nothing();
    }
}

#[test]
fn work_that_does_not_end_is_given_up_after_a_while() {
    needs_sandboxes!();
    let world = World::new();
    let mut busy = Busy::start(&world);
    busy.client.signal(Signal::TERM);
    let (code, took) = busy.client.wait();
    assert_eq!(code, Some(0));
    assert!(took > Duration::from_secs(5) && took < Duration::from_secs(20), "it took {took:?}");
    busy.leaves_nothing();
}

#[test]
fn a_server_that_is_killed_leaves_nothing() {
    needs_sandboxes!();
    let world = World::new();
    let mut busy = Busy::start(&world);
    busy.client.signal(Signal::KILL);
    busy.client.wait();
    busy.leaves_nothing();
}

#[test]
fn a_task_ends_with_the_server() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::start(&world, &[]);
    let tasks = json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } });
    let begun = client.ask("tools/call", modern(run("sleep 6666"), tasks));
    assert_eq!(begun["resultType"], "task", "{begun}");
    let processes = client.processes();
    client.close_stdin();
    let (code, took) = client.wait();
    assert_eq!(code, Some(0));
    assert!(took < SOON, "it took {took:?}");
    wait_until("no process is left", || !processes.iter().any(|process| is_running(*process)));
}
