//! Trees that one sandbox makes and others see.

use std::sync::Arc;
use std::time::Duration;

use engine_native::NativeEngine;
use sandbox::{
    Attachment, Engine, ErrorKind, ExecStatus, GuestPath, Image, KeptTrees, Owner, Persistence, Result, SandboxId,
    SandboxSpec, TreeName,
};

use crate::layer::system;
use crate::place::{Place, Sandbox, create};
use crate::tests;

tests!(
    a_kept_tree_is_seen_by_others_and_changed_by_none,
    a_tree_is_kept_once,
    a_tree_is_kept_as_long_as_somebody_uses_it,
    spares_have_what_is_attached_to_them,
    what_is_not_kept_cannot_be_attached,
    only_what_is_below_a_directory_is_kept,
);

const FILL: &str = "umask 077; mkdir -p out/bin; echo one >out/file; echo '#!/bin/sh\necho ran' >out/bin/tool; \
                    chmod 700 out/bin/tool; ln -s file out/link";

fn path(text: &str) -> GuestPath {
    text.parse().unwrap()
}

fn name(text: &str) -> TreeName {
    text.parse().unwrap()
}

async fn attached(engine: &Arc<NativeEngine>, image: &str, trees: &[(&str, &str)]) -> Result<Sandbox> {
    let mut spec = SandboxSpec::new(Owner::local());
    spec.image = image.parse::<Image>()?;
    spec.attachments = trees.iter().map(|(tree, at)| Attachment { tree: name(tree), at: path(at) }).collect();
    let id = SandboxId::random()?;
    engine.create(&id, &spec).await?;
    Ok(Sandbox { engine: engine.clone(), id })
}

async fn kept(engine: &Arc<NativeEngine>, tree: &str) {
    let maker = create(engine.clone(), "host", Persistence::Ephemeral).await.unwrap();
    maker.says(FILL).await;
    engine.keep(&maker.id, &path("/workspace/out"), &name(tree)).await.unwrap();
    maker.destroy().await;
}

async fn a_kept_tree_is_seen_by_others_and_changed_by_none(place: Place) {
    place.image("plain", vec![system()], Default::default());
    let engine = place.engine().await;
    kept(&engine, "python/one").await;
    for image in ["host", "plain"] {
        let sandbox = attached(&engine, image, &[("python/one", "/packages/python")]).await.unwrap();
        assert_eq!(sandbox.says("cat /packages/python/link; /packages/python/bin/tool").await, "one\nran\n", "{image}");
        let script =
            "touch /packages/python/new || rm /packages/python/file || rm -r /packages/python || touch /packages/x";
        let (said, status) = sandbox.run(&["sh", "-c", script]).await.unwrap();
        assert_ne!(status, ExecStatus::Exited(0), "{image}: {said}");
        sandbox.destroy().await;
    }
}

async fn a_tree_is_kept_once(place: Place) {
    let engine = place.engine().await;
    assert_eq!(engine.kept(&name("python/one")).await.unwrap(), None);
    assert_eq!(engine.list_kept("").await.unwrap(), []);
    let maker = create(engine.clone(), "host", Persistence::Ephemeral).await.unwrap();
    maker.says(FILL).await;
    let first = engine.keep(&maker.id, &path("/workspace/out"), &name("python/one")).await.unwrap();
    maker.says("echo two >out/file").await;
    assert_eq!(engine.keep(&maker.id, &path("/workspace/out"), &name("python/one")).await.unwrap(), first);
    let second = engine.keep(&maker.id, &path("/workspace/out"), &name("python/two")).await.unwrap();
    assert_ne!(second.digest, first.digest);
    engine.keep(&maker.id, &path("/workspace/out"), &name("javascript/one")).await.unwrap();
    assert_eq!(engine.list_kept("python/").await.unwrap(), [first.clone(), second]);
    assert_eq!(engine.kept(&name("python/one")).await.unwrap(), Some(first));
    assert!(engine.drop_kept(&name("python/one")).await.unwrap());
    assert!(!engine.drop_kept(&name("python/one")).await.unwrap());
    assert_eq!(engine.list_kept("").await.unwrap().len(), 2);
    maker.destroy().await;
}

async fn a_tree_is_kept_as_long_as_somebody_uses_it(place: Place) {
    place.image("plain", vec![system()], Default::default());
    let engine = place.engine().await;
    kept(&engine, "a/one").await;
    let user = attached(&engine, "plain", &[("a/one", "/one"), ("a/one", "/two")]).await.unwrap();
    assert!(engine.drop_kept(&name("a/one")).await.unwrap());
    assert_eq!(user.says("cat /one/file /two/file").await, "one\none\n");
    user.destroy().await;
    // The lock of a user is flock(2)'s: what another test forked meanwhile has it too, until it starts its program.
    let mut tries_left = 100;
    while place.store.collect().unwrap().layers == 0 {
        tries_left -= 1;
        assert!(tries_left > 0, "the tree is kept although nobody uses it");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn spares_have_what_is_attached_to_them(place: Place) {
    let engine = place.engine_with_spares(2).await;
    for tree in ["a/one", "a/two"] {
        kept(&engine, tree).await;
    }
    for _ in 0..3 {
        for (tree, at) in [("a/one", "/one"), ("a/two", "/two")] {
            let sandbox = attached(&engine, "host", &[(tree, at)]).await.unwrap();
            assert_eq!(
                sandbox.says(&format!("cat {at}/file; ls -d /one /two 2>/dev/null; true")).await,
                format!("one\n{at}\n")
            );
            sandbox.destroy().await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn what_is_not_kept_cannot_be_attached(place: Place) {
    let engine = place.engine().await;
    let missing = attached(&engine, "host", &[("a/one", "/one")]).await.err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    kept(&engine, "a/one").await;
    let missing = attached(&engine, "host", &[("a/two", "/two")]).await.err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.message().contains("a/two"), "{missing}");
    let many: Vec<(String, String)> = (0..16).map(|number| ("a/one".to_owned(), format!("/{number}"))).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(tree, at)| (&**tree, &**at)).collect();
    assert_eq!(attached(&engine, "host", &many).await.err().unwrap().kind(), ErrorKind::LimitExceeded);
    let most = attached(&engine, "host", &many[..15]).await.unwrap();
    assert_eq!(most.says("cat /14/file").await, "one\n");
    most.destroy().await;
}

async fn only_what_is_below_a_directory_is_kept(place: Place) {
    let engine = place.engine().await;
    let maker = create(engine.clone(), "host", Persistence::Ephemeral).await.unwrap();
    maker.says("mkdir out; echo x >out/x; ln -s out link; ln -s /etc elsewhere; echo x >file").await;
    for wrong in ["/workspace/link", "/workspace/elsewhere", "/workspace/file", "/workspace/none", "/workspace/link/x"]
    {
        let error = engine.keep(&maker.id, &path(wrong), &name("a/wrong")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{wrong}: {error}");
    }
    assert_eq!(engine.list_kept("").await.unwrap(), []);
    maker.destroy().await;
    let gone = SandboxId::random().unwrap();
    assert_eq!(engine.keep(&gone, &path("/"), &name("a/gone")).await.unwrap_err().kind(), ErrorKind::NotFound);
}
