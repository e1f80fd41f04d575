//! Branches of a live context.

use serde_json::{Value, json};

use super::lab::{Lab, text};
use super::needs_sandboxes;
use crate::support::wait_until;

fn fork(lab: &mut Lab, more: Value) -> Value {
    let mut arguments = json!({ "sandbox_id": lab.sandbox, "context": "main" });
    arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    lab.client.call("fork_context", arguments)
}

#[test]
fn a_branch_has_the_variables_and_goes_its_own_way() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    lab.run(
        "main",
        "import random, uuid\nrandom.seed(1)\ndata = list(range(1000))\ndef total():\n    return sum(data)",
    );
    let forked = fork(&mut lab, json!({ "count": 3, "names": ["first"] }));
    assert_eq!(forked["structuredContent"]["contexts"], json!(["first", "main-1", "main-2"]), "{forked}");
    let branches = ["first", "main-1", "main-2", "main"];
    for (index, branch) in branches.iter().enumerate() {
        let run = lab.run(branch, &format!("data.append({index})\nprint('{branch}')\ntotal()"));
        let expected = json!([format!("{branch}\n"), (499_500 + index).to_string()]);
        assert_eq!(json!([run["stdout"], run["result"]]), expected, "{run}");
        assert_eq!(run["context"]["run"], 2, "{run}");
    }
    let mut drawn: Vec<String> = branches
        .iter()
        .map(|branch| lab.run(branch, "(random.random(), uuid.uuid4())")["result"].to_string())
        .collect();
    drawn.sort();
    drawn.dedup();
    assert_eq!(drawn.len(), 4, "two of them draw the same numbers: {drawn:?}");
    let failed = lab.run("main-1", "data = None\ntotal()");
    assert!(
        failed["stderr"].as_str().unwrap().contains("File \"<run 1>\", line 5, in total\n    return sum(data)"),
        "{failed}"
    );
    // Each is interrupted alone, and ended alone: the first one too.
    let late = lab.run_with("main-2", "import time\ntime.sleep(600)", json!({ "timeout_s": 1 }));
    assert_eq!((&late["status"], &late["context"]["ended"]), (&json!("timed_out"), &Value::Null), "{late}");
    let closed = lab.manage("close", Some("main"));
    assert!(text(&closed).contains("main is closed"), "{closed}");
    assert_eq!(lab.run("main-2", "len(data)")["result"], "1001");
    lab.manage("close", Some("main-2"));
    assert_eq!(lab.run("first", "len(data)")["result"], "1001");
    let process = lab.run("first", "import os\nos.getpid()")["result"].as_str().unwrap().to_owned();
    lab.manage("close", Some("first"));
    let gone = lab.run("main-1", &format!("import os, time\ntime.sleep(0.2)\nos.path.exists('/proc/{process}')"));
    assert_eq!(gone["result"], "False", "a closed branch is still there: {gone}");
}

#[test]
fn branches_that_were_closed_take_no_place_among_the_processes() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    lab.run("main", "state = 1");
    // More in all than a sandbox may have processes, and nothing is run between them.
    for round in 0..12 {
        let forked = fork(&mut lab, json!({ "count": 16 }));
        let branches =
            forked["structuredContent"]["contexts"].as_array().unwrap_or_else(|| panic!("{round}: {forked}"));
        for branch in branches.clone() {
            lab.manage("close", branch.as_str());
        }
    }
}

#[test]
fn a_branch_may_have_files_of_its_own_and_may_be_branched() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    lab.run("main", "open('data.txt', 'w').write('common')");
    let forked = fork(&mut lab, json!({ "count": 2, "copy_files": true }));
    assert_eq!(forked["structuredContent"]["contexts"], json!(["main-1", "main-2"]), "{forked}");
    lab.run("main-1", "open('data.txt', 'w').write('changed')");
    for (branch, expected) in [("main", "common"), ("main-1", "changed"), ("main-2", "common")] {
        let run = lab.run(branch, "import os\nopen('data.txt').read() + ' ' + os.getcwd()");
        let directory =
            if branch == "main" { "/workspace".to_owned() } else { format!("/workspace/branches/{branch}") };
        assert_eq!(run["result"], format!("'{expected} {directory}'"), "{run}");
    }
    let again =
        lab.client.call("fork_context", json!({ "sandbox_id": lab.sandbox, "context": "main-1", "names": ["leaf"] }));
    assert_ne!(again["isError"], true, "{again}");
    lab.manage("close", Some("main-1"));
    assert_eq!(lab.run("leaf", "open('data.txt').read()")["result"], "'changed'");
}

#[test]
fn a_run_in_a_branch_that_is_on_its_way_waits_for_it() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    lab.run("main", "x = 41");
    lab.run_with("main", "import time\ntime.sleep(3)", json!({ "background": true }));
    let arguments = json!({ "sandbox_id": lab.sandbox, "context": "main", "names": ["side"] });
    let forking = lab.client.begin("tools/call", json!({ "name": "fork_context", "arguments": arguments }));
    // It waits for the turn of the other one.
    wait_until("the branch to be on its way", || lab.manage("list", None).to_string().contains("side"));
    let job = lab.run_with("side", "x += 1\nx", json!({ "background": true }))["job_id"].clone();
    let forked = lab.client.answer(&forking);
    assert_ne!(forked["result"]["isError"], true, "{forked}");
    let ran = |lab: &mut Lab| lab.client.call("get_job", json!({ "job_id": job }))["structuredContent"].clone();
    wait_until("the run in it", || ran(&mut lab)["status"] != "running");
    assert_eq!(ran(&mut lab)["result"], "42", "{}", ran(&mut lab));
    assert_eq!(lab.run("side", "x")["result"], "42", "nothing of it is lost");
    assert_eq!(lab.run("main", "x")["result"], "41");
}

#[test]
fn a_branch_that_dies_says_so_and_what_cannot_be_is_refused() {
    needs_sandboxes!();
    let mut lab = Lab::with(&[], json!({ "memory_mb": 96 }));
    assert_eq!(fork(&mut lab, json!({}))["isError"], true, "there is none yet");
    lab.run("main", "x = 1");
    for (more, word) in [
        (json!({ "count": 17 }), "count"),
        (json!({ "names": ["main"] }), "has a context main"),
        (json!({ "names": ["No"] }), "name"),
    ] {
        let refused = fork(&mut lab, more);
        assert!(refused["isError"] == true && text(&refused).contains(word), "{refused}");
    }
    fork(&mut lab, json!({}));
    let full = lab.run("main-1", "data = []\nwhile True:\n    data.append(bytearray(1 << 20))");
    assert!(full["context"]["ended"].is_string(), "{full}");
    assert_eq!(lab.run("main", "x")["result"], "1", "the other one lives");
    let ended = lab.run("main", "import os\nos._exit(1)");
    assert!(ended["context"]["ended"].is_string());
    assert!(text(&fork(&mut lab, json!({}))).contains("has ended"));
}
