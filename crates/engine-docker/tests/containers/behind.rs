//! What others do to the daemon meanwhile, and what we do not do to them.

use std::collections::HashMap;
use std::time::Duration;

use bollard::query_parameters::RemoveVolumeOptions;
use engine_docker::{DockerConfig, DockerEngine, Wish};
use sandbox::{ByteRange, Engine, ErrorKind, Persistence, SandboxSpec, WriteOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Case;
use crate::world::{World, eventually, make, says, spec};

pub const CASES: &[Case] = &[
    ("behind::a_persistent_one_is_found_by_the_next_process", |world| Box::pin(found_again(world))),
    ("behind::what_others_remove_is_gone", |world| Box::pin(removed(world))),
    ("behind::process_1_is_brought_again_when_its_volume_is_gone", |world| Box::pin(without_volume(world))),
    ("behind::containers_of_others_are_left_alone", |world| Box::pin(bystanders(world))),
    ("behind::what_a_dead_process_left_is_removed", |world| Box::pin(left_behind(world))),
    ("behind::a_sandbox_is_a_container_that_was_made_ahead", |world| Box::pin(taken(world))),
    ("behind::an_engine_that_ends_takes_its_sandboxes_along", |world| Box::pin(ended(world))),
    ("behind::no_daemon_is_said_with_all_that_was_tried", |world| Box::pin(nobody(world))),
];

async fn found_again(world: World) {
    let first = world.engine().await;
    let wanted = SandboxSpec { persistence: Persistence::Persistent, ..spec() };
    let id = make(&first, &wanted).await;
    let mut file = first.files(&id).write(&"kept".parse().unwrap(), WriteOptions::default()).await.unwrap();
    file.write_all(b"kept").await.unwrap();
    file.commit().await.unwrap();
    drop(first);

    let second = world.engine().await;
    let listed = second.list().await.unwrap();
    assert_eq!(listed.iter().map(|found| &found.id).collect::<Vec<_>>(), [&id]);
    let mut read = second.files(&id).read(&"kept".parse().unwrap(), ByteRange::default()).await.unwrap();
    let mut text = String::new();
    read.stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "kept");
    assert_eq!(says(&second, &id, "cat kept; echo; id -u").await, "kept\n1000\n");
    assert_eq!(second.isolation(&id).await.unwrap().limits.processes, wanted.limits.processes);

    // Another installation sees the same daemon and none of it.
    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = DockerEngine::start(world.place.config(elsewhere.path())).await.unwrap();
    assert!(stranger.list().await.unwrap().is_empty());
    assert_eq!(stranger.usage(&id).await.unwrap_err().kind(), ErrorKind::NotFound);
    stranger.destroy(&id).await.unwrap();
    assert_eq!(says(&second, &id, "echo still here").await, "still here\n");

    second.destroy(&id).await.unwrap();
    assert!(world.containers(&format!("sandpen-{id}")).await.is_empty());
}

