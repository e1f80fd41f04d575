use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::subject::{Subject, command, finish, kind, path, seconds, shell, spec};
use super::suite;
use crate::engine::{Engine, Process};
use crate::error::ErrorKind;
use crate::exec::{ExecRequest, ExecStatus, OnDisconnect, OutputTarget, Script, Signal};
use crate::file::WriteOptions;
use crate::id::SandboxId;
use crate::spec::SandboxSpec;

suite! { "execs", Nothing:
    exit_codes_are_passed_on,
    programs_are_found_on_the_path,
    the_streams_are_kept_apart,
    the_streams_can_be_one,
    input_reaches_the_command_and_ends,
    a_dropped_stdin_is_an_end,
    much_goes_both_ways_at_once,
    the_environment_is_built_from_nothing,
    environments_overlay,
    it_runs_where_it_is_told,
    a_work_directory_that_is_not_there_is_made,
    a_missing_directory_is_said,
    a_missing_program_is_said,
    what_cannot_be_executed_is_said,
    a_script_that_was_written_runs,
    a_signal_ends_it,
    a_signal_after_the_end_is_a_success,
    time_runs_out,
    a_kill_is_a_cancellation,
    the_end_is_told_more_than_once,
    daemons_are_not_waited_for,
    a_slow_reader_gets_everything,
    output_that_nobody_reads_does_no_harm,
    sixteen_at_once,
    wall_time_is_measured,
    a_script_is_there_when_its_program_starts,
    a_log_keeps_what_a_detached_command_wrote,
}

async fn exit_codes_are_passed_on(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    for code in [0, 1, 3, 126, 127, 255] {
        let ended = sandbox.run(&shell(&format!("exit {code}"))).await;
        assert_eq!(ended.status(), ExecStatus::Exited(code));
    }
    sandbox.destroy().await;
}

async fn programs_are_found_on_the_path(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    assert_eq!(sandbox.run(&command(&["true"])).await.status(), ExecStatus::Exited(0));
    assert_eq!(sandbox.run(&command(&["false"])).await.status(), ExecStatus::Exited(1));
    let ended = sandbox.run(&command(&["echo", "two words", "$HOME", ""])).await;
    assert_eq!(ended.text(), "two words $HOME \n", "no shell is in between");
    sandbox.destroy().await;
}

async fn the_streams_are_kept_apart(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let ended = sandbox.run(&shell("echo out; echo err >&2; echo out")).await;
    assert_eq!((ended.stdout.as_slice(), ended.stderr.as_slice()), (&b"out\nout\n"[..], &b"err\n"[..]));
    sandbox.destroy().await;
}

async fn the_streams_can_be_one(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let mut request = shell("echo out; echo err >&2; echo out");
    request.output = OutputTarget::Joined;
    let ended = sandbox.run(&request).await;
    assert_eq!((ended.text().as_str(), ended.stderr.as_slice()), ("out\nerr\nout\n", &b""[..]));
    sandbox.destroy().await;
}

async fn input_reaches_the_command_and_ends(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let mut process = sandbox.start(&command(&["cat"])).await;
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(b"first ").await.unwrap();
    stdin.flush().await.unwrap();
    let mut seen = [0; 6];
    process.stdout.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"first ", "input is passed on before its end");
    stdin.write_all(b"second").await.unwrap();
    stdin.shutdown().await.unwrap();
    drop(stdin);
    let ended = finish(process).await;
    assert_eq!((ended.status(), ended.text().as_str()), (ExecStatus::Exited(0), "second"));
    sandbox.destroy().await;
}

async fn a_dropped_stdin_is_an_end(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let ended = sandbox.run(&command(&["cat"])).await;
    assert_eq!((ended.status(), ended.stdout.len()), (ExecStatus::Exited(0), 0));
    sandbox.destroy().await;
}

async fn much_goes_both_ways_at_once(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let mut process = sandbox.start(&command(&["cat"])).await;
    let mut stdin = process.stdin.take().unwrap();
    let sent: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    let copy = sent.clone();
    let writing = tokio::spawn(async move {
        stdin.write_all(&copy).await.unwrap();
        stdin.shutdown().await.unwrap();
    });
    let ended = finish(process).await;
    writing.await.unwrap();
    assert!(ended.stdout == sent, "{} bytes came back of {}", ended.stdout.len(), sent.len());
    sandbox.destroy().await;
}

