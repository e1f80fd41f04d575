use std::time::{Duration, Instant};

use sandbox::{ExecRequest, ExecStatus, OnDisconnect, OutputCaps, Signal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{World, create, owner, seconds, settle, spec};

const CAPS: OutputCaps = OutputCaps { head: 1000, tail: 1000 };

#[tokio::test]
async fn endless_output_is_capped_while_it_is_read() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let request = ExecRequest::new(["yes"], Duration::from_millis(300)).unwrap();
    let captured = service.exec(&owner(), &info.id, request).await.unwrap().capture(CAPS).await.unwrap();
    assert_eq!(captured.outcome.status, ExecStatus::TimedOut);
    assert_eq!(captured.stdout.bytes().len(), 2000);
    assert!(captured.stdout.dropped() > 10_000, "it went on reading: {}", captured.stdout.total());
}

#[tokio::test]
async fn a_daemon_that_holds_the_pipe_does_not_hold_the_caller() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let request = ExecRequest::shell("sleep 30 & echo started", seconds(60)).unwrap();
    let started = Instant::now();
    let captured = service.exec(&owner(), &info.id, request).await.unwrap().capture(CAPS).await.unwrap();
    assert_eq!(captured.outcome.status, ExecStatus::Exited(0));
    assert_eq!(captured.stdout.to_text(), "started\n");
    assert!(started.elapsed() < seconds(5));
}

#[tokio::test]
async fn output_is_whole_when_the_command_ends_at_once() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    for _ in 0..200 {
        let request = ExecRequest::shell("head -c 60000 /dev/zero; echo e >&2", seconds(9)).unwrap();
        let caps = OutputCaps { head: 100_000, tail: 0 };
        let captured = service.exec(&owner(), &info.id, request).await.unwrap().capture(caps).await.unwrap();
        assert_eq!((captured.stdout.total(), captured.stderr.to_text().as_str()), (60_000, "e\n"));
    }
}

#[tokio::test]
async fn input_goes_through_and_ends() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let request = ExecRequest::new(["cat"], seconds(60)).unwrap();
    let mut execution = service.exec(&owner(), &info.id, request).await.unwrap();
    let mut stdin = execution.stdin.take().unwrap();
    let writing = tokio::spawn(async move {
        for _ in 0..100 {
            stdin.write_all(&[b'x'; 10_000]).await.unwrap();
        }
    });
    let captured = execution.capture(CAPS).await.unwrap();
    writing.await.unwrap();
    assert_eq!(captured.stdout.total(), 1_000_000);
}

#[tokio::test]
async fn parts_can_be_moved_apart() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let request = ExecRequest::shell("echo a; sleep 50", seconds(60)).unwrap();
    let sandbox::Execution { mut stdout, control, .. } = service.exec(&owner(), &info.id, request).await.unwrap();
    let mut first = [0; 2];
    stdout.read_exact(&mut first).await.unwrap();
    let other = control.clone();
    let waiting = tokio::spawn(async move { other.wait().await });
    control.signal(Signal::Terminate).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().status, ExecStatus::Signalled(15));
    assert_eq!(control.wait().await.unwrap().status, ExecStatus::Signalled(15));
    control.cancel().await.unwrap();
    control.signal(Signal::Kill).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_command_that_may_continue_goes_on_without_its_caller() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let mut request = ExecRequest::shell("sleep 5; touch finished", seconds(60)).unwrap();
    request.on_disconnect = OnDisconnect::Continue;
    drop(service.exec(&owner(), &info.id, request).await.unwrap());
    settle().await;
    assert_eq!(service.find(&owner(), info.id.as_str()).await.unwrap().running, 1);
    tokio::time::sleep(seconds(6)).await;
    let files = service.files(&owner(), &info.id).unwrap();
    assert!(files.stat(&"finished".parse().unwrap()).await.is_ok());
    assert_eq!(service.find(&owner(), info.id.as_str()).await.unwrap().running, 0);
}
