//! Persistent sandboxes that their operator stops and starts, or that are killed on the way.

use std::time::Duration;

use bollard::models::ContainerConfig;
use bollard::query_parameters::{
    KillContainerOptionsBuilder, RemoveVolumeOptions, RestartContainerOptionsBuilder, StartContainerOptions,
    StopContainerOptions,
};
use engine_docker::{DockerEngine, Flavour};
use sandbox::{Engine, ErrorKind, ExecRequest, Lifetime, Persistence, Rest, SandboxId, SandboxSpec};

use crate::Case;
use crate::world::{self, World, eventually, make, spec};

pub const CASES: &[Case] = &[
    ("stops::a_stop_keeps_all_files", |world| Box::pin(kept(world))),
    ("stops::a_signal_that_the_image_names_is_not_waited_for", |world| Box::pin(signals(world))),
    ("stops::its_operator_can_start_it_too", |world| Box::pin(restarted(world))),
    ("stops::a_stopped_one_is_listed_and_left_at_rest", |world| Box::pin(listed(world))),
    ("stops::a_stopped_one_is_removed_whole", |world| Box::pin(destroyed(world))),
    ("stops::one_whose_time_is_over_is_removed_whole", |world| Box::pin(over(world))),
    ("stops::one_that_was_killed_says_what_is_lost", |world| Box::pin(killed(world))),
    ("stops::a_stop_that_is_cut_off_leaves_the_last_one_valid", |world| Box::pin(cut_off(world))),
    ("stops::volumes_of_an_image_are_kept_too", |world| Box::pin(image_volumes(world))),
    ("stops::the_commands_that_are_told_are_those_that_work", |world| Box::pin(told(world))),
    ("stops::what_is_kept_is_closed_to_programs", |world| Box::pin(closed(world))),
    ("stops::volumes_without_a_sandbox_are_swept", |world| Box::pin(swept(world))),
    ("stops::an_ephemeral_one_ends_at_once", |world| Box::pin(ephemeral(world))),
];

fn persistent() -> SandboxSpec {
    SandboxSpec { persistence: Persistence::Persistent, ..spec() }
}

fn name(id: &SandboxId) -> String {
    format!("sandpen-{id}")
}

fn volume(id: &SandboxId) -> String {
    format!("sandpen-kept-{id}")
}

/// A stop by somebody else is seen a moment later; who comes in between is told to try again, and does.
async fn says(engine: &DockerEngine, id: &SandboxId, script: &str) -> String {
    let request = ExecRequest::shell("true", Duration::from_secs(30)).unwrap();
    eventually("it answers", async || match engine.start(id, &request).await {
        Ok(process) => process.control.wait().await.is_ok(),
        Err(error) if error.kind() == ErrorKind::Unavailable => false,
        Err(error) => panic!("{error}"),
    })
    .await;
    world::says(engine, id, script).await
}

async fn stop(world: &World, id: &SandboxId) {
    world.docker.stop_container(&name(id), None::<StopContainerOptions>).await.unwrap();
}

async fn start(world: &World, id: &SandboxId) {
    world.docker.start_container(&name(id), None::<StartContainerOptions>).await.unwrap();
}

async fn kill(world: &World, id: &SandboxId) {
    let options = KillContainerOptionsBuilder::default().signal("KILL").build();
    world.docker.kill_container(&name(id), Some(options)).await.unwrap();
    eventually("it has ended", async || rest(&world.engine().await, id).await.is_some()).await;
}

async fn rest(engine: &DockerEngine, id: &SandboxId) -> Option<Rest> {
    engine.list().await.unwrap().into_iter().find(|found| found.id == *id).and_then(|found| found.rest)
}

/// Nothing of it is at the daemon.
async fn assert_gone(world: &World, id: &SandboxId) {
    assert!(world.containers(&name(id)).await.is_empty());
    assert!(!world.volumes().await.contains(&volume(id)), "its volume is left");
}