fn variables(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

async fn the_environment_is_built_from_nothing(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let found = variables(&sandbox.run(&command(&["env"])).await.text());
    let allowed = ["HOME", "HOSTNAME", "LANG", "LC_ALL", "LOGNAME", "PATH", "PWD", "SHELL", "TMPDIR", "USER"];
    for name in found.keys() {
        assert!(allowed.contains(&name.as_str()), "{name} came from somewhere");
    }
    for name in ["HOME", "PATH", "USER"] {
        assert!(found.get(name).is_some_and(|value| !value.is_empty()), "{name} is missing");
    }
    sandbox.destroy().await;
}

async fn environments_overlay(engine: Arc<dyn Engine>) {
    let mut wanted = spec();
    wanted.environment.insert("FROM_SANDBOX", "one").unwrap();
    wanted.environment.insert("FROM_BOTH", "sandbox").unwrap();
    let sandbox = Subject::with(engine, wanted).await;
    let mut request = command(&["env"]);
    request.environment.insert("FROM_BOTH", "request").unwrap();
    request.environment.insert("ODD", "a=b \"quoted\" $HOME é").unwrap();
    let found = variables(&sandbox.run(&request).await.text());
    assert_eq!(found["FROM_SANDBOX"], "one");
    assert_eq!(found["FROM_BOTH"], "request");
    assert_eq!(found["ODD"], "a=b \"quoted\" $HOME é");
    sandbox.destroy().await;
}

async fn it_runs_where_it_is_told(engine: Arc<dyn Engine>) {
    let mut wanted = spec();
    wanted.work_directory = Some(path("/tmp"));
    let elsewhere = Subject::with(Arc::clone(&engine), wanted).await;
    assert_eq!(elsewhere.says("pwd").await, "/tmp\n");
    elsewhere.destroy().await;

    let sandbox = Subject::new(engine).await;
    assert_eq!(sandbox.says("pwd").await, "/workspace\n");
    sandbox.files.make_directory(&path("deep/er")).await.unwrap();
    let mut request = shell("pwd");
    request.work_directory = Some(path("deep/er"));
    assert_eq!(sandbox.run(&request).await.text(), "/workspace/deep/er\n");
    sandbox.destroy().await;
}

async fn a_work_directory_that_is_not_there_is_made(engine: Arc<dyn Engine>) {
    let id = SandboxId::random().unwrap();
    let wanted = SandboxSpec { work_directory: Some(path("/srv/made/here")), ..spec() };
    let made = engine.create(&id, &wanted).await.unwrap();
    assert_eq!(made.work_directory, path("/srv/made/here"));
    let sandbox = Subject { files: engine.files(&id), engine, id };
    assert_eq!(
        sandbox.says("echo x > file; cat /srv/made/here/file; echo y > /workspace/file; pwd").await,
        "x\n/srv/made/here\n"
    );
    sandbox.destroy().await;
}

async fn a_missing_directory_is_said(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let mut request = command(&["true"]);
    request.work_directory = Some(path("/nowhere"));
    assert_eq!(kind(sandbox.engine.start(&sandbox.id, &request).await), ErrorKind::NotFound);
    sandbox.destroy().await;
}

async fn a_missing_program_is_said(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    for program in ["no-such-program", "/bin/no-such-program", "/workspace/none", "./none"] {
        let refused = sandbox.engine.start(&sandbox.id, &command(&[program])).await;
        assert_eq!(kind(refused), ErrorKind::NotFound, "{program}");
    }
    assert_eq!(sandbox.says("echo alive").await, "alive\n");
    sandbox.destroy().await;
}

async fn what_cannot_be_executed_is_said(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    sandbox.write("plain", b"#!/bin/sh\necho ran\n").await;
    for program in ["/workspace/plain", "/workspace"] {
        let refused = sandbox.engine.start(&sandbox.id, &command(&[program])).await;
        assert_eq!(kind(refused), ErrorKind::InvalidInput, "{program}");
    }
    sandbox.destroy().await;
}

async fn a_script_that_was_written_runs(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let options = WriteOptions { mode: 0o755, ..WriteOptions::default() };
    sandbox.write_with("script", b"#!/bin/sh\necho ran\n", options).await.unwrap();
    assert_eq!(sandbox.run(&command(&["/workspace/script"])).await.text(), "ran\n");
    sandbox.destroy().await;
}

async fn a_signal_ends_it(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    for signal in [Signal::Terminate, Signal::Kill, Signal::Interrupt, Signal::HangUp] {
        let process = sandbox.start(&command(&["sleep", "100"])).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        process.control.signal(signal).await.unwrap();
        let ended = finish(process).await;
        assert_eq!(ended.status(), ExecStatus::Signalled(signal.number()), "{signal:?}");
    }
    sandbox.destroy().await;
}

async fn a_signal_after_the_end_is_a_success(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let process = sandbox.start(&command(&["true"])).await;
    assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Exited(0));
    process.control.signal(Signal::Terminate).await.unwrap();
    process.control.kill().await.unwrap();
    assert_eq!(process.control.wait().await.unwrap().status, ExecStatus::Exited(0));
    sandbox.destroy().await;
}

async fn time_runs_out(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let started = Instant::now();
    let request = ExecRequest::shell("echo before; sleep 100", Duration::from_millis(400)).unwrap();
    let ended = sandbox.run(&request).await;
    assert_eq!((ended.status(), ended.text().as_str()), (ExecStatus::TimedOut, "before\n"));
    assert!(started.elapsed() >= Duration::from_millis(400) && started.elapsed() < seconds(10));
    assert_eq!(sandbox.says("echo alive").await, "alive\n");
    sandbox.destroy().await;
}

