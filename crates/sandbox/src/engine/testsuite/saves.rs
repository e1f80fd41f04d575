//! Sandboxes as images.

use super::subject::{Subject, kind, path, seconds, spec};
use super::{Able, suite_of_powers};
use crate::error::ErrorKind;
use crate::exec::{ExecRequest, ExecStatus};
use crate::file::WriteOptions;
use crate::id::{Owner, SandboxId};
use crate::image::Image;
use crate::spec::SandboxSpec;
use crate::tree::SavedName;

suite_of_powers! { "saves", Snapshots:
    a_saved_sandbox_is_an_image,
    an_image_says_where_its_sandbox_worked,
    what_was_removed_stays_removed,
    a_save_is_of_its_moment,
    a_save_takes_the_place_of_one_with_its_name,
    sandboxes_made_from_one_stay_as_they_are,
    names_are_an_owners_own,
    all_of_an_owner_are_listed_by_name,
    a_save_tells_what_it_holds,
    a_save_of_a_save_holds_what_is_new,
    what_no_image_can_hold_is_counted,
    a_command_goes_on_meanwhile,
    one_that_is_gone_is_not_saved,
    a_name_that_nobody_saved_is_no_image,
}

/// Owners of the suite's own, so that what others saved on the same host makes no difference.
fn somebody() -> Owner {
    let id = SandboxId::random().unwrap();
    format!("suite-{id}").parse().unwrap()
}

fn of(owner: &Owner) -> SandboxSpec {
    SandboxSpec { owner: owner.clone(), ..spec() }
}

fn from(owner: &Owner, name: &SavedName) -> SandboxSpec {
    SandboxSpec { image: Image::Saved(name.clone()), ..of(owner) }
}

fn name(text: &str) -> SavedName {
    text.parse().unwrap()
}

async fn a_saved_sandbox_is_an_image(able: Able) {
    let (owner, lab) = (somebody(), name("lab"));
    let first = Subject::with(able.engine.clone(), of(&owner)).await;
    first.write("data/numbers", b"1 2 3").await;
    let options = WriteOptions { mode: 0o755, ..WriteOptions::default() };
    first.write_with("/workspace/tool", b"#!/bin/sh\necho made\n", options).await.unwrap();
    first.says("ln -s data/numbers link; mkdir empty; echo t > /tmp/t").await;
    able.snapshots().save(&first.id, &lab).await.unwrap();
    first.destroy().await;

    let second = Subject::with(able.engine.clone(), from(&owner, &lab)).await;
    assert_eq!(second.read("data/numbers").await, b"1 2 3");
    assert_eq!(second.read("link").await, b"1 2 3");
    assert_eq!(second.files.stat(&path("tool")).await.unwrap().mode, 0o755);
    assert_eq!(second.says("./tool; cat /tmp/t").await, "made\nt\n");
    assert!(second.exists("empty").await);
    second.write("data/numbers", b"4").await;
    assert_eq!(second.read("data/numbers").await, b"4", "what was saved can be changed by who could before");
    second.destroy().await;
    able.snapshots().forget(&owner, &lab).await.unwrap();
}

async fn an_image_says_where_its_sandbox_worked(able: Able) {
    let (owner, lab) = (somebody(), name("lab"));
    let here = SandboxSpec { work_directory: Some(path("/srv/here")), ..of(&owner) };
    let first = Subject::with(able.engine.clone(), here).await;
    first.says("echo 1 > one").await;
    able.snapshots().save(&first.id, &lab).await.unwrap();
    first.destroy().await;

    let id = SandboxId::random().unwrap();
    let made = able.engine.create(&id, &from(&owner, &lab)).await.unwrap();
    assert_eq!(made.work_directory, path("/srv/here"));
    let second = Subject { files: able.engine.files(&id), engine: able.engine.clone(), id };
    assert_eq!(second.says("cat one; echo 2 > two; cat two; pwd").await, "1\n2\n/srv/here\n");
    second.destroy().await;
    assert!(able.snapshots().forget(&owner, &lab).await.unwrap());
}

async fn what_was_removed_stays_removed(able: Able) {
    let owner = somebody();
    let first = Subject::with(able.engine.clone(), of(&owner)).await;
    first.write("kept/a", b"a").await;
    first.write("gone/b", b"b").await;
    able.snapshots().save(&first.id, &name("one")).await.unwrap();
    first.destroy().await;
    let second = Subject::with(able.engine.clone(), from(&owner, &name("one"))).await;
    second.says("rm -r gone; rm kept/a").await;
    // A directory that came anew has nothing of the one that it replaced.
    second.write("gone/new", b"n").await;
    able.snapshots().save(&second.id, &name("two")).await.unwrap();
    second.destroy().await;
    let third = Subject::with(able.engine.clone(), from(&owner, &name("two"))).await;
    assert_eq!(third.tree("/workspace").await, ["gone", "gone/new", "kept"].map(|name| format!("/workspace/{name}")));
    third.destroy().await;
    for saved in ["one", "two"] {
        assert!(able.snapshots().forget(&owner, &name(saved)).await.unwrap());
    }
}

