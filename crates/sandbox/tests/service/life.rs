use sandbox::engine::fake::Operation;
use sandbox::{ByteSize, ErrorKind, EventKind, ExecRequest, ExecStatus, Overwrite, StopReason, WriteOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{World, create, drain, kind, owner, persistent, says, seconds, settle, shell, spec, words};

#[tokio::test]
async fn a_sandbox_is_made_used_and_ended() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    assert_eq!(says(&service, &info.id, "echo hello").await, "hello\n");
    assert_eq!(service.list(&owner()).await.unwrap().len(), 1);
    service.stop(&owner(), &info.id).await.unwrap();
    assert_eq!(kind(service.find(&owner(), info.id.as_str()).await), ErrorKind::NotFound);
    assert_eq!(kind(shell(&service, &info.id, "true").await), ErrorKind::NotFound);
    assert!(world.host.existing().is_empty());
    assert!(world.ledger_files().is_empty(), "an ephemeral sandbox leaves no record");
}

#[tokio::test]
async fn somebody_elses_sandbox_and_none_at_all_look_the_same() {
    let world = World::new();
    let service = world.process().await;
    let mine = create(&service, persistent("mine")).await;
    let other = "somebody-else".parse().unwrap();
    let none = sandbox::SandboxId::random().unwrap();
    for id in [&mine.id, &none] {
        let errors = [
            service.find(&other, id.as_str()).await.unwrap_err(),
            service.stop(&other, id).await.unwrap_err(),
            service.exec(&other, id, ExecRequest::shell("true", seconds(1)).unwrap()).await.unwrap_err(),
            service.files(&other, id).err().unwrap(),
            service.usage(&other, id).await.unwrap_err(),
            service.isolation(&other, id).await.unwrap_err(),
            service.renew(&other, id, None).await.unwrap_err(),
            service.find(&other, "mine").await.unwrap_err(),
            service.find(&other, "../../etc").await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!((error.kind(), error.message()), (ErrorKind::NotFound, "there is no such sandbox"));
            assert_eq!(error.hint(), None);
        }
    }
    assert!(service.list(&other).await.unwrap().is_empty());
    assert!(service.find(&owner(), "mine").await.is_ok());
}

#[tokio::test]
async fn a_name_is_unique_per_owner_and_free_again_after_the_end() {
    let world = World::new();
    let service = world.process().await;
    let mut named = spec();
    named.name = Some("lab".parse().unwrap());
    let first = create(&service, named.clone()).await;
    assert_eq!(kind(service.create(&owner(), named.clone()).await), ErrorKind::AlreadyExists);
    assert_eq!(kind(service.create(&owner(), persistent("lab")).await), ErrorKind::AlreadyExists);
    assert!(service.create(&"other".parse().unwrap(), named.clone()).await.is_ok());
    assert_eq!(service.find(&owner(), "lab").await.unwrap().id, first.id);
    service.stop(&owner(), &first.id).await.unwrap();
    create(&service, named).await;
}

#[tokio::test]
async fn everything_worth_auditing_is_told() {
    let world = World::new();
    let service = world.process().await;
    let mut events = service.subscribe();
    let info = create(&service, spec()).await;
    says(&service, &info.id, "echo 12345; echo 1 >&2").await;
    settle().await;
    let files = service.files(&owner(), &info.id).unwrap();
    let path = "notes".parse().unwrap();
    let mut file = files.write(&path, WriteOptions::default()).await.unwrap();
    file.write_all(b"abc").await.unwrap();
    file.commit().await.unwrap();
    let mut text = String::new();
    files.read(&path, Default::default()).await.unwrap().stream.read_to_string(&mut text).await.unwrap();
    files.remove(&path).await.unwrap();
    let _ = shell(&service, &info.id, "true").await.unwrap();
    settle().await;
    service.stop(&owner(), &info.id).await.unwrap();

    let seen = drain(&mut events);
    assert_eq!(
        words(&seen),
        [
            "created",
            "exec_started",
            "exec_ended",
            "file_written",
            "file_read",
            "file_removed",
            "exec_started",
            "exec_ended",
            "stopped"
        ]
    );
    let EventKind::ExecEnded { outcome, stdout_bytes, stderr_bytes, .. } = &seen[2] else { panic!("{seen:?}") };
    assert_eq!((outcome.status, *stdout_bytes, *stderr_bytes), (ExecStatus::Exited(0), 6, 2));
    assert_eq!(seen[3], EventKind::FileWritten { path: path.clone(), bytes: 3 });
    assert_eq!(seen[4], EventKind::FileRead { path, bytes: 3 });
    assert_eq!(seen[8], EventKind::Stopped { reason: StopReason::Asked });
}

#[tokio::test]
async fn refusals_and_failures_are_events_too() {
    let world = World::new();
    let service = world.process().await;
    let mut events = service.subscribe();
    world.host.fail(Operation::Create, 1, ErrorKind::Unsupported);
    assert_eq!(kind(service.create(&owner(), spec()).await), ErrorKind::Unsupported);
    let mut tiny = spec();
    tiny.limits.processes = 0;
    assert_eq!(kind(service.create(&owner(), tiny).await), ErrorKind::InvalidInput);
    let info = create(&service, spec()).await;
    let missing = ExecRequest::new(["no-such-program"], seconds(1)).unwrap();
    assert_eq!(kind(service.exec(&owner(), &info.id, missing).await), ErrorKind::NotFound);
    assert_eq!(words(&drain(&mut events)), ["create_failed", "create_refused", "created", "exec_refused"]);
    assert_eq!(world.host.existing(), [info.id]);
}