const FILL: &str =
    "mkdir -p d/closed; echo 1 > d/file; ln d/file again; ln -s d/file link; mkfifo fifo; chmod 0400 d/file
    echo x > d/closed/x; chmod 0 d/closed; echo t > /tmp/t; echo h > ~/h; echo run > program; chmod 0755 program
    touch -d '2001-02-03 04:05:06' program; dd if=/dev/zero of=sparse bs=1 count=1 seek=10G 2>&1 | tail -n 0";
const LOOK: &str = "cat d/file link /tmp/t ~/h; find again d/closed sparse program -maxdepth 0 -printf '%p %m %n %s\\n'
    find program -printf '%Ts\\n'
    test -p fifo && echo fifo; chmod 0700 d/closed; cat d/closed/x; chmod 0 d/closed; readlink link";

async fn kept(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &persistent()).await;
    says(&engine, &id, FILL).await;
    let before = says(&engine, &id, LOOK).await;
    assert!(before.contains("again 400 2 2") && before.contains("fifo"), "{before}");
    for round in 0..2 {
        let sleeping = ExecRequest::shell("sleep 100", Duration::from_secs(60)).unwrap();
        let process = engine.start(&id, &sleeping).await.unwrap();
        stop(&world, &id).await;
        assert_eq!(process.control.wait().await.unwrap().status, sandbox::ExecStatus::Killed);
        assert_eq!(says(&engine, &id, LOOK).await, before, "round {round}");
    }
    // Another process finds it as well.
    stop(&world, &id).await;
    drop(engine);
    let engine = world.engine().await;
    assert_eq!(says(&engine, &id, LOOK).await, before);
    engine.destroy(&id).await.unwrap();
    assert_gone(&world, &id).await;
}

async fn signals(world: World) {
    let engine = world.engine().await;
    for signal in ["SIGQUIT", "SIGINT", "SIGWINCH"] {
        // One takes it as a setting of a commit, the other as an instruction.
        let (instructions, stop_signal) = match world.place.flavour {
            Flavour::Docker => ("LABEL stop=1".to_owned(), Some(signal.to_owned())),
            Flavour::Podman => (format!("STOPSIGNAL {signal}"), None),
        };
        let settings = ContainerConfig { stop_signal, ..ContainerConfig::default() };
        let image = world.image_with("sandpen-stop-signal", &instructions, None, settings).await;
        let inspected = world.docker.inspect_image(&image).await.unwrap();
        assert!(inspected.config.unwrap().stop_signal.is_some(), "the image does not say it");
        let wanted = SandboxSpec { image: image.parse().map(sandbox::Image::Named).unwrap(), ..persistent() };
        let id = make(&engine, &wanted).await;
        says(&engine, &id, "echo 1 > file").await;
        stop(&world, &id).await;
        assert_eq!(rest(&engine, &id).await, Some(Rest::Stopped), "{signal}");
        assert_eq!(says(&engine, &id, "cat file").await, "1\n", "{signal}");
        engine.destroy(&id).await.unwrap();
        world.remove_image(&image).await;
    }
}

async fn restarted(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &persistent()).await;
    says(&engine, &id, "echo 1 > file").await;
    // Asked without a time, Podman's service gives none; its command line gives the container's own.
    let options = RestartContainerOptionsBuilder::default().t(60).build();
    world.docker.restart_container(&name(&id), Some(options)).await.unwrap();
    assert_eq!(says(&engine, &id, "cat file; echo 2 > file").await, "1\n");
    stop(&world, &id).await;
    start(&world, &id).await;
    assert_eq!(rest(&engine, &id).await, None);
    let quiet = engine.usage(&id).await.unwrap().quiet.expect("to start it is to use it");
    assert!(quiet < Duration::from_secs(60), "{quiet:?}");
    assert_eq!(says(&engine, &id, "cat file").await, "2\n");
    engine.destroy(&id).await.unwrap();
}

