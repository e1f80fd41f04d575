//! A daemon that hangs in the middle of something: what is asked of it goes through a door that we can close.

use std::time::{Duration, Instant};

use bollard::models::SystemInfo;
use sandbox::{
    Checkpoints, Engine, Error, ErrorKind, Layer, LayerState, Persistence, Rest, SandboxId, SandboxSpec, Snapshots,
};

use crate::Case;
use crate::door::Door;
use crate::world::{World, eventually, make, says, spec};

pub const CASES: &[Case] = &[
    ("hangs::a_start_that_hangs_is_told_before_it_is_undone", |world| Box::pin(at_a_start(world))),
    ("hangs::a_container_that_is_made_late_is_removed", |world| Box::pin(made_late(world))),
    ("hangs::one_that_cannot_be_looked_at_hides_no_other", |world| Box::pin(broken(world))),
    ("hangs::a_restore_that_is_cut_off_is_not_taken_for_whole", |world| Box::pin(in_a_restore(world))),
    ("hangs::what_another_daemon_does_not_know_is_not_gone", |world| Box::pin(replaced(world))),
    ("hangs::a_daemon_that_was_set_up_anew_is_asked_what_it_can", |world| Box::pin(set_up_anew(world))),
    ("hangs::many_who_ask_are_told_together", |world| Box::pin(with_many(world))),
    ("hangs::a_list_with_many_that_ended_is_told_in_time", |world| Box::pin(at_a_list(world))),
    ("hangs::a_pull_is_waited_for_as_long_as_the_daemon_answers", |world| Box::pin(in_a_pull(world))),
    ("hangs::a_persistent_one_is_told_of_as_soon_as_any", |world| Box::pin(with_a_persistent_one(world))),
    ("hangs::files_that_do_not_get_through_are_given_up", |world| Box::pin(with_files(world))),
];

/// What is promised.
const PROMISED: Duration = Duration::from_secs(30);

async fn at_a_start(world: World) {
    let door = Door::open(&world);
    let engine = door.engine(&world).await;
    let first = make(&engine, &spec()).await;
    engine.destroy(&first).await.unwrap();
    door.close_at("/start");
    let id = SandboxId::random().unwrap();
    let started = Instant::now();
    is_unavailable(&engine.create(&id, &spec()).await.unwrap_err(), started);
    door.reopen();
    let name = format!("sandpen-{id}");
    eventually("what was half made is removed", async || world.containers(&name).await.is_empty()).await;
    let id = make(&engine, &spec()).await;
    assert_eq!(says(&engine, &id, "echo here").await, "here\n");
    engine.destroy(&id).await.unwrap();
}

/// A daemon does what it was asked for also when nobody waits for it any more, and was told to remove it before that.
async fn made_late(world: World) {
    let door = Door::open(&world);
    let engine = door.engine(&world).await;
    let running = make(&engine, &spec()).await;
    for persistence in [Persistence::Ephemeral, Persistence::Persistent] {
        door.hold_back("/containers/create");
        let id = SandboxId::random().unwrap();
        let started = Instant::now();
        let wanted = SandboxSpec { persistence, ..spec() };
        is_unavailable(&engine.create(&id, &wanted).await.unwrap_err(), started);
        door.let_through();
        let name = format!("sandpen-{id}");
        eventually("the daemon makes it all the same", async || !world.containers(&name).await.is_empty()).await;
        engine.list().await.unwrap();
        assert!(world.containers(&name).await.is_empty(), "{persistence:?}");
        assert!(!world.volumes().await.contains(&format!("sandpen-kept-{id}")), "its volume is left");
    }
    door.hold_back("/containers/create");
    let comparing = engine.changes(&running, None, 10);
    assert!(tokio::time::timeout(Duration::from_secs(2), comparing).await.is_err(), "nobody waits for it any more");
    door.let_through();
    let carriers = format!("sandpen-carrier-{}", world.installation());
    eventually("the daemon makes it all the same", async || !world.containers(&carriers).await.is_empty()).await;
    engine.list().await.unwrap();
    // Whoever had begun it removes it too, and two who remove the same do not wait for each other.
    eventually("nothing of it is left", async || world.containers(&carriers).await.is_empty()).await;
    assert_eq!(says(&engine, &running, "echo here").await, "here\n", "what runs is left alone");
    engine.destroy(&running).await.unwrap();
}

