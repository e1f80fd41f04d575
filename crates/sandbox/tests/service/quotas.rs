use std::time::Duration;

use sandbox::engine::fake::Operation;
use sandbox::{
    ByteSize, ErrorKind, ExecRequest, ForkRequest, Lifetime, Owner, Persistence, Quota, SandboxSpec, SavedName,
};

use crate::support::{World, create, kind, owner, persistent, seconds, shell, spec, write};

#[tokio::test]
async fn each_owner_has_a_quota_and_gets_it_back() {
    let world = World::new();
    let service = world
        .process_set(|settings| {
            settings.quota = Quota { sandboxes: 2, memory: Some(ByteSize::mebibytes(1024)), ..Quota::default() }
        })
        .await;
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
    let service = world.process_set(|settings| settings.quota.sandboxes = 1).await;
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
    let service = world.process_set(|settings| settings.quota.execs = 1).await;
    let info = create(&service, spec()).await;
    let long = ExecRequest::shell("true", seconds(24 * 3600)).unwrap();
    assert_eq!(kind(service.exec(&owner(), &info.id, long).await), ErrorKind::LimitExceeded);
    let running = service.exec(&owner(), &info.id, ExecRequest::shell("sleep 9", seconds(9)).unwrap()).await.unwrap();
    assert_eq!(kind(shell(&service, &info.id, "true").await), ErrorKind::LimitExceeded);
    running.cancel().await.unwrap();
    running.wait().await.unwrap();
    shell(&service, &info.id, "true").await.unwrap();
}

const DAY: u64 = 24 * 3600;

/// A persistent one is there to be found again, and waits longer for whoever made it.
#[tokio::test]
async fn idle_lifetimes_are_bounded_by_what_a_sandbox_is_for() {
    let world = World::new();
    let service = world.process().await;
    let unused = |spec: SandboxSpec, idle| SandboxSpec { lifetime: Lifetime { idle, total: None }, ..spec };
    for (made, most) in [(spec(), DAY), (persistent("kept"), 30 * DAY)] {
        let (longest, longer) = (seconds(most), seconds(most + 1));
        assert_eq!(kind(service.create(&owner(), unused(made.clone(), longer)).await), ErrorKind::LimitExceeded);
        let info = create(&service, unused(made, longest)).await;
        assert_eq!(info.lifetime.idle, longest);
        let renewed = |idle| Some(Lifetime { idle, total: None });
        assert_eq!(kind(service.renew(&owner(), &info.id, renewed(longer)).await), ErrorKind::LimitExceeded);
        let info = service.renew(&owner(), &info.id, renewed(longest)).await.unwrap();
        assert_eq!(info.lifetime.idle, longest);
    }
}

const MEBIBYTE: u64 = 1 << 20;

/// With as little disk as a sandbox can have.
fn small() -> SandboxSpec {
    let mut spec = spec();
    spec.limits.disk = ByteSize::new(MEBIBYTE);
    spec
}

fn name(text: &str) -> SavedName {
    text.parse().unwrap()
}

#[tokio::test]
async fn disk_is_of_sandboxes_and_saved_images_together() {
    let world = World::new();
    let mut settings = world.settings();
    settings.quota.disk = Some(ByteSize::new(2 * MEBIBYTE + 1000));
    let service = world.process_with(settings.clone()).await;
    let first = create(&service, small()).await;
    write(&service, &first.id, "file", &[7; 600]).await;
    service.save(&owner(), &first.id, &name("one")).await.unwrap();
    service.save(&owner(), &first.id, &name("one")).await.unwrap();
    write(&service, &first.id, "file", &[7; 1000]).await;
    let second = create(&service, small()).await;
    for refused in [
        service.save(&owner(), &first.id, &name("two")).await.unwrap_err(),
        service.create(&owner(), small()).await.unwrap_err(),
        service.fork(&owner(), &first.id, ForkRequest::default()).await.unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
        assert!(refused.hint().unwrap().contains("one has 600 B"), "{refused:?}");
    }
    service.save(&owner(), &first.id, &name("one")).await.unwrap();
    let other: Owner = "other".parse().unwrap();
    service.create(&other, small()).await.unwrap();

    service.forget(&owner(), &name("one")).await.unwrap();
    service.save(&owner(), &first.id, &name("two")).await.unwrap();
    service.stop(&owner(), &second.id).await.unwrap();
    service.fork(&owner(), &first.id, ForkRequest::default()).await.unwrap();
    let next = world.process_with(settings).await;
    let many = SandboxSpec { persistence: Persistence::Persistent, ..small() };
    create(&next, many.clone()).await;
    create(&next, many.clone()).await;
    assert_eq!(kind(next.create(&owner(), many).await), ErrorKind::LimitExceeded, "what another process saved counts");
}

