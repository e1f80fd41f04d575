//! Directories for which an image asks for volumes: they begin with what the image has there, and what a sandbox writes to
//! them is its own as everything else that it writes.

use bollard::models::ContainerConfig;
use bollard::query_parameters::StopContainerOptionsBuilder;
use engine_docker::DockerEngine;
use sandbox::{
    ChangeKind, Checkpoints, Engine, ErrorKind, GuestPath, Image, Persistence, SandboxId, SandboxSpec, Snapshots,
};
use tar::EntryType;

use crate::Case;
use crate::world::{World, make, says, spec};

pub const CASES: &[Case] = &[
    ("volumes::what_the_image_has_there_is_seen", |world| Box::pin(seen(world))),
    ("volumes::what_was_written_is_saved", |world| Box::pin(saved(world))),
    ("volumes::what_was_written_is_in_a_fork", |world| Box::pin(forked(world))),
    ("volumes::a_checkpoint_brings_it_back", |world| Box::pin(restored(world))),
    ("volumes::a_stop_keeps_it", |world| Box::pin(stopped(world))),
    ("volumes::as_many_as_may_be_can_be_saved_and_no_more", |world| Box::pin(many(world))),
];

/// One volume in another, and one that the image does not have at all.
const VOLUMES: &str = "VOLUME /data\nVOLUME /data/inner\nVOLUME /srv/empty";

/// What the image has there, after a sandbox has changed it.
const CHANGE: &str = "cd /data && echo more >> own && rm gone && echo new > new && echo deep > inner/deep && mkdir inner/d \
                      && echo far > /srv/empty/far && echo changed";
const LOOK: &str = "cd /data && find . -type f | sort | while read -r name; do echo $name $(cat $name); done; \
                    test -d inner/d && cat /srv/empty/far";
const CHANGED: &str = "./inner/deep deep\n./inner/image inner\n./new new\n./own own more\nfar\n";
const UNCHANGED: &str = "./gone gone\n./inner/image inner\n./own own\n";

fn from(image: &str) -> SandboxSpec {
    SandboxSpec { image: image.parse().unwrap(), ..spec() }
}

async fn image(world: &World, name: &str) -> String {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, kind, content) in [
        ("data/", EntryType::Directory, ""),
        ("data/own", EntryType::Regular, "own\n"),
        ("data/gone", EntryType::Regular, "gone\n"),
        ("data/inner/", EntryType::Directory, ""),
        ("data/inner/image", EntryType::Regular, "inner\n"),
        ("data/pipe", EntryType::Fifo, ""),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        // Those of databases are nobody else's in their images.
        header.set_mode(if kind == EntryType::Directory { 0o700 } else { 0o600 });
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, path, content.as_bytes()).unwrap();
    }
    let files = archive.into_inner().unwrap();
    world.image_with(name, VOLUMES, Some(files), ContainerConfig::default()).await
}

/// How many volumes the daemon has that are not ours.
async fn on_disk(world: &World) -> usize {
    world.volumes().await.into_iter().filter(|name| !name.starts_with("sandpen-")).count()
}

async fn changed(engine: &DockerEngine, wanted: &SandboxSpec) -> SandboxId {
    let id = make(engine, wanted).await;
    assert_eq!(says(engine, &id, CHANGE).await, "changed\n");
    id
}

async fn seen(world: World) {
    let image = image(&world, "sandpen-volume-seen").await;
    let before = on_disk(&world).await;
    let engine = world.engine().await;
    let id = make(&engine, &from(&image)).await;
    assert_eq!(says(&engine, &id, LOOK).await, UNCHANGED);
    let script = "for place in /data /data/inner /srv/empty; do grep -c \" $place tmpfs rw\" /proc/mounts; done";
    assert_eq!(says(&engine, &id, script).await, "1\n1\n1\n");
    assert_eq!(engine.changes(&id, None, 10).await.unwrap().entries, []);
    assert_eq!(on_disk(&world).await, before, "volumes on the daemon's disk");
    engine.destroy(&id).await.unwrap();
    world.remove_image(&image).await;
}

async fn saved(world: World) {
    let image = image(&world, "sandpen-volume-saved").await;
    let before = on_disk(&world).await;
    let engine = world.engine().await;
    let id = changed(&engine, &from(&image)).await;
    let (first, second) = ("first".parse().unwrap(), "second".parse().unwrap());
    engine.save(&id, &first).await.unwrap();
    engine.destroy(&id).await.unwrap();
    let wanted = SandboxSpec { image: Image::Saved(first.clone()), ..spec() };
    let id = make(&engine, &wanted).await;
    assert_eq!(says(&engine, &id, LOOK).await, CHANGED);
    // And once more, over an image that has them of a sandbox already.
    says(&engine, &id, "rm /data/inner/image; echo newer > /data/new").await;
    engine.save(&id, &second).await.unwrap();
    engine.destroy(&id).await.unwrap();
    let id = make(&engine, &SandboxSpec { image: Image::Saved(second.clone()), ..spec() }).await;
    assert_eq!(
        says(&engine, &id, LOOK).await,
        CHANGED.replace("./inner/image inner\n", "").replace("new new", "new newer")
    );
    engine.destroy(&id).await.unwrap();
    assert_eq!(on_disk(&world).await, before, "volumes on the daemon's disk");
    for name in [second, first] {
        assert!(engine.forget(&wanted.owner, &name).await.unwrap());
    }
    drop(engine);
    world.remove_image(&image).await;
}