async fn a_save_is_of_its_moment(able: Able) {
    let (owner, lab) = (somebody(), name("lab"));
    let first = Subject::with(able.engine.clone(), of(&owner)).await;
    first.write("file", b"then").await;
    able.snapshots().save(&first.id, &lab).await.unwrap();
    first.write("file", b"later").await;
    first.write("other", b"later").await;
    let second = Subject::with(able.engine.clone(), from(&owner, &lab)).await;
    assert_eq!(second.read("file").await, b"then");
    assert!(!second.exists("other").await);
    assert_eq!(first.read("file").await, b"later", "a save changes nothing");
    first.destroy().await;
    second.destroy().await;
    able.snapshots().forget(&owner, &lab).await.unwrap();
}

async fn a_save_takes_the_place_of_one_with_its_name(able: Able) {
    let (owner, lab) = (somebody(), name("lab"));
    let first = Subject::with(able.engine.clone(), of(&owner)).await;
    first.write("file", b"old").await;
    let old = able.snapshots().save(&first.id, &lab).await.unwrap();
    first.write("file", b"new").await;
    let new = able.snapshots().save(&first.id, &lab).await.unwrap();
    assert_ne!(old.digest, new.digest);
    let listed = able.snapshots().saved(&owner).await.unwrap();
    assert_eq!(listed.iter().map(|saved| &saved.digest).collect::<Vec<_>>(), [&new.digest]);
    let second = Subject::with(able.engine.clone(), from(&owner, &lab)).await;
    assert_eq!(second.read("file").await, b"new");
    first.destroy().await;
    second.destroy().await;
    able.snapshots().forget(&owner, &lab).await.unwrap();
}

async fn sandboxes_made_from_one_stay_as_they_are(able: Able) {
    let (owner, lab) = (somebody(), name("lab"));
    let first = Subject::with(able.engine.clone(), of(&owner)).await;
    first.write("file", b"old").await;
    able.snapshots().save(&first.id, &lab).await.unwrap();
    let second = Subject::with(able.engine.clone(), from(&owner, &lab)).await;
    first.write("file", b"new").await;
    able.snapshots().save(&first.id, &lab).await.unwrap();
    assert_eq!(second.read("file").await, b"old", "one with the same name came");
    assert!(able.snapshots().forget(&owner, &lab).await.unwrap());
    assert_eq!(second.says("cat file").await, "old", "its image is no more");
    first.destroy().await;
    second.destroy().await;
}

async fn names_are_an_owners_own(able: Able) {
    let (one, other, lab) = (somebody(), somebody(), name("lab"));
    for (owner, text) in [(&one, b"1"), (&other, b"2")] {
        let sandbox = Subject::with(able.engine.clone(), of(owner)).await;
        sandbox.write("whose", text).await;
        able.snapshots().save(&sandbox.id, &lab).await.unwrap();
        sandbox.destroy().await;
    }
    let sandbox = Subject::with(able.engine.clone(), from(&one, &lab)).await;
    assert_eq!(sandbox.read("whose").await, b"1");
    sandbox.destroy().await;
    assert!(able.snapshots().forget(&one, &lab).await.unwrap());
    assert!(!able.snapshots().forget(&one, &lab).await.unwrap(), "it was forgotten twice");
    let id = SandboxId::random().unwrap();
    assert_eq!(kind(able.engine.create(&id, &from(&one, &lab)).await), ErrorKind::NotFound);
    let sandbox = Subject::with(able.engine.clone(), from(&other, &lab)).await;
    assert_eq!(sandbox.read("whose").await, b"2");
    sandbox.destroy().await;
    able.snapshots().forget(&other, &lab).await.unwrap();
}

async fn all_of_an_owner_are_listed_by_name(able: Able) {
    let owner = somebody();
    assert!(able.snapshots().saved(&owner).await.unwrap().is_empty());
    let sandbox = Subject::with(able.engine.clone(), of(&owner)).await;
    for text in ["c", "a", "b-2"] {
        sandbox.write("file", text.as_bytes()).await;
        able.snapshots().save(&sandbox.id, &name(text)).await.unwrap();
    }
    sandbox.destroy().await;
    let listed = able.snapshots().saved(&owner).await.unwrap();
    assert_eq!(listed.iter().map(|saved| saved.name.as_str()).collect::<Vec<_>>(), ["a", "b-2", "c"]);
    for saved in listed {
        able.snapshots().forget(&owner, &saved.name).await.unwrap();
    }
    assert!(able.snapshots().saved(&owner).await.unwrap().is_empty());
}

