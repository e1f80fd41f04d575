//! Trees of others, saves and branches in sandboxes that remember moments.

use super::subject::{Subject, path, spec};
use super::trees::{done, kept, with};
use super::{Able, suite_of_powers};
use crate::id::SandboxId;
use crate::image::Image;
use crate::spec::SandboxSpec;

suite_of_powers! { "trees", TreesAndCheckpoints:
    a_restore_leaves_attached_trees,
    saves_and_forks_have_what_was_there_before_a_checkpoint,
}

async fn a_restore_leaves_attached_trees(able: Able) {
    let name = kept(&able, "one").await;
    let user = Subject::with(able.engine.clone(), with(&[(&name, "/packages")])).await;
    let checkpoint = able.checkpoints().checkpoint(&user.id).await.unwrap();
    user.write("mine", b"x").await;
    able.checkpoints().restore(&user.id, checkpoint).await.unwrap();
    assert_eq!(user.says("cat /packages/who").await, "one");
    assert!(!user.exists("mine").await);
    let changes = able.checkpoints().changes(&user.id, None, 1000).await.unwrap();
    let attached = changes.entries.iter().find(|change| path("/packages").contains(&change.path));
    assert!(attached.is_none(), "{attached:?}");
    user.destroy().await;
    done(&able, &[&name]).await;
}

async fn saves_and_forks_have_what_was_there_before_a_checkpoint(able: Able) {
    let source = Subject::new(able.engine.clone()).await;
    source.write("one", b"1").await;
    source.write("doomed", b"x").await;
    able.checkpoints().checkpoint(&source.id).await.unwrap();
    source.says("rm doomed; echo 2 > two").await;
    able.checkpoints().checkpoint(&source.id).await.unwrap();
    source.write("three", b"3").await;
    let saved = format!("suite-{}", source.id).parse().unwrap();
    able.snapshots().save(&source.id, &saved).await.unwrap();
    let id = SandboxId::random().unwrap();
    able.snapshots().fork(&source.id, &id, &spec()).await.unwrap();
    let branch = Subject { engine: able.engine.clone(), files: able.engine.files(&id), id };
    let image = Image::Saved(saved.clone());
    let again = Subject::with(able.engine.clone(), SandboxSpec { image, ..spec() }).await;
    for sandbox in [&source, &branch, &again] {
        let names = ["one", "three", "two"].map(|name| format!("/workspace/{name}"));
        assert_eq!(sandbox.tree("/workspace").await, names);
        assert_eq!(sandbox.says("cat one two three").await, "12\n3");
    }
    for sandbox in [source, branch, again] {
        sandbox.destroy().await;
    }
    able.snapshots().forget(&spec().owner, &saved).await.unwrap();
}
