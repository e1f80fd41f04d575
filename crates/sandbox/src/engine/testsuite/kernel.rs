//! What only real processes can show: trees, memory, signals, limits.

use std::sync::Arc;
use std::time::Duration;

use super::subject::{Subject, command, eventually, finish, path, seconds, shell, spec};
use super::suite;
use crate::engine::Engine;
use crate::exec::{ExecRequest, ExecStatus, Signal};
use crate::file::ByteRange;
use crate::spec::ByteSize;

suite! { "kernel", Kernel:
    a_timeout_takes_the_whole_tree,
    a_kill_takes_the_whole_tree,
    dropping_a_command_takes_the_whole_tree,
    a_signal_of_its_own_is_told,
    a_signal_can_be_handled,
    memory_that_is_used_up_is_told,
    processes_are_bounded,
    the_disk_is_bounded_for_commands,
    cpu_and_memory_are_measured,
    a_sparse_file_is_read_in_part,
    it_is_an_ordinary_user,
    there_is_no_network,
    only_three_descriptors_are_open,
    zombies_are_reaped,
}

/// Processes of four kinds that a naive kill misses: in the group, in a session of its own, forked away twice, deaf to
/// signals. Each sleeps for a number of seconds by which it is found again.
fn tree(mark: &str) -> String {
    format!(
        "sleep {mark} & \
         setsid sleep {mark} & \
         (setsid sh -c 'trap \"\" TERM HUP INT; sleep {mark} & sleep {mark}' > /dev/null 2>&1 < /dev/null &) ; \
         trap '' TERM HUP INT; echo ready; sleep {mark}; sleep {mark}"
    )
}

/// How many processes have `mark` among their arguments, seen by another command of the same sandbox.
async fn count(sandbox: &Subject, mark: &str) -> usize {
    let script = "for file in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $file 2> /dev/null; echo; done; true";
    let listing = sandbox.says(script).await;
    listing.lines().filter(|line| line.split(' ').any(|word| word == mark)).count()
}

async fn until_ready(sandbox: &Subject, mark: &str) {
    eventually("the tree has grown", seconds(10), || async { count(sandbox, mark).await >= 5 }).await;
}

async fn a_timeout_takes_the_whole_tree(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let request = ExecRequest::shell(&tree("4241"), seconds(3)).unwrap();
    let process = sandbox.start(&request).await;
    until_ready(&sandbox, "4241").await;
    let outcome = process.control.wait().await.unwrap();
    assert_eq!(outcome.status, ExecStatus::TimedOut);
    assert_eq!(count(&sandbox, "4241").await, 0, "something outlived its time");
    sandbox.destroy().await;
}

async fn a_kill_takes_the_whole_tree(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let process = sandbox.start(&shell(&tree("4242"))).await;
    let other = sandbox.start(&command(&["sleep", "4299"])).await;
    until_ready(&sandbox, "4242").await;
    process.control.kill().await.unwrap();
    assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Cancelled);
    assert_eq!(count(&sandbox, "4242").await, 0, "something outlived its kill");
    assert_eq!(count(&sandbox, "4299").await, 1, "another command was killed too");
    drop(other);
    sandbox.destroy().await;
}

async fn dropping_a_command_takes_the_whole_tree(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let process = sandbox.start(&shell(&tree("4243"))).await;
    until_ready(&sandbox, "4243").await;
    drop(process);
    eventually("nothing is left", seconds(5), || async { count(&sandbox, "4243").await == 0 }).await;
    sandbox.destroy().await;
}

async fn a_signal_of_its_own_is_told(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    for (script, signal) in [("kill -9 $$", 9), ("kill -SEGV $$", 11), ("kill -TERM $$", 15)] {
        assert_eq!(sandbox.run(&shell(script)).await.status(), ExecStatus::Signalled(signal), "{script}");
    }
    sandbox.destroy().await;
}

async fn a_signal_can_be_handled(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let process =
        sandbox.start(&shell("trap 'echo handled; exit 5' USR1; touch /tmp/ready; while :; do sleep 0.1; done")).await;
    eventually("it is ready", seconds(5), || sandbox.exists("/tmp/ready")).await;
    process.control.signal(Signal::User1).await.unwrap();
    let ended = finish(process).await;
    assert_eq!((ended.status(), ended.text().as_str()), (ExecStatus::Exited(5), "handled\n"));
    sandbox.destroy().await;
}

async fn memory_that_is_used_up_is_told(engine: Arc<dyn Engine>) {
    let mut wanted = spec();
    wanted.limits.memory = ByteSize::mebibytes(64);
    let sandbox = Subject::with(engine, wanted).await;
    // `tail` keeps a line until its end, and this one has none.
    let ended = sandbox.run(&shell("head -c 400000000 /dev/zero | tail -n 1 > /dev/null")).await;
    assert_eq!(ended.status(), ExecStatus::OutOfMemory, "{ended:?}");
    assert_eq!(sandbox.says("echo alive").await, "alive\n", "the sandbox lives on");
    let ended = sandbox.run(&shell("exit 137")).await;
    assert_eq!(ended.status(), ExecStatus::Exited(137), "a code that only looks like it");
    let ended = sandbox.run(&shell("kill -9 $$")).await;
    assert_eq!(ended.status(), ExecStatus::Signalled(9), "a signal that only looks like it");
    sandbox.destroy().await;
}

