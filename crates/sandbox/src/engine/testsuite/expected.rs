//! Commands that are expected, and so perhaps begun before they are asked for: nobody can tell, but by the clock.
//!
//! Each case is done several times, because the first sandbox of a kind is the one from which an engine learns.

use std::sync::Arc;
use std::time::Duration;

use super::subject::{Subject, command, eventually, finish, path, seconds, spec};
use super::suite;
use crate::engine::Engine;
use crate::exec::{ExecRequest, ExecStatus, OutputTarget, Script};
use crate::file::FileKind;
use crate::path::GuestPath;
use crate::spec::{Environment, Expected, SandboxSpec};

suite! { "expected", Nothing:
    what_was_expected_runs_with_its_script,
    its_script_is_a_file,
    another_command_can_come_first,
    a_file_can_come_first,
    what_differs_is_started_as_asked,
    only_the_first_was_expected,
    nothing_of_it_is_seen_before,
}

suite! { kernel_cases, "expected", Kernel:
    its_time_begins_when_it_is_asked_for,
    input_output_and_end_are_its_own,
    it_is_alone_in_its_sandbox,
    only_three_descriptors_are_its_own,
    a_kill_takes_it_and_all_that_it_started,
}

const ROUNDS: usize = 4;
const PAUSE: Duration = Duration::from_millis(60);
const SCRIPT: &str = "expected";

fn expecting(argv: &[&str]) -> SandboxSpec {
    let mut environment = Environment::default();
    environment.insert("EXPECTED", "yes").unwrap();
    let argv = argv.iter().map(|&word| word.to_owned()).collect();
    SandboxSpec { expected: Some(Expected { argv, script: SCRIPT.to_owned(), environment, prelude: None }), ..spec() }
}

fn script() -> GuestPath {
    path(SCRIPT)
}

/// The request that such a sandbox expects.
fn request(argv: &[&str], contents: &str) -> ExecRequest {
    let script = script();
    let place = script.to_string();
    let mut request = command(&argv.iter().copied().chain([place.as_str()]).collect::<Vec<_>>());
    request.environment.insert("EXPECTED", "yes").unwrap();
    request.script = Script::new(&script, contents.as_bytes());
    request
}

/// A sandbox that expects this command. An engine makes spares in the background, and nothing tells when.
async fn expectant(engine: &Arc<dyn Engine>, argv: &[&str]) -> Subject {
    tokio::time::sleep(PAUSE).await;
    Subject::with(Arc::clone(engine), expecting(argv)).await
}

async fn what_was_expected_runs_with_its_script(engine: Arc<dyn Engine>) {
    let largest = "0123456789abcde\n".repeat(Script::MAX_BYTES / 16);
    for contents in ["one\ntwo\n", "without an end", "", &largest] {
        for _ in 0..ROUNDS {
            let sandbox = expectant(&engine, &["cat"]).await;
            let ended = sandbox.run(&request(&["cat"], contents)).await;
            assert_eq!((ended.status(), ended.text().as_str()), (ExecStatus::Exited(0), contents));
            assert_eq!(ended.stderr, b"");
            sandbox.destroy().await;
        }
    }
}

async fn its_script_is_a_file(engine: Arc<dyn Engine>) {
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &["cat"]).await;
        assert_eq!(sandbox.run(&request(&["cat"], "what it says")).await.text(), "what it says");
        let stat = sandbox.files.stat(&script()).await.unwrap();
        assert_eq!((stat.kind, stat.bytes, stat.mode & 0o777), (FileKind::Regular, 12, 0o644));
        assert_eq!(sandbox.read(SCRIPT).await, b"what it says");
        assert_eq!(sandbox.tree("/workspace").await, ["/workspace/expected"], "nothing else was left");
        sandbox.destroy().await;
    }
}

async fn another_command_can_come_first(engine: Arc<dyn Engine>) {
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &["cat"]).await;
        assert_eq!(sandbox.says("echo first").await, "first\n");
        assert_eq!(sandbox.run(&request(&["cat"], "second")).await.text(), "second");
        sandbox.destroy().await;
    }
}

async fn a_file_can_come_first(engine: Arc<dyn Engine>) {
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &["cat"]).await;
        sandbox.write(SCRIPT, b"written").await;
        assert_eq!(sandbox.read(SCRIPT).await, b"written");
        assert_eq!(sandbox.run(&request(&["cat"], "run")).await.text(), "run");
        sandbox.destroy().await;
    }
}

async fn what_differs_is_started_as_asked(engine: Arc<dyn Engine>) {
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &["cat"]).await;
        let mut asked = command(&["env"]);
        asked.environment.insert("EXPECTED", "no").unwrap();
        asked.script = request(&["cat"], "").script;
        assert!(sandbox.run(&asked).await.text().lines().any(|line| line == "EXPECTED=no"));
        sandbox.destroy().await;
    }
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &["cat"]).await;
        let mut asked = request(&["cat"], "elsewhere");
        asked.work_directory = Some(path("/tmp"));
        assert_eq!(sandbox.run(&asked).await.text(), "elsewhere");
        sandbox.destroy().await;
    }
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &["cat"]).await;
        let mut asked = request(&["cat"], "joined");
        asked.output = OutputTarget::Joined;
        assert_eq!(sandbox.run(&asked).await.text(), "joined");
        sandbox.destroy().await;
    }
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &["cat"]).await;
        let mut asked = request(&["cat"], "");
        asked.script = None;
        let ended = sandbox.run(&asked).await;
        assert_eq!(ended.status(), ExecStatus::Exited(1), "there is no such file: {ended:?}");
        sandbox.destroy().await;
    }
}