async fn a_kill_is_a_cancellation(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let process = sandbox.start(&shell("sleep 100")).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    process.control.kill().await.unwrap();
    assert_eq!(finish(process).await.status(), ExecStatus::Cancelled);
    assert_eq!(sandbox.says("echo alive").await, "alive\n");
    sandbox.destroy().await;
}

async fn the_end_is_told_more_than_once(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let process = sandbox.start(&shell("exit 9")).await;
    let (first, second) = tokio::join!(process.control.wait(), process.control.wait());
    let third = process.control.wait().await;
    for outcome in [first, second, third] {
        assert_eq!(outcome.unwrap().status, ExecStatus::Exited(9));
    }
    sandbox.destroy().await;
}

async fn daemons_are_not_waited_for(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let process = sandbox.start(&shell("sleep 50 & echo started")).await;
    let outcome = tokio::time::timeout(seconds(5), process.control.wait()).await.expect("it waited for a daemon");
    assert_eq!(outcome.unwrap().status, ExecStatus::Exited(0));
    sandbox.destroy().await;
}

async fn a_slow_reader_gets_everything(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let mut process = sandbox.start(&command(&["head", "-c", "2000000", "/dev/zero"])).await;
    let mut total = 0;
    let mut buffer = vec![0; 100_000];
    for turn in 0.. {
        if turn < 5 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        match process.stdout.read(&mut buffer).await.unwrap() {
            0 => break,
            count => total += count,
        }
    }
    assert_eq!(total, 2_000_000);
    assert_eq!(finish(process).await.status(), ExecStatus::Exited(0));
    sandbox.destroy().await;
}

async fn output_that_nobody_reads_does_no_harm(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let request = ExecRequest::new(["yes"], Duration::from_millis(500)).unwrap();
    let Process { stdin, stdout, stderr, control } = sandbox.start(&request).await;
    let outcome = tokio::time::timeout(seconds(10), control.wait()).await.expect("unread output held up the end");
    assert_eq!(outcome.unwrap().status, ExecStatus::TimedOut);
    drop((stdin, stdout, stderr));
    assert_eq!(sandbox.says("echo alive").await, "alive\n");
    sandbox.destroy().await;
}

async fn sixteen_at_once(engine: Arc<dyn Engine>) {
    let sandbox = Arc::new(Subject::new(engine).await);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16 {
        let sandbox = Arc::clone(&sandbox);
        tasks.spawn(async move {
            let ended = sandbox.run(&shell(&format!("sleep 0.2; echo {number}; exit {number}"))).await;
            assert_eq!((ended.status(), ended.text()), (ExecStatus::Exited(number), format!("{number}\n")));
        });
    }
    tasks.join_all().await;
    sandbox.engine.destroy(&sandbox.id).await.unwrap();
}

async fn wall_time_is_measured(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let ended = sandbox.run(&command(&["sleep", "0.3"])).await;
    let wall = ended.outcome.usage.wall;
    assert!(wall >= Duration::from_millis(290) && wall < seconds(5), "{wall:?}");
    sandbox.destroy().await;
}

async fn a_log_keeps_what_a_detached_command_wrote(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(Arc::clone(&engine)).await;
    assert!(engine.logs(&sandbox.id).await.unwrap().is_empty());
    for script in ["cat; echo first; exit 3", "sleep 0.2; echo second"] {
        let mut request = shell(script);
        request.on_disconnect = OnDisconnect::Continue;
        request.output = OutputTarget::Log;
        assert!(sandbox.start(&request).await.stdin.is_none());
    }
    let give_up = Instant::now() + seconds(10);
    let logs = loop {
        let logs = engine.logs(&sandbox.id).await.unwrap();
        if logs.len() == 2 && logs.iter().all(|log| log.status.is_some()) {
            break logs;
        }
        assert!(Instant::now() < give_up, "{logs:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((logs[0].output.as_slice(), logs[0].status), (b"first\n".as_slice(), Some(ExecStatus::Exited(3))));
    assert_eq!((logs[1].output.as_slice(), logs[1].status), (b"second\n".as_slice(), Some(ExecStatus::Exited(0))));
    assert_eq!((logs[0].dropped, logs[1].command.last().map(String::as_str)), (0, Some("sleep 0.2; echo second")));
    sandbox.destroy().await;
}

async fn a_script_is_there_when_its_program_starts(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(Arc::clone(&engine)).await;
    let mut request = command(&["cat", "/workspace/script"]);
    request.script = Script::new(&path("script"), b"what it says");
    assert_eq!(sandbox.run(&request).await.stdout, b"what it says");
    request.script = Script::new(&path("/etc/script"), b"");
    assert_eq!(kind(engine.start(&sandbox.id, &request).await), ErrorKind::Denied);
    request.script = Script::new(&path("none/script"), b"");
    assert_eq!(kind(engine.start(&sandbox.id, &request).await), ErrorKind::NotFound);
    assert!(Script::new(&path("large"), &vec![0; Script::MAX_BYTES + 1]).is_none());
    sandbox.destroy().await;
}