#[tokio::test]
async fn disk_is_of_checkpoints_too() {
    let world = World::new();
    let service = world.process_set(|settings| settings.quota.disk = Some(ByteSize::new(2 * MEBIBYTE + 1000))).await;
    let first = create(&service, small()).await;
    let second = create(&service, small()).await;
    write(&service, &first.id, "file", &[7; 600]).await;
    service.checkpoint(&owner(), &first.id).await.unwrap();
    write(&service, &first.id, "file", &[8; 600]).await;
    let refused = service.checkpoint(&owner(), &first.id).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
    assert!(refused.hint().is_some(), "{refused:?}");
    assert_eq!(kind(service.save(&owner(), &first.id, &name("one")).await), ErrorKind::LimitExceeded);
    service.stop(&owner(), &second.id).await.unwrap();
    service.checkpoint(&owner(), &first.id).await.unwrap();
    assert_eq!(kind(service.create(&owner(), small()).await), ErrorKind::LimitExceeded);
    service.stop(&owner(), &first.id).await.unwrap();
    create(&service, small()).await;
    create(&service, small()).await;
}

#[tokio::test]
async fn saved_images_are_counted() {
    let world = World::new();
    let service = world.process_set(|settings| settings.quota.saved_images = 2).await;
    let info = create(&service, spec()).await;
    for text in ["a", "b", "a"] {
        service.save(&owner(), &info.id, &name(text)).await.unwrap();
    }
    let refused = service.save(&owner(), &info.id, &name("c")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
    assert!(refused.hint().unwrap().contains("forget"), "{refused:?}");
    assert!(service.forget(&owner(), &name("a")).await.unwrap());
    service.save(&owner(), &info.id, &name("c")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_saves_at_once_only_so_many_get_through() {
    let world = World::new();
    let mut settings = world.settings();
    settings.quota.disk = Some(ByteSize::new(8 * MEBIBYTE + 3500));
    let (first, second) = (world.process_with(settings.clone()).await, world.process_with(settings).await);
    let mut sandboxes = Vec::new();
    for number in 0..8 {
        let spec = SandboxSpec { persistence: Persistence::Persistent, ..small() };
        let info = create(&first, spec).await;
        write(&first, &info.id, "file", &[number; 1000]).await;
        sandboxes.push(info.id);
    }
    world.host.delay(Operation::Save, Duration::from_millis(100));
    let saves: Vec<_> = sandboxes
        .into_iter()
        .enumerate()
        .map(|(number, id)| {
            let service = if number % 2 == 0 { first.clone() } else { second.clone() };
            tokio::spawn(async move { service.save(&owner(), &id, &name(&format!("s{number}"))).await })
        })
        .collect();
    let mut through = 0;
    for save in saves {
        match save.await.unwrap() {
            Ok(_) => through += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error:?}"),
        }
    }
    assert_eq!((through, first.saved(&owner()).await.unwrap().len()), (3, 3));
}

#[tokio::test]
async fn room_that_a_save_has_taken_comes_back() {
    let world = World::new();
    let service = world.process_set(|settings| settings.quota.disk = Some(ByteSize::new(MEBIBYTE + 1500))).await;
    let info = create(&service, small()).await;
    write(&service, &info.id, "file", &[7; 1000]).await;
    for kind_of_failure in [ErrorKind::Internal, ErrorKind::LimitExceeded] {
        world.host.fail(Operation::Save, 1, kind_of_failure);
        assert_eq!(kind(service.save(&owner(), &info.id, &name("lab")).await), kind_of_failure);
    }
    // As a process leaves it that dies in the middle.
    let left = world.state.path().join("ledger/saving/0.json");
    std::fs::write(&left, format!("{{\"owner\":\"{}\",\"name\":\"x\",\"bytes\":1000}}", owner())).unwrap();
    service.save(&owner(), &info.id, &name("lab")).await.unwrap();
    assert!(!left.exists());
}

#[tokio::test]
async fn a_sandbox_that_grew_while_it_was_saved_is_not_saved_beyond_the_quota() {
    let world = World::new();
    let service = world.process_set(|settings| settings.quota.disk = Some(ByteSize::new(MEBIBYTE + 1500))).await;
    let info = create(&service, small()).await;
    write(&service, &info.id, "file", &[7; 1000]).await;
    world.host.delay(Operation::Save, Duration::from_millis(500));
    let save = tokio::spawn({
        let (service, id) = (service.clone(), info.id.clone());
        async move { service.save(&owner(), &id, &name("lab")).await }
    });
    while world.host.calls(Operation::Save) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    write(&service, &info.id, "more", &[7; 1000]).await;
    assert_eq!(kind(save.await.unwrap()), ErrorKind::LimitExceeded);
    assert!(service.saved(&owner()).await.unwrap().is_empty());
}