async fn forked(world: World) {
    let image = image(&world, "sandpen-volume-forked").await;
    let engine = world.engine().await;
    let id = changed(&engine, &from(&image)).await;
    let branch = SandboxId::random().unwrap();
    engine.fork(&id, &branch, &from(&image)).await.unwrap();
    assert_eq!(says(&engine, &branch, LOOK).await, CHANGED);
    says(&engine, &branch, "echo other > /data/new").await;
    assert_eq!(says(&engine, &id, LOOK).await, CHANGED);
    engine.destroy(&branch).await.unwrap();
    engine.destroy(&id).await.unwrap();
    world.remove_image(&image).await;
}

async fn restored(world: World) {
    let image = image(&world, "sandpen-volume-restored").await;
    let engine = world.engine().await;
    let id = changed(&engine, &from(&image)).await;
    let told = |changes: sandbox::Changes| -> Vec<(String, ChangeKind)> {
        changes.entries.into_iter().map(|change| (change.path.to_string(), change.kind)).collect()
    };
    use ChangeKind::{Added, Modified, Removed};
    let expected = [
        ("/data/gone", Removed),
        ("/data/inner/d", Added),
        ("/data/inner/deep", Added),
        ("/data/new", Added),
        ("/data/own", Modified),
        ("/srv/empty/far", Added),
    ];
    let expected = expected.map(|(path, kind)| (path.to_owned(), kind));
    assert_eq!(told(engine.changes(&id, None, 100).await.unwrap()), expected);
    let checkpoint = engine.checkpoint(&id).await.unwrap();
    says(&engine, &id, "rm -r /data/own /data/inner/* /srv/empty/far; echo later > /data/later").await;
    assert_eq!(says(&engine, &id, LOOK).await, "./later later\n./new new\n");
    let since = told(engine.changes(&id, Some(checkpoint), 100).await.unwrap());
    assert_eq!(since.len(), 6, "{since:?}");
    engine.restore(&id, checkpoint).await.unwrap();
    assert_eq!(says(&engine, &id, LOOK).await, CHANGED);
    assert_eq!(told(engine.changes(&id, Some(checkpoint), 100).await.unwrap()), []);
    engine.destroy(&id).await.unwrap();
    world.remove_image(&image).await;
}

async fn stopped(world: World) {
    let image = image(&world, "sandpen-volume-stopped").await;
    let engine = world.engine().await;
    let id = changed(&engine, &SandboxSpec { persistence: Persistence::Persistent, ..from(&image) }).await;
    for _ in 0..2 {
        let options = StopContainerOptionsBuilder::default().t(60).build();
        world.docker.stop_container(&format!("sandpen-{id}"), Some(options)).await.unwrap();
        assert_eq!(says(&engine, &id, LOOK).await, CHANGED);
    }
    engine.destroy(&id).await.unwrap();
    world.remove_image(&image).await;
}

async fn many(world: World) {
    let volumes =
        |count: usize| (0..count).map(|number| format!("VOLUME /many/{number}")).collect::<Vec<_>>().join("\n");
    let (most, more) = (
        world.image("sandpen-volume-most", &volumes(64)).await,
        world.image("sandpen-volume-more", &volumes(65)).await,
    );
    let engine = world.engine().await;
    let refused = engine.create(&SandboxId::random().unwrap(), &from(&more)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused:?}");
    let wanted = SandboxSpec {
        work_directory: Some(GuestPath::resolve(&GuestPath::root(), b"/one/more").unwrap()),
        ..from(&most)
    };
    let id = make(&engine, &wanted).await;
    says(&engine, &id, "for place in /many/*; do echo ${place##*/} > $place/file; done").await;
    let name = "many".parse().unwrap();
    engine.save(&id, &name).await.unwrap();
    engine.destroy(&id).await.unwrap();
    let id = make(&engine, &SandboxSpec { image: Image::Saved(name.clone()), ..spec() }).await;
    assert_eq!(
        says(&engine, &id, "cat /many/*/file | sort -n | tr '\\n' ' '").await,
        (0..64).map(|number| format!("{number} ")).collect::<String>()
    );
    engine.destroy(&id).await.unwrap();
    assert!(engine.forget(&wanted.owner, &name).await.unwrap());
    drop(engine);
    world.remove_image(&most).await;
    world.remove_image(&more).await;
}
