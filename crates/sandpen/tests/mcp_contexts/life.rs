//! What is kept, what is told, and how contexts begin and end.

use std::time::Duration;

use serde_json::{Value, json};

use super::lab::{Lab, text, told};
use super::needs_sandboxes;
use crate::support::World;
use crate::support::client::Client;
use crate::support::{is_running, wait_until};

#[test]
fn variables_imports_and_functions_stay_and_the_last_value_comes_back() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    let first = lab.run("main", "import math\nradius = 2\ndef area(r):\n    return math.pi * r * r\nprint('defined')");
    assert_eq!((&first["stdout"], &first["exit_code"]), (&json!("defined\n"), &json!(0)), "{first}");
    assert_eq!(first["result"], Value::Null, "{first}");
    assert_eq!(first["context"], json!({ "name": "main", "run": 1 }));
    let second = lab.ask("main", "print('again')\nround(area(radius), 3)");
    assert_eq!(second["structuredContent"]["result"], "12.566", "{second}");
    assert_eq!(told(&second), "again\n[result]\n12.566\n");
    assert_eq!(lab.run("main", "_ + 1")["result"], "13.566");
    assert_eq!(lab.run("main", "radius;")["result"], Value::Null, "a semicolon keeps it quiet");
    let files = lab.client.call("list_files", json!({ "sandbox_id": lab.sandbox, "recursive": true }));
    assert!(!files.to_string().contains(".run-"), "something of ours is left: {files}");
    let other = lab.run("other", "'radius' in globals()");
    assert_eq!((&other["result"], &other["context"]["run"]), (&json!("False"), &json!(1)));
}

#[test]
fn a_traceback_has_the_lines_of_the_code_and_nothing_of_ours() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    lab.run("main", "def divide(a, b):\n    # the second line\n    return a / b");
    let failed = lab.run("main", "x = 1\ndivide(x, 0)");
    let told = failed["stderr"].as_str().unwrap();
    assert_eq!(failed["exit_code"], 1, "{failed}");
    for part in [
        "File \"<run 2>\", line 2, in <module>\n    divide(x, 0)",
        "File \"<run 1>\", line 3, in divide",
        "return a / b",
    ] {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
    assert_eq!(told.matches("File ").count(), 2, "{told}");
    let wrong = lab.run("main", "if (1:");
    assert!(wrong["stderr"].as_str().unwrap().contains("SyntaxError"), "{wrong}");
    assert_eq!(lab.run("main", "x")["result"], "1", "it lives on");
    assert_eq!(lab.run("main", "import sys\nsys.exit(7)")["exit_code"], 7);
    assert_eq!(lab.run("main", "await __import__('asyncio').sleep(0, x)")["result"], "1");
}

#[test]
fn output_streams_while_it_runs_also_of_other_programs() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    let code = "import subprocess, time\nfor i in range(4):\n    print('line', i)\n    subprocess.run(['echo', 'child', str(i)])\n    time.sleep(0.3)";
    let mut params = json!({ "name": "run_code", "arguments": lab.arguments("main", code) });
    params["_meta"] = json!({ "progressToken": "watch" });
    let id = lab.client.begin("tools/call", params);
    let answer = lab.client.answer(&id);
    let expected: String = (0..4).map(|i| format!("line {i}\nchild {i}\n")).collect();
    assert_eq!(answer["result"]["structuredContent"]["stdout"], expected, "{answer}");
    assert!(lab.client.notifications.len() >= 2, "{:?}", lab.client.notifications);
}

#[test]
fn without_a_sandbox_one_is_made_that_stays() {
    needs_sandboxes!();
    let world = World::new();
    let mut client = Client::hello(&world, &[], "2025-11-25");
    let first = client.call("run_code", json!({ "language": "python", "context": "main", "code": "x = 41" }));
    let made = first["structuredContent"]["sandbox_id"].as_str().unwrap().to_owned();
    assert_eq!(first["structuredContent"]["sandbox_kept"], true);
    assert!(text(&first).contains(&made), "{first}");
    let code = json!({ "language": "python", "context": "main", "sandbox_id": made, "code": "x + 1" });
    assert_eq!(client.call("run_code", code)["structuredContent"]["result"], "42");
    let refused = json!({ "language": "python", "context": "main", "code": "1", "stdin": "x" });
    assert_eq!(client.call("run_code", refused)["isError"], true);
    let listed = client.call("list_sandboxes", json!({}));
    assert_eq!(listed["structuredContent"]["sandboxes"].as_array().unwrap().len(), 1, "{listed}");
}