#[tokio::test]
async fn a_listener_that_does_not_listen_holds_up_nobody() {
    let world = World::new();
    let service = world.process().await;
    let mut events = service.subscribe();
    let info = create(&service, spec()).await;
    let files = service.files(&owner(), &info.id).unwrap();
    for _ in 0..5000 {
        let _ = files.rename(&"a".parse().unwrap(), &"b".parse().unwrap()).await;
        let path = "x".parse().unwrap();
        files
            .write(&path, WriteOptions { overwrite: Overwrite::Replace, ..Default::default() })
            .await
            .unwrap()
            .commit()
            .await
            .unwrap();
    }
    assert!(matches!(events.try_recv(), Err(tokio::sync::broadcast::error::TryRecvError::Lagged(_))));
}

#[tokio::test]
async fn a_sandbox_that_died_is_noticed_by_the_next_call() {
    let world = World::new();
    let service = world.process().await;
    let mut events = service.subscribe();
    let info = create(&service, spec()).await;
    world.host.kill(&info.id);
    let request = ExecRequest::shell("true", seconds(1)).unwrap();
    assert_eq!(kind(service.exec(&owner(), &info.id, request).await), ErrorKind::NotFound);
    assert!(service.list(&owner()).await.unwrap().is_empty());
    assert_eq!(drain(&mut events)[1], EventKind::Stopped { reason: StopReason::Lost });
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_died_unused_is_noticed_by_the_sweep() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    world.host.kill(&info.id);
    tokio::time::sleep(seconds(31)).await;
    assert!(service.list(&owner()).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_fails_is_tried_again_until_it_is_gone() {
    let world = World::new();
    let service = world.process().await;
    let mut events = service.subscribe();
    let info = create(&service, spec()).await;
    world.host.fail(Operation::Destroy, 3, ErrorKind::Unavailable);
    assert_eq!(kind(service.stop(&owner(), &info.id).await), ErrorKind::Unavailable);
    let request = ExecRequest::shell("true", seconds(1)).unwrap();
    assert_eq!(kind(service.exec(&owner(), &info.id, request).await), ErrorKind::WrongState);
    tokio::time::sleep(seconds(10)).await;
    assert!(world.host.existing().is_empty());
    let seen = words(&drain(&mut events));
    assert_eq!(seen, ["created", "stop_failed", "exec_refused", "stop_failed", "stop_failed", "stopped"]);
}

#[tokio::test(start_paused = true)]
async fn two_stops_at_once_both_wait_for_the_end() {
    let world = World::new();
    let service = world.process().await;
    let mut events = service.subscribe();
    let info = create(&service, spec()).await;
    world.host.delay(Operation::Destroy, seconds(2));
    let (owner, id) = (owner(), info.id);
    let (first, second) = tokio::join!(service.stop(&owner, &id), service.stop(&owner, &id));
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(world.host.calls(Operation::Destroy), 1);
    assert_eq!(words(&drain(&mut events)), ["created", "stopped"]);
}

#[tokio::test]
async fn a_stop_under_a_running_command_ends_it() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    let request = ExecRequest::shell("sleep 60", seconds(100)).unwrap();
    let execution = service.exec(&owner(), &info.id, request).await.unwrap();
    service.stop(&owner(), &info.id).await.unwrap();
    assert_eq!(execution.wait().await.unwrap().status, ExecStatus::Killed);
}

#[tokio::test]
async fn shutdown_ends_the_ephemeral_and_leaves_the_persistent() {
    let world = World::new();
    let service = world.process().await;
    for _ in 0..20 {
        create(&service, spec()).await;
    }
    let kept = create(&service, persistent("kept")).await;
    service.shutdown().await.unwrap();
    assert_eq!(world.host.existing(), [kept.id]);
    assert_eq!(kind(service.create(&owner(), spec()).await), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn shutdown_during_a_create_leaves_nothing() {
    let world = World::new();
    let service = world.process().await;
    world.host.delay(Operation::Create, seconds(3));
    let creating = tokio::spawn({
        let service = service.clone();
        async move { service.create(&owner(), spec()).await }
    });
    tokio::time::sleep(seconds(1)).await;
    service.shutdown().await.unwrap();
    assert_eq!(kind(creating.await.unwrap()), ErrorKind::Unavailable);
    assert!(world.host.existing().is_empty());
}

#[tokio::test]
async fn limits_are_shown_as_enforced() {
    let world = World::new();
    let service = world.process().await;
    let mut events = service.subscribe();
    let mut wanted = persistent("lab");
    wanted.limits.memory = ByteSize::mebibytes(64);
    let made = create(&service, wanted).await;
    let enforced = service.isolation(&owner(), &made.id).await.unwrap().limits;
    assert_eq!(enforced.disk, ByteSize::mebibytes(64), "the fake lowers it");
    assert_eq!(made.limits, enforced);
    assert!(matches!(drain(&mut events)[..], [EventKind::Created { limits, .. }] if limits == enforced));

    let other = world.process().await;
    assert_eq!(other.list(&owner()).await.unwrap()[0].limits, enforced);
    drop((service, other));
    std::fs::remove_file(world.record(&made.id)).unwrap();
    let later = world.process().await;
    assert_eq!(later.find(&owner(), made.id.as_str()).await.unwrap().limits, enforced, "its record was lost");
}
