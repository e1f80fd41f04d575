//! Trees that are kept and shown read-only in other sandboxes.

use super::subject::{Subject, kind, path, spec};
use super::{Able, suite_of_powers};
use crate::error::ErrorKind;
use crate::file::WriteOptions;
use crate::id::SandboxId;
use crate::image::Image;
use crate::spec::SandboxSpec;
use crate::tree::{Attachment, TreeName};

suite_of_powers! { "trees", Trees:
    a_kept_tree_is_seen_where_it_is_attached,
    an_attached_tree_cannot_be_changed,
    two_trees_are_seen_side_by_side,
    one_that_has_the_name_stays,
    trees_are_listed_by_prefix,
    a_tree_that_is_dropped_stays_where_it_is_used,
    a_tree_that_is_not_there_is_refused,
    a_place_that_the_image_has_is_refused,
    what_is_not_there_is_not_kept,
    an_attached_tree_is_in_no_save,
    a_fork_sees_the_same_trees,
}

/// Names of the suite's own.
fn fresh() -> TreeName {
    let id = SandboxId::random().unwrap();
    format!("suite/{id}").parse().unwrap()
}

pub(super) fn with(trees: &[(&TreeName, &str)]) -> SandboxSpec {
    let attach = |(tree, at): &(&TreeName, &str)| Attachment { tree: (*tree).clone(), at: path(at) };
    SandboxSpec { attachments: trees.iter().map(attach).collect(), ..spec() }
}

/// A tree with a file `who` that says `text`, and a script that says it too.
pub(super) async fn kept(able: &Able, text: &str) -> TreeName {
    let name = fresh();
    let maker = Subject::new(able.engine.clone()).await;
    maker.write("lib/who", text.as_bytes()).await;
    let options = WriteOptions { mode: 0o755, ..WriteOptions::default() };
    maker.write_with("lib/bin/tool", format!("#!/bin/sh\necho {text}\n").as_bytes(), options).await.unwrap();
    maker.says("ln -s who lib/link; echo x > beside").await;
    let tree = able.trees().keep(&maker.id, &path("lib"), &name).await.unwrap();
    assert_eq!(tree.name, name);
    assert!(tree.digest.starts_with("sha256:") && tree.bytes >= text.len() as u64, "{tree:?}");
    maker.destroy().await;
    name
}

pub(super) async fn done(able: &Able, names: &[&TreeName]) {
    for name in names {
        able.trees().drop_kept(name).await.unwrap();
    }
}

async fn a_kept_tree_is_seen_where_it_is_attached(able: Able) {
    let name = kept(&able, "one").await;
    let user = Subject::with(able.engine.clone(), with(&[(&name, "/packages/one")])).await;
    assert_eq!(user.says("cat /packages/one/who /packages/one/link; /packages/one/bin/tool").await, "oneoneone\n");
    assert_eq!(user.read("/packages/one/who").await, b"one");
    assert_eq!(user.tree("/packages").await.len(), 5, "and nothing from beside it");
    user.write("mine", b"x").await;
    user.destroy().await;
    done(&able, &[&name]).await;
}

async fn an_attached_tree_cannot_be_changed(able: Able) {
    let name = kept(&able, "one").await;
    let user = Subject::with(able.engine.clone(), with(&[(&name, "/packages/one")])).await;
    for place in ["/packages/one/who", "/packages/one/new", "/packages/one/bin/new"] {
        let refused = kind(user.write_with(place, b"x", WriteOptions::default()).await);
        assert_eq!(refused, ErrorKind::Denied, "{place}");
    }
    for place in ["/packages/one/who", "/packages/one"] {
        assert!(user.files.remove(&path(place)).await.is_err(), "{place}");
    }
    assert!(user.run(&super::subject::shell("echo x > /packages/one/who")).await.status().exit_code() != Some(0));
    assert_eq!(user.read("/packages/one/who").await, b"one");
    user.destroy().await;
    done(&able, &[&name]).await;
}

async fn two_trees_are_seen_side_by_side(able: Able) {
    let (one, two) = (kept(&able, "one").await, kept(&able, "two").await);
    let spec = with(&[(&one, "/packages/one"), (&two, "/node_modules")]);
    let first = Subject::with(able.engine.clone(), spec.clone()).await;
    let second = Subject::with(able.engine.clone(), spec).await;
    for sandbox in [&first, &second] {
        assert_eq!(sandbox.says("cat /packages/one/who /node_modules/who").await, "onetwo");
    }
    first.destroy().await;
    second.destroy().await;
    done(&able, &[&one, &two]).await;
}

async fn one_that_has_the_name_stays(able: Able) {
    let name = kept(&able, "first").await;
    let before = able.trees().kept(&name).await.unwrap().unwrap();
    let maker = Subject::new(able.engine.clone()).await;
    maker.write("lib/who", b"second, and longer").await;
    assert_eq!(able.trees().keep(&maker.id, &path("lib"), &name).await.unwrap(), before);
    maker.destroy().await;
    let user = Subject::with(able.engine.clone(), with(&[(&name, "/packages")])).await;
    assert_eq!(user.read("/packages/who").await, b"first");
    user.destroy().await;
    done(&able, &[&name]).await;
}

