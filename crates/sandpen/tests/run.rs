//! `sandpen run` with the real engine.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use support::{Done, World, missing_layers, sandboxes_work, wait_until};

/// Skips loudly where no sandbox can be made.
macro_rules! needs_sandboxes {
    () => {
        if !sandboxes_work() {
            return;
        }
    };
}

#[test]
fn code_comes_from_an_argument_a_pipe_or_a_file() {
    needs_sandboxes!();
    let world = World::new();
    world.write("script.py", "print('from a file')\n");
    world.run(&["run", "python", "print(6 * 7)"]).expect(0, "42\n");
    world.run_with_stdin(&["run", "python"], "print('piped')").expect(0, "piped\n");
    world.run_with_stdin(&["run", "python", "-"], "print('piped')").expect(0, "piped\n");
    world.run(&["run", "python", "--file", "script.py"]).expect(0, "from a file\n");
    world.run(&["run", "python", "script.py"]).expect(0, "from a file\n");
    world.run(&["run", "script.py"]).expect(0, "from a file\n");
}

#[test]
fn stdin_is_the_programs_when_the_code_is_elsewhere() {
    needs_sandboxes!();
    let world = World::new();
    let code = "import sys; print(sum(map(int, sys.stdin)))";
    world.run_with_stdin(&["run", "python", code], "1\n2\n39\n").expect(0, "42\n");
    let many = "x".repeat(300_000);
    world.run_with_stdin(&["run", "bash", "wc -c"], &many).expect(0, "300000\n");
    world.run_with_stdin(&["run", "bash", "exec <&-; sleep 0.1; echo done"], &many).expect(0, "done\n");
}

#[test]
fn the_exit_code_is_the_programs_own() {
    needs_sandboxes!();
    let world = World::new();
    world.run(&["run", "bash", "exit 3"]).expect(3, "");
    world.run(&["run", "bash", "kill -SEGV $$"]).expect(139, "").says("signal 11 (segmentation fault)");
    world.run(&["run", "bash", "no-such-program"]).expect(127, "");
}

#[test]
fn output_streams_stay_apart() {
    needs_sandboxes!();
    let done = World::new().run(&["run", "bash", "echo out; echo err >&2"]).expect(0, "out\n");
    assert_eq!(done.stderr, "err\n");
}

#[test]
fn arguments_and_variables_arrive_and_nothing_else() {
    needs_sandboxes!();
    let world = World::new();
    world.run(&["run", "bash", "echo \"$1|$2|$A\"", "-e", "A=b c", "--", "x y", "--z"]).expect(0, "x y|--z|b c\n");
    let mut command = world.command(&["run", "bash", "env"]);
    let done = Done::from(command.env("SECRET_TOKEN", "canary-7151").output().unwrap());
    assert!(done.code == Some(0) && !done.stdout.contains("canary-7151"), "{done:?}");
}

#[test]
fn an_unknown_language_is_answered_with_the_nearest() {
    needs_sandboxes!();
    let done = World::new().run(&["run", "pyton", "print(1)"]).expect(125, "");
    assert!(done.stderr.contains("pyton") && done.stderr.contains("python"), "{}", done.stderr);
    assert!(!done.stderr.contains("failed to"), "{}", done.stderr);
}

