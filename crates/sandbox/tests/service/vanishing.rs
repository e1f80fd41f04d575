//! Callers that go away: a future is polled a number of times and dropped, at every number that makes a difference.

use std::time::Duration;

use sandbox::engine::fake::Operation;
use sandbox::{ErrorKind, ExecRequest, Persistence, SandboxSpec};

use crate::support::{World, create, owner, persistent, poll_times, seconds, settle, spec};

async fn check_create(spec: SandboxSpec, delay: Duration) {
    let mut delivered = 0;
    for polls in 0..40 {
        let world = World::new();
        let service = world.process().await;
        world.host.delay(Operation::Create, delay);
        let made = poll_times(service.create(&owner(), spec.clone()), polls).await;
        // Persistent ones go through the disk, on a thread that a stopped clock waits for.
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        match made {
            Some(info) => {
                delivered += 1;
                assert_eq!(world.host.existing(), [info.unwrap().id], "{polls} polls");
            }
            None => {
                assert!(world.host.existing().is_empty(), "{polls} polls");
                assert!(service.list(&owner()).await.unwrap().is_empty(), "{polls} polls");
                assert!(world.ledger_files().is_empty(), "{polls} polls: {:?}", world.ledger_files());
            }
        }
    }
    assert!(delivered > 0 && delivered < 40, "{delivered} of 40 were delivered");
}

#[tokio::test(start_paused = true)]
async fn a_create_without_a_caller_leaves_nothing() {
    check_create(spec(), Duration::from_millis(10)).await;
    check_create(spec(), Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn a_persistent_create_without_a_caller_leaves_nothing() {
    check_create(persistent("lab"), Duration::from_millis(10)).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_without_a_caller_is_finished() {
    for persistence in [Persistence::Ephemeral, Persistence::Persistent] {
        for polls in 0..20 {
            let world = World::new();
            let service = world.process().await;
            let info = create(&service, SandboxSpec { persistence, ..spec() }).await;
            world.host.delay(Operation::Destroy, Duration::from_millis(10));
            let started = polls > 0;
            poll_times(service.stop(&owner(), &info.id), polls).await;
            tokio::time::sleep(seconds(2)).await;
            assert_eq!(world.host.existing().is_empty(), started, "{persistence:?}, {polls} polls");
            assert_eq!(world.ledger_files().is_empty(), started || persistence == Persistence::Ephemeral);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_in_the_queue_is_given_back() {
    let world = World::new();
    let mut settings = world.settings();
    settings.create_slots = 1;
    settings.create_queue = 1;
    let service = world.process_with(settings).await;
    world.host.delay(Operation::Create, seconds(1));
    let first = tokio::spawn({
        let service = service.clone();
        async move { service.create(&owner(), spec()).await }
    });
    settle().await;
    for _ in 0..10 {
        assert!(poll_times(service.create(&owner(), spec()), 2).await.is_none(), "it has to wait");
    }
    first.await.unwrap().unwrap();
    service.create(&owner(), spec()).await.unwrap();
    assert_eq!(world.host.existing().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_command_without_a_caller_is_killed_and_lets_go() {
    let world = World::new();
    let service = world.process().await;
    let info = create(&service, spec()).await;
    for polls in 0..6 {
        world.host.delay(Operation::Start, Duration::from_millis(3));
        let request = ExecRequest::shell("sleep 1000", seconds(1500)).unwrap();
        drop(poll_times(service.exec(&owner(), &info.id, request), polls).await);
        settle().await;
        assert_eq!(service.usage(&owner(), &info.id).await.unwrap().processes, Some(0), "{polls} polls");
        assert_eq!(service.find(&owner(), info.id.as_str()).await.unwrap().running, 0, "{polls} polls");
    }
}

#[tokio::test(start_paused = true)]
async fn a_create_that_fails_after_the_engine_made_it_leaves_nothing() {
    let world = World::new();
    let service = world.process().await;
    world.host.fail(Operation::SetDeadline, 1, ErrorKind::Unavailable);
    assert!(service.create(&owner(), persistent("lab")).await.is_err());
    settle().await;
    assert!(world.host.existing().is_empty());
    assert!(world.ledger_files().is_empty());
    create(&service, persistent("lab")).await;
}