async fn trees_are_listed_by_prefix(able: Able) {
    let maker = Subject::new(able.engine.clone()).await;
    let stem = fresh();
    let name = |text: &str| format!("{stem}/{text}").parse::<TreeName>().unwrap();
    for text in ["b", "a", "c/d"] {
        maker.write("lib/file", text.as_bytes()).await;
        able.trees().keep(&maker.id, &path("lib"), &name(text)).await.unwrap();
    }
    maker.destroy().await;
    let listed = able.trees().list_kept(stem.as_str()).await.unwrap();
    assert_eq!(listed.iter().map(|tree| tree.name.clone()).collect::<Vec<_>>(), ["a", "b", "c/d"].map(name));
    assert_eq!(able.trees().list_kept(name("c").as_str()).await.unwrap().len(), 1);
    assert!(able.trees().drop_kept(&name("a")).await.unwrap());
    assert!(!able.trees().drop_kept(&name("a")).await.unwrap());
    assert_eq!(able.trees().kept(&name("a")).await.unwrap(), None);
    done(&able, &[&name("b"), &name("c/d")]).await;
    assert!(able.trees().list_kept(stem.as_str()).await.unwrap().is_empty());
}

async fn a_tree_that_is_dropped_stays_where_it_is_used(able: Able) {
    let name = kept(&able, "one").await;
    let user = Subject::with(able.engine.clone(), with(&[(&name, "/packages")])).await;
    assert!(able.trees().drop_kept(&name).await.unwrap());
    assert_eq!(user.says("cat /packages/who").await, "one");
    user.destroy().await;
}

async fn a_tree_that_is_not_there_is_refused(able: Able) {
    let id = SandboxId::random().unwrap();
    assert_eq!(kind(able.engine.create(&id, &with(&[(&fresh(), "/packages")])).await), ErrorKind::NotFound);
}

async fn a_place_that_the_image_has_is_refused(able: Able) {
    let name = kept(&able, "one").await;
    for at in ["/etc/passwd", "/usr", "/"] {
        let id = SandboxId::random().unwrap();
        let refused = kind(able.engine.create(&id, &with(&[(&name, at)])).await);
        assert!(matches!(refused, ErrorKind::AlreadyExists | ErrorKind::InvalidInput), "{at}: {refused:?}");
    }
    done(&able, &[&name]).await;
}

async fn what_is_not_there_is_not_kept(able: Able) {
    let (maker, name) = (Subject::new(able.engine.clone()).await, fresh());
    assert_eq!(kind(able.trees().keep(&maker.id, &path("nowhere"), &name).await), ErrorKind::NotFound);
    assert_eq!(able.trees().kept(&name).await.unwrap(), None);
    let id = maker.id.clone();
    maker.destroy().await;
    assert_eq!(kind(able.trees().keep(&id, &path("/"), &name).await), ErrorKind::NotFound);
}

async fn an_attached_tree_is_in_no_save(able: Able) {
    let name = kept(&able, &"large ".repeat(40_000)).await;
    let user = Subject::with(able.engine.clone(), with(&[(&name, "/packages")])).await;
    user.write("mine", b"x").await;
    let saved = format!("suite-{}", user.id).parse().unwrap();
    let image = able.snapshots().save(&user.id, &saved).await.unwrap();
    assert!(image.bytes < 100_000, "{}", image.bytes);
    user.destroy().await;
    let bare = SandboxSpec { image: Image::Saved(saved.clone()), ..spec() };
    let without = Subject::with(able.engine.clone(), bare.clone()).await;
    assert_eq!(without.says("cat mine").await, "x");
    assert!(!without.exists("/packages/who").await);
    without.destroy().await;
    let again = SandboxSpec { attachments: with(&[(&name, "/libraries")]).attachments, ..bare };
    let again = Subject::with(able.engine.clone(), again).await;
    assert!(again.exists("/libraries/who").await);
    again.destroy().await;
    able.snapshots().forget(&spec().owner, &saved).await.unwrap();
    done(&able, &[&name]).await;
}

async fn a_fork_sees_the_same_trees(able: Able) {
    let name = kept(&able, "one").await;
    let spec = with(&[(&name, "/packages")]);
    let source = Subject::with(able.engine.clone(), spec.clone()).await;
    source.write("mine", b"x").await;
    let id = SandboxId::random().unwrap();
    able.snapshots().fork(&source.id, &id, &spec).await.unwrap();
    let branch = Subject { engine: able.engine.clone(), files: able.engine.files(&id), id };
    assert_eq!(branch.says("cat /packages/who mine").await, "onex");
    source.destroy().await;
    branch.destroy().await;
    done(&able, &[&name]).await;
}
