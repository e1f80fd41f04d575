use std::sync::Arc;
use std::time::{Duration, Instant};

use super::subject::{Subject, command, eventually, finish, is_listed, kind, path, seconds, shell, spec};
use super::suite;
use crate::engine::Engine;
use crate::error::ErrorKind;
use crate::exec::ExecStatus;
use crate::id::SandboxId;
use crate::isolation::Layer;
use crate::spec::Persistence;

suite! { "life", Nothing:
    it_says_what_it_can,
    a_sandbox_is_made_and_destroyed,
    destroying_twice_is_a_success,
    a_second_one_with_the_same_id_is_refused,
    the_list_says_whose_it_is,
    a_persistent_one_is_listed_as_such,
    an_image_that_does_not_exist_is_refused,
    a_create_that_is_dropped_leaves_nothing,
    two_sandboxes_share_nothing,
    destroying_ends_what_runs,
    a_deadline_ends_it,
    a_renewed_deadline_is_in_force,
    a_deadline_can_be_taken_back,
    usage_is_told,
    every_layer_is_reported_once,
    many_at_once,
}

async fn it_says_what_it_can(engine: Arc<dyn Engine>) {
    let capabilities = engine.capabilities().await.unwrap();
    assert!(!capabilities.name.is_empty());
}

async fn a_sandbox_is_made_and_destroyed(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(Arc::clone(&engine)).await;
    let id = sandbox.id.clone();
    assert!(is_listed(&engine, &id).await);
    sandbox.destroy().await;
    assert!(!is_listed(&engine, &id).await);

    let files = engine.files(&id);
    let kinds = [
        kind(engine.start(&id, &command(&["true"])).await),
        kind(engine.usage(&id).await),
        kind(engine.isolation(&id).await),
        kind(engine.set_deadline(&id, Some(seconds(1))).await),
        kind(files.stat(&path("/workspace")).await),
        kind(files.read(&path("x"), Default::default()).await),
        kind(files.write(&path("x"), Default::default()).await),
        kind(files.remove(&path("x")).await),
        kind(files.make_directory(&path("x")).await),
        kind(files.pack(&path("/workspace")).await),
        kind(files.unpack(&path("/workspace")).await),
    ];
    assert_eq!(kinds, [ErrorKind::NotFound; 11]);
}

async fn destroying_twice_is_a_success(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(Arc::clone(&engine)).await;
    let id = sandbox.id.clone();
    let (first, second) = tokio::join!(engine.destroy(&id), engine.destroy(&id));
    first.unwrap();
    second.unwrap();
    engine.destroy(&id).await.unwrap();
    engine.destroy(&SandboxId::random().unwrap()).await.unwrap();
}

async fn a_second_one_with_the_same_id_is_refused(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(Arc::clone(&engine)).await;
    sandbox.write("mark", b"first").await;
    assert_eq!(kind(engine.create(&sandbox.id, &spec()).await), ErrorKind::AlreadyExists);
    assert_eq!(sandbox.read("mark").await, b"first");
    sandbox.destroy().await;
}

async fn the_list_says_whose_it_is(engine: Arc<dyn Engine>) {
    let mut wanted = spec();
    wanted.owner = "some-owner".parse().unwrap();
    wanted.name = Some("some-name".parse().unwrap());
    let sandbox = Subject::with(Arc::clone(&engine), wanted.clone()).await;
    let listed = engine.list().await.unwrap();
    let found = listed.iter().find(|listed| listed.id == sandbox.id).unwrap();
    assert_eq!((&found.owner, &found.name, found.persistence), (&wanted.owner, &wanted.name, Persistence::Ephemeral));
    sandbox.destroy().await;
}

async fn a_persistent_one_is_listed_as_such(engine: Arc<dyn Engine>) {
    let mut wanted = spec();
    wanted.persistence = Persistence::Persistent;
    if !engine.capabilities().await.unwrap().persistence {
        let id = SandboxId::random().unwrap();
        assert_eq!(kind(engine.create(&id, &wanted).await), ErrorKind::Unsupported);
        return;
    }
    let sandbox = Subject::with(Arc::clone(&engine), wanted).await;
    engine.set_deadline(&sandbox.id, Some(seconds(120))).await.unwrap();
    let listed = engine.list().await.unwrap();
    let found = listed.iter().find(|listed| listed.id == sandbox.id).unwrap();
    assert_eq!(found.persistence, Persistence::Persistent);
    assert_eq!(sandbox.says("echo works").await, "works\n");
    let id = sandbox.id.clone();
    sandbox.destroy().await;
    assert!(!is_listed(&engine, &id).await);
}

async fn an_image_that_does_not_exist_is_refused(engine: Arc<dyn Engine>) {
    for image in ["dir:/nonexistent/image", "tar:/nonexistent/image.tar", "no-such-image:1"] {
        let id = SandboxId::random().unwrap();
        let mut wanted = spec();
        wanted.image = image.parse().unwrap();
        let refused = kind(engine.create(&id, &wanted).await);
        assert!(
            matches!(refused, ErrorKind::NotFound | ErrorKind::InvalidInput | ErrorKind::Unsupported),
            "{refused:?}"
        );
        assert!(!is_listed(&engine, &id).await);
    }
}