#[test]
fn a_run_that_takes_too_long_is_interrupted_and_the_context_lives() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    lab.run("main", "kept = 5");
    let late = lab.ask_with("main", "import time\nwhile True:\n    time.sleep(0.01)", json!({ "timeout_s": 1 }));
    let run = &late["structuredContent"];
    assert_eq!((&run["status"], &run["context"]["ended"]), (&json!("timed_out"), &Value::Null), "{late}");
    assert!(run["stderr"].as_str().unwrap().contains("KeyboardInterrupt"), "{late}");
    assert!(text(&late).contains("its variables are there"), "{late}");
    assert_eq!(lab.run("main", "kept")["result"], "5");
    let late = lab.run_with("main", "import subprocess\nsubprocess.run(['sleep', '4444'])", json!({ "timeout_s": 1 }));
    assert_eq!((&late["status"], &late["context"]["ended"]), (&json!("timed_out"), &Value::Null), "{late}");
    assert_eq!(lab.run("main", "kept + 1")["result"], "6");
}

#[test]
fn a_call_that_is_given_up_interrupts_its_run() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    lab.run("main", "kept = 5");
    let mut params = json!({ "name": "run_code", "arguments": lab.arguments("main", "print('begun')\nimport time\ntime.sleep(600)") });
    params["_meta"] = json!({ "progressToken": 1 });
    let id = lab.client.begin("tools/call", params);
    assert_eq!(lab.client.next()["method"], "notifications/progress");
    let cancelled = json!({ "requestId": id, "reason": "no longer needed" });
    lab.client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled }));
    assert_eq!(lab.run("main", "kept")["result"], "5");
}

#[test]
fn runs_in_one_context_wait_for_each_other_and_can_be_given_up() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    lab.run("main", "order = []");
    let background = json!({ "background": true });
    let slow = "import time\norder.append('slow')\ntime.sleep(1.5)\nopen('slow.txt', 'w').write('x')";
    let first = lab.run_with("main", slow, background.clone());
    wait_until("the first one runs", || {
        lab.manage("list", None)["structuredContent"]["contexts"][0]["state"] == "running"
    });
    let given_up = lab.run_with("main", "order.append('given up')", background.clone());
    let last = lab.run_with("main", "order.append('last')\norder", background);
    assert_eq!(last["status"], "running", "{last}");
    let stopped = lab.client.call("stop_job", json!({ "job_id": given_up["job_id"] }));
    assert_eq!(stopped["structuredContent"]["status"], "cancelled", "{stopped}");
    // Another context does not wait.
    assert_eq!(lab.run("other", "1 + 1")["result"], "2");
    let mut seen = Value::Null;
    wait_until("the last one has ended", || {
        seen = lab.client.call("get_job", json!({ "job_id": last["job_id"] }))["structuredContent"].clone();
        seen["status"] == "exited"
    });
    assert_eq!(seen["result"], "['slow', 'last']", "{seen}");
    assert_eq!(seen["artifacts"], json!([]), "the file is not its own: {seen}");
    wait_until("the first one has its file", || {
        let first = lab.client.call("get_job", json!({ "job_id": first["job_id"] }));
        first["structuredContent"]["artifacts"][0]["path"] == "/workspace/slow.txt"
    });
}