async fn a_save_tells_what_it_holds(able: Able) {
    let (owner, lab) = (somebody(), name("lab"));
    let sandbox = Subject::with(able.engine.clone(), of(&owner)).await;
    sandbox.write("file", &vec![7; 300_000]).await;
    let before = std::time::SystemTime::now();
    let saved = able.snapshots().save(&sandbox.id, &lab).await.unwrap();
    sandbox.destroy().await;
    assert_eq!((&saved.name, saved.left_out), (&lab, 0));
    let hex = saved.digest.strip_prefix("sha256:").expect("a digest as registries know it");
    assert!(hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hex}");
    assert!((300_000..3_000_000).contains(&saved.bytes), "{}", saved.bytes);
    // A store may count in seconds.
    assert!(saved.saved_at + seconds(2) > before, "{:?}", saved.saved_at);
    assert_eq!(able.snapshots().saved(&owner).await.unwrap(), [saved]);
    able.snapshots().forget(&owner, &lab).await.unwrap();
}

async fn a_save_of_a_save_holds_what_is_new(able: Able) {
    let owner = somebody();
    let first = Subject::with(able.engine.clone(), of(&owner)).await;
    first.write("large", &vec![7; 2_000_000]).await;
    able.snapshots().save(&first.id, &name("one")).await.unwrap();
    first.destroy().await;
    let second = Subject::with(able.engine.clone(), from(&owner, &name("one"))).await;
    second.write("small", b"x").await;
    let saved = able.snapshots().save(&second.id, &name("two")).await.unwrap();
    second.destroy().await;
    assert!(saved.bytes < 1_000_000, "{}", saved.bytes);
    // The layers below are still needed when their own name is gone.
    able.snapshots().forget(&owner, &name("one")).await.unwrap();
    let third = Subject::with(able.engine.clone(), from(&owner, &name("two"))).await;
    assert_eq!(third.read("large").await.len(), 2_000_000);
    assert_eq!(third.read("small").await, b"x");
    third.destroy().await;
    able.snapshots().forget(&owner, &name("two")).await.unwrap();
}

async fn what_no_image_can_hold_is_counted(able: Able) {
    let (owner, lab) = (somebody(), name("lab"));
    let sandbox = Subject::with(able.engine.clone(), of(&owner)).await;
    sandbox.says("mkfifo fifo; mkdir d; mkfifo d/fifo; echo x > file").await;
    let saved = able.snapshots().save(&sandbox.id, &lab).await.unwrap();
    assert_eq!(saved.left_out, 2);
    assert!(sandbox.exists("fifo").await, "a save changes nothing");
    sandbox.destroy().await;
    let second = Subject::with(able.engine.clone(), from(&owner, &lab)).await;
    assert_eq!(second.tree("/workspace").await, ["/workspace/d", "/workspace/file"]);
    second.destroy().await;
    able.snapshots().forget(&owner, &lab).await.unwrap();
}

async fn a_command_goes_on_meanwhile(able: Able) {
    let (owner, lab) = (somebody(), name("lab"));
    let sandbox = Subject::with(able.engine.clone(), of(&owner)).await;
    sandbox.write("file", b"x").await;
    let waiting = sandbox.start(&ExecRequest::shell("cat; cat file", seconds(50)).unwrap()).await;
    able.snapshots().save(&sandbox.id, &lab).await.unwrap();
    let ended = super::subject::finish(waiting).await;
    assert_eq!((ended.status(), ended.text().as_str()), (ExecStatus::Exited(0), "x"));
    sandbox.destroy().await;
    able.snapshots().forget(&owner, &lab).await.unwrap();
}

async fn one_that_is_gone_is_not_saved(able: Able) {
    let owner = somebody();
    let sandbox = Subject::with(able.engine.clone(), of(&owner)).await;
    let id = sandbox.id.clone();
    sandbox.destroy().await;
    assert_eq!(kind(able.snapshots().save(&id, &name("lab")).await), ErrorKind::NotFound);
    assert!(able.snapshots().saved(&owner).await.unwrap().is_empty());
}

async fn a_name_that_nobody_saved_is_no_image(able: Able) {
    let owner = somebody();
    let id = SandboxId::random().unwrap();
    assert_eq!(kind(able.engine.create(&id, &from(&owner, &name("nothing"))).await), ErrorKind::NotFound);
    assert!(!able.snapshots().forget(&owner, &name("nothing")).await.unwrap());
}
