//! Code that does its worst to the interpreter that runs it. Its context may end, with a clear word; nothing else may.

use serde_json::{Value, json};

use super::lab::{Lab, text};
use super::needs_sandboxes;
use crate::support::wait_until;

#[test]
fn a_run_that_ignores_interrupts_is_killed_with_its_context() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    lab.run("main", "x = 1");
    let deaf = "import time\nwhile True:\n    try:\n        time.sleep(1)\n    except KeyboardInterrupt:\n        pass";
    let late = lab.ask_with("main", deaf, json!({ "timeout_s": 1 }));
    let run = &late["structuredContent"];
    assert_eq!(run["status"], "timed_out", "{late}");
    assert!(run["context"]["ended"].as_str().unwrap().contains("did not stop when it was interrupted"), "{late}");
    let listed = lab.manage("list", None);
    assert_eq!(listed["structuredContent"]["contexts"][0]["state"], "ended", "{listed}");
    let anew = lab.ask("main", "'x' in globals()");
    assert_eq!(anew["structuredContent"]["result"], "False");
    assert!(text(&anew).contains("began anew with this run"), "{anew}");
    assert_eq!(lab.run("main", "1")["context"]["lost"], Value::Null, "it is told once");
}

#[test]
fn an_interpreter_that_ends_is_an_outcome_and_the_next_begins_anew() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    let ended = lab.run("main", "import os\nprint('last words', flush=True)\nos._exit(5)");
    assert_eq!((&ended["status"], &ended["exit_code"]), (&json!("exited"), &json!(5)), "{ended}");
    assert_eq!(ended["stdout"], "last words\n");
    assert!(ended["context"]["ended"].as_str().unwrap().contains("code 5"), "{ended}");
    let killed = lab.run("main", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)");
    assert_eq!((&killed["status"], &killed["signal"]), (&json!("killed"), &json!(9)), "{killed}");
    assert_eq!(lab.run("main", "1")["context"]["run"], 1);
}

#[test]
fn memory_that_runs_out_ends_the_context_and_says_so() {
    needs_sandboxes!();
    let mut lab = Lab::with(&[], json!({ "memory_mb": 64 }));
    lab.run("main", "x = 1");
    let full = lab.ask("main", "data = []\nwhile True:\n    data.append(bytearray(1 << 20))");
    let run = &full["structuredContent"];
    assert_eq!(run["status"], "out_of_memory", "{full}");
    assert!(run["context"]["ended"].as_str().unwrap().contains("memory ran out"), "{full}");
    assert!(text(&full).contains("Its variables are lost"), "{full}");
    assert_eq!(lab.run("main", "'x' in globals()")["result"], "False");
}

#[test]
fn closed_descriptors_end_a_context_at_worst() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    let closed = lab.run("main", "import os\nos.close(1)\nos.close(2)\n'still'");
    assert_eq!(closed["result"], "'still'", "{closed}");
    assert_eq!(lab.run("main", "print('here again')")["stdout"], "here again\n");
    let all = lab.run("main", "os.closerange(0, 4096)");
    assert_eq!(all["context"]["ended"], "its interpreter exited with code 70", "{all}");
    assert_eq!(lab.run("main", "1 + 1")["result"], "2");
}

#[test]
fn a_child_that_comes_to_the_end_of_the_code_is_not_taken_for_the_interpreter() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    let forked =
        lab.run("main", "import os\nx = 'parent'\nif os.fork() == 0:\n    x = 'child'\nelse:\n    os.wait()\nprint(x)");
    assert_eq!(forked["stdout"], "child\nparent\n", "{forked}");
    assert_eq!(lab.run("main", "x")["result"], "'parent'");
}

#[test]
fn a_flood_is_cut_and_does_not_hide_the_end() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    let code = "import sys\nfor _ in range(3000):\n    sys.stdout.write('x' * 9999 + '\\n')\n    sys.stderr.write('y' * 999 + '\\n')\n'end'";
    let flood = lab.run("main", code);
    assert_eq!((&flood["result"], &flood["truncated"]), (&json!("'end'"), &json!(true)));
    assert!(flood["stdout"].as_str().unwrap().len() < 64 << 10);
    // From behind, while nobody runs anything.
    lab.run("main", "import subprocess\nyes = subprocess.Popen(['yes'])");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(lab.run("main", "yes.kill()\n'ended'")["result"], "'ended'");
    let long = lab.run("main", "'z' * 1_000_000");
    assert!(long["result"].as_str().unwrap().len() < 64 << 10 && long["result"].as_str().unwrap().contains("left out"));
}

/// The code of the driver is in the same process: what it knows, the code knows.
const TOKEN: &str = "import os, sys\nframe = sys._getframe()\nwhile 'token' not in frame.f_locals:\n    frame = frame.f_back\ntoken = frame.f_locals['token']\n";

#[test]
fn forged_marks_lie_about_their_own_run_alone() {
    needs_sandboxes!();
    let mut lab = Lab::new();
    let nonsense = format!("{TOKEN}os.write(1, f'\\x1e{{token}} nonsense\\n'.encode())\nimport time\ntime.sleep(600)");
    let broken = lab.run("main", &nonsense);
    assert!(broken["context"]["ended"].as_str().unwrap().contains("broke the way"), "{broken}");
    let early = format!(
        "{TOKEN}os.write(2, f'\\x1e{{token}} done\\n'.encode())\nos.write(1, f'\\x1e{{token}} done 0 0 0\\n'.encode())\nimport time\ntime.sleep(1)\nprint('late')"
    );
    let lied = lab.run("main", &early);
    assert_eq!((&lied["status"], &lied["stdout"]), (&json!("exited"), &json!("")), "{lied}");
    let next = lab.run("main", "print('next')\n'value'");
    assert_eq!(next["result"], "'value'", "{next}");
    assert!(next["stdout"].as_str().unwrap().ends_with("next\n"), "{next}");
    // A list of results that names what is not there, or is none.
    let forged = format!(
        "{TOKEN}directory = frame.f_locals['sink'].directory\nos.makedirs(directory, exist_ok=True)\nopen(directory + '/results', 'w').write('display ../../../etc/passwd 5 file\\ndisplay image/png 5 file\\nresult text/plain 999999 inline\\n')\nos.symlink('/etc/passwd', directory + '/2.png')\nos.write(1, f'\\x1e{{token}} item 1\\n'.encode())"
    );
    let forged = lab.ask("main", &forged);
    assert!(!forged.to_string().contains("root:"), "{forged}");
    assert_eq!(lab.run("main", "1")["result"], "1");
}

#[test]
fn nothing_of_a_context_outlives_its_server() {
    needs_sandboxes!();
    for names in [&[][..], &["side", "other"]] {
        let mut lab = Lab::with(&[], json!({ "persist": true }));
        lab.run("main", "import subprocess");
        if !names.is_empty() {
            let fork = json!({ "sandbox_id": lab.sandbox, "context": "main", "names": names });
            let forked = lab.client.call("fork_context", fork);
            assert_ne!(forked["isError"], true, "{forked}");
        }
        for name in names.iter().chain(&["main"]) {
            lab.run(name, "subprocess.Popen(['sleep', '5557'], start_new_session=True)");
        }
        let running = lab.client.processes().into_iter().filter(|process| {
            let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains("5557")
        });
        let running: Vec<_> = running.collect();
        assert_eq!(running.len(), names.len() + 1);
        lab.client.close_stdin();
        lab.client.wait();
        let is_over = || running.iter().all(|process| !crate::support::is_running(*process));
        wait_until("it has ended with its contexts", is_over);
    }
}