async fn a_create_that_is_dropped_leaves_nothing(engine: Arc<dyn Engine>) {
    for micros in [0, 50, 200, 500, 1000, 2000, 4000, 8000, 16_000] {
        let id = SandboxId::random().unwrap();
        let made = tokio::time::timeout(Duration::from_micros(micros), engine.create(&id, &spec())).await;
        match made {
            Ok(result) => {
                result.unwrap();
                engine.destroy(&id).await.unwrap();
            }
            Err(_) => {
                eventually("the dropped create was cleared away", seconds(5), || async {
                    !is_listed(&engine, &id).await
                })
                .await;
                engine.destroy(&id).await.unwrap();
            }
        }
        assert_eq!(kind(engine.usage(&id).await), ErrorKind::NotFound);
    }
}

async fn two_sandboxes_share_nothing(engine: Arc<dyn Engine>) {
    let (first, second) = (Subject::new(Arc::clone(&engine)).await, Subject::new(engine).await);
    first.write("mine", b"1").await;
    first.write("/tmp/mine", b"1").await;
    assert!(!second.exists("mine").await && !second.exists("/tmp/mine").await);
    assert_eq!(second.says("cat mine /tmp/mine 2> /tmp/err || echo none").await, "none\n");
    first.destroy().await;
    assert_eq!(second.says("echo alive").await, "alive\n");
    second.destroy().await;
}

async fn destroying_ends_what_runs(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(engine).await;
    let process = sandbox.start(&shell("sleep 100")).await;
    let engine = Arc::clone(&sandbox.engine);
    let id = sandbox.id.clone();
    let (ended, destroyed) = tokio::join!(finish(process), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        engine.destroy(&id).await
    });
    destroyed.unwrap();
    assert_eq!(ended.status(), ExecStatus::Killed);
}

async fn a_deadline_ends_it(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(Arc::clone(&engine)).await;
    let process = sandbox.start(&shell("sleep 100")).await;
    engine.set_deadline(&sandbox.id, Some(Duration::from_millis(300))).await.unwrap();
    assert!(is_listed(&engine, &sandbox.id).await);
    let ended = tokio::time::timeout(seconds(10), finish(process)).await.expect("the deadline did not end it");
    assert_eq!(ended.status(), ExecStatus::Killed);
    eventually("it is gone", seconds(5), || async { !is_listed(&engine, &sandbox.id).await }).await;
    assert_eq!(kind(engine.set_deadline(&sandbox.id, Some(seconds(9))).await), ErrorKind::NotFound, "a late renewal");
    assert_eq!(kind(engine.start(&sandbox.id, &command(&["true"])).await), ErrorKind::NotFound);
    sandbox.destroy().await;
}

async fn a_renewed_deadline_is_in_force(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(Arc::clone(&engine)).await;
    let started = Instant::now();
    engine.set_deadline(&sandbox.id, Some(Duration::from_millis(800))).await.unwrap();
    while started.elapsed() < seconds(2) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        engine.set_deadline(&sandbox.id, Some(Duration::from_millis(800))).await.unwrap();
    }
    assert_eq!(sandbox.says("echo alive").await, "alive\n");
    eventually("the last deadline counts", seconds(8), || async { !is_listed(&engine, &sandbox.id).await }).await;
    sandbox.destroy().await;
}

async fn a_deadline_can_be_taken_back(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(Arc::clone(&engine)).await;
    engine.set_deadline(&sandbox.id, Some(Duration::from_millis(500))).await.unwrap();
    engine.set_deadline(&sandbox.id, None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(sandbox.says("echo alive").await, "alive\n");
    sandbox.destroy().await;
}

async fn usage_is_told(engine: Arc<dyn Engine>) {
    let sandbox = Subject::new(Arc::clone(&engine)).await;
    if engine.capabilities().await.unwrap().usage {
        let before = engine.usage(&sandbox.id).await.unwrap();
        sandbox.write("big", &vec![7; 1 << 20]).await;
        let after = engine.usage(&sandbox.id).await.unwrap();
        if let (Some(before), Some(after)) = (before.disk, after.disk) {
            assert!(after >= before + (1 << 20), "{before} then {after}");
        }
    }
    sandbox.destroy().await;
}

async fn every_layer_is_reported_once(engine: Arc<dyn Engine>) {
    let mut wanted = spec();
    wanted.limits.processes = 50;
    let sandbox = Subject::with(Arc::clone(&engine), wanted).await;
    let report = engine.isolation(&sandbox.id).await.unwrap();
    let layers: Vec<Layer> = report.layers.iter().map(|report| report.layer).collect();
    assert_eq!(layers, Layer::ALL);
    assert!(report.layers.iter().all(|report| !report.detail.is_empty()), "{report:?}");
    assert!(report.limits.processes <= 50);
    assert!(!report.tier.is_empty());
    sandbox.destroy().await;
}

async fn many_at_once(engine: Arc<dyn Engine>) {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16 {
        let engine = Arc::clone(&engine);
        tasks.spawn(async move {
            let mut ids = Vec::new();
            for _ in 0..3 {
                let sandbox = Subject::new(Arc::clone(&engine)).await;
                assert_eq!(sandbox.says(&format!("echo {number}")).await, format!("{number}\n"));
                ids.push(sandbox.id.clone());
                sandbox.destroy().await;
            }
            ids
        });
    }
    let made: Vec<SandboxId> = tasks.join_all().await.into_iter().flatten().collect();
    let left = engine.list().await.unwrap();
    assert!(left.iter().all(|sandbox| !made.contains(&sandbox.id)), "{left:?}");
}