async fn listed(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &persistent()).await;
    stop(&world, &id).await;
    assert_eq!(rest(&engine, &id).await, Some(Rest::Stopped));
    assert_eq!(engine.usage(&id).await.unwrap_err().kind(), ErrorKind::WrongState);
    assert!(engine.isolation(&id).await.is_ok());
    engine.set_deadline(&id, Some(Duration::ZERO)).await.unwrap();
    assert_eq!(rest(&world.engine().await, &id).await, Some(Rest::Stopped), "a look does not start it");
    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = DockerEngine::start(world.place.config(elsewhere.path())).await.unwrap();
    assert!(stranger.list().await.unwrap().is_empty());
    assert_eq!(stranger.usage(&id).await.unwrap_err().kind(), ErrorKind::NotFound);
    stranger.destroy(&id).await.unwrap();
    assert_eq!(says(&engine, &id, "echo there").await, "there\n");
    engine.destroy(&id).await.unwrap();
}

async fn destroyed(world: World) {
    let engine = world.engine().await;
    let ids = [make(&engine, &persistent()).await, make(&engine, &persistent()).await];
    for id in &ids {
        stop(&world, id).await;
    }
    engine.destroy(&ids[0]).await.unwrap();
    assert_gone(&world, &ids[0]).await;
    drop(engine);
    world.engine().await.destroy(&ids[1]).await.unwrap();
    assert_gone(&world, &ids[1]).await;
}

async fn over(world: World) {
    let engine = world.engine().await;
    let lifetime = Lifetime { idle: Duration::from_secs(1), ..Lifetime::default() };
    let idle = make(&engine, &SandboxSpec { lifetime, ..persistent() }).await;
    let due = make(&engine, &persistent()).await;
    engine.set_deadline(&due, Some(Duration::from_millis(300))).await.unwrap();
    drop(engine);
    for id in [idle, due] {
        eventually("its time ends it", async || {
            world.engine().await.list().await.unwrap();
            world.containers(&name(&id)).await.is_empty()
        })
        .await;
        assert_gone(&world, &id).await;
    }
}

async fn killed(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &persistent()).await;
    says(&engine, &id, "echo first > file").await;
    stop(&world, &id).await;
    says(&engine, &id, "echo second > file").await;
    kill(&world, &id).await;
    assert_eq!(rest(&engine, &id).await, Some(Rest::Interrupted));
    let request = ExecRequest::shell("true", Duration::from_secs(5)).unwrap();
    let error = engine.start(&id, &request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongState);
    assert!(error.message().contains("lost"), "{error}");
    assert!(error.hint().unwrap_or_default().contains(&format!("start {}", name(&id))), "{error:?}");
    // Its operator knows, and goes on.
    start(&world, &id).await;
    assert_eq!(says(&engine, &id, "cat file").await, "first\n");
    engine.destroy(&id).await.unwrap();

    let never = make(&engine, &persistent()).await;
    kill(&world, &never).await;
    start(&world, &never).await;
    eventually("it says that nothing is left", async || {
        let Err(error) = engine.start(&never, &request).await else { return false };
        error.message().contains("its files are lost")
    })
    .await;
    engine.destroy(&never).await.unwrap();
    assert_gone(&world, &never).await;
}

async fn cut_off(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &persistent()).await;
    says(&engine, &id, "echo first > file").await;
    stop(&world, &id).await;
    for delay in [0, 20, 60, 150] {
        says(&engine, &id, "echo second > file; head -c 100000000 /dev/urandom > large").await;
        let term = KillContainerOptionsBuilder::default().signal("TERM").build();
        world.docker.kill_container(&name(&id), Some(term)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(delay)).await;
        let options = KillContainerOptionsBuilder::default().signal("KILL").build();
        let _ = world.docker.kill_container(&name(&id), Some(options)).await;
        eventually("it has ended", async || rest(&engine, &id).await.is_some()).await;
        let whole = match rest(&engine, &id).await {
            Some(Rest::Stopped) => true,
            Some(Rest::Interrupted) => false,
            None => unreachable!("it was seen at rest"),
        };
        start(&world, &id).await;
        let found = says(&engine, &id, "cat file; test -e large && find large -printf '%s\\n'; rm -f large").await;
        let wanted = if whole { "second\n100000000\n" } else { "first\n" };
        // One that was killed after its new files had their name has them too.
        assert!(found == wanted || found == "second\n100000000\n", "{delay}: {found}");
        says(&engine, &id, "echo first > file").await;
        stop(&world, &id).await;
    }
    engine.destroy(&id).await.unwrap();
    assert_gone(&world, &id).await;
}