async fn removed(world: World) {
    let engine = world.engine().await;
    for persistence in [Persistence::Ephemeral, Persistence::Persistent] {
        let id = make(&engine, &SandboxSpec { persistence, ..spec() }).await;
        let sleeping = sandbox::ExecRequest::shell("sleep 100", Duration::from_secs(60)).unwrap();
        let process = engine.start(&id, &sleeping).await.unwrap();
        world.remove(&format!("sandpen-{id}")).await;
        assert_eq!(process.control.wait().await.unwrap().status, sandbox::ExecStatus::Killed);
        assert_eq!(engine.start(&id, &sleeping).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(engine.files(&id).stat(&"/".parse().unwrap()).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert!(engine.list().await.unwrap().iter().all(|found| found.id != id));
        engine.destroy(&id).await.unwrap();
    }
}

async fn without_volume(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &spec()).await;
    engine.destroy(&id).await.unwrap();
    let volumes = world.volumes().await;
    let ours = volumes.into_iter().filter(|name| name.starts_with("sandpen-agent-"));
    let mut removed = 0;
    for name in ours {
        // Those of tests that run beside this one are in use.
        removed += usize::from(world.docker.remove_volume(&name, None::<RemoveVolumeOptions>).await.is_ok());
    }
    let id = make(&engine, &spec()).await;
    assert_eq!(says(&engine, &id, "echo works").await, "works\n", "{removed} removed");
    engine.destroy(&id).await.unwrap();
}

async fn bystanders(world: World) {
    let engine = world.engine().await;
    engine.list().await.unwrap();
    let installation = world.installation();
    // As a container of an image that was made of one of ours.
    let labelled =
        world.bystander(&format!("other-{installation}"), &[("org.sandpen.installation", &installation)]).await;
    let id = make(&engine, &spec()).await;
    engine.list().await.unwrap();
    engine.destroy(&id).await.unwrap();
    engine.list().await.unwrap();
    assert_eq!(world.containers(&format!("other-{installation}")).await.len(), 1);
    world.remove(&labelled).await;
}

async fn left_behind(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &spec()).await;
    let name = format!("sandpen-{id}");
    let inspected = world.docker.inspect_container(&name, None).await.unwrap();
    let labels = inspected.config.unwrap().labels.unwrap();
    engine.destroy(&id).await.unwrap();

    // What a process leaves that dies between making a container and starting it.
    let dead = [("org.sandpen.instance", "in-23456789abcdefgh")];
    let labels: Vec<(&str, &str)> = labels
        .iter()
        .map(|(label, value)| (label.as_str(), value.as_str()))
        .map(|(label, value)| dead.iter().copied().find(|(dead, _)| *dead == label).unwrap_or((label, value)))
        .collect();
    world.bystander(&name, &labels).await;
    let carrier = format!("sandpen-carrier-{}-in-23456789abcdefgh-00", world.installation());
    world.bystander(&carrier, &[]).await;
    assert!(engine.list().await.unwrap().is_empty());
    assert!(world.containers(&name).await.is_empty());
    assert!(world.containers(&carrier).await.is_empty());
}

/// What is made ahead is what is used: a program in the sandbox ends with the container that was there before it.
async fn taken(world: World) {
    for _ in 0..4 {
        let engine = DockerEngine::start(DockerConfig { spares: 1, ..world.config() }).await.unwrap();
        let earlier = make(&engine, &spec()).await;
        let of_earlier = world.docker.inspect_container(&format!("sandpen-{earlier}"), None).await.unwrap().id;
        let label = format!("org.sandpen.installation={}", world.installation());
        let filters = HashMap::from([("label", vec![label.as_str()]), ("status", vec!["running"])]);
        let others = async || -> Vec<String> {
            let running = world.listed(&filters).await.into_iter().filter_map(|container| container.id);
            running.filter(|id| Some(id) != of_earlier.as_ref()).collect()
        };
        eventually("there is a spare", async || others().await.len() == 1).await;
        let spare = others().await.remove(0);
        // It runs, and some moments later it has been spoken to as well.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let id = make(&engine, &spec()).await;
        let sleeping = sandbox::ExecRequest::shell("sleep 100", Duration::from_secs(10)).unwrap();
        let process = engine.start(&id, &sleeping).await.unwrap();
        world.remove(&spare).await;
        if process.control.wait().await.unwrap().status == sandbox::ExecStatus::Killed {
            return;
        }
        drop(engine);
        let ours = HashMap::from([("label", vec![label.as_str()])]);
        eventually("nothing is left", async || world.listed(&ours).await.is_empty()).await;
    }
    panic!("no sandbox was a container that had been made ahead");
}

async fn ended(world: World) {
    let engine = DockerEngine::start(DockerConfig { spares: 1, ..world.config() }).await.unwrap();
    let id = make(&engine, &spec()).await;
    let label = format!("org.sandpen.installation={}", world.installation());
    let filters = HashMap::from([("label", vec![label.as_str()])]);
    let ours = async || world.listed(&filters).await.len();
    eventually("there is a spare", async || ours().await == 2).await;
    assert_eq!(says(&engine, &id, "echo alive").await, "alive\n");
    drop(engine);
    eventually("nothing is left", async || ours().await == 0).await;
}

async fn nobody(world: World) {
    let wish = Wish { host: Some("unix:///nonexistent/daemon.sock".to_owned()), context: None };
    let error = DockerEngine::start(DockerConfig { wish, ..world.config() }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("/nonexistent/daemon.sock"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("start")), "{error:?}");
}