async fn processes_are_bounded(engine: Arc<dyn Engine>) {
    let mut wanted = spec();
    wanted.limits.processes = 20;
    let sandbox = Subject::with(Arc::clone(&engine), wanted).await;
    let bomb =
        ExecRequest::shell("n=0; while [ $n -lt 200 ]; do sleep 4244 & n=$((n+1)); done; sleep 4244", seconds(3));
    let process = sandbox.start(&bomb.unwrap()).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    if let Some(processes) = engine.usage(&sandbox.id).await.unwrap().processes {
        assert!(processes <= 20, "{processes} processes");
    }
    finish_any(process).await;
    // A shell that cannot fork may give up and leave its children behind: then there is no room, and that is said.
    let alive = ExecRequest::shell("echo alive", seconds(3)).unwrap();
    match engine.start(&sandbox.id, &alive).await {
        Ok(process) => finish_any(process).await,
        Err(refused) => assert_eq!(refused.kind(), crate::ErrorKind::LimitExceeded),
    }
    sandbox.destroy().await;
}

async fn finish_any(process: crate::engine::Process) {
    let _ = process.control.wait().await.unwrap();
}

async fn the_disk_is_bounded_for_commands(engine: Arc<dyn Engine>) {
    let mut wanted = spec();
    wanted.limits.disk = ByteSize::mebibytes(8);
    let sandbox = Subject::with(engine, wanted).await;
    for place in ["/workspace/big", "/tmp/big"] {
        let ended = sandbox.run(&shell(&format!("head -c 50000000 /dev/zero > {place}"))).await;
        assert_ne!(ended.status(), ExecStatus::Exited(0), "{place}");
        sandbox.says(&format!("rm -f {place}")).await;
    }
    sandbox.destroy().await;
}

async fn cpu_and_memory_are_measured(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let ended = sandbox.run(&shell("n=0; while [ $n -lt 200000 ]; do n=$((n+1)); done")).await;
    let usage = ended.outcome.usage;
    assert!(usage.cpu > Duration::from_millis(20) && usage.cpu <= usage.wall * 4, "{usage:?}");
    assert!(usage.peak_memory > 100_000, "{usage:?}");
    sandbox.destroy().await;
}

async fn a_sparse_file_is_read_in_part(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let made = sandbox.run(&shell("truncate -s 900M sparse && printf end >> sparse")).await;
    assert_eq!(made.status(), ExecStatus::Exited(0));
    let bytes = 900u64 << 20;
    assert_eq!(sandbox.files.stat(&path("sparse")).await.unwrap().bytes, bytes + 3);
    let range = ByteRange { offset: bytes - 2, length: None };
    assert_eq!(sandbox.read_range("sparse", range).await.unwrap(), b"\0\0end");
    sandbox.destroy().await;
}

async fn it_is_an_ordinary_user(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    assert_eq!(sandbox.says("id -u").await, "1000\n");
    let status = sandbox.says("cat /proc/self/status").await;
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let line = status.lines().find(|line| line.starts_with(set)).unwrap();
        assert!(line.ends_with("0000000000000000"), "{line}");
    }
    assert!(status.lines().any(|line| line.replace('\t', " ") == "NoNewPrivs: 1"), "{status}");
    sandbox.write("mine", b"x").await;
    assert_eq!(sandbox.says("[ -O mine ] && echo own").await, "own\n", "files that are put in belong to it");
    sandbox.destroy().await;
}

async fn there_is_no_network(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let interfaces = sandbox.says("cat /proc/net/dev").await;
    let names: Vec<&str> =
        interfaces.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()).collect();
    assert!(names.iter().all(|name| *name == "lo"), "{names:?}");
    sandbox.destroy().await;
}

async fn only_three_descriptors_are_open(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    // By the shell itself, because not every kernel knows what `ls` asks of it.
    let listed = sandbox.says("for place in /proc/self/fd/*; do echo ${place##*/}; done").await;
    // The fourth is the directory that is being listed.
    assert_eq!(listed, "0\n1\n2\n3\n");
    sandbox.destroy().await;
}

async fn zombies_are_reaped(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.says("n=0; while [ $n -lt 20 ]; do (sleep 0.05 &) ; n=$((n+1)); done").await;
    let script = "grep -l 'State:.Z' /proc/[0-9]*/status 2> /dev/null; true";
    eventually("no zombies are left", seconds(5), || async { sandbox.says(script).await.is_empty() }).await;
    sandbox.destroy().await;
}
