//! Time is stopped in these tests and moves only when everybody sleeps, so every interleaving below is the same each time.

use std::time::Duration;

use sandbox::engine::fake::{FakeEngine, Operation};
use sandbox::{
    Engine, ErrorKind, EventKind, ExecRequest, ExecStatus, Lifetime, OnDisconnect, OutputTarget, Persistence,
    SandboxId, SandboxService, SandboxSpec, StopReason,
};
use tokio::time::Instant;

use crate::support::{World, create, drain, living, owner, persistent, says, seconds, spec};

async fn stopped_after(world: &World, limit: Duration) -> Option<Duration> {
    let started = Instant::now();
    while started.elapsed() < limit {
        if world.host.existing().is_empty() {
            return Some(started.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    None
}

fn near(found: Option<Duration>, expected: u64) {
    let found = found.expect("it was not stopped");
    let expected = seconds(expected);
    assert!(found >= expected && found < expected + Duration::from_millis(50), "{found:?} instead of {expected:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unused_sandbox_ends_after_its_idle_time() {
    let world = World::new();
    let service = world.process().await;
    let mut events = service.subscribe();
    create(&service, living(10, None)).await;
    near(stopped_after(&world, seconds(60)).await, 10);
    assert_eq!(drain(&mut events)[1], EventKind::Stopped { reason: StopReason::Idle });
    assert!(service.list(&owner()).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_running_command_holds_off_the_idle_time() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, living(10, None)).await;
    let request = ExecRequest::shell("sleep 100", seconds(1000)).unwrap();
    let execution = service.exec(&owner(), &info.id, request).await.unwrap();
    assert_eq!(service.find(&owner(), info.id.as_str()).await.unwrap().expires_at, None);
    near(stopped_after(&world, seconds(500)).await, 110);
    assert_eq!(execution.wait().await.unwrap().status, ExecStatus::Exited(0));
}

/// What a process that is gone has started: the engine knows of it, no service does.
async fn leave_running(engine: &FakeEngine, id: &SandboxId, script: &str) {
    let mut request = ExecRequest::shell(script, seconds(1000)).unwrap();
    request.on_disconnect = OnDisconnect::Continue;
    request.output = OutputTarget::Log;
    drop(engine.start(id, &request).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn what_nobody_waits_for_holds_off_the_idle_time() {
    for persistence in [Persistence::Ephemeral, Persistence::Persistent] {
        let world = World::new();
        let engine = world.engine();
        let service = SandboxService::start(engine.clone(), world.settings()).await.unwrap();
        let info = create(&service, SandboxSpec { persistence, ..living(10, None) }).await;
        leave_running(&engine, &info.id, "sleep 95").await;
        near(stopped_after(&world, seconds(500)).await, 105);
    }
}

#[tokio::test(start_paused = true)]
async fn the_total_time_ends_what_nobody_waits_for() {
    for persistence in [Persistence::Ephemeral, Persistence::Persistent] {
        let world = World::new();
        let engine = world.engine();
        let service = SandboxService::start(engine.clone(), world.settings()).await.unwrap();
        let info = create(&service, SandboxSpec { persistence, ..living(10, Some(35)) }).await;
        leave_running(&engine, &info.id, "sleep 95").await;
        near(stopped_after(&world, seconds(500)).await, 35);
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_later_leaves_a_busy_sandbox_alone() {
    let world = World::new();
    let (maker, later) = (world.process().await, world.process().await);
    let lifetime = Lifetime { idle: seconds(10), total: None };
    let info = create(&maker, SandboxSpec { lifetime, ..persistent("lab") }).await;
    // As a service does before it starts a command that may take so long.
    let engine = world.engine();
    engine.set_deadline(&info.id, Some(seconds(1000))).await.unwrap();
    leave_running(&engine, &info.id, "sleep 95; echo done").await;
    drop((maker, engine));
    for _ in 0..4 {
        tokio::time::sleep(seconds(22)).await;
        let listed = later.list(&owner()).await.unwrap();
        let expires_at = listed[0].expires_at.expect("nobody here uses it");
        assert!(expires_at > std::time::SystemTime::now(), "it is shown with an end in the past");
        assert_eq!(later.logs(&owner(), &info.id).await.unwrap()[0].status, None);
    }
    tokio::time::sleep(seconds(8)).await;
    assert_eq!(later.logs(&owner(), &info.id).await.unwrap()[0].output, b"done\n");
    near(stopped_after(&world, seconds(60)).await, 9);
    assert!(later.list(&owner()).await.unwrap().is_empty());
    assert!(world.ledger_files().is_empty());
}

/// It could go on like that for ever.
#[tokio::test(start_paused = true)]
async fn an_engine_that_does_not_know_what_runs_keeps_nothing_alive() {
    let world = World::new();
    let engine = world.engine();
    let service = SandboxService::start(engine.clone(), world.settings()).await.unwrap();
    let info = create(&service, living(10, None)).await;
    leave_running(&engine, &info.id, "sleep 95").await;
    world.host.fail(Operation::Usage, 1000, ErrorKind::Unavailable);
    near(stopped_after(&world, seconds(500)).await, 10);
}

#[tokio::test(start_paused = true)]
async fn the_total_time_ends_even_what_is_running() {
    let world = World::new();
    let service = world.process().await;
    let mut events = service.subscribe();
    let info = create(&service, living(10, Some(30))).await;
    let request = ExecRequest::shell("sleep 100", seconds(1000)).unwrap();
    let execution = service.exec(&owner(), &info.id, request).await.unwrap();
    near(stopped_after(&world, seconds(500)).await, 30);
    assert_eq!(execution.wait().await.unwrap().status, ExecStatus::Killed);
    let last = drain(&mut events).into_iter().find(|event| matches!(event, EventKind::Stopped { .. }));
    assert_eq!(last, Some(EventKind::Stopped { reason: StopReason::Total }));
}

#[tokio::test(start_paused = true)]
async fn an_open_file_holds_off_the_idle_time() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, living(10, None)).await;
    let files = service.files(&owner(), &info.id).unwrap();
    let writing = files.write(&"big".parse().unwrap(), Default::default()).await.unwrap();
    tokio::time::sleep(seconds(60)).await;
    writing.commit().await.unwrap();
    near(stopped_after(&world, seconds(500)).await, 10);
}

#[tokio::test(start_paused = true)]
async fn looking_does_not_keep_alive() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, living(10, None)).await;
    for _ in 0..9 {
        tokio::time::sleep(seconds(1)).await;
        service.list(&owner()).await.unwrap();
        service.find(&owner(), info.id.as_str()).await.unwrap();
        service.usage(&owner(), &info.id).await.unwrap();
    }
    near(stopped_after(&world, seconds(60)).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_replaces_the_lifetime() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, living(10, Some(20))).await;
    tokio::time::sleep(seconds(9)).await;
    let lifetime = Lifetime { idle: seconds(100), total: None };
    let renewed = service.renew(&owner(), &info.id, Some(lifetime)).await.unwrap();
    assert_eq!(renewed.lifetime, lifetime);
    near(stopped_after(&world, seconds(500)).await, 100);
}

/// A renewal is sent around the very moment of expiry, at every distance that could matter, with a slow engine and a fast
/// one. Whatever wins: an answered renewal means another whole idle time, a refused one means the end.
#[tokio::test(start_paused = true)]
async fn an_answered_renewal_is_in_force() {
    let (mut answered, mut refused) = (0, 0);
    for engine_delay in [0, 1, 30] {
        for offset in 0..60u64 {
            let world = World::new();
            let service = world.process().await;
            world.host.delay(Operation::SetDeadline, Duration::from_millis(engine_delay));
            world.host.delay(Operation::Destroy, Duration::from_millis(engine_delay));
            let info = create(&service, living(5, Some(6))).await;
            // The total time is the one that even a call in progress does not hold off.
            let _busy =
                service.exec(&owner(), &info.id, ExecRequest::shell("sleep 90", seconds(900)).unwrap()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5_970 + offset)).await;
            let lifetime = Lifetime { idle: seconds(20), total: Some(seconds(40)) };
            match service.renew(&owner(), &info.id, Some(lifetime)).await {
                Ok(_) => {
                    answered += 1;
                    tokio::time::sleep(seconds(39)).await;
                    assert_eq!(
                        world.host.existing(),
                        std::slice::from_ref(&info.id),
                        "delay {engine_delay}, offset {offset}"
                    );
                    assert_eq!(says(&service, &info.id, "echo alive").await, "alive\n");
                }
                Err(error) => {
                    refused += 1;
                    assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WrongState), "{error:?}");
                    tokio::time::sleep(seconds(1)).await;
                    assert!(world.host.existing().is_empty(), "delay {engine_delay}, offset {offset}");
                }
            }
        }
    }
    assert!(answered > 20 && refused > 20, "the race was not met: {answered} answered, {refused} refused");
}

#[tokio::test(start_paused = true)]
async fn a_use_at_the_moment_of_expiry_succeeds_whole_or_fails() {
    for offset in 0..40u64 {
        let world = World::new();
        let service = world.process().await;
        let info = create(&service, living(5, None)).await;
        tokio::time::sleep(Duration::from_millis(4_980 + offset)).await;
        let request = ExecRequest::shell("sleep 50; echo done", seconds(900)).unwrap();
        match service.exec(&owner(), &info.id, request).await {
            Ok(execution) => {
                let captured = execution.capture(Default::default()).await.unwrap();
                assert_eq!(captured.outcome.status, ExecStatus::Exited(0), "offset {offset}");
            }
            Err(error) => assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::WrongState), "{error:?}"),
        }
    }
}

