use sandbox::engine::fake::Operation;
use sandbox::{ByteSize, ErrorKind, ExecRequest, Owner, Quota};

use crate::support::{World, create, kind, owner, persistent, seconds, shell, spec};

#[tokio::test]
async fn each_owner_has_a_quota_and_gets_it_back() {
    let world = World::new();
    let mut settings = world.settings();
    settings.quota = Quota { sandboxes: 2, memory: Some(ByteSize::mebibytes(1024)), ..Quota::default() };
    let service = world.process_with(settings).await;
    let first = create(&service, spec()).await;
    create(&service, spec()).await;
    assert_eq!(kind(service.create(&owner(), spec()).await), ErrorKind::LimitExceeded);
    let other: Owner = "other".parse().unwrap();
    service.create(&other, spec()).await.unwrap();
    service.stop(&owner(), &first.id).await.unwrap();
    create(&service, spec()).await;
}

#[tokio::test]
async fn a_failed_create_counts_for_nothing() {
    let world = World::new();
    let mut settings = world.settings();
    settings.quota.sandboxes = 1;
    let service = world.process_with(settings).await;
    world.host.fail(Operation::Create, 5, ErrorKind::Unavailable);
    for _ in 0..5 {
        assert_eq!(kind(service.create(&owner(), spec()).await), ErrorKind::Unavailable);
    }
    create(&service, spec()).await;
}

#[tokio::test]
async fn the_quota_of_persistent_sandboxes_spans_processes() {
    let world = World::new();
    let mut settings = world.settings();
    settings.quota.persistent = 2;
    let first = world.process_with(settings.clone()).await;
    let second = world.process_with(settings).await;
    create(&first, persistent("a")).await;
    create(&second, persistent("b")).await;
    for service in [&first, &second] {
        assert_eq!(kind(service.create(&owner(), persistent("c")).await), ErrorKind::LimitExceeded);
    }
}

#[tokio::test]
async fn commands_are_bounded_in_number_and_time() {
    let world = World::new();
    let mut settings = world.settings();
    settings.quota.execs = 1;
    let service = world.process_with(settings).await;
    let info = create(&service, spec()).await;
    let long = ExecRequest::shell("true", seconds(24 * 3600)).unwrap();
    assert_eq!(kind(service.exec(&owner(), &info.id, long).await), ErrorKind::LimitExceeded);
    let running = service.exec(&owner(), &info.id, ExecRequest::shell("sleep 9", seconds(9)).unwrap()).await.unwrap();
    assert_eq!(kind(shell(&service, &info.id, "true").await), ErrorKind::LimitExceeded);
    running.cancel().await.unwrap();
    running.wait().await.unwrap();
    shell(&service, &info.id, "true").await.unwrap();
}