async fn broken(world: World) {
    let door = Door::open(&world);
    let engine = door.engine(&world).await;
    let persistent = SandboxSpec { persistence: Persistence::Persistent, ..spec() };
    let (one, other) = (make(&engine, &persistent).await, make(&engine, &persistent).await);
    let name = format!("sandpen-{one}");
    let stop = None::<bollard::query_parameters::StopContainerOptions>;
    world.docker.stop_container(&name, stop).await.unwrap();
    drop(engine);
    // The container of a third is gone, and its volume cannot be removed for the same reason.
    let engine = door.engine(&world).await;
    let third = make(&engine, &persistent).await;
    drop(engine);
    world.remove(&format!("sandpen-{third}")).await;
    let engine = door.engine(&world).await;
    door.refuse(vec![format!("/containers/{name}/json"), format!("/containers/sandpen-{third}/json")]);
    let listed = engine.list().await.unwrap();
    let rest = |id: &SandboxId| listed.iter().find(|found| found.id == *id).map(|found| found.rest);
    assert_eq!(rest(&one), Some(Some(Rest::Interrupted)), "what is not listed is taken for gone");
    assert_eq!(rest(&other), Some(None));
    assert!(world.volumes().await.contains(&format!("sandpen-kept-{third}")), "an error is no absence");
    door.let_through();
    let listed = engine.list().await.unwrap();
    assert!(listed.iter().any(|found| found.id == one && found.rest == Some(Rest::Stopped)));
    assert!(!world.volumes().await.contains(&format!("sandpen-kept-{third}")));
    engine.destroy(&one).await.unwrap();
    engine.destroy(&other).await.unwrap();
}

async fn in_a_restore(world: World) {
    let door = Door::open(&world);
    let engine = door.engine(&world).await;
    let id = make(&engine, &SandboxSpec { persistence: Persistence::Persistent, ..spec() }).await;
    says(&engine, &id, "head -c 150000000 /dev/urandom > large; echo small > ~/small").await;
    let look = "cat ~/small; sha256sum large";
    let before = says(&engine, &id, look).await;
    let first = engine.checkpoint(&id).await.unwrap();
    says(&engine, &id, "rm large; echo other > ~/small").await;
    let mark = world.kept().join("checkpoints").join(id.as_str()).join("restoring");
    let started = Instant::now();
    let begun = async {
        while !mark.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        door.close();
    };
    let (restored, ()) = tokio::join!(engine.restore(&id, first), begun);
    is_unavailable(&restored.unwrap_err(), started);
    door.reopen();
    // Another process must not take it for whole either.
    drop(engine);
    let engine = door.engine(&world).await;
    let command = sandbox::ExecRequest::shell("true", Duration::from_secs(5)).unwrap();
    let path = "/home/sandbox/small".parse().unwrap();
    for refused in [
        engine.start(&id, &command).await.map(drop),
        engine.files(&id).stat(&path).await.map(drop),
        engine.checkpoint(&id).await.map(drop),
        engine.changes(&id, Some(first), 10).await.map(drop),
        engine.save(&id, &"half".parse().unwrap()).await.map(drop),
    ] {
        let error = refused.expect_err("it has half of its files");
        assert_eq!(error.kind(), ErrorKind::WrongState, "{error:?}");
        assert!(error.message().contains("lacks files"), "{error:?}");
    }
    eventually("it goes back", async || engine.restore(&id, first).await.is_ok()).await;
    assert_eq!(says(&engine, &id, look).await, before);
    engine.destroy(&id).await.unwrap();
}

async fn replaced(world: World) {
    let door = Door::open(&world);
    let engine = door.engine(&world).await;
    let id = make(&engine, &SandboxSpec { persistence: Persistence::Persistent, ..spec() }).await;
    says(&engine, &id, "echo 1 > file").await;
    engine.checkpoint(&id).await.unwrap();
    door.lose("/containers/json");
    is_unavailable(&engine.list().await.unwrap_err(), Instant::now());
    door.pose();
    world.remove(&format!("sandpen-{id}")).await;
    let other = SandboxId::random().unwrap();
    for refused in [
        engine.list().await.map(drop),
        engine.create(&other, &spec()).await.map(drop),
        engine.usage(&id).await.map(drop),
        engine.destroy(&id).await,
    ] {
        let error = refused.expect_err("it is another daemon");
        assert!(error.message().contains("another"), "{error:?}");
    }
    assert!(world.containers(&format!("sandpen-{other}")).await.is_empty());
    let kept = [world.kept().join("keepsakes").join(id.as_str()), world.kept().join("checkpoints").join(id.as_str())];
    assert!(kept.iter().all(|path| path.exists()), "what the first one has is lost");
    door.let_through();
    eventually("it is gone on its own daemon", async || {
        engine.list().await.unwrap();
        kept.iter().all(|path| !path.exists())
    })
    .await;
}

/// It is the same daemon, and can do less than it could.
async fn set_up_anew(world: World) {
    let door = Door::open(&world);
    let engine = door.engine(&world).await;
    let id = make(&engine, &spec()).await;
    door.lose("/containers/json");
    is_unavailable(&engine.list().await.unwrap_err(), Instant::now());
    let whole = world.docker.info().await.unwrap();
    door.pose_as(&SystemInfo { security_options: None, memory_limit: Some(false), ..whole });
    let new = SandboxId::random().unwrap();
    for refused in [engine.capabilities().await.map(drop), engine.create(&new, &spec()).await.map(drop)] {
        let error = refused.expect_err("it lacks a wall");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert!(error.message().contains("layer"), "{error:?}");
    }
    assert!(world.containers(&format!("sandpen-{new}")).await.is_empty());
    let report = engine.isolation(&id).await.unwrap();
    assert_eq!(report.state(Layer::MemoryLimit), LayerState::Off, "what it is told of is not what there is");
    door.let_through();
    let again = make(&engine, &spec()).await;
    for id in [id, again] {
        engine.destroy(&id).await.unwrap();
    }
}

