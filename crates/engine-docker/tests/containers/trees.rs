//! Kept trees at a daemon that others use too.

use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::RemoveVolumeOptions;
use engine_docker::DockerEngine;
use sandbox::{Attachment, Engine, ErrorKind, GuestPath, KeptTrees, SandboxId, SandboxSpec, TreeName};

use crate::Case;
use crate::world::{World, eventually, make, says, spec};

pub const CASES: &[Case] = &[
    ("trees::a_volume_of_somebody_else_is_no_tree", |world| Box::pin(foreign(world))),
    ("trees::a_tree_whose_files_are_gone_is_none", |world| Box::pin(without_files(world))),
    ("trees::half_filled_volumes_are_never_seen_and_go", |world| Box::pin(half_filled(world))),
    ("trees::what_was_dropped_while_used_goes_with_its_last_user", |world| Box::pin(dropped(world))),
    ("trees::programs_are_nobody_else_and_holes_are_no_bytes", |world| Box::pin(hostile_files(world))),
    ("trees::a_place_below_a_link_of_the_image_is_refused", |world| Box::pin(linked_place(world))),
];

const AT: &str = "/packages/python";

fn name() -> TreeName {
    format!("test/{}", SandboxId::random().unwrap()).parse().unwrap()
}

fn attached(name: &TreeName, at: &str) -> SandboxSpec {
    SandboxSpec { attachments: vec![Attachment { tree: name.clone(), at: at.parse().unwrap() }], ..spec() }
}

fn directory() -> GuestPath {
    "/workspace/lib".parse().unwrap()
}

async fn kept(engine: &DockerEngine, script: &str) -> TreeName {
    let (maker, name) = (make(engine, &spec()).await, name());
    says(engine, &maker, &format!("mkdir lib; cd lib; {script}")).await;
    engine.keep(&maker, &directory(), &name).await.unwrap();
    engine.destroy(&maker).await.unwrap();
    name
}

/// Volumes of the installation's trees, those with files last.
async fn volumes(world: &World) -> Vec<String> {
    let prefix = format!("sandpen-tree-{}-", world.installation());
    let mut found: Vec<String> = world.volumes().await.into_iter().filter(|name| name.starts_with(&prefix)).collect();
    found.sort_by_key(String::len);
    found
}

async fn make_volume(world: &World, name: &str, labels: &[(&str, &str)]) {
    let labels = labels.iter().map(|(label, value)| ((*label).to_owned(), (*value).to_owned())).collect();
    let request = VolumeCreateRequest { name: Some(name.to_owned()), labels: Some(labels), ..Default::default() };
    world.docker.create_volume(request).await.unwrap();
}

async fn remove_volume(world: &World, name: &str) {
    world.docker.remove_volume(name, None::<RemoveVolumeOptions>).await.unwrap();
}

async fn refused(engine: &DockerEngine, spec: &SandboxSpec) -> ErrorKind {
    engine.create(&SandboxId::random().unwrap(), spec).await.unwrap_err().kind()
}