async fn image_volumes(world: World) {
    let image = world.image("sandpen-kept-volumes", "VOLUME /data").await;
    let engine = world.engine().await;
    let wanted = SandboxSpec { image: image.parse().map(sandbox::Image::Named).unwrap(), ..persistent() };
    let id = make(&engine, &wanted).await;
    says(&engine, &id, "mkdir /data/d; echo 1 > /data/d/file").await;
    stop(&world, &id).await;
    let looks = says(&engine, &id, "cat /data/d/file; find /data -maxdepth 0 -printf '%U:%m\\n'").await;
    assert_eq!(looks, "1\n1000:755\n");
    engine.destroy(&id).await.unwrap();
    world.remove_image(&image).await;
}

async fn told(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &persistent()).await;
    let reach = engine.reach(&id).await.unwrap().expect("a daemon has tools");
    let (name, client) = (name(&id), world.client());
    assert_eq!(reach.enter, format!("{client} exec -it --user 1000:1000 --workdir /workspace {name} sh"));
    assert_eq!(reach.stop.unwrap(), format!("{client} stop {name}"));
    stop(&world, &id).await;
    let reach = engine.reach(&id).await.unwrap().expect("also while it is stopped");
    assert_eq!(reach.start.unwrap(), format!("{client} start {name}"));
    assert_eq!(reach.remove, format!("{client} rm --force {name} && {client} volume rm {}", volume(&id)));
    assert_eq!(rest(&engine, &id).await, Some(Rest::Stopped), "to ask does not start it");
    // What is told, by the same daemon.
    world.remove(&name).await;
    world.docker.remove_volume(&volume(&id), None::<RemoveVolumeOptions>).await.unwrap();
    assert_eq!(engine.usage(&id).await.unwrap_err().kind(), ErrorKind::NotFound);
    engine.destroy(&id).await.unwrap();
    assert_gone(&world, &id).await;
    let ephemeral = make(&engine, &spec()).await;
    assert_eq!(engine.reach(&ephemeral).await.unwrap(), None);
    engine.destroy(&ephemeral).await.unwrap();
}

async fn closed(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &persistent()).await;
    stop(&world, &id).await;
    let script = "find /.sandpen-kept -maxdepth 0 -printf '%u %m\\n'; find /.sandpen-kept -mindepth 1; \
                  echo x > /.sandpen-kept/x; id -u";
    let said = says(&engine, &id, script).await;
    assert!(said.starts_with("root 700\n") && said.ends_with("1000\n"), "{said}");
    assert_eq!(said.matches("ermission denied").count(), 2, "{said}");
    engine.destroy(&id).await.unwrap();
}

async fn swept(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &persistent()).await;
    drop(engine);
    world.remove(&name(&id)).await;
    assert!(world.volumes().await.contains(&volume(&id)));
    let other = format!("sandpen-kept-{}", SandboxId::random().unwrap());
    let wanted = bollard::models::VolumeCreateRequest { name: Some(other.clone()), ..Default::default() };
    world.docker.create_volume(wanted).await.unwrap();
    world.engine().await.list().await.unwrap();
    assert_gone(&world, &id).await;
    assert!(world.volumes().await.contains(&other), "one without our label is somebody else's");
    world.docker.remove_volume(&other, None::<RemoveVolumeOptions>).await.unwrap();
}

async fn ephemeral(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &spec()).await;
    let started = std::time::Instant::now();
    let _ = world.docker.stop_container(&name(&id), None::<StopContainerOptions>).await;
    eventually("it is gone", async || world.containers(&name(&id)).await.is_empty()).await;
    assert!(started.elapsed() < Duration::from_secs(8), "it was waited for: {:?}", started.elapsed());
    assert_eq!(engine.usage(&id).await.unwrap_err().kind(), ErrorKind::NotFound);
}