/// A server that hangs: its tasks never run again, and only the engine's own deadline is left.
#[tokio::test(start_paused = true)]
async fn the_engine_ends_what_a_hanging_server_forgets() {
    let world = World::new();
    let engine = world.engine();
    let service = SandboxService::start(engine.clone(), world.settings()).await.unwrap();
    create(&service, living(60, None)).await;
    tokio::time::sleep(seconds(5)).await;
    drop(service);
    let ended = stopped_after(&world, seconds(3600)).await.expect("it lives for ever");
    assert!(ended > seconds(55) && ended < seconds(100), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn the_engine_is_told_seldom_and_in_time() {
    let world = World::new();
    let service = world.process().await;
    let short = create(&service, spec()).await;
    says(&service, &short.id, "true").await;
    service.stop(&owner(), &short.id).await.unwrap();
    assert_eq!(world.host.calls(Operation::SetDeadline), 0, "a short life costs no call");

    let info = create(&service, living(10, None)).await;
    for _ in 0..2000 {
        says(&service, &info.id, "true").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(world.host.existing(), [info.id]);
    let calls = world.host.calls(Operation::SetDeadline);
    assert!((10..=110).contains(&calls), "{calls} calls in 200 s");
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_refuses_a_deadline_is_asked_again() {
    let world = World::new();
    let service = world.process().await;
    world.host.fail(Operation::SetDeadline, 3, ErrorKind::Unavailable);
    create(&service, living(600, None)).await;
    tokio::time::sleep(seconds(10)).await;
    assert_eq!(world.host.calls(Operation::SetDeadline), 4);
}