async fn foreign(world: World) {
    let engine = world.engine().await;
    let name = kept(&engine, "echo ours > who").await;
    let named = volumes(&world).await[0].clone();
    assert!(engine.drop_kept(&name).await.unwrap());
    assert_eq!(volumes(&world).await, Vec::<String>::new());
    make_volume(&world, &named, &[("org.sandpen.tree.name", name.as_str())]).await;
    assert_eq!(engine.kept(&name).await.unwrap(), None);
    assert!(engine.list_kept("").await.unwrap().is_empty());
    assert_eq!(refused(&engine, &attached(&name, AT)).await, ErrorKind::NotFound);
    assert!(!engine.drop_kept(&name).await.unwrap(), "it is not ours to drop");
    let maker = make(&engine, &spec()).await;
    says(&engine, &maker, "mkdir lib").await;
    assert_eq!(engine.keep(&maker, &directory(), &name).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(volumes(&world).await, [named.as_str()], "and nothing is left of the attempt");
    engine.destroy(&maker).await.unwrap();
    remove_volume(&world, &named).await;
}

async fn without_files(world: World) {
    let engine = world.engine().await;
    let name = kept(&engine, "echo one > who").await;
    let files = volumes(&world).await.pop().unwrap();
    remove_volume(&world, &files).await;
    // As a daemon makes it when a container asks for it.
    make_volume(&world, &files, &[]).await;
    assert_eq!(engine.kept(&name).await.unwrap(), None);
    assert!(engine.list_kept("").await.unwrap().is_empty());
    assert_eq!(refused(&engine, &attached(&name, AT)).await, ErrorKind::NotFound);
    let maker = make(&engine, &spec()).await;
    says(&engine, &maker, "mkdir lib; echo two > lib/who").await;
    engine.keep(&maker, &directory(), &name).await.unwrap();
    let user = make(&engine, &attached(&name, AT)).await;
    assert_eq!(says(&engine, &user, &format!("cat {AT}/who")).await, "two\n");
    for id in [maker, user] {
        engine.destroy(&id).await.unwrap();
    }
    assert!(engine.drop_kept(&name).await.unwrap());
    remove_volume(&world, &files).await;
}

async fn half_filled(world: World) {
    let engine = world.engine().await;
    let name = kept(&engine, "echo one > who").await;
    let found = volumes(&world).await;
    let dead = "in-23456789abcdefgh";
    let half = format!("{}-0123456789abcdef", found[0]);
    let labels = [
        ("org.sandpen.installation", world.installation()),
        ("org.sandpen.instance", dead.to_owned()),
        ("org.sandpen.tree.name", name.to_string()),
    ];
    let labels: Vec<(&str, &str)> = labels.iter().map(|(label, value)| (*label, value.as_str())).collect();
    make_volume(&world, &half, &labels).await;
    let bystander = format!("sandpen-tree-{}-bystander", world.installation());
    make_volume(&world, &bystander, &[]).await;
    drop(engine);
    let engine = world.engine().await;
    engine.list().await.unwrap();
    let mut left = found.clone();
    left.push(bystander.clone());
    left.sort_by_key(String::len);
    assert_eq!(volumes(&world).await, left);
    let user = make(&engine, &attached(&name, AT)).await;
    assert_eq!(says(&engine, &user, &format!("cat {AT}/who")).await, "one\n");
    engine.destroy(&user).await.unwrap();
    assert!(engine.drop_kept(&name).await.unwrap());
    remove_volume(&world, &bystander).await;
}

async fn dropped(world: World) {
    let engine = world.engine().await;
    let name = kept(&engine, "echo one > who").await;
    let user = make(&engine, &attached(&name, AT)).await;
    assert!(engine.drop_kept(&name).await.unwrap());
    assert_eq!(volumes(&world).await.len(), 1, "its files are used");
    assert_eq!(refused(&engine, &attached(&name, AT)).await, ErrorKind::NotFound);
    engine.list().await.unwrap();
    assert_eq!(says(&engine, &user, &format!("cat {AT}/who")).await, "one\n");
    engine.destroy(&user).await.unwrap();
    eventually("the files are removed", async || {
        engine.list().await.unwrap();
        volumes(&world).await.is_empty()
    })
    .await;
}

async fn hostile_files(world: World) {
    let engine = world.engine().await;
    let name = kept(&engine, "cp /bin/sh shell; chmod 6755 shell; mkfifo pipe; ln -s /etc/shadow link").await;
    let user = make(&engine, &attached(&name, AT)).await;
    let seen = says(&engine, &user, &format!("cd {AT}; find * -printf '%p %m %y\\n' | sort")).await;
    assert_eq!(seen, "link 777 l\nshell 755 f\n");
    engine.destroy(&user).await.unwrap();
    assert!(engine.drop_kept(&name).await.unwrap());

    let (maker, name) = (make(&engine, &spec()).await, self::name());
    says(&engine, &maker, "mkdir lib; truncate -s 1T lib/holes").await;
    assert_eq!(engine.keep(&maker, &directory(), &name).await.unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert_eq!(volumes(&world).await, Vec::<String>::new());
    says(&engine, &maker, "rm -r lib; echo x > lib").await;
    assert_eq!(engine.keep(&maker, &directory(), &name).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    engine.destroy(&maker).await.unwrap();
}

async fn linked_place(world: World) {
    let engine = world.engine().await;
    let name = kept(&engine, "echo one > who").await;
    // Debian's own: a link to a directory.
    for at in ["/bin/tree", "/lib/tree/deeper"] {
        assert_eq!(refused(&engine, &attached(&name, at)).await, ErrorKind::AlreadyExists, "{at}");
    }
    for at in ["/workspace/lib", "/tmp/lib", "/home", "/run/lib", "/.sandpen/lib", "/proc"] {
        assert_eq!(refused(&engine, &attached(&name, at)).await, ErrorKind::InvalidInput, "{at}");
    }
    assert!(engine.drop_kept(&name).await.unwrap());
}