#[test]
fn contexts_are_listed_begun_anew_and_closed() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    assert_eq!(lab.manage("list", None)["structuredContent"]["contexts"], json!([]));
    lab.run_with("main", "import os\nx = 1", json!({ "env": { "COLOUR": "blue" }, "cwd": "/tmp" }));
    lab.run("other", "x = 2");
    let listed = lab.manage("list", None)["structuredContent"]["contexts"].clone();
    assert_eq!(
        listed,
        json!([
            { "name": "main", "language": "python", "state": "idle", "runs": 1 },
            { "name": "other", "language": "python", "state": "idle", "runs": 1 },
        ])
    );
    let refused = lab.refused("main", "1", json!({ "env": { "COLOUR": "red" } }));
    assert!(refused.contains("has begun"), "{refused}");
    lab.manage("restart", Some("main"));
    let anew = lab.run("main", "import os\n('x' in globals(), os.environ['COLOUR'], os.getcwd())");
    assert_eq!((&anew["result"], &anew["context"]["run"]), (&json!("(False, 'blue', '/tmp')"), &json!(1)), "{anew}");
    // What runs is ended with it.
    let slow = lab.run_with("main", "import time\ntime.sleep(600)", json!({ "background": true }));
    wait_until("it runs", || lab.manage("list", None)["structuredContent"]["contexts"][0]["state"] == "running");
    let closed = lab.manage("close", Some("main"));
    assert_eq!(closed["structuredContent"]["contexts"].as_array().unwrap().len(), 1, "{closed}");
    wait_until("the run has ended", || {
        let job = lab.client.call("get_job", json!({ "job_id": slow["job_id"] }));
        job["structuredContent"]["status"] == "cancelled" && text(&job).contains("it was closed")
    });
    assert_eq!(lab.manage("close", Some("main"))["isError"], true);
    assert_eq!(lab.manage("close", None)["isError"], true);
    assert_eq!(lab.run("other", "x")["result"], "2");
    // One that is closed before it runs has not run, and closing does not wait for it.
    for _ in 0..5 {
        let early = lab.run_with("other", "import time\ntime.sleep(600)", json!({ "background": true }));
        lab.manage("close", Some("other"));
        wait_until("it does not run", || {
            let job = lab.client.call("get_job", json!({ "job_id": early["job_id"] }));
            job["structuredContent"]["status"] == "cancelled" || text(&job).contains("was closed")
        });
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    lab.run("main", "x = 1");
    for (more, word) in [
        (json!({ "stdin": "text" }), "standard input"),
        (json!({ "args": ["a"] }), "arguments"),
        (json!({ "language": "ruby" }), "context"),
        (json!({ "context": "No Name" }), "name"),
        (json!({ "checkpoint": true }), "contexts live in it: main"),
    ] {
        let refused = lab.refused("main", "1", more);
        assert!(refused.contains(word), "{word:?} is not in {refused}");
    }
    let restored = lab.client.call("restore_sandbox", json!({ "sandbox_id": lab.sandbox, "checkpoint": 1 }));
    assert_eq!(restored["isError"], true);
    assert_eq!(lab.run("main", "x")["result"], "1", "nothing has happened to it");
    // A branch has the files alone.
    lab.run("main", "open('kept.txt', 'w').write('here')");
    let saved = lab.client.call("save_sandbox", json!({ "sandbox_id": lab.sandbox, "name": "with-context" }));
    assert_ne!(saved["isError"], true, "{saved}");
    let forked = lab.client.call("fork_sandbox", json!({ "sandbox_id": lab.sandbox }));
    let branch =
        forked["structuredContent"]["sandbox_ids"][0].as_str().unwrap_or_else(|| panic!("{forked}")).to_owned();
    let there = lab.run_with(
        "main",
        "import os\n(os.path.exists('kept.txt'), 'x' in globals())",
        json!({ "sandbox_id": branch }),
    );
    assert_eq!(there["result"], "(True, False)", "{there}");
    assert_eq!(lab.run("main", "x")["result"], "1");
}

#[test]
fn a_context_does_not_keep_its_sandbox_alive_and_ends_with_it() {
    needs_sandboxes!();
    let mut lab = Lab::with(&[], json!({ "idle_timeout_s": 2 }));
    lab.run("main", "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()");
    // By their number nothing is seen where sandboxes are made ahead: those stay, and are as many as they like.
    let named = lab.run("main", "import ctypes\nctypes.CDLL(None).prctl(15, b'to-expire')");
    assert_eq!(named["result"], "0", "{named}");
    let mut interpreters = lab.client.processes();
    interpreters.retain(|process| {
        std::fs::read_to_string(format!("/proc/{process}/comm")).is_ok_and(|name| name.trim_end() == "to-expire")
    });
    assert_eq!(interpreters.len(), 1, "{interpreters:?}");
    wait_until("the sandbox has expired", || {
        let listed = lab.client.call("list_sandboxes", json!({}));
        listed["structuredContent"]["sandboxes"].as_array().unwrap().is_empty()
    });
    wait_until("its interpreter has ended", || !is_running(interpreters[0]));
    assert_eq!(lab.ask("main", "1")["isError"], true);
}

#[test]
fn what_was_left_behind_goes_on_and_is_heard() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    lab.run(
        "main",
        "import subprocess\nleft = subprocess.Popen(['sh', '-c', 'sleep 0.3; echo from behind; sleep 0.2'])",
    );
    std::thread::sleep(Duration::from_millis(900));
    let next = lab.run("main", "left.wait()");
    assert_eq!((&next["stdout"], &next["result"]), (&json!("from behind\n"), &json!("0")), "{next}");
}
