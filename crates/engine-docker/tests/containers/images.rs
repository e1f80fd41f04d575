//! Images that say how they want to be run.

use engine_docker::{DockerConfig, DockerEngine};
use sandbox::{Engine, ErrorKind, Image, Insistence, Persistence, Role, SandboxId, SandboxSpec, Snapshots};

use crate::Case;
use crate::world::{World, make, root_spec, says, spec};

/// An image of the test's daemon that has one program of ours and nothing else.
const SCRATCH: &str = "scratch:test";

pub const CASES: &[Case] = &[
    ("images::an_image_says_who_and_with_what", |world| Box::pin(user_and_environment(world))),
    ("images::volumes_are_in_memory_and_checks_are_not_run", |world| Box::pin(volumes_and_checks(world))),
    ("images::what_the_image_has_in_the_work_directory_is_there", |world| Box::pin(contents(world))),
    ("images::root_is_root_only_when_that_is_allowed", |world| Box::pin(root(world))),
    ("images::the_beginning_of_a_digest_is_no_name", |world| Box::pin(digests(world))),
    ("images::saved_ones_are_found_by_their_owner_alone", |world| Box::pin(saved(world))),
    ("images::one_that_is_being_replaced_is_nobody_elses_to_remove", |world| Box::pin(replaced(world))),
    ("images::a_user_that_is_not_there_is_said", |world| Box::pin(no_such_user(world))),
    ("images::nobody_is_sent_to_a_shell_that_is_not_there", |world| Box::pin(no_shell(world))),
];

fn from(image: &str) -> SandboxSpec {
    SandboxSpec { image: image.parse().unwrap(), ..spec() }
}

async fn user_and_environment(world: World) {
    let image = world.image("sandpen-who", "USER www-data\nENV GREETING=hello\nWORKDIR /srv").await;
    let engine = world.engine().await;
    let id = make(&engine, &from(&image)).await;
    let script = "id -u; id -g; echo $GREETING; pwd; echo $HOME; echo x > /workspace/x && echo x > ~/x && echo written";
    assert_eq!(says(&engine, &id, script).await, "33\n33\nhello\n/srv\n/home/sandbox\nwritten\n");
    engine.destroy(&id).await.unwrap();
    world.remove_image(&image).await;
}

async fn volumes_and_checks(world: World) {
    let image = world.image("sandpen-volumes", "VOLUME /data").await;
    let volumes = async || {
        let listed = world.volumes().await;
        listed.into_iter().filter(|name| !name.starts_with("sandpen-")).count()
    };
    let before = volumes().await;
    let engine = world.engine().await;
    let id = make(&engine, &from(&image)).await;
    assert_eq!(says(&engine, &id, "echo x > /data/x; grep ' /data ' /proc/mounts | cut -d' ' -f3").await, "tmpfs\n");
    let inspected = world.docker.inspect_container(&format!("sandpen-{id}"), None).await.unwrap();
    let check = inspected.config.unwrap().healthcheck.and_then(|check| check.test).unwrap_or_default();
    assert!(check.is_empty() || check == ["NONE"], "{check:?}");
    engine.destroy(&id).await.unwrap();
    assert_eq!(volumes().await, before, "volumes on the daemon's disk");
    world.remove_image(&image).await;
}

async fn contents(world: World) {
    let engine = DockerEngine::start(DockerConfig { spares: 1, ..world.config() }).await.unwrap();
    // Every Debian has files there.
    let wanted = SandboxSpec { work_directory: Some("/etc/skel".parse().unwrap()), ..spec() };
    for _ in 0..2 {
        let id = make(&engine, &wanted).await;
        let script = "pwd; ls -A | grep profile; echo more >> .profile && tail -n 1 .profile";
        assert_eq!(says(&engine, &id, script).await, "/etc/skel\n.profile\nmore\n");
        engine.destroy(&id).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
}

async fn root(world: World) {
    let engine = world.engine().await;
    let id = make(&engine, &spec()).await;
    assert_eq!(says(&engine, &id, "id -u").await, "1000\n", "an image without a word about it");
    assert_eq!(engine.isolation(&id).await.unwrap().user.id, 1000);
    engine.destroy(&id).await.unwrap();
    let id = make(&engine, &root_spec()).await;
    // gVisor does not know of ambient ones, and its root has no rights; elsewhere it has none that it could gain by exec.
    let sets = if world.is_gvisor() { 4 } else { 1 };
    let said = says(&engine, &id, "id -u; grep -c '^Cap.*0000000000000000' /proc/self/status").await;
    assert_eq!(said, format!("0\n{sets}\n"));
    let told = engine.isolation(&id).await.unwrap();
    assert!(told.layers.iter().any(|layer| layer.detail.contains("root of the container")), "{told:?}");
    assert_eq!(told.user.id, 0);
    engine.destroy(&id).await.unwrap();
    // What a wish may cost is not the files of a sandbox that is stopped.
    let wish =
        SandboxSpec { role: Role::ImageUser(Insistence::IfPossible), persistence: Persistence::Persistent, ..spec() };
    let id = make(&engine, &wish).await;
    let expected = if world.is_gvisor() { "1000\nsandbox\n" } else { "0\nroot\n" };
    assert_eq!(says(&engine, &id, "id -u; echo $USER").await, expected);
    engine.destroy(&id).await.unwrap();
}

async fn digests(world: World) {
    let engine = world.engine().await;
    let id = world.docker.inspect_image(&world.place.image).await.unwrap().id.unwrap();
    let hex = id.trim_start_matches("sha256:");
    for name in [&hex[..12], hex, &format!("sha256:{hex}")] {
        let id = SandboxId::random().unwrap();
        let refused = engine.create(&id, &from(name)).await.unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput), "{name}: {refused:?}");
    }
}