async fn with_many(world: World) {
    let door = Door::open(&world);
    let engine = door.engine(&world).await;
    let runners = engine.runners(|_| false);
    runners.list().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    door.close_at("/images/json");
    let started = Instant::now();
    let answers = tokio::join!(runners.list(), runners.list(), runners.refused(), runners.list());
    for error in [answers.0.unwrap_err(), answers.1.unwrap_err(), answers.2.unwrap_err(), answers.3.unwrap_err()] {
        is_unavailable(&error, started);
    }
    door.reopen();
    runners.list().await.unwrap();
}

async fn with_files(world: World) {
    let door = Door::open(&world);
    let engine = door.engine(&world).await;
    let id = make(&engine, &spec()).await;
    assert_eq!(says(&engine, &id, "head -c 20000000 /dev/urandom > large; echo made").await, "made\n");
    door.close_at("PUT ");
    let name = "hangs".parse().unwrap();
    let started = Instant::now();
    is_unavailable(&engine.save(&id, &name).await.unwrap_err(), started);
    door.reopen();
    assert_eq!(says(&engine, &id, "wc -c < large").await, "20000000\n", "it goes on");
    engine.save(&id, &name).await.unwrap();
    engine.destroy(&id).await.unwrap();
    assert!(engine.forget(&spec().owner, &name).await.unwrap());
}

/// Each that has ended is a question of its own.
async fn at_a_list(world: World) {
    let door = Door::open(&world);
    let engine = door.engine(&world).await;
    let ended = [make(&engine, &spec()).await, make(&engine, &spec()).await];
    for id in &ended {
        world.remove(&format!("sandpen-{id}")).await;
    }
    // For the engine to see that its streams have ended.
    tokio::time::sleep(Duration::from_secs(5)).await;
    door.close_at("DELETE ");
    let started = Instant::now();
    is_unavailable(&engine.list().await.unwrap_err(), started);
    door.reopen();
    eventually("they are seen to be gone", async || engine.list().await.is_ok_and(|listed| listed.is_empty())).await;
}

/// Nobody is where the image is to come from, which the daemon says when it is asked.
async fn in_a_pull(world: World) {
    let name = "127.0.0.1:9/sandpen/nowhere:1".parse().unwrap();
    let (slow, hung) = (Door::open(&world), Door::open(&world));
    let (of_slow, of_hung) = (slow.engine(&world).await, hung.engine(&world).await);
    slow.hold_back("/images/create");
    hung.close_at("/images/create");
    let started = Instant::now();
    let waited_for = async {
        let let_through = async {
            tokio::time::sleep(PROMISED + Duration::from_secs(5)).await;
            slow.let_through();
        };
        let (pulled, ()) = tokio::join!(of_slow.pull(&name, &|_| ()), let_through);
        let error = pulled.unwrap_err();
        assert!(error.message().contains("127.0.0.1:9"), "the daemon was not waited for: {error:?}");
    };
    let given_up = async {
        is_unavailable(&of_hung.pull(&name, &|_| ()).await.unwrap_err(), started);
    };
    tokio::join!(waited_for, given_up);
}

/// Before anything is done in one that its operator may have stopped, it is asked whether it is there.
async fn with_a_persistent_one(world: World) {
    let door = Door::open(&world);
    let engine = door.engine(&world).await;
    let persistent = make(&engine, &SandboxSpec { persistence: Persistence::Persistent, ..spec() }).await;
    let ephemeral = make(&engine, &spec()).await;
    for id in [&persistent, &ephemeral] {
        assert_eq!(says(&engine, id, "echo here").await, "here\n");
    }
    door.close();
    let started = Instant::now();
    let told = async |id: &SandboxId| {
        is_unavailable(&engine.usage(id).await.unwrap_err(), started);
        started.elapsed()
    };
    let (after, first) = tokio::join!(told(&persistent), told(&ephemeral));
    let later = after.saturating_sub(first);
    assert!(later < Duration::from_secs(2), "it was waited for {} ms longer", later.as_millis());
    door.reopen();
    for id in [&persistent, &ephemeral] {
        assert_eq!(says(&engine, id, "echo here").await, "here\n");
        engine.destroy(id).await.unwrap();
    }
}

fn is_unavailable(error: &Error, started: Instant) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let waited = started.elapsed();
    assert!(waited < PROMISED, "it took {} s to say that the daemon hangs", waited.as_secs());
}