#[test]
fn a_time_limit_is_124_and_explained() {
    needs_sandboxes!();
    let started = Instant::now();
    World::new()
        .run(&["run", "bash", "echo before; sleep 60", "--timeout", "700ms"])
        .expect(124, "before\n")
        .says("sandpen: the program was stopped after 700 ms, its time limit\nhint: give it more with --timeout");
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn memory_that_is_used_up_is_137_and_explained() {
    needs_sandboxes!();
    let code = "x = bytearray(400 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('kept')";
    World::new()
        .run(&["run", "python", code, "--memory", "64M"])
        .expect(137, "")
        .says("because it used up its 64 MiB of memory");
}

#[test]
fn files_go_in_and_come_out_also_of_failed_runs() {
    needs_sandboxes!();
    let world = World::new();
    world.write("data.csv", "1\n2\n");
    world.write("tree/deep/leaf", "leaf");
    let script = "cat data.csv tree/deep/leaf > sum; mkdir -p out/sub; cp sum out/sub; ln -s sub out/link; exit 4";
    world.run(&["run", "bash", script, "-i", "data.csv", "-i", "tree", "-o", "sum:result", "-o", "out"]).expect(4, "");
    assert_eq!(world.read("result"), "1\n2\nleaf");
    assert_eq!(world.read("out/link/sum"), "1\n2\nleaf");
}

#[test]
fn a_result_that_is_not_there_is_our_failure_only_if_the_program_had_none() {
    needs_sandboxes!();
    let world = World::new();
    world.run(&["run", "bash", "true", "-o", "absent"]).expect(125, "").says("absent");
    world.run(&["run", "bash", "exit 9", "-o", "absent"]).expect(9, "").says("absent");
}

#[test]
fn a_sparse_giant_is_not_brought_out() {
    needs_sandboxes!();
    let world = World::new();
    world.run(&["run", "bash", "truncate -s 1T big || truncate -s 100G big", "-o", "big"]).expect(125, "");
    assert_eq!(support::names(&world.work()), Vec::<String>::new());
}

#[test]
fn a_program_sees_one_object() {
    needs_sandboxes!();
    let world = World::new();
    let done = world.run(&["run", "--json", "bash", "echo out; echo err >&2; exit 5"]);
    assert_eq!(done.code, Some(5), "{done:?}");
    let object = done.json();
    for (field, value) in [("status", "exited"), ("stdout", "out\n"), ("stderr", "err\n")] {
        assert_eq!(object[field], value);
    }
    assert_eq!(object["exit_code"], 5);
    assert_eq!(object["signal"], serde_json::Value::Null);
    assert_eq!(object["truncated"], false);
    assert_eq!(object["isolation"]["missing"], serde_json::json!(missing_layers()));
    assert!(object["sandbox_id"].as_str().unwrap().starts_with("sb-"));
    assert!(object["usage"]["wall_ms"].is_u64() && object["usage"]["peak_memory_bytes"].as_u64().unwrap() > 0);

    let object = world.run(&["run", "--json", "bash", "sleep 60", "--timeout", "300ms"]).json();
    assert_eq!(object["status"], "timed_out");
    let object = world.run(&["run", "--json", "bash", "head -c 1000000 /dev/zero | tr '\\0' x"]).json();
    assert_eq!(object["truncated"], true);
}

#[test]
fn output_comes_as_it_is_written() {
    needs_sandboxes!();
    let world = World::new();
    let mut child = world.command(&["run", "bash", "echo first; sleep 60"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn the_first_interrupt_is_the_programs_and_the_second_is_meant() {
    needs_sandboxes!();
    let world = World::new();
    let polite =
        "import time\ntry: print('ready', flush=True); time.sleep(60)\nexcept KeyboardInterrupt: print('tidy')";
    let stubborn = "import signal, time\nsignal.signal(2, lambda *_: print('no', flush=True))\nprint('ready', flush=True)\nwhile True: time.sleep(1)";
    for (code, interrupts, expected) in [(polite, 1, (0, "tidy\n")), (stubborn, 2, (130, "no\n"))] {
        let mut command = world.command(&["run", "python", code]);
        // A terminal sends the interrupt to every process of the group, so whatever we start must not die of it.
        let mut child = command.process_group(0).spawn().unwrap();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        for _ in 0..interrupts {
            kill_process_group(Pid::from_child(&child), Signal::INT).unwrap();
            std::thread::sleep(Duration::from_millis(300));
        }
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert_eq!((child.wait().unwrap().code(), rest.as_str()), (Some(expected.0), expected.1));
    }
}

#[test]
fn a_reader_that_leaves_ends_the_run_quietly() {
    needs_sandboxes!();
    let world = World::new();
    let mut child = world.command(&["run", "bash", "yes"]).spawn().unwrap();
    let mut some = [0; 1000];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let done = Done::from(child.wait_with_output().unwrap());
    assert_eq!((done.code, done.stderr.as_str()), (Some(141), ""));
}

#[test]
fn a_slow_reader_loses_nothing() {
    needs_sandboxes!();
    let world = World::new();
    let mut child = world.command(&["run", "bash", "head -c 500000 /dev/zero"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let mut all = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 500_000);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_daemon_that_holds_the_output_is_not_waited_for() {
    needs_sandboxes!();
    let started = Instant::now();
    World::new().run(&["run", "bash", "sleep 60 & echo done"]).expect(0, "done\n");
    World::new().run(&["run", "bash", "yes >&2 & echo done"]).expect(0, "done\n");
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn nothing_is_left_when_the_command_is_killed() {
    needs_sandboxes!();
    let world = World::new();
    let mut child = world
        .command(&["run", "bash", "exec -a sandpen-canary-4711 sleep 61 & echo ready; wait"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    wait_until("the program runs", canary_lives);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the program is gone", || !canary_lives());
}

fn canary_lives() -> bool {
    std::fs::read_dir("/proc").unwrap().any(|entry| {
        let command_line = std::fs::read(entry.unwrap().path().join("cmdline")).unwrap_or_default();
        command_line.starts_with(b"sandpen-canary-4711")
    })
}