async fn saved(world: World) {
    let engine = world.engine().await;
    let ada = SandboxSpec { owner: "ada".parse().unwrap(), persistence: Persistence::Ephemeral, ..spec() };
    let id = make(&engine, &ada).await;
    says(&engine, &id, "echo secret > file").await;
    let name = "lab".parse().unwrap();
    let kept = engine.save(&id, &name).await.unwrap();
    engine.destroy(&id).await.unwrap();
    let inspected = world.docker.inspect_image(&kept.digest).await.unwrap();
    let place = inspected.repo_tags.unwrap().into_iter().next().unwrap();
    let bob = |image: Image| SandboxSpec { owner: "bob".parse().unwrap(), image, ..spec() };
    for image in [Image::Saved(name.clone()), place.parse().unwrap(), kept.digest[7..].parse().unwrap()] {
        let refused = engine.create(&SandboxId::random().unwrap(), &bob(image.clone())).await.unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::NotFound | ErrorKind::Denied), "{image}: {refused:?}");
    }
    // What is made of it elsewhere must not look like a sandbox of ours.
    let labels = inspected.config.unwrap().labels.unwrap_or_default();
    assert!(!labels.keys().any(|label| label == "org.sandpen.installation"), "{labels:?}");
    assert!(engine.forget(&ada.owner, &name).await.unwrap());
}

/// In the middle of a save the older image has a name that says so, and is to be lost neither to others nor for ever.
async fn replaced(world: World) {
    let config = world.config();
    let instance = config.instance.clone();
    let engine = DockerEngine::start(config).await.unwrap();
    let other = world.engine().await;
    other.list().await.unwrap();
    let repository = format!("saved.sandpen.invalid/{}/retired", world.installation());
    let tagged = async |tag: &str| {
        let options = bollard::query_parameters::TagImageOptionsBuilder::default().repo(&repository).tag(tag).build();
        world.docker.tag_image(&world.place.image, Some(options)).await.unwrap();
    };
    let names = async || {
        let inspected = world.docker.inspect_image(&world.place.image).await.unwrap();
        let names = inspected.repo_tags.unwrap_or_default().into_iter();
        names.filter_map(|name| Some(name.strip_prefix(&repository)?.to_owned())).collect::<Vec<_>>()
    };
    tagged(&format!("{instance}-00")).await;
    tagged("in-23456789abcdefgh-00").await;
    // Each engine looks for them when it begins.
    let third = world.engine().await;
    third.list().await.unwrap();
    assert_eq!(names().await, [format!(":{instance}-00")], "that of the dead goes, that of the living stays");
    engine.list().await.unwrap();
    assert!(names().await.is_empty(), "its own process knows that nobody needs it");
}

async fn no_such_user(world: World) {
    let image = world.image("sandpen-nobody", "USER nobody-here").await;
    let engine = world.engine().await;
    let refused = engine.create(&SandboxId::random().unwrap(), &from(&image)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused:?}");
    engine.list().await.unwrap();
    drop(engine);
    world.remove_image(&image).await;
}

async fn no_shell(world: World) {
    let engine = world.engine().await;
    for (image, program) in [(world.place.image.as_str(), "sh"), (SCRATCH, "PROGRAM")] {
        let id = make(&engine, &SandboxSpec { persistence: Persistence::Persistent, ..from(image) }).await;
        let enter = engine.reach(&id).await.unwrap().unwrap().enter;
        assert!(enter.ends_with(&format!(" sandpen-{id} {program}")), "of {image}: {enter}");
        engine.destroy(&id).await.unwrap();
    }
}