async fn only_the_first_was_expected(engine: Arc<dyn Engine>) {
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &["cat"]).await;
        for contents in ["one", "two", "three"] {
            assert_eq!(sandbox.run(&request(&["cat"], contents)).await.text(), contents);
        }
        sandbox.destroy().await;
    }
}

async fn nothing_of_it_is_seen_before(engine: Arc<dyn Engine>) {
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &["cat"]).await;
        assert!(sandbox.tree("/workspace").await.is_empty());
        sandbox.destroy().await;
    }
}

const SHELL: [&str; 1] = ["/bin/sh"];

async fn its_time_begins_when_it_is_asked_for(engine: Arc<dyn Engine>) {
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &SHELL).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut asked = request(&SHELL, "sleep 0.2; echo in time");
        asked.timeout = seconds(20);
        let ended = sandbox.run(&asked).await;
        assert_eq!((ended.status(), ended.text().as_str()), (ExecStatus::Exited(0), "in time\n"));
        assert!(ended.outcome.usage.wall >= Duration::from_millis(200), "{:?}", ended.outcome.usage);
        sandbox.destroy().await;
    }
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &SHELL).await;
        let mut asked = request(&SHELL, "sleep 60");
        asked.timeout = Duration::from_millis(300);
        let ended = sandbox.run(&asked).await;
        assert_eq!(ended.status(), ExecStatus::TimedOut);
        assert!(ended.outcome.usage.wall < seconds(30), "{:?}", ended.outcome.usage);
        sandbox.destroy().await;
    }
}

async fn input_output_and_end_are_its_own(engine: Arc<dyn Engine>) {
    use tokio::io::AsyncWriteExt;
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &SHELL).await;
        let asked = request(&SHELL, "read -r line; echo \"$line out\"; echo \"$line err\" >&2; pwd; umask; exit 7");
        let mut process = sandbox.start(&asked).await;
        let mut stdin = process.stdin.take().unwrap();
        stdin.write_all(b"word\n").await.unwrap();
        drop(stdin);
        let ended = finish(process).await;
        assert_eq!(ended.status(), ExecStatus::Exited(7));
        assert_eq!(
            (ended.text().as_str(), ended.stderr.as_slice()),
            ("word out\n/workspace\n0022\n", &b"word err\n"[..])
        );
        sandbox.destroy().await;
    }
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &SHELL).await;
        assert_eq!(sandbox.run(&request(&SHELL, "kill -9 $$")).await.status(), ExecStatus::Signalled(9));
        sandbox.destroy().await;
    }
}

async fn it_is_alone_in_its_sandbox(engine: Arc<dyn Engine>) {
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &SHELL).await;
        // Whatever else comes first ends it.
        let count = "for file in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $file 2> /dev/null; echo; done; true";
        let listing = sandbox.says(count).await;
        assert!(!listing.contains(SCRIPT), "{listing}");
        // Under gVisor there are questions about files that ls cannot do without.
        assert_eq!(sandbox.says("find /workspace -mindepth 1").await, "");
        sandbox.destroy().await;
    }
}

async fn only_three_descriptors_are_its_own(engine: Arc<dyn Engine>) {
    let mut seen = Vec::new();
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &SHELL).await;
        // A shell keeps its script open under a number of its own; a child has none of that.
        let ended = sandbox
            .run(&request(&SHELL, "sh -c 'for each in /proc/self/fd/*; do echo ${each##*/}; done'; env | sort"))
            .await;
        seen.push(ended.text());
        sandbox.destroy().await;
    }
    assert!(seen[0].starts_with("0\n1\n2\n3\n"), "{}", seen[0]);
    assert!(seen.iter().all(|text| *text == seen[0]), "{seen:?}");
}

async fn a_kill_takes_it_and_all_that_it_started(engine: Arc<dyn Engine>) {
    for _ in 0..ROUNDS {
        let sandbox = expectant(&engine, &SHELL).await;
        let process = sandbox.start(&request(&SHELL, "setsid sleep 4247 & echo ready; sleep 4247")).await;
        let count = || async {
            let listing = sandbox.says("cat /proc/[0-9]*/cmdline 2> /dev/null | tr '\\0' ' '; true").await;
            listing.matches("sleep 4247").count()
        };
        eventually("both sleep", seconds(10), || async { count().await >= 2 }).await;
        process.control.kill().await.unwrap();
        assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Cancelled);
        assert_eq!(count().await, 0);
        sandbox.destroy().await;
    }
}
